package allocator

import (
	"context"
	"fmt"
	"net/netip"
)

// Release marks the key's lease as being torn down and returns it. It may be repeated; false means that the key has none.
func (s *Store) Release(ctx context.Context, key Hash) (Lease, bool, error) {
	var (
		out   Lease
		found bool
	)
	err := s.update(ctx, "release lease", func(t *txn) error {
		a, r, ok, err := t.byKey(key)
		if found = ok; err != nil || !ok {
			return err
		}
		out, err = t.release(a, r)
		return err
	})
	if err != nil {
		return Lease{}, false, err
	}
	return out, found, nil
}

// ReleaseAddr is Release by address, for leases whose key nobody can name any more. The generation must be the lease's own.
func (s *Store) ReleaseAddr(ctx context.Context, addr netip.Addr, generation uint64) (Lease, error) {
	var out Lease
	err := s.update(ctx, "release address", func(t *txn) error {
		l := Lease{Addr: addr.Unmap(), Generation: generation}
		r, err := t.current(l)
		if err != nil {
			return err
		}
		out, err = t.release(l.Addr, r)
		return err
	})
	if err != nil {
		return Lease{}, err
	}
	return out, nil
}

func (t *txn) release(a netip.Addr, r record) (Lease, error) {
	next := r
	if r.State == Leased {
		next.State, next.Since = Releasing, t.now
		if err := t.change(a, &r, &next); err != nil {
			return Lease{}, err
		}
	}
	l, err := t.lease(a, &next)
	if err != nil {
		return Lease{}, err
	}
	if m, found, err := t.meter(a); err != nil {
		return Lease{}, err
	} else if found && m.Use == next.Generation {
		l.Meter = &m
	}
	return l, nil
}

// Cool ends a lease that Release marked, once its link and route are gone; the cool-down starts now. l.FlushDue says whether
// conntrack entries of the pod are still to be flushed; last are the last values of its counters, nil: it has none. A lease that is
// over already stays so.
func (s *Store) Cool(ctx context.Context, l Lease, last []Sample) error {
	return s.update(ctx, "cool address", func(t *txn) error {
		r, found, err := t.record(l.Addr)
		switch {
		case err != nil:
			return err
		case !found || !r.held():
			return nil
		case r.Generation != l.Generation || r.State != Releasing:
			return fmt.Errorf("%w: %s is %s with generation %d, not %d", ErrStale, l.Addr, r.State, r.Generation, l.Generation)
		}
		if err := t.endMeter(l.Addr, last, func(m *Meter) bool { return m.Use == l.Generation }); err != nil {
			return err
		}
		next := r.free(Cooling, t.now)
		next.Last, next.FlushDue = r.Owner.Key, l.FlushDue
		if err := t.change(l.Addr, &r, &next); err != nil {
			return err
		}
		return t.ripen()
	})
}

// Flushed closes the note that conntrack entries of an earlier user may be there. Somebody else may have closed it, or leased
// the address since and closed it then: both are no error.
func (s *Store) Flushed(ctx context.Context, l Lease) error {
	return s.update(ctx, "note flush", func(t *txn) error {
		r, found, err := t.record(l.Addr)
		if err != nil || !found || !r.FlushDue || r.Generation != l.Generation {
			return err
		}
		next := r
		if next.FlushDue = false; next.State == Free {
			next = next.free(Free, r.Since) // the generation was kept for the note
		}
		return t.change(l.Addr, &r, &next)
	})
}
