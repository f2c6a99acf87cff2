package allocator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/native-vmss/native-vmss/internal/boltfile"
	"github.com/native-vmss/native-vmss/internal/boot"
)

// Files in the state directory.
const (
	storeFile = "ipam.db"
	lockFile  = "ipam.lock"
)

// schema is the version of the layout that doc.go draws. boltfile also lets a store of the version before it in: the step from
// there belongs in its Options.Migrate below (a View reads such a store as it is), and testdata keeps a store of each to show it.
const schema = 2

// Options say where the store is and how it behaves.
type Options struct {
	Dir         string        // the state directory
	CoolDown    time.Duration // how long a released address rests
	LockTimeout time.Duration // bound of the wait for ipam.lock; zero: the context's
	BootID      string
	Now         func() time.Duration                        // boot clock; nil: boot.Clock
	Kernel      func(ctx context.Context) (Observed, error) // asked by a rebuild only
	Log         *slog.Logger                                // nil: discard
}

// Store hands out addresses. It holds nothing open between calls; any number of processes use the same directory.
type Store struct {
	opt  Options
	log  *slog.Logger
	file *boltfile.File
}

// Open returns the store of a state directory. It does no I/O.
func Open(opt Options) *Store {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Now == nil {
		opt.Now = boot.Clock
	}
	s := &Store{opt: opt, log: opt.Log}
	s.file = boltfile.New(boltfile.Options{
		Path:        filepath.Join(opt.Dir, storeFile),
		LockPath:    filepath.Join(opt.Dir, lockFile),
		LockTimeout: opt.LockTimeout,
		Schema:      schema,
		BootID:      opt.BootID,
		Rebuild:     s.rebuild,
		Migrate:     s.migrate,
		Log:         opt.Log,
	})
	return s
}

// migrate gives a store of schema 1, which knows nothing of traffic, empty books.
func (s *Store) migrate(tx *bolt.Tx, _ uint32) error {
	for _, name := range []string{bucketMeters, bucketSlots, bucketTotals} {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return fmt.Errorf("create bucket %s: %w", name, err)
		}
	}
	return newTxn(tx, s.opt.Now(), s.opt.CoolDown).putSummary(summary{})
}

func (s *Store) update(ctx context.Context, op string, fn func(*txn) error) error {
	err := s.file.Update(ctx, func(tx *bolt.Tx) error { return fn(newTxn(tx, s.opt.Now(), s.opt.CoolDown)) })
	return wrap(op, err)
}

func (s *Store) view(ctx context.Context, op string, fn func(*txn) error) error {
	err := s.file.View(ctx, func(tx *bolt.Tx) error { return fn(newTxn(tx, s.opt.Now(), s.opt.CoolDown)) })
	return wrap(op, err)
}

func wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", op, err)
}

// Read returns what an ADD, CHECK or STATUS needs to know in one transaction.
func (s *Store) Read(ctx context.Context, key Hash) (View, error) {
	var view View
	err := s.view(ctx, "read store", func(t *txn) (err error) {
		view, err = t.view(key)
		return err
	})
	if err != nil {
		return View{}, err
	}
	return view, nil
}

func (t *txn) view(key Hash) (v View, err error) {
	node, found, err := t.get(bucketState, keyNode)
	if err != nil {
		return View{}, err
	}
	if found {
		v.Node = bytes.Clone(node)
	}
	snap, err := t.snapshot()
	if err != nil {
		return View{}, err
	}
	v.SnapshotAt, v.SnapshotKnown, v.Digest, v.EverKnown = snap.at, snap.known, snap.digest, snap.ever
	nics, err := t.nics()
	if err != nil {
		return View{}, err
	}
	for _, n := range nics {
		v.NICs = append(v.NICs, n.NICInfo)
	}
	if v.Totals, v.NextReady, err = t.allTotals(); err != nil {
		return View{}, err
	}
	a, r, found, err := t.byKey(key)
	if err != nil || !found {
		return v, err
	}
	lease, err := t.lease(a, &r)
	v.Lease = &lease
	return v, err
}

// PutNode stores the record that pkg/node keeps about the node. It is opaque here.
func (s *Store) PutNode(ctx context.Context, node []byte) error {
	return s.update(ctx, "store node record", func(t *txn) error {
		return t.put(bucketState, keyNode, bytes.Clone(node))
	})
}

// List returns every address in address order, free ones too. It reads all there is, and so compares all there is.
func (s *Store) List(ctx context.Context) ([]Lease, error) {
	var list []Lease
	err := s.view(ctx, "list store", func(t *txn) error {
		list = nil
		macs, err := t.macs()
		if err != nil {
			return err
		}
		sum := newTally()
		err = t.each(func(a netip.Addr, v []byte) error {
			r, err := decodeRecord(v)
			if err != nil {
				return damaged("record of %s: %w", a, err)
			}
			sum.add(a, &r)
			list = append(list, makeLease(a, &r, macs[r.NIC]))
			return nil
		})
		if err != nil {
			return err
		}
		return t.compare(sum)
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

// each calls fn for every address record in address order.
func (t *txn) each(fn func(a netip.Addr, v []byte) error) error {
	for _, bucket := range []string{bucketV4, bucketV6} {
		err := t.walk(bucket, nil, func(k, v []byte) (bool, error) {
			a, ok := netip.AddrFromSlice(k)
			if !ok || addrBucket(a) != bucket {
				return false, damaged("%s/%x is no address", bucket, k)
			}
			return true, fn(a, v)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// byKey returns the address a key has, leased or releasing. A key has one; should a rebuild have found two links with the same
// key, it is the younger.
func (t *txn) byKey(key Hash) (addr netip.Addr, rec record, found bool, err error) {
	if key == (Hash{}) {
		return netip.Addr{}, record{}, false, nil
	}
	var keys [][]byte
	err = t.walk(bucketKeys, key[:keyPrefix], func(k, _ []byte) (bool, error) {
		keys = append(keys, slices.Clone(k))
		return true, nil
	})
	if err != nil {
		return netip.Addr{}, record{}, false, err
	}
	if len(keys) == 0 { // make sure that it is the index which says so, and not a damaged page
		_, _, err := t.get(bucketKeys, key[:keyPrefix])
		return netip.Addr{}, record{}, false, err
	}
	for _, k := range keys {
		a, r, err := t.indexed(bucketKeys, k)
		if err != nil {
			return netip.Addr{}, record{}, false, err
		}
		if r.Owner.Key == key && (!found || r.Generation > rec.Generation) {
			addr, rec, found = a, r, true
		}
	}
	return addr, rec, found, nil
}

// lease returns the record in the form callers see.
func (t *txn) lease(a netip.Addr, r *record) (Lease, error) {
	macs, err := t.macs()
	return makeLease(a, r, macs[r.NIC]), err
}

func makeLease(a netip.Addr, r *record, mac MAC) Lease {
	l := Lease{
		Addr: a, Generation: r.Generation, NIC: mac, State: r.State, Since: r.Since,
		Present: r.Present, Blocked: r.Blocked, Owner: r.Owner, LinkName: r.LinkName, FlushDue: r.FlushDue,
	}
	if r.Time != 0 {
		l.Time = time.UnixMilli(r.Time)
	}
	return l
}

var errNoKernel = errors.New("no way to ask the kernel who holds which address")
