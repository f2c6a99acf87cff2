// Package boltfile keeps a bbolt file that many short-lived processes share: its locks, its deadline, its schema and what is
// done about damage. It knows nothing about what is stored.
//
// # Locks
//
// bbolt's own lock polls every 50 ms and starves under load (250 processes: 1,050 ms against 240 ms). So a lock file beside
// the store is locked first, by a call that blocks in the kernel's queue; then the store is opened, one short transaction runs
// and the store is closed. A waiter is bounded by its context; the error of one that gave up names who holds the lock.
//
// # What counts as a store
//
// bbolt opens a missing or an empty file as a good, empty store, has no page checksums and falls back to the transaction
// before the last when one of its two meta pages is bad. Each of those would turn addresses in use into free ones. So:
//
//   - bbolt never creates the file. It is built under another name by Options.Rebuild and renamed into place when the
//     transaction that holds the key `complete` is committed; the path therefore never shows half a store.
//   - Before bbolt sees the file, both meta pages must have the right sum and the file must reach the last page in use, which
//     finds every truncation in O(1).
//   - Everything runs with debug.SetPanicOnFault and one recover: a bad page is a panic, a fault or an error, never a crash.
//   - Values are sealed: Seal appends a CRC-32C over bucket, key and value; Open returns ErrDamaged when it doesn't fit.
//
// Layout of what this package itself stores (all numbers little endian):
//
//	meta/complete -> schema uint32, boot id string, CRC-32C uint32
//
// A store of another boot or of a schema older than Schema-1 is rebuilt with an info line. A damaged one is first renamed to
// <path>.damaged-<unix seconds> (the newest three are kept) with one error line. Whatever the machine refuses (mode, owner,
// read-only or full file system, something else in the file's place) is ErrUnusable and changes nothing.
package boltfile
