package allocator

import "net/netip"

// tally is how many entries and addresses the records make in all. A page whose head counts fewer keys than it holds hides the last
// ones from every search, and its neighbours look whole: a lease is then not found by its key, and no address is missed. Only the
// numbers tell.
type tally struct {
	entries map[string]int    // index bucket -> entries
	nics    map[uint16]counts // NIC id -> addresses by class
}

func newTally() *tally { return &tally{entries: map[string]int{}, nics: map[uint16]counts{}} }

func (s *tally) add(a netip.Addr, r *record) {
	for _, e := range r.entries(a) {
		s.entries[e.bucket]++
	}
	c := s.nics[r.NIC]
	c[r.class()]++
	s.nics[r.NIC] = c
}

// compare fails unless indexes and counters say the same.
func (t *txn) compare(sum *tally) error {
	for _, bucket := range []string{bucketKeys, bucketFree, bucketCooling, bucketBlocked, bucketMissing} {
		n := 0
		err := t.walk(bucket, nil, func(_, _ []byte) (bool, error) {
			n++
			return true, nil
		})
		if err != nil {
			return err
		}
		if n != sum.entries[bucket] {
			return damaged("%s has %d entries, the records make %d", bucket, n, sum.entries[bucket])
		}
	}
	var ids []uint16
	err := t.walk(bucketCounts, nil, func(k, _ []byte) (bool, error) {
		id, err := keyNumber(bucketCounts, k)
		ids = append(ids, id)
		return true, err
	})
	if err != nil {
		return err
	}
	for id := range sum.nics { // one that the counters lack is counted as zero
		ids = append(ids, id)
	}
	for _, id := range ids {
		c, err := t.counts(id)
		if err != nil {
			return err
		}
		if c != sum.nics[id] {
			return damaged("counts of NIC %d are %v, the records make %v", id, c, sum.nics[id])
		}
	}
	return nil
}
