package allocator

import (
	"encoding/binary"
	"time"
)

// class is what an address counts as; each one is in exactly one.
type class int

const (
	classFree class = iota
	classLeased
	classReleasing
	classCooling
	classBlocked
	classAbsent
	classes // how many there are
)

func (r *record) class() class {
	switch {
	case r.State == Leased:
		return classLeased
	case r.State == Releasing:
		return classReleasing
	case !r.Present:
		return classAbsent
	case r.Blocked != NotBlocked:
		return classBlocked
	case r.State == Cooling:
		return classCooling
	}
	return classFree
}

// counts are the numbers of addresses of one NIC by class.
type counts [classes]uint32

func (t *txn) counts(nic uint16) (c counts, err error) {
	v, found, err := t.get(bucketCounts, nicPrefix(nic))
	if err != nil || !found {
		return counts{}, err
	}
	rd := reader{b: v}
	for i := range c {
		c[i] = rd.u32()
	}
	if err := rd.end(); err != nil {
		return counts{}, damaged("counts of NIC %d: %w", nic, err)
	}
	return c, nil
}

func (t *txn) putCounts(nic uint16, c counts) error {
	v := make([]byte, 0, 4*classes+4)
	for _, n := range c {
		v = binary.LittleEndian.AppendUint32(v, n)
	}
	return t.put(bucketCounts, nicPrefix(nic), v)
}

// recount moves one address from the class of old to that of next.
func (t *txn) recount(old, next *record) error {
	if old != nil && next != nil && old.NIC == next.NIC && old.class() == next.class() {
		return nil
	}
	if old != nil {
		c, err := t.counts(old.NIC)
		if err != nil {
			return err
		}
		if c[old.class()] == 0 {
			return damaged("counts of NIC %d fall below zero", old.NIC)
		}
		c[old.class()]--
		if err := t.putCounts(old.NIC, c); err != nil {
			return err
		}
	}
	if next == nil {
		return nil
	}
	c, err := t.counts(next.NIC)
	if err != nil {
		return err
	}
	c[next.class()]++
	return t.putCounts(next.NIC, c)
}

// ripeLimit bounds how many cooled addresses one transaction makes free (or one reader counts as free). Each release adds one
// and each transaction takes up to this many, so the limit is met only after a node was emptied at once.
const ripeLimit = 256

// totals returns the numbers of one NIC, with the addresses that have cooled down since the last change counted as free, and
// the time until the next one has; zero when none cools.
func (t *txn) totals(n nic) (Totals, time.Duration, error) {
	c, err := t.counts(n.id)
	if err != nil {
		return Totals{}, 0, err
	}
	ripe, next := 0, time.Duration(0)
	err = t.walk(bucketCooling, nicPrefix(n.id), func(k, _ []byte) (bool, error) {
		since, err := indexTime(k)
		if err != nil || since+t.cool > t.now {
			next = since + t.cool - t.now
			return false, err
		}
		ripe++
		return ripe < ripeLimit, nil
	})
	if err != nil {
		return Totals{}, 0, err
	}
	if ripe > int(c[classCooling]) {
		return Totals{}, 0, damaged("NIC %d has more cooling addresses than it counts", n.id)
	}
	out := Totals{
		NIC: n.MAC, Link: n.Link, Skipped: n.Skipped,
		Free: int(c[classFree]) + ripe, Leased: int(c[classLeased]), Releasing: int(c[classReleasing]),
		Cooling: int(c[classCooling]) - ripe, Blocked: int(c[classBlocked]), Absent: int(c[classAbsent]),
	}
	out.Total = out.Free + out.Leased + out.Releasing + out.Cooling + out.Blocked + out.Absent
	return out, next, nil
}

// allTotals returns the totals of every NIC, and of the addresses without one if there are any.
func (t *txn) allTotals() (all []Totals, next time.Duration, err error) {
	nics, err := t.nics()
	if err != nil {
		return nil, 0, err
	}
	for _, n := range append(nics, nic{}) {
		one, ready, err := t.totals(n)
		if err != nil {
			return nil, 0, err
		}
		if n.id == 0 && one.Total == 0 {
			continue
		}
		all = append(all, one)
		if ready > 0 && !n.Skipped && (next == 0 || ready < next) {
			next = ready
		}
	}
	return all, next, nil
}

// ripen makes cooled addresses free. They keep the time they were released at, so the order of use is unchanged.
func (t *txn) ripen() error {
	if err := t.rewind(); err != nil {
		return err
	}
	var keys [][]byte
	nics, err := t.nics()
	if err != nil {
		return err
	}
	for _, n := range nics {
		err := t.walk(bucketCooling, nicPrefix(n.id), func(k, _ []byte) (bool, error) {
			since, err := indexTime(k)
			if err != nil || since+t.cool > t.now {
				return false, err
			}
			keys = append(keys, append([]byte(nil), k...))
			return len(keys) < ripeLimit, nil
		})
		if err != nil {
			return err
		}
	}
	for _, k := range keys {
		a, r, err := t.indexed(bucketCooling, k)
		if err != nil {
			return err
		}
		next := r.free(Free, r.Since)
		if err := t.change(a, &r, &next); err != nil {
			return err
		}
	}
	return nil
}

// rewind has addresses cool from now that would cool from a time to come. The boot clock never steps within a boot; if it did all
// the same (a machine that was put back to a snapshot of itself), they would stay away for as long as the step was.
func (t *txn) rewind() error {
	nics, err := t.nics()
	if err != nil {
		return err
	}
	for _, n := range nics {
		for more := true; more; {
			if more, err = t.rewindLast(n.id); err != nil {
				return err
			}
		}
	}
	return nil
}

// rewindLast does so for the one that would cool for longest; false when that one's time has come.
func (t *txn) rewindLast(nic uint16) (more bool, err error) {
	k, err := t.last(bucketCooling, nicPrefix(nic))
	if err != nil || k == nil {
		return false, err
	}
	since, err := indexTime(k)
	if err != nil || since <= t.now {
		return false, err
	}
	a, r, err := t.indexed(bucketCooling, k)
	if err != nil {
		return false, err
	}
	next := r
	next.Since = t.now
	return true, t.change(a, &r, &next)
}
