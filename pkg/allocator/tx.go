package allocator

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/native-vmss/native-vmss/internal/boltfile"
)

// Buckets; the tree is drawn in doc.go.
const (
	bucketV4      = "addr4"
	bucketV6      = "addr6"
	bucketKeys    = "keys"
	bucketFree    = "free"
	bucketCooling = "cooling"
	bucketBlocked = "blocked"
	bucketMissing = "missing"
	bucketNICs    = "nics"
	bucketCounts  = "counts"
	bucketState   = "state"
	bucketMeters  = "meters"
	bucketSlots   = "slots"
	bucketTotals  = "totals"
)

// fills say how full a page is left when it splits: addresses and times arrive mostly in order, hashes don't.
var fills = map[string]float64{
	bucketV4: 0.9, bucketV6: 0.9, bucketFree: 0.95, bucketCooling: 0.95, bucketKeys: bolt.DefaultFillPercent,
	bucketBlocked: 0.9, bucketMissing: 0.9, bucketNICs: 0.9, bucketCounts: 0.9, bucketState: 0.9,
	bucketMeters: 0.9, bucketSlots: 0.9, bucketTotals: bolt.DefaultFillPercent,
}

// txn is one transaction at one time of the boot clock. All access to buckets goes through it: values are sealed on the way in
// and checked on the way out, and records change together with their indexes and counters.
type txn struct {
	tx      *bolt.Tx
	now     time.Duration
	cool    time.Duration
	buckets map[string]*bolt.Bucket
	cached  []nic // of nics, nil: not read yet
}

func newTxn(tx *bolt.Tx, now, cool time.Duration) *txn {
	return &txn{tx: tx, now: now, cool: cool, buckets: make(map[string]*bolt.Bucket, len(fills))}
}

func (t *txn) bucket(name string) (*bolt.Bucket, error) {
	if b := t.buckets[name]; b != nil {
		return b, nil
	}
	b := t.tx.Bucket([]byte(name))
	if b == nil {
		return nil, damaged("no bucket %s", name)
	}
	b.FillPercent = fills[name]
	t.buckets[name] = b
	return b, nil
}

// get returns the value of a key, without its sum; it is valid until the transaction ends or changes the bucket. A key that
// isn't there is believed only if its two neighbours are whole and in order: a flipped byte in a key or in an inner page sends
// the search to the wrong place, and "not found" would be "not leased".
func (t *txn) get(bucket string, key []byte) (value []byte, found bool, err error) {
	b, err := t.bucket(bucket)
	if err != nil {
		return nil, false, err
	}
	c := b.Cursor()
	k, v := c.Seek(key)
	if bytes.Equal(k, key) {
		value, err = boltfile.Unseal(bucket, key, v)
		return value, err == nil, err
	}
	if k == nil {
		k, v = c.Last()
	} else if err := t.neighbour(bucket, k, v, bytes.Compare(k, key) > 0); err != nil {
		return nil, false, err
	} else {
		k, v = c.Prev()
	}
	if k == nil {
		return nil, false, nil
	}
	return nil, false, t.neighbour(bucket, k, v, bytes.Compare(k, key) < 0)
}

func (t *txn) neighbour(bucket string, k, v []byte, inOrder bool) error {
	if !inOrder {
		return damaged("%s/%x is out of order", bucket, k)
	}
	_, err := boltfile.Unseal(bucket, k, v)
	return err
}

// first returns the first key of a bucket that starts with prefix.
func (t *txn) first(bucket string, prefix []byte) (key []byte, err error) {
	err = t.walk(bucket, prefix, func(k, _ []byte) (bool, error) {
		key = slices.Clone(k)
		return false, nil
	})
	return key, err
}

// last returns the last key of a bucket that starts with prefix.
func (t *txn) last(bucket string, prefix []byte) ([]byte, error) {
	b, err := t.bucket(bucket)
	if err != nil {
		return nil, err
	}
	c := b.Cursor()
	after, _ := c.Seek(append(slices.Clone(prefix), bytes.Repeat([]byte{0xff}, timeKeyAddr)...)) // of all of them
	step := c.Prev
	if after == nil {
		step = c.Last
	}
	k, v := step()
	if !bytes.HasPrefix(k, prefix) {
		return nil, nil
	}
	_, err = boltfile.Unseal(bucket, k, v)
	return slices.Clone(k), err
}

// walk calls fn for each key that starts with prefix, in order, until it returns false. fn must not change the bucket.
func (t *txn) walk(bucket string, prefix []byte, fn func(k, v []byte) (more bool, err error)) error {
	b, err := t.bucket(bucket)
	if err != nil {
		return err
	}
	c := b.Cursor()
	var last []byte
	for k, v := c.Seek(prefix); k != nil; k, v = c.Next() {
		v, err := boltfile.Unseal(bucket, k, v)
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(k, prefix) {
			return nil
		}
		if bytes.Compare(last, k) >= 0 && last != nil {
			return damaged("%s/%x is out of order", bucket, k)
		}
		last = append(last[:0], k...)
		more, err := fn(k, v)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

func (t *txn) put(bucket string, key, value []byte) error {
	b, err := t.bucket(bucket)
	if err != nil {
		return err
	}
	if err := b.Put(key, boltfile.Seal(bucket, key, value)); err != nil {
		return fmt.Errorf("put %s/%x: %w", bucket, key, err)
	}
	return nil
}

// remove deletes a key that must be there.
func (t *txn) remove(bucket string, key []byte) error {
	_, found, err := t.get(bucket, key)
	if err != nil {
		return err
	}
	if !found {
		return damaged("%s/%x is missing", bucket, key)
	}
	if err := t.buckets[bucket].Delete(key); err != nil {
		return fmt.Errorf("delete %s/%x: %w", bucket, key, err)
	}
	return nil
}

func addrBucket(a netip.Addr) string {
	if a.Is4() {
		return bucketV4
	}
	return bucketV6
}

// record returns the record of an address.
func (t *txn) record(a netip.Addr) (r record, found bool, err error) {
	v, found, err := t.get(addrBucket(a), a.AsSlice())
	if err != nil || !found {
		return record{}, false, err
	}
	r, err = decodeRecord(v)
	if err != nil {
		return record{}, false, damaged("record of %s: %w", a, err)
	}
	return r, true, nil
}

// indexed returns the record that an index entry leads to. It must be there and lead back to the same entry.
func (t *txn) indexed(bucket string, key []byte) (netip.Addr, record, error) {
	a, ok := indexAddr(bucket, key)
	if !ok {
		return netip.Addr{}, record{}, damaged("%s/%x names no address", bucket, key)
	}
	r, found, err := t.record(a)
	if err != nil {
		return netip.Addr{}, record{}, err
	}
	if found {
		for _, e := range r.entries(a) {
			if e.bucket == bucket && bytes.Equal(e.key, key) {
				return a, r, nil
			}
		}
	}
	return netip.Addr{}, record{}, damaged("%s/%x contradicts the record of %s", bucket, key, a)
}

// change replaces the record of an address (old nil: there is none yet; new nil: it is forgotten) together with its index
// entries and counters, so that these can't drift apart.
func (t *txn) change(a netip.Addr, old, next *record) error {
	was, is := old.entries(a), next.entries(a)
	for _, e := range was {
		if !slices.ContainsFunc(is, e.equal) {
			if err := t.remove(e.bucket, e.key); err != nil {
				return err
			}
		}
	}
	for _, e := range is {
		if !slices.ContainsFunc(was, e.equal) {
			if err := t.put(e.bucket, e.key, nil); err != nil {
				return err
			}
		}
	}
	if err := t.recount(old, next); err != nil {
		return err
	}
	if next == nil {
		if err := t.forgetMeter(a); err != nil {
			return err
		}
		return t.remove(addrBucket(a), a.AsSlice())
	}
	return t.put(addrBucket(a), a.AsSlice(), next.encode())
}

// entry is a key of an index bucket.
type entry struct {
	bucket string
	key    []byte
}

func (e entry) equal(o entry) bool { return e.bucket == o.bucket && bytes.Equal(e.key, o.key) }

// keyPrefix is how much of a lease's key its index entry holds; the rest is compared in the record.
const keyPrefix = 8

// timeKeyAddr is where the address begins in a key of the indexes by time: NIC id uint16, time uint64, both big endian so that
// they sort.
const timeKeyAddr = 10

// entries are the index entries that follow from a record.
func (r *record) entries(a netip.Addr) (e []entry) {
	if r == nil {
		return nil
	}
	addr := a.AsSlice()
	if r.pooled() {
		bucket := bucketFree
		if r.State == Cooling {
			bucket = bucketCooling
		}
		k := binary.BigEndian.AppendUint64(nicPrefix(r.NIC), uint64(r.Since))
		e = append(e, entry{bucket, append(k, addr...)})
	}
	if r.held() && r.Owner.Key != (Hash{}) { // a holder that nobody can name is found by its address only
		e = append(e, entry{bucketKeys, append(slices.Clone(r.Owner.Key[:keyPrefix]), addr...)})
	}
	if r.Blocked != NotBlocked {
		e = append(e, entry{bucketBlocked, append([]byte{byte(r.Blocked)}, addr...)})
	}
	if r.Missing != 0 && r.Present {
		e = append(e, entry{bucketMissing, addr})
	}
	return e
}

// keyNumber reads a key that is a NIC's id or an address's number.
func keyNumber(bucket string, k []byte) (uint16, error) {
	if len(k) != 2 {
		return 0, damaged("%s/%x is no number", bucket, k)
	}
	return binary.BigEndian.Uint16(k), nil
}

func nicPrefix(id uint16) []byte {
	return binary.BigEndian.AppendUint16(make([]byte, 0, timeKeyAddr+16), id)
}

// indexAddr returns the address at the end of an index key.
func indexAddr(bucket string, key []byte) (netip.Addr, bool) {
	at := map[string]int{bucketFree: timeKeyAddr, bucketCooling: timeKeyAddr, bucketKeys: keyPrefix, bucketBlocked: 1}[bucket]
	if len(key) < at {
		return netip.Addr{}, false
	}
	return netip.AddrFromSlice(key[at:])
}

// indexTime returns the time in a key of an index by time.
func indexTime(key []byte) (time.Duration, error) {
	if len(key) < timeKeyAddr {
		return 0, errors.Join(boltfile.ErrDamaged, errShort)
	}
	return time.Duration(binary.BigEndian.Uint64(key[2:timeKeyAddr])), nil
}
