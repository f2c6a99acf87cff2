package allocator

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"
)

const (
	// absentAfter is how long metadata must lack an address, in two answers, before it counts as absent.
	absentAfter = 10 * time.Second
	// otherAgain is how long an address that another holds rests before it is tried again.
	otherAgain = time.Minute
	// forgetAfter is how long an address that nobody holds stays in the store after metadata dropped it.
	forgetAfter = time.Hour
)

// Sync takes over what metadata and the node's links say. An unchanged snapshot costs no more than noting its time; what it
// leaves open (an address missing once, one used by another) is followed up all the same.
func (s *Store) Sync(ctx context.Context, snap Snapshot) error {
	mark := snap.mark()
	return s.update(ctx, "store snapshot", func(t *txn) error {
		st, err := t.snapshot()
		if err != nil {
			return err
		}
		if !st.known || snap.Digest == ([32]byte{}) || st.mark != mark {
			if mark, err = s.merge(t, &snap, mark); err != nil {
				return err
			}
			st.known, st.digest, st.mark = true, snap.Digest, mark
			st.ever = st.ever || slices.ContainsFunc(snap.NICs, func(n NIC) bool { return len(n.Addrs) > 0 })
		}
		st.at = t.now
		if err := t.settle(); err != nil {
			return err
		}
		return t.putSnapshot(st)
	})
}

// Touch is Sync with a snapshot that is known to be the last one again.
func (s *Store) Touch(ctx context.Context) error {
	return s.update(ctx, "note snapshot", func(t *txn) error {
		st, err := t.snapshot()
		if err != nil || !st.known {
			return err
		}
		st.at = t.now
		if err := t.settle(); err != nil {
			return err
		}
		return t.putSnapshot(st)
	})
}

// Withhold has nothing handed out of these NICs until the next Sync, which looks at them again.
func (s *Store) Withhold(ctx context.Context, macs ...MAC) error {
	return s.update(ctx, "withhold NICs", func(t *txn) error {
		nics, err := t.nics()
		if err != nil {
			return err
		}
		for _, n := range nics {
			if !slices.Contains(macs, n.MAC) {
				continue
			}
			n.Skipped = true
			if err := t.putNIC(n); err != nil {
				return err
			}
		}
		st, err := t.snapshot()
		if err != nil {
			return err
		}
		st.mark = [32]byte{}
		return t.putSnapshot(st)
	})
}

// mark digests all that Sync compares. The addresses themselves are covered by the document's digest.
func (s *Snapshot) mark() (mark [32]byte) {
	h := sha256.New()
	write := func(b []byte) { _, _ = h.Write(binary.AppendUvarint(nil, uint64(len(b)))); _, _ = h.Write(b) }
	write(s.Digest[:])
	for _, n := range s.NICs {
		write(n.MAC[:])
		write([]byte(n.Link))
		write(n.Primary.AsSlice())
		write(binary.AppendUvarint(nil, uint64(len(n.Addrs))))
		for _, p := range n.Subnets {
			write([]byte(p.String()))
		}
		for _, a := range n.OnLink {
			write(a.AsSlice())
		}
	}
	write(nil)
	for _, m := range s.Skipped {
		write(m[:])
	}
	return [32]byte(h.Sum(nil))
}

// settle follows up what snapshots leave open, at the price of what is open: addresses that stay missing become absent, those
// that another held are put back at the tail (the kernel is asked again before one is handed out), cooled ones become free.
func (t *txn) settle() error {
	if err := t.revise(bucketMissing, nil, func(r *record) bool {
		if r.Missing > t.now { // as for rewind: the second time starts anew
			r.Missing = t.now
			return true
		}
		if r.Missing+absentAfter > t.now {
			return false
		}
		r.Present = false
		return true
	}); err != nil {
		return err
	}
	if err := t.revise(bucketBlocked, []byte{byte(UsedByOther)}, func(r *record) bool {
		if r.BlockedAt <= t.now && r.BlockedAt+otherAgain > t.now {
			return false
		}
		r.Blocked, r.BlockedAt = NotBlocked, 0
		*r = t.tail(*r)
		return true
	}); err != nil {
		return err
	}
	return t.ripen()
}

// revise offers every record that an index prefix leads to and stores those that fn changed.
func (t *txn) revise(bucket string, prefix []byte, fn func(*record) bool) error {
	var keys [][]byte
	err := t.walk(bucket, prefix, func(k, _ []byte) (bool, error) {
		keys = append(keys, slices.Clone(k))
		return true, nil
	})
	if err != nil {
		return err
	}
	for _, k := range keys {
		a, r, err := t.indexed(bucket, k)
		if err != nil {
			return err
		}
		next := r
		if !fn(&next) {
			continue
		}
		if err := t.change(a, &r, &next); err != nil {
			return err
		}
	}
	return nil
}
