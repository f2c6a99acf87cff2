package allocator

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Lease gives the key an address: the one it has (Existing), the one it wants, or the one that has been idle for longest. The
// caller must ask the kernel about the address before it uses it, and call Block when it is in use.
func (s *Store) Lease(ctx context.Context, req Request) (Lease, error) {
	var out Lease
	err := s.update(ctx, "lease address", func(t *txn) error {
		a, r, found, err := t.byKey(req.Key)
		switch {
		case err != nil:
			return err
		case found && r.State == Releasing:
			return fmt.Errorf("%w: %s", ErrReleasing, a)
		case found && req.Want.IsValid() && req.Want.Unmap() != a:
			return fmt.Errorf("%w: %s was asked for, but this attachment holds %s until its DEL", ErrNotAvailable, req.Want, a)
		case found:
			out, err = t.metered(a, &r, req)
			out.Existing = true
			return err
		}
		if err := t.ripen(); err != nil {
			return err
		}
		if a, r, err = t.choose(req); err != nil {
			return err
		}
		next, err := t.assign(a, r, req)
		if err != nil {
			return err
		}
		out, err = t.metered(a, &next, req)
		if err == nil && req.Orphaned != nil && req.Orphaned() {
			return ErrOrphaned
		}
		return err
	})
	if err != nil {
		return Lease{}, err
	}
	return out, nil
}

// assign writes the lease.
func (t *txn) assign(a netip.Addr, r record, req Request) (record, error) {
	g, err := t.generation()
	if err != nil {
		return record{}, err
	}
	next := r
	next.State, next.Since, next.Generation = Leased, t.now, g
	next.Last, next.Owner, next.LinkName, next.Time = Hash{}, req.Owner, req.LinkName, time.Now().UnixMilli()
	return next, t.change(a, &r, &next)
}

// metered is lease that also has the lease counted.
func (t *txn) metered(a netip.Addr, r *record, req Request) (Lease, error) {
	l, err := t.lease(a, r)
	if err != nil || !req.Metered {
		return l, err
	}
	m, err := t.beginMeter(a, r.Generation, StartMeter{Key: r.Owner.Key, Namespace: r.Owner.Namespace, Pod: r.Owner.Pod, Remade: req.Remade})
	l.Meter = &m
	return l, err
}

// choose returns the address to lease.
func (t *txn) choose(req Request) (netip.Addr, record, error) {
	if req.Want.IsValid() {
		return t.wanted(req.Want.Unmap(), req.Key)
	}
	return t.longestIdle()
}

// longestIdle compares the heads of every NIC's two queues: free addresses, and cooling ones that are ripe (ripen leaves some
// of them when there are very many).
func (t *txn) longestIdle() (netip.Addr, record, error) {
	nics, err := t.nics()
	if err != nil {
		return netip.Addr{}, record{}, err
	}
	var best entry
	for _, n := range nics {
		if n.Skipped {
			continue
		}
		for _, bucket := range []string{bucketFree, bucketCooling} {
			k, err := t.first(bucket, nicPrefix(n.id))
			if err != nil {
				return netip.Addr{}, record{}, err
			}
			if k == nil {
				continue
			}
			since, err := indexTime(k)
			if err != nil {
				return netip.Addr{}, record{}, err
			}
			if bucket == bucketCooling && since+t.cool > t.now {
				continue
			}
			if best.key == nil || bytes.Compare(k[2:], best.key[2:]) < 0 { // by time, then by address
				best = entry{bucket, k}
			}
		}
	}
	if best.key == nil {
		return netip.Addr{}, record{}, t.exhausted()
	}
	return t.indexed(best.bucket, best.key)
}

// wanted returns the address that was asked for, if it could have been handed out by itself. The cool-down keeps what was meant
// for one pod from another one: whoever had the address last may ask for it at once, as "podman restart" and "podman network
// reload" do.
func (t *txn) wanted(a netip.Addr, key Hash) (netip.Addr, record, error) {
	r, found, err := t.record(a)
	if err != nil {
		return a, record{}, err
	}
	refuse := func(format string, args ...any) (netip.Addr, record, error) {
		return a, record{}, fmt.Errorf("%w: %s "+format, append([]any{ErrNotAvailable, a}, args...)...)
	}
	nics, err := t.nics()
	if err != nil {
		return a, record{}, err
	}
	skipped := slices.ContainsFunc(nics, func(n nic) bool { return n.id == r.NIC && n.Skipped })
	switch {
	case !found:
		return a, record{}, fmt.Errorf("%w: %s is not an address of this node's NICs", ErrNotOurs, a)
	case r.held():
		return refuse("is %s", r.State)
	case !r.Present:
		return refuse("is not on a NIC any more")
	case r.Blocked != NotBlocked:
		return refuse("is blocked: %s", r.Blocked)
	case r.State == Cooling && r.Since+t.cool > t.now && r.Last != key:
		return refuse("is cooling, ready in %s", seconds(r.Since+t.cool-t.now))
	}
	if skipped {
		return refuse("is on a NIC that can't be used now")
	}
	return a, r, nil
}

// Block undoes a lease whose address the kernel says is in use, and keeps the address from being handed out for as long as the
// reason lasts: Sync looks again.
func (s *Store) Block(ctx context.Context, l Lease, reason Reason) error {
	return s.update(ctx, "block address", func(t *txn) error {
		r, err := t.current(l)
		if err != nil {
			return err
		}
		if err := t.endMeter(l.Addr, nil, func(m *Meter) bool { return m.Use == l.Generation }); err != nil {
			return err
		}
		next := r.free(Free, t.now)
		next.Blocked, next.BlockedAt = reason, t.now
		if err := t.change(l.Addr, &r, &next); err != nil {
			return err
		}
		// The last snapshot didn't see what the kernel has just said: the next one is compared, though it may be the same.
		st, err := t.snapshot()
		if err != nil {
			return err
		}
		st.digest, st.mark = [32]byte{}, [32]byte{}
		return t.putSnapshot(st)
	})
}

// current returns the record of a lease that must be the address's current one.
func (t *txn) current(l Lease) (record, error) {
	r, found, err := t.record(l.Addr)
	if err != nil {
		return record{}, err
	}
	if !found || !r.held() || r.Generation != l.Generation {
		return record{}, fmt.Errorf("%w: %s generation %d", ErrStale, l.Addr, l.Generation)
	}
	return r, nil
}
