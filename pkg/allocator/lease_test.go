package allocator

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestStore_states(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(1))
	l := f.lease(1)
	key := request(1).Key

	rel, found, err := f.Release(t.Context(), key)
	if err != nil || !found || rel.State != Releasing || rel.Owner != l.Owner || rel.LinkName != l.LinkName {
		t.Fatalf("Release: %+v, %v, %v", rel, found, err)
	}
	if _, err := f.Lease(t.Context(), request(1)); !errors.Is(err, ErrReleasing) {
		t.Errorf("lease of a releasing key: %v, want ErrReleasing", err)
	}
	if _, err := f.Lease(t.Context(), request(2)); !errors.Is(err, ErrPoolExhausted) {
		t.Errorf("a releasing address was taken for free: %v", err)
	}
	f.clock.add(time.Hour)
	again, found, err := f.Release(t.Context(), key)
	if err != nil || !found || again.Generation != l.Generation || again.Since != rel.Since {
		t.Errorf("second Release: %+v, %v, %v", again, found, err)
	}
	for range 2 { // repeatable
		if err := f.Cool(t.Context(), rel, nil); err != nil {
			t.Fatalf("Cool: %v", err)
		}
	}
	if _, found, err := f.Release(t.Context(), key); found || err != nil {
		t.Errorf("Release of an ended lease: %v, %v", found, err)
	}
	if _, err := f.Lease(t.Context(), request(2)); !errors.Is(err, ErrPoolExhausted) {
		t.Errorf("a cooling address was handed out: %v", err)
	}
	f.clock.add(testCool - 1)
	if _, err := f.Lease(t.Context(), request(2)); !errors.Is(err, ErrPoolExhausted) {
		t.Errorf("handed out a nanosecond early: %v", err)
	}
	f.clock.add(1)
	if next := f.lease(2); next.Generation <= l.Generation {
		t.Errorf("generation %d after %d", next.Generation, l.Generation)
	}
}

// A late DEL of an older lease can't touch a newer one.
func TestStore_Cool_olderGeneration(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(1))
	old := f.lease(1)
	f.del(1)
	f.clock.add(testCool)
	now := f.lease(2)
	if err := f.Cool(t.Context(), old, nil); !errors.Is(err, ErrStale) {
		t.Errorf("Cool of an older lease: %v, want ErrStale", err)
	}
	if err := f.Cool(t.Context(), now, nil); !errors.Is(err, ErrStale) {
		t.Errorf("Cool of a lease that nobody released: %v, want ErrStale", err)
	}
	if err := f.Block(t.Context(), old, UsedByOther); !errors.Is(err, ErrStale) {
		t.Errorf("Block of an older lease: %v, want ErrStale", err)
	}
	if _, err := f.ReleaseAddr(t.Context(), old.Addr, old.Generation); !errors.Is(err, ErrStale) {
		t.Errorf("ReleaseAddr of an older lease: %v, want ErrStale", err)
	}
	if l := f.byAddr()[now.Addr]; l.State != Leased || l.Generation != now.Generation {
		t.Errorf("the newer lease became %+v", l)
	}
	if l, err := f.ReleaseAddr(t.Context(), now.Addr, now.Generation); err != nil || l.State != Releasing {
		t.Errorf("ReleaseAddr: %+v, %v", l, err)
	}
	// The newer one is being torn down, so only its generation keeps the older DEL from ending it.
	if err := f.Cool(t.Context(), old, nil); !errors.Is(err, ErrStale) {
		t.Errorf("Cool of an older lease beside a DEL of the newer: %v, want ErrStale", err)
	}
	if l := f.byAddr()[now.Addr]; l.State != Releasing {
		t.Errorf("the newer lease became %+v", l)
	}
}

func TestStore_Lease_want(t *testing.T) {
	f := newFixture(t)
	all := addrs(10, 5)
	f.sync(snap(all, addr(13)))
	ask := func(pod int, a netip.Addr) (Lease, error) {
		req := request(pod)
		req.Want = a
		return f.Lease(t.Context(), req)
	}
	if l, err := ask(1, addr(12)); err != nil || l.Addr != addr(12) {
		t.Fatalf("Lease: %v, %v", l.Addr, err)
	}
	if l, err := ask(2, netip.AddrFrom16(addr(11).As16())); err != nil || l.Addr != addr(11) {
		t.Fatalf("Lease of a mapped address: %v, %v", l.Addr, err)
	}
	f.del(2)
	tests := []struct {
		a    netip.Addr
		is   error
		want string
	}{
		{addr(12), ErrNotAvailable, "10.20.0.12 is leased"},
		{addr(11), ErrNotAvailable, "10.20.0.11 is cooling, ready in 30s"},
		{addr(13), ErrNotAvailable, "10.20.0.13 is blocked: on-host-link"},
		{addr(99), ErrNotOurs, "10.20.0.99 is not an address of this node's NICs"},
		{addr(4), ErrNotOurs, "10.20.0.4 is not an address of this node's NICs"},
	}
	for _, tt := range tests {
		if _, err := ask(3, tt.a); !errors.Is(err, tt.is) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: error is %v, want %v: %s", tt.a, err, tt.is, tt.want)
		}
	}
}

// A container that is started again, or whose network is set up again, has its address back at once; nobody else has it earlier.
func TestStore_Lease_want_again(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(5))
	ask := func(pod int, a netip.Addr) (Lease, error) {
		req := request(pod)
		req.Want = a
		return f.Lease(t.Context(), req)
	}
	first, err := ask(1, addr(12))
	if err != nil {
		t.Fatal(err)
	}
	f.del(1)
	if _, err := ask(2, addr(12)); !errors.Is(err, ErrNotAvailable) {
		t.Errorf("another pod: %v, want ErrNotAvailable", err)
	}
	if l := f.lease(3); l.Addr == addr(12) {
		t.Errorf("a pod that asks for nothing got %s", l.Addr)
	}
	again, err := ask(1, addr(12))
	if err != nil || again.Addr != addr(12) || again.Existing || again.Generation <= first.Generation {
		t.Fatalf("its last pod: %+v, %v; generation before %d", again, err, first.Generation)
	}
	f.del(1)
	if l := f.lease(1); l.Addr == addr(12) {
		t.Errorf("without asking it got %s, which hasn't been idle for longest", l.Addr)
	}
	f.del(1)
	f.clock.add(testCool)
	if l, err := ask(2, addr(12)); err != nil || l.Addr != addr(12) {
		t.Errorf("another pod after the cool-down: %+v, %v", l, err)
	}
	f.del(2)
	if _, err := ask(1, addr(12)); !errors.Is(err, ErrNotAvailable) {
		t.Errorf("the pod before the last: %v, want ErrNotAvailable", err)
	}
}

// Who holds an address and asks for another one gets neither silently the one it has nor a second one.
func TestStore_Lease_want_other(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(5))
	ask := func(a netip.Addr) (Lease, error) {
		req := request(1)
		req.Want = a
		return f.Lease(t.Context(), req)
	}
	first, err := ask(addr(12))
	if err != nil {
		t.Fatal(err)
	}
	if l, err := ask(addr(13)); !errors.Is(err, ErrNotAvailable) || !strings.Contains(err.Error(), addr(12).String()) {
		t.Errorf("another one: %+v, %v, want ErrNotAvailable with the address that it has", l, err)
	}
	for _, want := range []netip.Addr{addr(12), {}} {
		if l, err := ask(want); err != nil || !l.Existing || l.Addr != first.Addr || l.Generation != first.Generation {
			t.Errorf("asks for %s again: %+v, %v, want the lease that it has", want, l, err)
		}
	}
	f.del(1)
	if l, err := ask(addr(13)); err != nil || l.Addr != addr(13) {
		t.Errorf("after its DEL: %+v, %v", l, err)
	}
}

func TestStore_Block(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(2))
	l := f.lease(1)
	if err := f.Block(t.Context(), l, UsedByOther); err != nil {
		t.Fatal(err)
	}
	if next := f.lease(1); next.Addr == l.Addr || next.Existing {
		t.Errorf("got %+v again", next)
	}
	if b := f.byAddr()[l.Addr]; b.State != Free || b.Blocked != UsedByOther || b.Generation != 0 {
		t.Errorf("blocked address is %+v", b)
	}
	_, err := f.Lease(t.Context(), request(2))
	if want := "; 1 blocked: used-by-other (10.20.0.10)"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error is %v, want %q", err, want)
	}
	f.clock.add(otherAgain - 1)
	f.sync(pool(2))
	if b := f.byAddr()[l.Addr]; b.Blocked != UsedByOther {
		t.Errorf("tried again too early: %+v", b)
	}
	f.clock.add(1)
	f.sync(pool(2))
	if b := f.byAddr()[l.Addr]; b.Blocked != NotBlocked || b.Since != f.clock.now {
		t.Errorf("not back at the tail: %+v", b)
	}
	if next := f.lease(2); next.Addr != l.Addr {
		t.Errorf("got %s, want %s", next.Addr, l.Addr)
	}
}

func TestStore_Flushed(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(1))
	cool := func(pod int) Lease {
		l, _, err := f.Release(t.Context(), request(pod).Key)
		if err != nil {
			t.Fatal(err)
		}
		l.FlushDue = true
		if err := f.Cool(t.Context(), l, nil); err != nil {
			t.Fatal(err)
		}
		return l
	}
	old := f.lease(1)
	cool(1)
	f.clock.add(testCool)
	f.sync(pool(1)) // makes it free; the note stays
	if l := f.byAddr()[addr(10)]; l.State != Free || !l.FlushDue || l.Generation != old.Generation {
		t.Errorf("free address with an open note is %+v", l)
	}
	l := f.lease(2)
	if !l.FlushDue {
		t.Error("the next lease doesn't say that a flush is due")
	}
	if err := f.Flushed(t.Context(), old); err != nil {
		t.Fatal(err)
	}
	if l := f.byAddr()[addr(10)]; !l.FlushDue {
		t.Error("the note was closed for another generation")
	}
	if err := f.Flushed(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	if l := f.byAddr()[addr(10)]; l.FlushDue {
		t.Error("the note stayed open")
	}
	last := cool(2)
	f.clock.add(testCool)
	f.sync(pool(1))
	if err := f.Flushed(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	if l := f.byAddr()[addr(10)]; l.FlushDue || l.Generation != 0 {
		t.Errorf("flushed free address is %+v", l)
	}
}

func TestStore_Lease_exhausted(t *testing.T) {
	f := newFixture(t)
	_, err := f.Lease(t.Context(), request(1))
	if want := "lease address: no assignable address: no pod address is known yet"; !errors.Is(err, ErrPoolExhausted) || err.Error() != want {
		t.Errorf("error %q, want %q", err, want)
	}
	f.sync(pool(5))
	for i := range 5 {
		f.lease(i)
	}
	text := func() string {
		_, err := f.Lease(t.Context(), request(99))
		if !errors.Is(err, ErrPoolExhausted) {
			t.Fatalf("error is %v, want ErrPoolExhausted", err)
		}
		return strings.TrimPrefix(err.Error(), "lease address: ")
	}
	want := "no assignable address: 5 total (5 leased, 0 releasing, 0 cooling, 0 blocked, 0 absent) on eth0 02:00:5e:10:00:04"
	if got := text(); got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	f.del(0)
	f.clock.add(26*time.Second - time.Millisecond)
	want = "no assignable address: 5 total (4 leased, 0 releasing, 1 cooling, 0 blocked, 0 absent) on eth0 02:00:5e:10:00:04; cooling, ready in 5s"
	if got := text(); got != want {
		t.Errorf("error %q, want %q", got, want)
	}
	if v, err := f.Read(t.Context(), Hash{}); err != nil || v.NextReady != 4*time.Second+time.Millisecond {
		t.Errorf("next ready in %s, %v", v.NextReady, err)
	}
}

func TestStore_Lease_exhaustedOnHostLink(t *testing.T) {
	f := newFixture(t)
	all := addrs(10, 5)
	f.sync(snap(all, all...))
	_, err := f.Lease(t.Context(), request(1))
	want := "no assignable address: 5 total (0 leased, 0 releasing, 0 cooling, 5 blocked, 0 absent) on eth0 02:00:5e:10:00:04; " +
		"5 blocked: on-host-link (10.20.0.10 10.20.0.11 10.20.0.12 …): run 'vmssctl node prepare --force'"
	if !errors.Is(err, ErrPoolExhausted) || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("error %q, want %q", err, want)
	}
}

func TestStore_generationRises(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(3))
	a, b := f.lease(1), f.lease(2) // at the same time
	if b.Generation <= a.Generation || a.Generation < uint64(f.clock.now) {
		t.Errorf("generations %d, %d at %d", a.Generation, b.Generation, f.clock.now)
	}
	f.clock.add(time.Second)
	if c := f.lease(3); c.Generation < uint64(f.clock.now) {
		t.Errorf("generation %d is below the boot clock %d", c.Generation, f.clock.now)
	}
}

func TestStore_PutNode(t *testing.T) {
	f := newFixture(t)
	if v, err := f.Read(t.Context(), Hash{}); err != nil || v.Node != nil {
		t.Errorf("Read: %q, %v", v.Node, err)
	}
	for _, want := range []string{"", "one", strings.Repeat("long", 5000)} {
		if err := f.PutNode(t.Context(), []byte(want)); err != nil {
			t.Fatal(err)
		}
		if v, err := f.Read(t.Context(), Hash{}); err != nil || string(v.Node) != want || v.Node == nil {
			t.Errorf("Read: %d bytes, %v", len(v.Node), err)
		}
	}
}

// The boot clock doesn't step. If it did, an address would rest for one cool-down from then on: not less, and not for as long as
// the step was.
func TestStore_clock_went_back(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(4))
	f.clock.add(6 * time.Hour)
	f.sync(snap(addrs(10, 3))) // .13 is missing for the first time
	for i := range 4 {
		f.lease(i)
	}
	blocked := f.lease(1)
	if err := f.Block(t.Context(), blocked, UsedByOther); err != nil {
		t.Fatal(err)
	}
	cooling := f.del(2)
	f.clock.add(-3 * time.Hour)

	f.sync(snap(addrs(10, 3))) // as every ADD does that finds a snapshot from a time to come
	if l := f.byAddr()[addr(13)]; !l.Present {
		t.Error("absent after the clock went back")
	}
	if l := f.lease(7); l.Addr != blocked.Addr {
		t.Errorf("lease %s, want %s: what another had is tried again", l.Addr, blocked.Addr)
	}
	f.clock.add(testCool - 1)
	f.sync(snap(addrs(10, 3)))
	if l, err := f.Lease(t.Context(), request(8)); !errors.Is(err, ErrPoolExhausted) {
		t.Errorf("%s is leased before its cool-down is over: %v", l.Addr, err)
	}
	f.clock.add(1)
	if l := f.lease(8); l.Addr != cooling.Addr {
		t.Errorf("lease %s, want %s, which has rested", l.Addr, cooling.Addr)
	}
	f.clock.add(absentAfter)
	f.sync(snap(addrs(10, 3)))
	if l := f.byAddr()[addr(13)]; l.Present {
		t.Error("present although it was missing twice since the clock went back")
	}
}

// Addresses that enter a rebuilt store rest from the rebuild on, or from now if that is in a time to come.
func TestStore_clock_went_back_after_a_rebuild(t *testing.T) {
	f := newFixture(t)
	f.clock.add(6 * time.Hour)
	f.kernel = Observed{Ran: true}
	if _, err := f.Read(t.Context(), Hash{}); err != nil { // there is no store yet
		t.Fatal(err)
	}
	f.clock.add(-3 * time.Hour)
	f.sync(pool(1))
	f.clock.add(testCool - 1)
	if l, err := f.Lease(t.Context(), request(1)); !errors.Is(err, ErrPoolExhausted) {
		t.Errorf("%s is leased before its cool-down is over: %v", l.Addr, err)
	}
	f.clock.add(1)
	f.lease(1)
}
