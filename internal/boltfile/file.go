package boltfile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
	"golang.org/x/sys/unix"
)

const (
	// openTimeout bounds bbolt's own lock. With LockPath held only a foreign reader (the bbolt command) can have it.
	openTimeout = time.Second
	// allocSize is by how much a large file grows; bbolt's default of 16 MiB would be a quarter of a full store.
	allocSize = 1 << 20
)

// Options say where a store is and how it is filled.
type Options struct {
	Path     string // the bbolt file
	LockPath string // the lock file that guards it
	Schema   uint32 // what this program writes; it also reads Schema-1
	BootID   string // a store with another one is rebuilt
	// LockTimeout bounds the wait for LockPath. Zero: only the context does.
	LockTimeout time.Duration
	// Rebuild fills an empty store. It runs under the exclusive lock, in the transaction that writes `complete`.
	Rebuild func(ctx context.Context, tx *bolt.Tx, why Reason) error
	// Migrate brings a store of Schema-1 to Schema, in the transaction of the first Update that meets it. Nil: nothing to do.
	Migrate func(tx *bolt.Tx, from uint32) error
	Log     *slog.Logger // nil: discard
}

// File is a store. It holds nothing open between calls, so a value may live as long as it likes.
type File struct {
	opt Options
	log *slog.Logger
}

// New returns the store at opt.Path. It does no I/O.
func New(opt Options) *File {
	log := opt.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &File{opt: opt, log: log}
}

// Update runs fn in a read-write transaction and commits it. fn may run twice (after a rebuild), so it must not leave traces
// outside the transaction when it fails, and must copy what it keeps.
func (f *File) Update(ctx context.Context, fn func(*bolt.Tx) error) error {
	return f.exclusive(ctx, true, fn)
}

// View runs fn in a read-only transaction, beside other readers. A store that has to be rebuilt first is, under the exclusive
// lock. What is said about fn at Update holds here too.
func (f *File) View(ctx context.Context, fn func(*bolt.Tx) error) error {
	held, err := f.lock(ctx, LockShared)
	if err != nil {
		return err
	}
	err = f.session(false, fn)
	held.Unlock()
	var s *stale
	if !errors.As(err, &s) {
		return err
	}
	// Another process may have rebuilt it by the time we have the lock: exclusive looks again.
	return f.exclusive(ctx, false, fn)
}

func (f *File) exclusive(ctx context.Context, write bool, fn func(*bolt.Tx) error) error {
	held, err := f.lock(ctx, Lock)
	if err != nil {
		return err
	}
	defer held.Unlock()
	err = f.session(write, fn)
	var s *stale
	if !errors.As(err, &s) {
		return err
	}
	if err := f.renew(ctx, s); err != nil {
		return err
	}
	if err = f.session(write, fn); errors.As(err, &s) {
		return fmt.Errorf("%w: store %s after a rebuild: %w", ErrUnusable, f.opt.Path, err)
	}
	return err
}

func (f *File) lock(ctx context.Context, take func(context.Context, string) (*Held, error)) (*Held, error) {
	if f.opt.LockTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.opt.LockTimeout)
		defer cancel()
	}
	return take(ctx, f.opt.LockPath)
}

// session is one open, transaction, close. A store that can't be trusted comes back as *stale.
func (f *File) session(write bool, fn func(*bolt.Tx) error) error {
	return guard(func(file **os.File) error {
		db, err := f.open(write, file)
		if err != nil {
			return err
		}
		err = f.transact(db, write, fn)
		if cerr := db.Close(); err == nil && cerr != nil {
			err = unusable("close store", f.opt.Path, cerr)
		}
		return err
	})
}

// open opens a store that is there and passes every check that costs O(1).
func (f *File) open(write bool, file **os.File) (*bolt.DB, error) {
	noSync, err := f.lookAt(write)
	if err != nil {
		return nil, err
	}
	db, err := bolt.Open(f.opt.Path, fileMode, &bolt.Options{
		Timeout:      openTimeout,
		ReadOnly:     !write,
		NoSync:       noSync,
		NoGrowSync:   noSync,
		FreelistType: bolt.FreelistArrayType,
		NoStatistics: true,
		OpenFile: func(path string, flag int, mode os.FileMode) (*os.File, error) {
			opened, err := openChecked(path, flag&^os.O_CREATE, mode)
			*file = opened
			return opened, err
		},
	})
	if err != nil {
		return nil, f.openError(err, *file)
	}
	db.AllocSize = allocSize
	return db, nil
}

// openChecked opens the file and looks at its meta pages before bbolt does.
func openChecked(path string, flag int, mode os.FileMode) (*os.File, error) {
	file, err := openFile(path, flag, mode)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil {
		err = checkHeader(file, info.Size())
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

func (f *File) openError(err error, file *os.File) error {
	var s *stale
	switch {
	case errors.As(err, &s):
		return err
	case isBoltDamage(err):
		return damage("open: %w", err)
	case errors.Is(err, bolterrors.ErrTimeout):
		holder := nobodyKnown
		if again, oerr := os.Open(f.opt.Path); oerr == nil {
			holder = flockHolder(again)
			_ = again.Close()
		}
		return fmt.Errorf("open store %s: %w: held by %s", f.opt.Path, ErrBusy, holder)
	case errors.Is(err, os.ErrNotExist):
		return &stale{why: ReasonMissing}
	}
	_ = file
	return unusable("open store", f.opt.Path, err)
}

// transact checks that the store is complete, of this boot and of a schema we read, then runs fn.
func (f *File) transact(db *bolt.DB, write bool, fn func(*bolt.Tx) error) error {
	tx, err := db.Begin(write)
	if err != nil {
		return unusable("begin in store", f.opt.Path, err)
	}
	if err := f.run(tx, write, fn); err != nil {
		_ = tx.Rollback()
		return err
	}
	if !write {
		return tx.Rollback()
	}
	if err := commit(tx); err != nil {
		_ = tx.Rollback() // closed already, unless the commit was never tried
		return unusable("commit to store", f.opt.Path, err)
	}
	return nil
}

func (f *File) run(tx *bolt.Tx, write bool, fn func(*bolt.Tx) error) error {
	schema, err := f.checkComplete(tx)
	if err != nil {
		return err
	}
	if write && schema != f.opt.Schema {
		err = f.migrate(tx, schema)
	}
	if err == nil {
		err = fn(tx)
	}
	var s *stale
	if errors.Is(err, ErrDamaged) && !errors.As(err, &s) {
		return &stale{why: ReasonDamaged, cause: err}
	}
	return err
}

// lookAt refuses what isn't a store of ours before anything opens it, and tells whether the file lives in memory.
func (f *File) lookAt(write bool) (noSync bool, err error) {
	info, err := os.Lstat(f.opt.Path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return false, &stale{why: ReasonMissing}
	case err != nil:
		return false, unusable("open store", f.opt.Path, err)
	}
	if err := checkFile(info); err != nil {
		return false, unusable("open store", f.opt.Path, err)
	}
	if info.Size() == 0 {
		return false, &stale{why: ReasonEmpty}
	}
	return write && inMemory(f.opt.Path), nil
}

// inMemory reports whether syncing the path is pointless.
func inMemory(path string) bool {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return false
	}
	return st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC
}
