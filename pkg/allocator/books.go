package allocator

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"math"
	"net/netip"
	"slices"
	"time"
)

// Books is all that the store knows of traffic.
type Books struct {
	Meters  []Meter                  // in address order
	Totals  []Total                  // by namespace, direction, class
	Node    []Series                 // the node's own; Used is its total
	Resets  map[string]uint64        // by reason
	Unknown map[string]time.Duration // by namespace: closed spans in which pods were not counted
}

// Total is the traffic of one namespace in one direction and class.
type Total struct {
	Namespace string
	Sample
}

// Reasons for a reset that this package finds itself.
const (
	ResetStore    = "store"    // the store was lost, and the totals of ended pods with it
	ResetCounters = "counters" // a counter was lower than before
)

// Books returns the books. It reads all there is, and so compares all there is; a store of schema 1 has none.
func (s *Store) Books(ctx context.Context) (Books, error) {
	var b Books
	err := s.view(ctx, "read books", func(t *txn) (err error) {
		b, err = t.books()
		return err
	})
	if err != nil {
		return Books{}, err
	}
	return b, nil
}

func (t *txn) books() (b Books, err error) {
	if t.tx.Bucket([]byte(bucketMeters)) == nil {
		if _, found, err := t.get(bucketState, keyBooks); err != nil || !found {
			return Books{}, err
		}
	}
	sum, err := t.summary()
	if err != nil {
		return Books{}, err
	}
	b.Node, b.Resets = sum.node, sum.resets
	if b.Meters, err = t.meters(sum.slots); err != nil {
		return Books{}, err
	}
	return b, t.readTotals(&b, sum.namespaces)
}

// meters returns all meters, whose numbers and those that are free must make all that were ever drawn: else a page hides some.
func (t *txn) meters(drawn uint16) (all []Meter, err error) {
	slots := map[uint16]bool{}
	take := func(slot uint16) error {
		if slots[slot] || slot > drawn {
			return damaged("number %d of %d is used twice or was never drawn", slot, drawn)
		}
		if slot != 0 {
			slots[slot] = true
		}
		return nil
	}
	err = t.eachMeter(func(m Meter) error {
		all = append(all, m)
		return take(m.Slot)
	})
	if err != nil {
		return nil, err
	}
	err = t.walk(bucketSlots, nil, func(k, _ []byte) (bool, error) {
		slot, err := keyNumber(bucketSlots, k)
		if err == nil && slot == 0 {
			err = damaged("%s has number 0", bucketSlots)
		}
		return true, cmp.Or(err, take(slot))
	})
	if err == nil && len(slots) != int(drawn) {
		err = damaged("%d numbers were drawn, meters and free ones make %d", drawn, len(slots))
	}
	slices.SortFunc(all, func(a, b Meter) int { return a.Addr.Compare(b.Addr) })
	return all, err
}

// readTotals reads the totals of all namespaces, which must be as many as were made.
func (t *txn) readTotals(b *Books, namespaces uint32) error {
	found := uint32(0)
	b.Unknown = map[string]time.Duration{}
	err := t.walk(bucketTotals, nil, func(k, v []byte) (bool, error) {
		found++
		tot, err := decodeTotal(v)
		if err != nil || string(totalKey(tot.namespace)) != string(k) {
			return false, damaged("%s/%x is of namespace %q: %v", bucketTotals, k, tot.namespace, err)
		}
		for _, s := range tot.series {
			b.Totals = append(b.Totals, Total{tot.namespace, Sample{s.Direction, s.Class, s.Used.Bytes, s.Used.Packets}})
		}
		if tot.unknown != 0 {
			b.Unknown[tot.namespace] = tot.unknown
		}
		return true, nil
	})
	if err == nil && found != namespaces {
		err = damaged("%d namespaces have totals, %d are found", namespaces, found)
	}
	slices.SortFunc(b.Totals, func(x, y Total) int {
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Direction, y.Direction), cmp.Compare(x.Class, y.Class))
	})
	return err
}

// total is what all pods that ever were in a namespace have sent and got.
type total struct {
	namespace string
	unknown   time.Duration // how long pods were not counted
	series    []Series      // Used; Folded is zero
}

// totalKey is the key of a namespace: names may be empty or longer than a key can be.
func totalKey(namespace string) []byte {
	sum := sha256.Sum256([]byte(namespace))
	return sum[:len(Hash{})]
}

func (o *total) encode() []byte {
	b := appendString(make([]byte, 0, 128), o.namespace, Hash{})
	return appendSeries(binary.LittleEndian.AppendUint64(b, uint64(o.unknown)), o.series)
}

func decodeTotal(v []byte) (o total, err error) {
	rd := reader{b: v}
	o.namespace = rd.str(Hash{})
	o.unknown = time.Duration(rd.u64())
	o.series = rd.series()
	if err := rd.end(); err != nil {
		return total{}, err
	}
	return o, nil
}

// ledger collects what one transaction adds to totals, so that each is written once.
type ledger struct {
	*txn
	totals map[string]*total
	resets map[string]uint64
}

func (t *txn) ledger() *ledger {
	return &ledger{txn: t, totals: map[string]*total{}, resets: map[string]uint64{}}
}

func (l *ledger) total(namespace string) (*total, error) {
	if o := l.totals[namespace]; o != nil {
		return o, nil
	}
	v, found, err := l.get(bucketTotals, totalKey(namespace))
	if err != nil {
		return nil, err
	}
	o := &total{namespace: namespace}
	if found {
		if *o, err = decodeTotal(v); err != nil || o.namespace != namespace {
			return nil, damaged("total of namespace %q is of %q: %v", namespace, o.namespace, err)
		}
	} else {
		sum, err := l.summary()
		if err != nil {
			return nil, err
		}
		sum.namespaces++
		if err := l.putSummary(sum); err != nil {
			return nil, err
		}
	}
	l.totals[namespace] = o
	return o, nil
}

// add adds to a namespace's total.
func (l *ledger) add(namespace string, delta []Sample) error {
	if len(delta) == 0 {
		return nil
	}
	o, err := l.total(namespace)
	if err == nil {
		o.series = addUsed(o.series, delta)
	}
	return err
}

// unknown adds a span in which a pod was not counted.
func (l *ledger) unknown(namespace string, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	o, err := l.total(namespace)
	if err == nil {
		o.unknown = time.Duration(min(plus(uint64(o.unknown), uint64(d)), math.MaxInt64))
	}
	return err
}

// close writes what was collected.
func (l *ledger) close() error {
	for _, o := range l.totals {
		if err := l.put(bucketTotals, totalKey(o.namespace), o.encode()); err != nil {
			return err
		}
	}
	if len(l.resets) == 0 {
		return nil
	}
	sum, err := l.summary()
	if err != nil {
		return err
	}
	for reason, n := range l.resets {
		sum.reset(reason, n)
	}
	return l.putSummary(sum)
}

// summary is what there is one of. It stands in one value that must be there: a page that hides it is found.
type summary struct {
	slots      uint16 // the highest number that an address got
	namespaces uint32 // how many have a total
	node       []Series
	resets     map[string]uint64 // never nil
}

func (s *summary) reset(reason string, n uint64) { s.resets[reason] = plus(s.resets[reason], n) }

func (s *summary) encode() []byte {
	b := binary.LittleEndian.AppendUint16(make([]byte, 0, 256), s.slots)
	b = appendSeries(binary.LittleEndian.AppendUint32(b, s.namespaces), s.node)
	b = binary.AppendUvarint(b, uint64(len(s.resets)))
	for _, reason := range slices.Sorted(maps.Keys(s.resets)) {
		b = binary.AppendUvarint(appendString(b, reason, Hash{}), s.resets[reason])
	}
	return b
}

func decodeSummary(v []byte) (s summary, err error) {
	rd := reader{b: v}
	s.slots, s.namespaces, s.node, s.resets = rd.u16(), rd.u32(), rd.series(), map[string]uint64{}
	for n := rd.uvarint(); n > 0 && rd.err == nil; n-- {
		reason := rd.str(Hash{})
		s.resets[reason] = rd.uvarint()
	}
	if err := rd.end(); err != nil {
		return summary{}, err
	}
	return s, nil
}

// summary fails where there is none; a store of schema 1 gets one with its first change.
func (t *txn) summary() (s summary, err error) {
	v, found, err := t.get(bucketState, keyBooks)
	if err != nil {
		return summary{}, err
	}
	if !found {
		return summary{}, damaged("no key %s/%s", bucketState, keyBooks)
	}
	if s, err = decodeSummary(v); err != nil {
		return summary{}, damaged("%s/%s: %w", bucketState, keyBooks, err)
	}
	return s, nil
}

func (t *txn) putSummary(s summary) error { return t.put(bucketState, keyBooks, s.encode()) }

// noteLost counts the loss of the store as a reset.
func (t *txn) noteLost() error {
	sum, err := t.summary()
	if err != nil {
		return err
	}
	sum.reset(ResetStore, 1)
	return t.putSummary(sum)
}

// ForgetMeters drops the meters of addresses that left the node; their numbers are given out again. One that is in use stays.
func (s *Store) ForgetMeters(ctx context.Context, addrs []netip.Addr) error {
	return s.update(ctx, "forget meters", func(t *txn) error {
		for _, a := range addrs {
			m, found, err := t.meter(a.Unmap())
			if err != nil {
				return err
			}
			if !found || m.Use != 0 {
				continue
			}
			if err := t.forgetMeter(m.Addr); err != nil {
				return err
			}
		}
		return nil
	})
}
