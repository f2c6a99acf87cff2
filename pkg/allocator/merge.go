package allocator

import (
	"net/netip"
	"slices"
)

// want is what the snapshot says about one address.
type want struct {
	nic    uint16
	onLink bool
	seen   bool // the store has it
}

// merge brings the store to the snapshot. It returns the mark to store: zero if something has to be looked at again although
// nothing changed.
func (s *Store) merge(t *txn, snap *Snapshot, mark [32]byte) ([32]byte, error) {
	nics, err := t.syncNICs(snap)
	if err != nil {
		return mark, err
	}
	wanted := s.wanted(snap, nics)
	m := merger{txn: t, wanted: wanted, skipped: map[uint16]bool{}}
	for _, mac := range snap.Skipped {
		m.skipped[nics[mac]] = true
	}
	delete(m.skipped, 0)
	if err := m.run(); err != nil {
		return mark, err
	}
	if err := t.forgetNICs(snap, nics); err != nil {
		return mark, err
	}
	if m.again {
		mark = [32]byte{}
	}
	return mark, nil
}

// wanted turns the snapshot around: address -> NIC. A primary is never a pod's, and an address that two NICs list is the first
// one's.
func (s *Store) wanted(snap *Snapshot, nics map[MAC]uint16) map[netip.Addr]*want {
	primary := map[netip.Addr]bool{}
	size := 0
	for _, n := range snap.NICs {
		primary[n.Primary.Unmap()] = true
		size += len(n.Addrs)
	}
	all := make(map[netip.Addr]*want, size)
	for _, n := range snap.NICs {
		id := nics[n.MAC]
		for _, a := range n.Addrs {
			a = a.Unmap().WithZone("")
			if !a.IsValid() || primary[a] {
				continue
			}
			if all[a] != nil && all[a].nic != id {
				s.log.Warn("address is listed on two NICs", "addr", a, "mac", n.MAC)
			}
			if all[a] == nil {
				all[a] = &want{nic: id}
			}
		}
		for _, a := range n.OnLink {
			if w := all[a.Unmap().WithZone("")]; w != nil && w.nic == id {
				w.onLink = true
			}
		}
	}
	return all
}

// merger compares the store with a snapshot.
type merger struct {
	*txn
	wanted  map[netip.Addr]*want
	skipped map[uint16]bool
	again   bool // an address of a running pod moved to another NIC: it follows when the pod is gone
}

func (m *merger) run() error {
	var changed []netip.Addr // changed after the walk: bbolt's cursors don't survive a change
	err := m.each(func(a netip.Addr, v []byte) error {
		r, _, _, err := decodeHead(v)
		if err != nil {
			return damaged("record of %s: %w", a, err)
		}
		if next, keep := m.next(a, r); !keep || !sameHead(&next, &r) {
			changed = append(changed, a)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, a := range changed {
		r, found, err := m.record(a)
		if err != nil {
			return err
		}
		if !found {
			return damaged("record of %s is gone", a)
		}
		next, keep := m.next(a, r)
		if keep {
			err = m.change(a, &r, &next)
		} else {
			err = m.change(a, &r, nil)
		}
		if err != nil {
			return err
		}
	}
	return m.enter()
}

// sameHead compares what next may change.
func sameHead(a, b *record) bool {
	return a.State == b.State && a.Since == b.Since && a.NIC == b.NIC && a.Present == b.Present &&
		a.Missing == b.Missing && a.Blocked == b.Blocked && a.BlockedAt == b.BlockedAt
}

// next returns the record as the snapshot leaves it; false: it is forgotten.
func (m *merger) next(a netip.Addr, r record) (record, bool) {
	w := m.wanted[a]
	if w == nil {
		return m.unlisted(r)
	}
	w.seen = true
	r.Missing = 0
	switch {
	case r.NIC == w.nic:
	case r.held() && r.NIC != 0:
		m.again = true
	default:
		r.NIC = w.nic
		r = m.tail(r)
	}
	if !r.Present {
		r.Present = true
		r = m.tail(r)
	}
	switch {
	case w.onLink && r.Blocked != OnHostLink:
		r.Blocked, r.BlockedAt = OnHostLink, m.now
	case !w.onLink && r.Blocked == OnHostLink:
		r.Blocked, r.BlockedAt = NotBlocked, 0
		r = m.tail(r)
	}
	return r, true
}

// tail puts an address that comes back at the end of the queue: others may have used it until now. One that a pod has, or that
// still cools, keeps its time.
func (t *txn) tail(r record) record {
	if r.State == Free || r.State == Cooling && r.Since+t.cool <= t.now {
		return r.free(Free, t.now)
	}
	return r
}

// unlisted is next for an address that the snapshot lacks.
func (m *merger) unlisted(r record) (record, bool) {
	if m.skipped[r.NIC] {
		if r.Present {
			r.Missing = 0 // the NIC wasn't looked at, so this is no second time
		}
		return r, true
	}
	if r.Present && r.Missing == 0 {
		r.Missing = m.now
		return r, true
	}
	idle := r.State == Free || r.State == Cooling && r.Since+m.cool <= m.now
	if !r.Present && idle && !r.FlushDue && r.Missing+forgetAfter <= m.now {
		return r, false
	}
	return r, true // settle decides about those that are missing for longer
}

// enter adds the addresses that are new to the store.
func (m *merger) enter() error {
	since, cooling, err := m.coolingSince()
	if err != nil {
		return err
	}
	fresh := make([]netip.Addr, 0, len(m.wanted))
	for a, w := range m.wanted {
		if !w.seen {
			fresh = append(fresh, a)
		}
	}
	slices.SortFunc(fresh, netip.Addr.Compare)
	for _, a := range fresh {
		w := m.wanted[a]
		r := record{State: Free, Present: true, NIC: w.nic, Since: m.now}
		if cooling {
			r.State, r.Since = Cooling, since
		}
		if w.onLink {
			r.Blocked, r.BlockedAt = OnHostLink, m.now
		}
		if err := m.change(a, nil, &r); err != nil {
			return err
		}
	}
	return nil
}

// syncNICs gives every NIC of the snapshot an id and returns those of all known NICs.
func (t *txn) syncNICs(snap *Snapshot) (map[MAC]uint16, error) {
	known, err := t.nics()
	if err != nil {
		return nil, err
	}
	ids := make(map[MAC]uint16, len(known)+len(snap.NICs))
	for _, n := range known {
		ids[n.MAC] = n.id
		// One that isn't listed at all may have been detached: its addresses become absent in their time, and meanwhile nobody
		// gets one.
		usable := slices.ContainsFunc(snap.NICs, func(now NIC) bool { return now.MAC == n.MAC })
		if usable == n.Skipped {
			n.Skipped = !usable
			if err := t.putNIC(n); err != nil {
				return nil, err
			}
		}
	}
	for _, n := range snap.NICs {
		if ids[n.MAC] == 0 {
			if ids[n.MAC], err = t.nicID(); err != nil {
				return nil, err
			}
		}
		info := NICInfo{MAC: n.MAC, Link: n.Link, Primary: n.Primary, Subnets: n.Subnets}
		if err := t.putNIC(nic{ids[n.MAC], info}); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// forgetNICs drops NICs that the snapshot doesn't know and that have no address left.
func (t *txn) forgetNICs(snap *Snapshot, ids map[MAC]uint16) error {
	for mac, id := range ids {
		listed := slices.ContainsFunc(snap.NICs, func(n NIC) bool { return n.MAC == mac }) || slices.Contains(snap.Skipped, mac)
		c, err := t.counts(id)
		if err != nil {
			return err
		}
		if listed || c != (counts{}) {
			continue
		}
		if err := t.remove(bucketNICs, mac[:]); err != nil {
			return err
		}
	}
	return nil
}
