package allocator

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var byteForByte = cmp.Options{cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()}

// live are values of the two counters that tests use.
func live(tx, rx uint64) []Sample {
	return []Sample{{"tx", "internet", tx, tx / 100}, {"rx", "cluster", rx, rx / 100}}
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// meteredRequest is one of pod n in a namespace.
func meteredRequest(n int, namespace string) Request {
	req := request(n)
	req.Namespace, req.Metered = namespace, true
	return req
}

func (f *fixture) meteredLease(n int, namespace string) Lease {
	f.t.Helper()
	l, err := f.Lease(f.t.Context(), meteredRequest(n, namespace))
	f.must(err)
	if l.Meter == nil {
		f.t.Fatalf("lease %+v has no meter", l)
	}
	return l
}

func (f *fixture) books() Books {
	f.t.Helper()
	b, err := f.Books(f.t.Context())
	f.must(err)
	return b
}

// bytesOf is a namespace's total in bytes, tx and rx.
func (f *fixture) bytesOf(namespace string) (tx, rx uint64) {
	f.t.Helper()
	for _, o := range f.books().Totals {
		switch {
		case o.Namespace != namespace:
		case o.Direction == "tx":
			tx += o.Bytes
		default:
			rx += o.Bytes
		}
	}
	return tx, rx
}

func (f *fixture) wantBytes(namespace string, tx, rx uint64) {
	f.t.Helper()
	if gotTX, gotRX := f.bytesOf(namespace); gotTX != tx || gotRX != rx {
		f.t.Errorf("namespace %s has sent %d and got %d, want %d and %d", namespace, gotTX, gotRX, tx, rx)
	}
}

func (f *fixture) fold(a netip.Addr, use uint64, samples []Sample) FoldResult {
	f.t.Helper()
	r, err := f.Fold(f.t.Context(), Fold{Made: true, Live: map[netip.Addr]Use{a: {use, samples}}})
	f.must(err)
	return r
}

func (f *fixture) cool(l Lease, last []Sample) {
	f.t.Helper()
	rel, found, err := f.Release(f.t.Context(), l.Owner.Key)
	if err != nil || !found {
		f.t.Fatalf("release of %s: %v, %v", l.Addr, found, err)
	}
	f.must(f.Cool(f.t.Context(), rel, last))
}

// An address keeps its number from pod to pod, and a new one gets the lowest that nobody has.
func TestStore_Lease_metered(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(3))
	if l := f.lease(9); l.Meter != nil {
		t.Errorf("a lease that nobody counts has meter %+v", l.Meter)
	}
	a := f.meteredLease(1, "train")
	want := Meter{Addr: a.Addr, Slot: 1, Use: a.Generation, Key: a.Owner.Key, Namespace: "train", Pod: "worker-1"}
	if diff := cmp.Diff(want, *a.Meter, byteForByte); diff != "" {
		t.Errorf("meter (-want +got):\n%s", diff)
	}
	if b := f.meteredLease(2, "train"); b.Meter.Slot != 2 {
		t.Errorf("the second address has number %d", b.Meter.Slot)
	}
	if again := f.meteredLease(1, "train"); !again.Existing || again.Meter.Use != a.Generation || again.Meter.Slot != 1 {
		t.Errorf("the same ADD again: %+v", again.Meter)
	}
	f.cool(a, live(500, 700))
	m := f.books().Meters[0]
	if m.Addr != a.Addr || m.Slot != 1 || m.Use != 0 || m.Key != (Hash{}) || m.Pod != "" || len(m.Series) != 2 ||
		m.Series[1].Folded != (Count{500, 5}) || m.Series[1].Used != (Count{}) {
		t.Errorf("after DEL the meter is %+v", m)
	}
	f.clock.add(testCool)
	next := f.meteredLease(3, "infer")
	if next.Addr != a.Addr || next.Meter.Slot != 1 || next.Meter.Use == a.Generation || next.Meter.Series[1].Folded != (Count{500, 5}) {
		t.Errorf("the next pod's meter is %+v", next.Meter)
	}
	f.fold(next.Addr, next.Generation, live(500, 700))
	f.wantBytes("infer", 0, 0)
	f.wantBytes("train", 500, 700)
}

// A pod that ran before its node counted gets a meter by the ADD or the repair that comes next.
func TestStore_Lease_meteredLater(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(1))
	l := f.lease(1)
	if again := f.meteredLease(1, "train"); again.Meter.Use != l.Generation || again.Meter.Slot != 1 {
		t.Errorf("meter %+v", again.Meter)
	}
	f.del(1)
	f.clock.add(testCool)
	l = f.lease(2)
	m, err := f.StartMeter(t.Context(), StartMeter{Addr: l.Addr, Key: l.Owner.Key, Namespace: "train", Pod: "worker-2"})
	if err != nil || m.Use != l.Generation || m.Slot != 1 {
		t.Errorf("StartMeter of a lease: %+v, %v", m, err)
	}
	if _, err := f.StartMeter(t.Context(), StartMeter{Addr: l.Addr, Key: Hash{1}}); !errors.Is(err, ErrStale) {
		t.Errorf("StartMeter of another's lease: %v", err)
	}
	foreign := StartMeter{Addr: netip.MustParseAddr("10.99.0.1"), Key: Hash{2}, Unused: true}
	first, err := f.StartMeter(t.Context(), foreign)
	f.must(err)
	if again, err := f.StartMeter(t.Context(), foreign); err != nil || again.Use != first.Use {
		t.Errorf("StartMeter again: %+v, %v", again, err)
	}
	foreign.Key = Hash{3}
	if _, err := f.StartMeter(t.Context(), foreign); !errors.Is(err, ErrStale) {
		t.Errorf("StartMeter of an unused address that somebody has: %v", err)
	}
	f.must(f.SetMeter(t.Context(), l.Addr, l.Generation, live(0, 0), false)) // nobody read the last values of the use before
	f.cool(l, live(7, 0))
	f.wantBytes("train", 7, 0)
}

func TestStore_Block_endsMeter(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(1))
	l := f.meteredLease(1, "train")
	f.must(f.Block(t.Context(), l, UsedByOther))
	if m := f.books().Meters[0]; m.Use != 0 || m.Slot != 1 {
		t.Errorf("meter %+v", m)
	}
	if r := f.fold(l.Addr, l.Generation, live(10, 10)); len(r.Stale) != 1 {
		t.Errorf("fold of a lease that is over: %+v", r)
	}
	f.wantBytes("train", 0, 0)
}

func TestStore_Fold(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(2))
	l := f.meteredLease(1, "train")
	f.must(f.SetMeter(t.Context(), l.Addr, l.Generation, live(1000, 2000), false))
	f.fold(l.Addr, l.Generation, live(1100, 2000))
	f.fold(l.Addr, l.Generation, live(1100, 2000))
	f.wantBytes("train", 100, 0)
	if r := f.fold(l.Addr, l.Generation, live(50, 2300)); len(r.Reset) != 1 { // somebody flushed our table
		t.Errorf("a counter that fell: %+v", r)
	}
	f.wantBytes("train", 100, 300)
	f.fold(l.Addr, l.Generation, live(60, 2300))
	f.wantBytes("train", 110, 300)
	f.fold(l.Addr, l.Generation, live(60, 2300)[:1]) // the other counter is gone
	f.fold(l.Addr, l.Generation, live(60, 5))
	f.wantBytes("train", 110, 305)
	b := f.books()
	if want := map[string]uint64{ResetCounters: 2}; !cmp.Equal(b.Resets, want) {
		t.Errorf("resets %v, want %v", b.Resets, want)
	}
	want := []Series{
		{"rx", "cluster", Count{5, 0}, Count{305, 3}},
		{"tx", "internet", Count{60, 0}, Count{110, 1}},
	}
	if diff := cmp.Diff(want, b.Meters[0].Series); diff != "" {
		t.Errorf("series (-want +got):\n%s", diff)
	}
}

// Values that were read for one pod are nobody else's, however late they come.
func TestStore_Fold_staleUse(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(1))
	old := f.meteredLease(1, "train")
	f.cool(old, live(100, 100))
	if r := f.fold(old.Addr, old.Generation, live(150, 100)); len(r.Stale) != 1 {
		t.Errorf("fold after DEL: %+v", r)
	}
	f.clock.add(testCool)
	now := f.meteredLease(2, "infer")
	if r := f.fold(old.Addr, old.Generation, live(200, 100)); len(r.Stale) != 1 {
		t.Errorf("fold for the pod before: %+v", r)
	}
	if err := f.SetMeter(t.Context(), old.Addr, old.Generation, live(0, 0), true); !errors.Is(err, ErrStale) {
		t.Errorf("SetMeter for the pod before: %v", err)
	}
	f.fold(addr(99), 1, live(1, 1)) // an address without a meter
	f.fold(old.Addr, 0, live(1, 1))
	f.wantBytes("train", 100, 100)
	f.wantBytes("infer", 0, 0)
	f.fold(now.Addr, now.Generation, live(200, 100))
	f.wantBytes("infer", 100, 0)
}

// DEL may be repeated, with values of a later reading too.
func TestStore_Cool_foldsOnce(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(1))
	l := f.meteredLease(1, "train")
	f.fold(l.Addr, l.Generation, live(30, 0))
	l, _, err := f.Release(t.Context(), l.Owner.Key)
	f.must(err)
	for _, last := range [][]Sample{live(100, 50), live(100, 50), live(120, 50), nil} {
		f.must(f.Cool(t.Context(), l, last))
	}
	f.wantBytes("train", 100, 50)
	f.wantBytes("", 0, 0)
	if n := len(f.books().Totals); n != 2 {
		t.Errorf("totals: %+v", f.books().Totals)
	}
}

// A span in which a pod wasn't counted is noted, and what its counters got meanwhile is nobody's.
func TestStore_Fold_off(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(1))
	l := f.meteredLease(1, "train")
	f.must(f.SetMeter(t.Context(), l.Addr, l.Generation, nil, true))
	f.clock.add(3 * time.Second)
	f.must(f.SetMeter(t.Context(), l.Addr, l.Generation, nil, true)) // since the first time
	f.fold(l.Addr, l.Generation, nil)
	f.clock.add(4 * time.Second)
	f.fold(l.Addr, l.Generation, live(1000, 1000))
	f.clock.add(time.Second)
	f.fold(l.Addr, l.Generation, live(1001, 1000))
	f.wantBytes("train", 1, 0)
	f.must(f.SetMeter(t.Context(), l.Addr, l.Generation, nil, true))
	f.clock.add(time.Second)
	f.must(f.SetMeter(t.Context(), l.Addr, l.Generation, live(1001, 1000), false))
	f.must(f.SetMeter(t.Context(), l.Addr, l.Generation, nil, true))
	f.clock.add(2 * time.Second)
	f.cool(l, live(5000, 5000))
	f.wantBytes("train", 1, 0)
	b := f.books()
	if want := map[string]time.Duration{"train": 10 * time.Second}; !cmp.Equal(b.Unknown, want) {
		t.Errorf("unknown %v, want %v", b.Unknown, want)
	}
	if m := b.Meters[0]; m.Off != 0 || len(b.Resets) != 0 {
		t.Errorf("meter %+v, resets %v", m, b.Resets)
	}
}

// A use whose last values nobody read leaves counters of which nothing is known: the next use isn't counted until somebody says where they
// stand, and values alone don't say that they are its own.
func TestStore_Fold_unread(t *testing.T) {
	for name, say := range map[string]func(f *fixture, l Lease){
		"SetMeter": func(f *fixture, l Lease) {
			f.must(f.SetMeter(f.t.Context(), l.Addr, l.Generation, live(100, 50), false))
		},
		"Made": func(f *fixture, l Lease) { f.fold(l.Addr, l.Generation, live(100, 50)) },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.sync(pool(1))
			a := f.meteredLease(1, "train")
			f.fold(a.Addr, a.Generation, live(10, 5))
			f.cool(a, nil)
			f.clock.add(testCool)
			b := f.meteredLease(2, "infer")
			if b.Meter.Off == 0 {
				t.Errorf("meter %+v", b.Meter)
			}
			_, err := f.Fold(t.Context(), Fold{Live: map[netip.Addr]Use{b.Addr: {b.Generation, live(90, 50)}}})
			f.must(err)
			if m := f.books().Meters[0]; m.Off == 0 {
				t.Errorf("a reading alone has it counted: %+v", m)
			}
			say(f, b)
			f.cool(b, live(107, 53))
			f.wantBytes("train", 10, 5)
			f.wantBytes("infer", 7, 3)
			if n := f.books().Resets[ResetCounters]; n != 0 {
				t.Errorf("%d resets", n)
			}
		})
	}
}

// Counters that are made anew with a pod begin where SetMeter says.
func TestStore_Lease_remade(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(1))
	a := f.meteredLease(1, "train")
	f.cool(a, live(100, 50))
	f.clock.add(testCool)
	req := meteredRequest(2, "infer")
	req.Remade = true
	b, err := f.Lease(t.Context(), req)
	f.must(err)
	_, err = f.Fold(t.Context(), Fold{Live: map[netip.Addr]Use{b.Addr: {b.Generation, live(0, 0)}}})
	f.must(err)
	f.must(f.SetMeter(t.Context(), b.Addr, b.Generation, live(0, 0), false))
	f.cool(b, live(7, 3))
	f.wantBytes("infer", 7, 3)
	if n := f.books().Resets[ResetCounters]; n != 0 {
		t.Errorf("%d resets", n)
	}
}

// Where counting ends for all, nothing that was counted goes, and counters that begin anew are no reset.
func TestStore_StopMeters(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(3))
	a, b := f.meteredLease(1, "train"), f.meteredLease(2, "infer")
	_, err := f.Fold(t.Context(), Fold{Made: true, Node: live(70, 7), Live: map[netip.Addr]Use{
		a.Addr: {a.Generation, live(100, 10)}, b.Addr: {b.Generation, live(200, 20)},
	}})
	f.must(err)
	f.must(f.StopMeters(t.Context()))
	f.clock.add(3 * time.Second)
	f.must(f.StopMeters(t.Context())) // since the first time
	f.clock.add(time.Second)
	_, err = f.Fold(t.Context(), Fold{Made: true, Node: live(5, 1), Live: map[netip.Addr]Use{
		a.Addr: {a.Generation, live(0, 0)}, b.Addr: {b.Generation, live(3, 0)},
	}})
	f.must(err)
	f.fold(a.Addr, a.Generation, live(1, 1))
	f.wantBytes("train", 101, 11)
	f.wantBytes("infer", 200, 20)
	books := f.books()
	if want := map[string]time.Duration{"train": 4 * time.Second, "infer": 4 * time.Second}; !cmp.Equal(books.Unknown, want) {
		t.Errorf("unknown %v, want %v", books.Unknown, want)
	}
	if len(books.Resets) != 0 {
		t.Errorf("resets %v", books.Resets)
	}
	want := []Series{{"rx", "cluster", Count{1, 0}, Count{8, 0}}, {"tx", "internet", Count{5, 0}, Count{75, 0}}}
	if diff := cmp.Diff(want, books.Node); diff != "" {
		t.Errorf("node (-want +got):\n%s", diff)
	}
}

// The counters of a class that isn't counted any more go with it: no reset, and nothing that they had goes.
func TestStore_Fold_classes(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(1))
	l := f.meteredLease(1, "train")
	gate := func(n uint64) []Sample { return append(live(10, 10), Sample{"tx", "gate", n, n}) }
	for _, step := range []struct {
		samples []Sample
		classes []string
		resets  uint64
	}{
		{gate(5), nil, 0},
		{gate(7), []string{"cluster", "internet"}, 0}, // its counters are there yet
		{gate(6), []string{"cluster", "internet"}, 2}, // and may fall
		{live(10, 10), []string{"cluster", "internet"}, 2},
		{gate(4), nil, 2}, // it came back, from zero
		{live(10, 10), nil, 4},
		{[]Sample{{"rx", "gate", 1, 1}}, []string{"gate"}, 4},
	} {
		_, err := f.Fold(t.Context(), Fold{
			Made: true,
			Node: step.samples, Live: map[netip.Addr]Use{l.Addr: {l.Generation, step.samples}}, Classes: step.classes,
		})
		f.must(err)
		if n := f.books().Resets[ResetCounters]; n != step.resets {
			t.Fatalf("after %v: %d resets, want %d", step, n, step.resets)
		}
	}
	for _, tot := range f.books().Totals {
		if tot.Class == "gate" && tot.Direction == "tx" && tot.Bytes != 11 {
			t.Errorf("gate has %d bytes", tot.Bytes)
		}
	}
}

func TestStore_Fold_node(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(1))
	for _, samples := range [][]Sample{live(100, 10), live(150, 10), nil, live(20, 30)} {
		_, err := f.Fold(t.Context(), Fold{Made: true, Node: samples, Resets: map[string]uint64{"rules": 2}})
		f.must(err)
	}
	b := f.books()
	want := []Series{{"rx", "cluster", Count{30, 0}, Count{30, 0}}, {"tx", "internet", Count{20, 0}, Count{150, 1}}}
	if diff := cmp.Diff(want, b.Node); diff != "" {
		t.Errorf("node (-want +got):\n%s", diff)
	}
	if want := map[string]uint64{"rules": 8, ResetCounters: 1}; !cmp.Equal(b.Resets, want) {
		t.Errorf("resets %v, want %v", b.Resets, want)
	}
}

// No sum starts again at zero.
func TestStore_Fold_saturates(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(2))
	for n := range 2 {
		l := f.meteredLease(n, "train")
		f.fold(l.Addr, l.Generation, live(math.MaxUint64-5, 3))
	}
	f.wantBytes("train", math.MaxUint64, 6)
	_, err := f.Fold(t.Context(), Fold{Resets: map[string]uint64{"x": math.MaxUint64}})
	f.must(err)
	_, err = f.Fold(t.Context(), Fold{Resets: map[string]uint64{"x": 2}})
	f.must(err)
	if n := f.books().Resets["x"]; n != math.MaxUint64 {
		t.Errorf("%d resets", n)
	}
}

// Two samples of one counter are one.
func TestStore_Fold_twice(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(1))
	l := f.meteredLease(1, "train")
	f.fold(l.Addr, l.Generation, append(live(1, 1), live(2, 2)...))
	f.wantBytes("train", 3, 3)
}

func TestStore_Fold_anyNamespace(t *testing.T) {
	f := newFixture(t)
	names := []string{"", "train", "tr\x00ain", "tr\xffain", strings.Repeat("n", 254), strings.Repeat("long", 20000), "00000000000", "abcd"}
	f.sync(pool(len(names)))
	for i, namespace := range names {
		l := f.meteredLease(i, namespace)
		f.fold(l.Addr, l.Generation, live(uint64(i+1), 0))
	}
	for i, namespace := range names {
		f.wantBytes(namespace, uint64(i+1), 0)
	}
}

// Addresses of other IPAMs are counted alike.
func TestStore_StartMeter(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(1))
	six := netip.MustParseAddr("fd00::7")
	mine := f.meteredLease(1, "train")
	start := StartMeter{Addr: six, Key: Hash{7}, Namespace: "infer", Pod: "web"}
	m, err := f.StartMeter(t.Context(), start)
	if err != nil || m.Slot != 2 || m.Use <= mine.Generation {
		t.Fatalf("StartMeter: %+v, %v", m, err)
	}
	if again, err := f.StartMeter(t.Context(), start); err != nil || !cmp.Equal(again, m, byteForByte) {
		t.Errorf("StartMeter again: %+v, %v", again, err)
	}
	f.fold(six, m.Use, live(10, 0))
	f.must(f.EndMeter(t.Context(), six, Hash{8}, live(99, 0))) // another's
	f.must(f.EndMeter(t.Context(), six, Hash{7}, live(15, 0)))
	f.must(f.EndMeter(t.Context(), six, Hash{7}, live(20, 0)))
	f.wantBytes("infer", 15, 0)
	for _, bad := range []StartMeter{{Key: Hash{1}}, {Addr: six}} {
		if m, err := f.StartMeter(t.Context(), bad); err == nil {
			t.Errorf("StartMeter of %+v: %+v", bad, m)
		}
	}
	next, err := f.StartMeter(t.Context(), StartMeter{Addr: six, Key: Hash{9}, Namespace: "train"})
	if err != nil || next.Slot != 2 || next.Use <= m.Use || next.Series[0].Folded.Bytes != 15 {
		t.Errorf("the next pod: %+v, %v", next, err)
	}
	taken, err := f.StartMeter(t.Context(), StartMeter{Addr: six, Key: Hash{10}, Namespace: "train"}) // its DEL was never seen
	if err != nil || taken.Slot != 2 || taken.Use <= next.Use {
		t.Errorf("the pod after that: %+v, %v", taken, err)
	}
}

// A number is given out again when its address is forgotten, and not before.
func TestStore_ForgetMeters(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(1))
	key := func(n int) Hash { return Hash{byte(n)} }
	start := func(n int) Meter {
		t.Helper()
		m, err := f.StartMeter(t.Context(), StartMeter{Addr: addr(500 + n), Key: key(n)})
		f.must(err)
		return m
	}
	for n := 1; n <= 5; n++ {
		if m := start(n); int(m.Slot) != n {
			t.Errorf("meter %d has number %d", n, m.Slot)
		}
	}
	for _, n := range []int{4, 2, 3} {
		f.must(f.EndMeter(t.Context(), addr(500+n), key(n), nil))
	}
	f.must(f.ForgetMeters(t.Context(), []netip.Addr{addr(504), addr(502), addr(505), addr(599)})) // .5 is in use
	for i, want := range []uint16{2, 4, 6} {
		if m := start(10 + i); m.Slot != want {
			t.Errorf("a new address has number %d, want %d", m.Slot, want)
		}
	}
	if b := f.books(); len(b.Meters) != 6 {
		t.Errorf("meters %+v", b.Meters)
	}
}

func TestStore_Sync_forgetsMeter(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(2))
	gone := f.meteredLease(1, "train")
	f.meteredLease(2, "train")
	f.cool(gone, live(5, 5))
	f.clock.add(testCool)
	less := snap(addrs(11, 1))
	less.Digest = [32]byte{} // compare each time
	for range 4 {
		f.sync(less)
		f.clock.add(forgetAfter)
	}
	b := f.books()
	if len(b.Meters) != 1 || b.Meters[0].Slot != 2 {
		t.Errorf("meters %+v", b.Meters)
	}
	f.wantBytes("train", 5, 5)
	f.sync(pool(2))
	if l := f.meteredLease(3, "train"); l.Meter.Slot != 1 || len(l.Meter.Series) != 0 {
		t.Errorf("an address that comes back has %+v", l.Meter)
	}
}

// There are more addresses than numbers on no node; if there were, they would be counted all the same.
func TestStore_slots_usedUp(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(2))
	f.tamper(func(t *txn) error {
		for n := 1; n < math.MaxUint16; n++ {
			a := netip.AddrFrom4([4]byte{10, 99, byte(n >> 8), byte(n)})
			if err := t.putMeter(Meter{Addr: a, Slot: uint16(n)}); err != nil {
				return err
			}
		}
		sum, err := t.summary()
		sum.slots = math.MaxUint16 - 1
		return errors.Join(err, t.putSummary(sum))
	})
	for i, want := range []uint16{math.MaxUint16, 0} {
		l := f.meteredLease(i, "train")
		if l.Meter.Slot != want {
			t.Errorf("number %d, want %d", l.Meter.Slot, want)
		}
		f.fold(l.Addr, l.Generation, live(1, 1))
	}
	f.wantBytes("train", 2, 2)
	f.must(f.ForgetMeters(t.Context(), []netip.Addr{netip.MustParseAddr("10.99.1.1")}))
	if m, err := f.StartMeter(t.Context(), StartMeter{Addr: addr(900), Key: Hash{1}}); err != nil || m.Slot != 257 {
		t.Errorf("a number that is free again: %+v, %v", m, err)
	}
}

// A lost store: totals start again with the first reading; what the counters had by then is nobody's, for they belong to addresses, and
// earlier pods had those.
func TestStore_rebuild_meters(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(3))
	a, b := f.meteredLease(1, "train"), f.meteredLease(2, "infer")
	f.fold(a.Addr, a.Generation, live(100, 100))
	f.cool(b, live(50, 50))
	holder := asHolder(a)
	holder.Metered = true
	foreign := Holder{Addr: addr(99), Generation: 5, Key: Hash{5}, Pod: "unknown"}
	f.kernel = Observed{Ran: true, Holders: []Holder{holder, foreign}}
	f.lose()
	f.sync(pool(3))
	got := f.books()
	want := Books{
		Meters: []Meter{{Addr: a.Addr, Slot: 1, Use: a.Generation, Key: a.Owner.Key, Namespace: "train", Pod: "worker-1", Off: f.clock.now}},
		Resets: map[string]uint64{ResetStore: 1},
	}
	if diff := cmp.Diff(want, got, byteForByte); diff != "" {
		t.Errorf("books (-want +got):\n%s", diff)
	}
	f.fold(a.Addr, a.Generation, live(130, 100))
	f.wantBytes("train", 0, 0)
	f.fold(a.Addr, a.Generation, live(150, 101))
	f.wantBytes("train", 20, 1)
	f.clock.add(testCool)
	next := f.meteredLease(3, "infer")
	if next.Meter.Off != f.clock.now {
		t.Errorf("an address whose counters nobody has read is counted: %+v", next.Meter)
	}
	f.cool(next, live(77, 77)) // ADD was killed
	f.wantBytes("infer", 0, 0)
	other := f.meteredLease(4, "infer")
	f.must(f.SetMeter(t.Context(), other.Addr, other.Generation, live(77, 77), false))
	f.fold(other.Addr, other.Generation, live(80, 77))
	f.wantBytes("infer", 3, 0)
}

func (f *fixture) lose() {
	f.t.Helper()
	f.must(os.Remove(f.path()))
}

func sampleMeters() map[string]Meter {
	series := []Series{{"rx", "cluster", Count{1, 2}, Count{}}, {"tx", "internet", Count{math.MaxUint64, 1 << 40}, Count{7, math.MaxUint64}}}
	return map[string]Meter{
		"zero":  {},
		"ended": {Slot: 3, Series: series},
		"used":  {Slot: 65535, Use: 9, Key: Hash{1}, Namespace: "train", Pod: "worker-0", Series: series[:1]},
		"off":   {Slot: 1, Use: 1 << 63, Key: Hash{15: 1}, Namespace: "\xff\x00", Off: 5},
	}
}

func TestMeter_roundTrip(t *testing.T) {
	for name, m := range sampleMeters() {
		m.Addr = addr(10)
		b := m.encode()
		got, err := decodeMeter(addr(10), b)
		if diff := cmp.Diff(m, got, byteForByte); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
		for n := range b {
			if _, err := decodeMeter(addr(10), b[:n]); err == nil {
				t.Errorf("%s: accepted when cut at %d of %d", name, n, len(b))
			}
		}
		if _, err := decodeMeter(addr(10), append(bytes.Clone(b), 0)); err == nil {
			t.Errorf("%s: accepted with a byte too many", name)
		}
	}
}

// FuzzBooks: no bytes make a decoder panic, and what it accepts comes back the same from another turn.
func FuzzBooks(f *testing.F) {
	for _, m := range sampleMeters() {
		f.Add(m.encode())
		f.Add((&total{"train", time.Second, m.Series}).encode())
		f.Add((&summary{3, 4, m.Series, map[string]uint64{"store": 1}}).encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		again := func(first, second any, err error) {
			t.Helper()
			if diff := cmp.Diff(first, second, byteForByte, cmp.AllowUnexported(total{}, summary{})); err != nil || diff != "" {
				t.Fatalf("%v (-first +again):\n%s", err, diff)
			}
		}
		if m, err := decodeMeter(addr(1), b); err == nil {
			second, err := decodeMeter(addr(1), m.encode())
			again(m, second, err)
		}
		if o, err := decodeTotal(b); err == nil {
			second, err := decodeTotal(o.encode())
			again(o, second, err)
		}
		if s, err := decodeSummary(b); err == nil {
			second, err := decodeSummary(s.encode())
			again(s, second, err)
		}
	})
}

// text is all that the books say, in words.
func (b *Books) text() string {
	var s strings.Builder
	for _, m := range b.Meters {
		fmt.Fprintf(&s, "meter %s number %d use %d key %x ns %q pod %q off %s\n", m.Addr, m.Slot, m.Use, m.Key, m.Namespace, m.Pod, m.Off)
		for _, v := range m.Series {
			fmt.Fprintf(&s, "\t%s %s folded %v used %v\n", v.Direction, v.Class, v.Folded, v.Used)
		}
	}
	for _, o := range b.Totals {
		fmt.Fprintf(&s, "total %q %s %s %d bytes %d packets\n", o.Namespace, o.Direction, o.Class, o.Bytes, o.Packets)
	}
	fmt.Fprintf(&s, "node's own %v\nresets %v\nunknown %v\n", b.Node, b.Resets, b.Unknown)
	return s.String()
}
