package allocator

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Sample is one counter's value in the kernel.
type Sample struct {
	Direction string
	Class     string
	Bytes     uint64
	Packets   uint64
}

// Count is a number of bytes and the packets that they came in.
type Count struct{ Bytes, Packets uint64 }

// Series is what is known of one counter of an address, or of the node.
type Series struct {
	Direction, Class string
	Folded           Count // the kernel's value up to which all is in the totals
	Used             Count // of the totals: this use's share; of the node: its total
}

// Meter is what the store knows of the traffic of one address.
type Meter struct {
	Addr netip.Addr
	// Slot is the number of the address on this node, from 1, for the marks of packets. It is kept until the address is forgotten;
	// zero: the numbers are used up.
	Slot uint16
	// Use is the generation of the lease that is counted, or one drawn from the same counter for the use under another IPAM; zero:
	// nobody has the address.
	Use            uint64
	Key            Hash // of the attachment; zero: nobody has the address
	Namespace, Pod string
	// Off is the boot clock since when this use is not counted; zero: it is. It is so from the start where nobody knows at which values
	// the counters stand: SetMeter or a Fold with Made says it.
	Off time.Duration
	// Unread says that the last use ended without its last values: the counters may stand above Folded. Only where nobody has the address.
	Unread bool
	Series []Series // by direction and class
}

// plus adds; a sum stays at the highest number instead of starting again at zero.
func (c Count) plus(d Count) Count { return Count{plus(c.Bytes, d.Bytes), plus(c.Packets, d.Packets)} }

// since returns what came since the counter stood at before; false: it fell.
func (c Count) since(before Count) (Count, bool) {
	if c.Bytes < before.Bytes || c.Packets < before.Packets {
		return Count{}, false
	}
	return Count{c.Bytes - before.Bytes, c.Packets - before.Packets}, true
}

func plus(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return sum
}

func compareSeries(a, b Series) int {
	return cmp.Or(cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Class, b.Class))
}

// Flags of a meter.
const (
	meterUsed = 1 << iota // use, key, namespace and pod follow
	meterOff              // off since
	meterUnread
)

// encode returns the meter's bytes, without the sum.
func (m *Meter) encode() []byte {
	b := make([]byte, 0, 256)
	var flags byte
	if m.Use != 0 {
		flags |= meterUsed
	}
	if m.Off != 0 {
		flags |= meterOff
	}
	if m.Unread {
		flags |= meterUnread
	}
	b = binary.LittleEndian.AppendUint16(append(b, flags), m.Slot)
	if m.Use != 0 {
		b = binary.LittleEndian.AppendUint64(b, m.Use)
		b = append(b, m.Key[:]...)
		b = appendString(b, m.Namespace, Hash{})
		b = appendString(b, m.Pod, Hash{})
	}
	if m.Off != 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(m.Off))
	}
	return appendSeries(b, m.Series)
}

func decodeMeter(a netip.Addr, v []byte) (Meter, error) {
	rd := reader{b: v}
	m := Meter{Addr: a}
	flags := rd.u8()
	m.Slot = rd.u16()
	if flags&meterUsed != 0 {
		m.Use = rd.u64()
		m.Key = rd.hash()
		m.Namespace = rd.str(Hash{})
		m.Pod = rd.str(Hash{})
	}
	if flags&meterOff != 0 {
		m.Off = time.Duration(rd.u64())
	}
	m.Unread = flags&meterUnread != 0
	m.Series = rd.series()
	if err := rd.end(); err != nil {
		return Meter{}, err
	}
	used := flags&meterUsed != 0
	if used != (m.Use != 0) || used != (m.Key != Hash{}) || m.Off < 0 || !used && m.Off != 0 || used && m.Unread || flags&meterOff != 0 && m.Off == 0 {
		return Meter{}, fmt.Errorf("flags %#x contradict the meter's parts", flags)
	}
	return m, nil
}

// appendSeries leaves out those that have counted nothing yet.
func appendSeries(b []byte, all []Series) []byte {
	n := 0
	for _, s := range all {
		if s.counted() {
			n++
		}
	}
	b = binary.AppendUvarint(b, uint64(n))
	for _, s := range all {
		if !s.counted() {
			continue
		}
		b = appendString(b, s.Direction, Hash{})
		b = appendString(b, s.Class, Hash{})
		for _, v := range []uint64{s.Folded.Bytes, s.Folded.Packets, s.Used.Bytes, s.Used.Packets} {
			b = binary.AppendUvarint(b, v)
		}
	}
	return b
}

func (s *Series) counted() bool { return s.Folded != Count{} || s.Used != Count{} }

func (r *reader) series() (all []Series) {
	for n := r.uvarint(); n > 0 && r.err == nil; n-- {
		s := Series{Direction: r.str(Hash{}), Class: r.str(Hash{})}
		s.Folded = Count{r.uvarint(), r.uvarint()}
		s.Used = Count{r.uvarint(), r.uvarint()}
		if r.err == nil && (!s.counted() || len(all) > 0 && compareSeries(all[len(all)-1], s) >= 0) {
			r.err = fmt.Errorf("series %s %s is empty or out of order", s.Direction, s.Class)
		}
		all = append(all, s)
	}
	return all
}

// meter returns the meter of an address.
func (t *txn) meter(a netip.Addr) (m Meter, found bool, err error) {
	v, found, err := t.get(bucketMeters, a.AsSlice())
	if err != nil || !found {
		return Meter{}, false, err
	}
	if m, err = decodeMeter(a, v); err != nil {
		return Meter{}, false, damaged("meter of %s: %w", a, err)
	}
	return m, true, nil
}

func (t *txn) putMeter(m Meter) error { return t.put(bucketMeters, m.Addr.AsSlice(), m.encode()) }

// eachMeter calls fn for every meter, IPv4 and IPv6 as the keys' bytes sort.
func (t *txn) eachMeter(fn func(m Meter) error) error {
	return t.walk(bucketMeters, nil, func(k, v []byte) (bool, error) {
		a, ok := netip.AddrFromSlice(k)
		if !ok {
			return false, damaged("%s/%x is no address", bucketMeters, k)
		}
		m, err := decodeMeter(a, v)
		if err != nil {
			return false, damaged("meter of %s: %w", a, err)
		}
		return true, fn(m)
	})
}

// beginMeter begins to count a use of an address, from the values up to which all is in the totals. One that is counted already goes
// on.
func (t *txn) beginMeter(a netip.Addr, use uint64, s StartMeter) (Meter, error) {
	m, found, err := t.meter(a)
	switch {
	case err != nil:
		return Meter{}, err
	case found && m.Use == use && m.Key == s.Key:
		return m, nil
	case !found:
		if m, err = t.newMeter(a); err != nil {
			return Meter{}, err
		}
	}
	if m.Use != 0 { // its end was not seen, and what it had since the last fold is lost
		b := t.ledger()
		if m.Off == 0 {
			b.resets[ResetCounters] = 1
		}
		if err := cmp.Or(b.end(&m), b.close()); err != nil {
			return Meter{}, err
		}
		m.Unread = true
	}
	if m.Unread || s.Remade {
		m.Unread, m.Off = false, max(t.now, 1)
	}
	if namespace, pod, joined := strings.Cut(s.Pod, "/"); joined && s.Namespace == "" { // of a rebuilt store
		s.Namespace, s.Pod = namespace, pod
	}
	m.Use, m.Key, m.Namespace, m.Pod = use, s.Key, s.Namespace, s.Pod
	return m, t.putMeter(m)
}

// newMeter is that of an address which had none. Where the store was lost, its counters may stand at what earlier pods sent and got:
// it is off until somebody says where they stand.
func (t *txn) newMeter(a netip.Addr) (m Meter, err error) {
	m.Addr = a
	if m.Slot, err = t.drawSlot(); err != nil {
		return Meter{}, err
	}
	sum, err := t.summary()
	if sum.resets[ResetStore] > 0 {
		m.Off = max(t.now, 1)
	}
	return m, err
}

// forgetMeter drops the meter of an address and gives its number back.
func (t *txn) forgetMeter(a netip.Addr) error {
	m, found, err := t.meter(a)
	if err != nil || !found {
		return err
	}
	if m.Slot != 0 {
		if err := t.put(bucketSlots, nicPrefix(m.Slot), nil); err != nil {
			return err
		}
	}
	return t.remove(bucketMeters, a.AsSlice())
}

// drawSlot returns the lowest number that no address has; zero when there is none.
func (t *txn) drawSlot() (uint16, error) {
	k, err := t.first(bucketSlots, nil)
	if err != nil {
		return 0, err
	}
	if k != nil {
		slot, err := keyNumber(bucketSlots, k)
		if err != nil {
			return 0, err
		}
		return slot, t.remove(bucketSlots, k)
	}
	sum, err := t.summary()
	if err != nil || sum.slots == math.MaxUint16 {
		return 0, err
	}
	sum.slots++
	return sum.slots, t.putSummary(sum)
}

// sorted returns the series in their order.
func sorted(all []Series) []Series {
	slices.SortFunc(all, compareSeries)
	return all
}
