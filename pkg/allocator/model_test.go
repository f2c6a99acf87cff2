package allocator

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"
)

// model says what the invariants (pkg/node/doc.go) allow, in the plainest form. It shares no code with the store.
type model struct {
	now     time.Duration
	pool    map[netip.Addr]*modelAddr
	last    uint64 // highest generation seen
	rebuilt time.Duration
	ran     bool
}

type modelAddr struct {
	pod       int // -1: nobody
	releasing bool
	gen       uint64
	idle      time.Duration // since when nobody uses it
	ready     time.Duration // when it has cooled down
	last      int           // pod that had it, for as long as it cools; -1: nobody knows
	present   bool
	missing   time.Duration // zero: it isn't
	onLink    bool
	other     time.Duration // used by another since; zero: it isn't
}

func (m *model) assignable(a *modelAddr) bool {
	return a.pod < 0 && a.present && !a.onLink && a.other == 0 && a.ready <= m.now
}

// again says whether nothing but the cool-down after this very pod keeps an address back.
func (m *model) again(a *modelAddr, pod int) bool {
	return a.pod < 0 && a.last == pod && a.present && !a.onLink && a.other == 0
}

// oldest is the idle time of the address that has to be used next; false when there is none.
func (m *model) oldest() (idle time.Duration, ok bool) {
	for _, a := range m.pool {
		if m.assignable(a) && (!ok || a.idle < idle) {
			idle, ok = a.idle, true
		}
	}
	return idle, ok
}

func (m *model) holds(pod int) (netip.Addr, *modelAddr) {
	for addr, a := range m.pool {
		if a.pod == pod {
			return addr, a
		}
	}
	return netip.Addr{}, nil
}

// observe is a snapshot, or the last one again (listed nil).
func (m *model) observe(listed, onLink map[netip.Addr]bool) {
	for addr, a := range m.pool {
		if listed != nil {
			m.look(a, listed[addr], onLink[addr])
		}
		if a.present && a.missing != 0 && a.missing+10*time.Second <= m.now {
			a.present = false
		}
		if a.other != 0 && a.other+time.Minute <= m.now {
			a.other = 0
			m.atTail(a)
		}
	}
	for addr := range listed {
		if m.pool[addr] != nil {
			continue
		}
		a := &modelAddr{pod: -1, last: -1, idle: m.now, present: true, onLink: onLink[addr]}
		if m.ran && m.now < m.rebuilt+testCool {
			a.idle, a.ready = m.rebuilt, m.rebuilt+testCool
		}
		m.pool[addr] = a
	}
}

func (m *model) look(a *modelAddr, listed, onLink bool) {
	switch {
	case !listed && a.present && a.missing == 0:
		a.missing = m.now
	case listed:
		a.missing = 0
		if !a.present {
			a.present = true
			m.atTail(a)
		}
		if a.onLink && !onLink {
			m.atTail(a)
		}
		if onLink {
			a.other = 0
		}
		a.onLink = onLink
	}
}

// atTail: an address that others may have used counts as used until now. One that still cools keeps its place.
func (m *model) atTail(a *modelAddr) {
	if a.pod < 0 && a.ready <= m.now {
		a.idle = m.now
	}
}

// walker does random things to a store and to the model, and compares.
type walker struct {
	*fixture
	m      *model
	r      *rand.Rand
	listed map[netip.Addr]bool
	onLink map[netip.Addr]bool
}

const modelPods, modelAddrs = 14, 10

func TestStore_model(t *testing.T) {
	steps := 400
	if testing.Short() { // the race detector's run in a hurry
		steps = 150
	}
	for _, seed := range []uint64{1, 2, 3, uint64(time.Now().UnixNano())} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			f := newFixture(t)
			w := &walker{
				fixture: f, r: rand.New(rand.NewPCG(seed, 7)),
				m: &model{now: f.clock.now, pool: map[netip.Addr]*modelAddr{}, rebuilt: f.clock.now},
			}
			w.sync()
			for range steps {
				w.step()
				if t.Failed() {
					return
				}
			}
			w.compare()
		})
	}
}

func (w *walker) step() {
	d := time.Duration(w.r.Int64N(int64(4 * time.Second)))
	w.clock.add(d)
	w.m.now += d
	pod := w.r.IntN(modelPods)
	switch n := w.r.IntN(100); {
	case n < 35:
		w.lease(pod)
	case n < 45:
		w.ask(pod)
	case n < 75:
		w.del(pod)
	case n < 88:
		w.sync()
	case n < 92:
		w.touch()
	case n < 95:
		w.clock.add(20 * time.Second)
		w.m.now += 20 * time.Second
	case n < 97:
		w.lose()
	default:
		w.compare()
	}
}

func (w *walker) lease(pod int) {
	held, a := w.m.holds(pod)
	l, err := w.Lease(w.t.Context(), request(pod))
	oldest, ok := w.m.oldest()
	switch {
	case a != nil && a.releasing:
		if !errors.Is(err, ErrReleasing) {
			w.t.Errorf("lease of a releasing key: %+v, %v", l, err)
		}
	case a != nil:
		if err != nil || !l.Existing || l.Addr != held || l.Generation != a.gen {
			w.t.Errorf("pod %d has %s generation %d, got %+v, %v", pod, held, a.gen, l, err)
		}
	case !ok:
		if !errors.Is(err, ErrPoolExhausted) {
			w.t.Errorf("nothing is assignable, got %+v, %v", l, err)
		}
	case err != nil:
		w.t.Errorf("an address is assignable, got %v", err)
	default:
		w.granted(pod, l, oldest)
	}
}

// ask is a pod that has no address and wants a certain one, often that which it had.
func (w *walker) ask(pod int) {
	if _, a := w.m.holds(pod); a != nil {
		return
	}
	req := request(pod)
	req.Want = addr(10 + w.r.IntN(modelAddrs))
	for i := range modelAddrs {
		if had := w.m.pool[addr(10+i)]; had != nil && had.last == pod && w.r.IntN(2) == 0 {
			req.Want = addr(10 + i)
		}
	}
	a := w.m.pool[req.Want]
	l, err := w.Lease(w.t.Context(), req)
	if a == nil || !w.m.assignable(a) && !w.m.again(a, pod) {
		if !errors.Is(err, ErrNotAvailable) && (a != nil || !errors.Is(err, ErrNotOurs)) {
			w.t.Errorf("pod %d asked for %s, which it can't have (%+v): %+v, %v", pod, req.Want, a, l, err)
		}
		return
	}
	if err != nil || l.Addr != req.Want || l.Existing || l.Generation <= w.m.last || l.Generation < uint64(w.m.now) {
		w.t.Errorf("pod %d asked for %s (%+v), generation above %d: %+v, %v", pod, req.Want, a, w.m.last, l, err)
		return
	}
	w.holds(pod, a, l)
}

// granted checks a new lease.
func (w *walker) granted(pod int, l Lease, oldest time.Duration) {
	a := w.m.pool[l.Addr]
	if a == nil || !w.m.assignable(a) || a.idle != oldest || l.Existing || l.Generation <= w.m.last || l.Generation < uint64(w.m.now) {
		w.t.Errorf("lease %+v of %+v; idle since %s has to go first, generation above %d", l, a, oldest, w.m.last)
		return
	}
	w.holds(pod, a, l)
}

// holds notes a new lease; now and then the kernel says that the address is in use.
func (w *walker) holds(pod int, a *modelAddr, l Lease) {
	a.pod, a.last, a.gen, w.m.last = pod, -1, l.Generation, l.Generation
	if w.r.IntN(12) > 0 {
		return
	}
	if err := w.Block(w.t.Context(), l, UsedByOther); err != nil {
		w.t.Errorf("Block: %v", err)
	}
	a.pod, a.other, a.idle, a.ready = -1, w.m.now, w.m.now, 0
}

// del does a DEL, which may be killed between its two steps.
func (w *walker) del(pod int) {
	held, a := w.m.holds(pod)
	l, found, err := w.Release(w.t.Context(), request(pod).Key)
	if err != nil || found != (a != nil) || found && (l.Addr != held || l.Generation != a.gen) {
		w.t.Errorf("release of pod %d (%s): %+v, %v, %v", pod, held, l, found, err)
		return
	}
	if !found {
		return
	}
	a.releasing = true
	if w.r.IntN(4) == 0 {
		return
	}
	l.FlushDue = w.r.IntN(3) == 0
	if err := w.Cool(w.t.Context(), l, nil); err != nil {
		w.t.Errorf("Cool: %v", err)
	}
	*a = modelAddr{
		pod: -1, last: pod, idle: w.m.now, ready: w.m.now + testCool,
		present: a.present, missing: a.missing, onLink: a.onLink, other: a.other,
	}
	if w.r.IntN(2) == 0 {
		if err := w.Flushed(w.t.Context(), l); err != nil {
			w.t.Errorf("Flushed: %v", err)
		}
	}
}

// sync takes a random part of the addresses, some on a host link.
func (w *walker) sync() {
	w.listed, w.onLink = map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for i := range modelAddrs {
		if w.r.IntN(8) > 0 {
			w.listed[addr(10+i)] = true
			if w.r.IntN(10) == 0 {
				w.onLink[addr(10+i)] = true
			}
		}
	}
	w.resync()
}

func (w *walker) resync() {
	s := snap(slices.SortedFunc(maps.Keys(w.listed), netip.Addr.Compare), slices.SortedFunc(maps.Keys(w.onLink), netip.Addr.Compare)...)
	if err := w.Sync(w.t.Context(), s); err != nil {
		w.t.Errorf("Sync: %v", err)
	}
	w.m.observe(w.listed, w.onLink)
}

func (w *walker) touch() {
	if w.r.IntN(2) == 0 {
		w.resync()
		return
	}
	if err := w.Touch(w.t.Context()); err != nil {
		w.t.Errorf("Touch: %v", err)
	}
	w.m.observe(nil, nil)
}

// lose removes the store. What the kernel shows is leased again; the rest is known from the next snapshot on.
func (w *walker) lose() {
	w.kernel = Observed{Ran: true}
	for a, r := range w.m.pool {
		if r.pod < 0 || r.releasing && w.r.IntN(2) == 0 {
			delete(w.m.pool, a)
			continue
		}
		w.kernel.Holders = append(w.kernel.Holders, Holder{Addr: a, Generation: r.gen, Key: request(r.pod).Key})
		*r = modelAddr{pod: r.pod, last: -1, gen: r.gen}
	}
	if err := os.Remove(w.path()); err != nil {
		w.t.Error(err)
	}
	w.m.ran, w.m.rebuilt = true, w.m.now
	w.compare()
	w.resync()
}

// compare looks at every address.
func (w *walker) compare() {
	got := w.byAddr()
	for a, l := range got {
		m := w.m.pool[a]
		if m == nil {
			w.t.Errorf("%s is in the store only: %+v", a, l)
			continue
		}
		state := Leased
		switch {
		case m.pod >= 0 && m.releasing:
			state = Releasing
		case m.pod < 0:
			state = Free
			if l.State == Cooling && (l.Since+testCool > w.m.now) == (m.ready > w.m.now) {
				state = Cooling
			}
		}
		blocked := m.onLink || m.other != 0
		if l.State != state || l.Present != m.present || (l.Blocked != NotBlocked) != blocked || m.pod >= 0 && l.Generation != m.gen {
			w.t.Errorf("%s: store %+v, model %+v", a, l, *m)
		}
	}
	for a, m := range w.m.pool {
		if _, ok := got[a]; !ok && (m.pod >= 0 || m.present) {
			w.t.Errorf("%s is in the model only: %+v", a, *m)
		}
	}
	w.totalsAgree(got)
	w.invariants()
}

func (w *walker) totalsAgree(got map[netip.Addr]Lease) {
	v, err := w.Read(w.t.Context(), Hash{})
	if err != nil {
		w.t.Errorf("Read: %v", err)
		return
	}
	free, leased, total := 0, 0, 0
	for _, n := range v.Totals {
		free, leased, total = free+n.Free, leased+n.Leased, total+n.Total
	}
	wantFree, wantLeased := 0, 0
	for _, m := range w.m.pool {
		if w.m.assignable(m) {
			wantFree++
		}
		if m.pod >= 0 && !m.releasing {
			wantLeased++
		}
	}
	if free != wantFree || leased != wantLeased || total != len(got) {
		w.t.Errorf("totals %+v; want %d free, %d leased, %d in all", v.Totals, wantFree, wantLeased, len(got))
	}
}
