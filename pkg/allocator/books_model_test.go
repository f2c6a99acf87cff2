package allocator

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// ledgerModel follows each byte in the plainest form: which counter has it, and whose it is once somebody has folded it. It knows
// nothing of meters. It shares no code with the store.
type ledgerModel struct {
	now     time.Duration
	addrs   map[netip.Addr]*countedAddr
	totals  map[counterName]uint64 // by namespace
	node    counterPair            // of one counter
	resets  map[string]uint64
	unknown map[string]time.Duration
	sent    uint64 // all bytes that counters ever counted
	nobody  uint64 // of those the ones that can be in no total
}

type counterName struct{ namespace, direction, class string }

// counterPair is a counter of the kernel, and those of its bytes that are in no total yet.
type counterPair struct{ value, open uint64 }

type countedAddr struct {
	own    bool // ours to lease; else another IPAM's
	slot   uint16
	known  bool // the store has a meter of it
	pod    int  // -1: nobody
	use    uint64
	ns     string
	off    time.Duration
	unread bool // its last use ended without its last values
	fell   bool // somebody put a counter back: no more traffic until the next fold, or nobody could tell
	counts map[[2]string]*counterPair
}

var countedAs = [][2]string{{"rx", "cluster"}, {"rx", "internet"}, {"tx", "cluster"}, {"tx", "internet"}}

func (a *countedAddr) samples() (all []Sample) {
	for _, k := range countedAs {
		all = append(all, Sample{k[0], k[1], a.counts[k].value, a.counts[k].value / 10})
	}
	return all
}

// take folds what is open; false: it is nobody's.
func (m *ledgerModel) take(a *countedAddr, mine bool) {
	for _, k := range countedAs {
		c := a.counts[k]
		if mine {
			m.totals[counterName{a.ns, k[0], k[1]}] += c.open
		} else {
			m.nobody += c.open
		}
		c.open = 0
	}
	if a.fell && mine {
		m.resets[ResetCounters]++
	}
	a.fell = false
}

// fold is a fold of one address with its live values, by the use that has it now.
func (m *ledgerModel) fold(a *countedAddr) {
	m.take(a, a.off == 0)
	m.on(a)
}

func (m *ledgerModel) on(a *countedAddr) {
	if a.off != 0 && m.now > a.off {
		m.unknown[a.ns] += m.now - a.off
	}
	a.off = 0
}

func (m *ledgerModel) slot() uint16 {
	taken := map[uint16]bool{}
	for _, a := range m.addrs {
		taken[a.slot] = a.known || taken[a.slot]
	}
	n := uint16(1)
	for taken[n] {
		n++
	}
	return n
}

// begin checks the meter that a use begins with.
func (w *bookWalker) begin(a *countedAddr, pod int, ns string, got *Meter) {
	if !a.known {
		a.slot, a.known = w.m.slot(), true
		if w.m.resets[ResetStore] > 0 {
			a.off = w.m.now
		}
	}
	if a.unread {
		a.off, a.unread = w.m.now, false
	}
	if got == nil || got.Slot != a.slot || got.Namespace != ns || got.Off != a.off || got.Use <= a.use {
		w.t.Errorf("pod %d in %q begins with %+v; number %d, off since %s", pod, ns, got, a.slot, a.off)
		return
	}
	a.pod, a.ns, a.use = pod, ns, got.Use
}

type bookWalker struct {
	*fixture
	m      *ledgerModel
	r      *rand.Rand
	late   []Fold // readings of some time ago
	before map[counterName]uint64
}

func TestStore_books_model(t *testing.T) {
	steps := 500
	if testing.Short() { // the race detector's run in a hurry
		steps = 200
	}
	for _, seed := range []uint64{1, 2, 3, uint64(time.Now().UnixNano())} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			w := newBookWalker(t, seed)
			for range steps {
				w.step()
				w.compare()
				if t.Failed() {
					return
				}
			}
			w.settleAll()
		})
	}
}

const ownAddrs, otherAddrs = 6, 3

func newBookWalker(t *testing.T, seed uint64) *bookWalker {
	w := &bookWalker{fixture: newFixture(t), r: rand.New(rand.NewPCG(seed, 9)), before: map[counterName]uint64{}}
	w.m = &ledgerModel{
		now: w.clock.now, addrs: map[netip.Addr]*countedAddr{}, totals: map[counterName]uint64{},
		resets: map[string]uint64{}, unknown: map[string]time.Duration{},
	}
	for i := range ownAddrs + otherAddrs {
		a := &countedAddr{own: i < ownAddrs, pod: -1, counts: map[[2]string]*counterPair{}}
		for _, k := range countedAs {
			a.counts[k] = &counterPair{}
		}
		w.m.addrs[addr(10+i)] = a
	}
	w.sync(pool(ownAddrs))
	return w
}

func (w *bookWalker) advance(d time.Duration) {
	w.clock.add(d)
	w.m.now += d
}

func (w *bookWalker) pick() (netip.Addr, *countedAddr) {
	a := addr(10 + w.r.IntN(ownAddrs+otherAddrs))
	return a, w.m.addrs[a]
}

func (w *bookWalker) step() {
	w.advance(time.Duration(w.r.Int64N(int64(3 * time.Second))))
	addr, a := w.pick()
	switch n := w.r.IntN(100); {
	case n < 35:
		w.traffic(a)
	case n < 50:
		w.start(addr, a)
	case n < 62:
		w.stop(addr, a)
	case n < 75:
		w.foldAll()
	case n < 81:
		w.foldLate()
	case n < 86:
		w.setMeter(addr, a)
	case n < 90:
		w.fall(a)
	case n < 93:
		w.advance(testCool)
	case n < 95:
		w.reopen("boot-1", testCool)
	case n < 97:
		w.forget(addr, a)
	case n < 98:
		w.loseStore()
	default:
		w.m.node.value += 7
		w.m.node.open += 7
	}
}

// traffic moves counters, of an address that nobody has too.
func (w *bookWalker) traffic(a *countedAddr) {
	if a.fell {
		return
	}
	c := a.counts[countedAs[w.r.IntN(len(countedAs))]]
	n := w.r.Uint64N(10000)
	c.value, c.open = c.value+n, c.open+n
	w.m.sent += n
}

func (w *bookWalker) start(addr netip.Addr, a *countedAddr) {
	pod := w.r.IntN(1000000)
	ns := []string{"train", "infer", "", "a\x00b"}[w.r.IntN(4)]
	if !a.own {
		if a.pod >= 0 {
			return
		}
		m, err := w.StartMeter(w.t.Context(), StartMeter{Addr: addr, Key: request(pod).Key, Namespace: ns, Pod: "x"})
		w.must(err)
		w.begin(a, pod, ns, &m)
		w.add(addr, a)
		return
	}
	l, err := w.Lease(w.t.Context(), meteredRequest(pod, ns))
	if errors.Is(err, ErrPoolExhausted) {
		return
	}
	w.must(err)
	a = w.m.addrs[l.Addr]
	w.begin(a, pod, ns, l.Meter)
	if l.Meter.Use != l.Generation {
		w.t.Errorf("use %d of generation %d", l.Meter.Use, l.Generation)
	}
	if w.r.IntN(8) == 0 { // the kernel said that it is in use
		w.must(w.Block(w.t.Context(), l, UsedByOther))
		w.m.on(a)
		a.pod, a.unread = -1, true
		return
	}
	w.add(l.Addr, a)
}

// add is the rest of an ADD: it notes what the counters say; sometimes it is killed before.
func (w *bookWalker) add(addr netip.Addr, a *countedAddr) {
	if w.r.IntN(4) > 0 {
		w.must(w.SetMeter(w.t.Context(), addr, a.use, a.samples(), false))
		w.m.take(a, false)
		w.m.on(a)
	}
}

func (w *bookWalker) stop(addr netip.Addr, a *countedAddr) {
	if a.pod < 0 {
		return
	}
	last := a.samples()
	if w.r.IntN(6) == 0 {
		last = nil
	}
	key := request(a.pod).Key
	for range 1 + w.r.IntN(2) { // as often as it likes
		if a.own {
			l, _, err := w.Release(w.t.Context(), key)
			w.must(err)
			l.Addr, l.Generation = addr, a.use
			w.must(w.Cool(w.t.Context(), l, last))
		} else {
			w.must(w.EndMeter(w.t.Context(), addr, key, last))
		}
	}
	a.unread = last == nil || a.off != 0
	if last != nil {
		w.m.fold(a)
	}
	w.m.on(a)
	a.pod = -1
}

// reading is a dump of all counters, by the uses that have them now.
func (w *bookWalker) reading() Fold {
	f := Fold{Made: true, Live: map[netip.Addr]Use{}, Node: []Sample{{"tx", "cluster", w.m.node.value, 0}}}
	for addr, a := range w.m.addrs {
		if a.pod >= 0 {
			f.Live[addr] = Use{a.use, a.samples()}
		}
	}
	return f
}

func (w *bookWalker) foldAll() {
	f := w.reading()
	w.late = append(w.late, f)
	if _, err := w.Fold(w.t.Context(), f); err != nil {
		w.t.Errorf("Fold: %v", err)
	}
	for addr := range f.Live {
		w.m.fold(w.m.addrs[addr])
	}
	w.m.node.open = 0
}

// foldLate brings a reading of some time ago for those whose use has ended since.
func (w *bookWalker) foldLate() {
	if len(w.late) == 0 {
		return
	}
	f := w.late[w.r.IntN(len(w.late))]
	late := Fold{Made: true, Live: map[netip.Addr]Use{}}
	for addr, u := range f.Live {
		if a := w.m.addrs[addr]; a.pod < 0 || a.use != u.Use {
			u.Samples = append([]Sample{}, u.Samples...)
			u.Samples[w.r.IntN(len(u.Samples))].Bytes += w.r.Uint64N(1 << 40)
			late.Live[addr] = u
		}
	}
	r, err := w.Fold(w.t.Context(), late)
	if err != nil || len(r.Stale) != len(late.Live) || len(r.Reset) > 0 {
		w.t.Errorf("fold of %d uses that are over: %+v, %v", len(late.Live), r, err)
	}
}

func (w *bookWalker) setMeter(addr netip.Addr, a *countedAddr) {
	off := w.r.IntN(2) == 0
	err := w.SetMeter(w.t.Context(), addr, a.use, a.samples(), off)
	if a.pod < 0 {
		if !errors.Is(err, ErrStale) {
			w.t.Errorf("SetMeter of a use that is over: %v", err)
		}
		return
	}
	w.must(err)
	w.m.take(a, false)
	switch {
	case !off:
		w.m.on(a)
	case a.off == 0:
		a.off = w.m.now
	}
}

// fall puts a counter below what is in the totals.
func (w *bookWalker) fall(a *countedAddr) {
	c := a.counts[countedAs[w.r.IntN(len(countedAs))]]
	if folded := c.value - c.open; a.pod >= 0 && a.off == 0 && folded > 0 {
		w.m.nobody += c.open
		c.value, c.open, a.fell = w.r.Uint64N(folded), 0, true
	}
}

func (w *bookWalker) forget(addr netip.Addr, a *countedAddr) {
	w.must(w.ForgetMeters(w.t.Context(), []netip.Addr{addr}))
	if a.pod >= 0 || !a.known {
		return
	}
	a.known, a.fell = false, false
	for _, c := range a.counts { // its counters go with it
		w.m.nobody += c.open
		*c = counterPair{}
	}
}

// loseStore: all totals start again; what the counters have when they are read first is nobody's.
func (w *bookWalker) loseStore() {
	w.kernel = Observed{Ran: true}
	w.lose()
	w.m.totals, w.m.unknown, w.m.resets = map[counterName]uint64{}, map[string]time.Duration{}, map[string]uint64{ResetStore: 1}
	w.before, w.m.sent, w.m.nobody = map[counterName]uint64{}, 0, 0
	w.m.node.open = w.m.node.value
	for addr, a := range w.m.addrs {
		a.known, a.off, a.fell = false, 0, false
		if !a.own {
			a.pod = -1
		}
		for _, c := range a.counts {
			c.open = c.value
			w.m.sent += c.value
		}
		if a.pod >= 0 {
			a.off = w.m.now
			w.kernel.Holders = append(w.kernel.Holders, Holder{
				Addr: addr, Generation: a.use, Key: request(a.pod).Key, Pod: a.ns + "/x", Metered: true,
			})
		}
	}
	for addr, m := range w.meters() {
		if a := w.m.addrs[addr]; a.pod >= 0 {
			a.slot, a.known = m.Slot, true
		}
	}
	w.sync(pool(ownAddrs))
}

func (w *bookWalker) meters() map[netip.Addr]Meter {
	all := map[netip.Addr]Meter{}
	for _, m := range w.books().Meters {
		all[m.Addr] = m
	}
	return all
}

func (w *bookWalker) compare() {
	b := w.books()
	got := map[counterName]uint64{}
	for _, o := range b.Totals {
		k := counterName{o.Namespace, o.Direction, o.Class}
		got[k] = o.Bytes
		if o.Bytes < w.before[k] {
			w.t.Errorf("total of %v fell from %d to %d", k, w.before[k], o.Bytes)
		}
	}
	w.before = got
	maps.DeleteFunc(w.m.totals, func(_ counterName, n uint64) bool { return n == 0 })
	maps.DeleteFunc(w.m.resets, func(_ string, n uint64) bool { return n == 0 })
	for what, diff := range map[string]string{
		"totals": cmp.Diff(w.m.totals, got), "resets": cmp.Diff(w.m.resets, b.Resets), "unknown": cmp.Diff(w.m.unknown, b.Unknown),
	} {
		if diff != "" {
			w.t.Errorf("%s (-model +store):\n%s", what, diff)
		}
	}
	if len(b.Node) == 1 && b.Node[0].Used.Bytes != w.m.node.value-w.m.node.open {
		w.t.Errorf("node's own %+v, counter %+v", b.Node, w.m.node)
	}
	slots := map[uint16]bool{}
	for addr, m := range w.meters() {
		if a := w.m.addrs[addr]; !a.known || m.Slot != a.slot || slots[m.Slot] || (m.Use != 0) != (a.pod >= 0) || a.pod >= 0 && m.Off != a.off {
			w.t.Errorf("meter %+v, model %+v", m, *a)
		}
		slots[m.Slot] = true
	}
}

// settleAll ends all pods: each byte is then in exactly one total, or is one of those that can be in none.
func (w *bookWalker) settleAll() {
	for addr, a := range w.m.addrs {
		w.stop(addr, a)
	}
	w.compare()
	sum := w.m.nobody
	for _, a := range w.m.addrs {
		for _, c := range a.counts {
			sum += c.open
		}
	}
	for _, o := range w.books().Totals {
		sum += o.Bytes
	}
	if sum != w.m.sent {
		w.t.Errorf("%d bytes are in totals or nobody's, %d were counted", sum, w.m.sent)
	}
}
