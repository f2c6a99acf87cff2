package allocator

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestStore_Sync_missingTwice(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(3))
	less := snap(addrs(10, 2))
	f.sync(less)
	if l := f.byAddr()[addr(12)]; !l.Present {
		t.Fatal("absent after one answer")
	}
	f.clock.add(absentAfter - 1)
	f.sync(less)
	if l := f.byAddr()[addr(12)]; !l.Present {
		t.Fatal("absent in less than 10 s")
	}
	f.clock.add(1)
	f.sync(less) // an unchanged digest: what is open is followed up all the same
	if l := f.byAddr()[addr(12)]; l.Present {
		t.Fatal("still present")
	}
	if n := f.totals(); n.Absent != 1 || n.Free != 2 || n.Total != 3 {
		t.Errorf("totals %+v", n)
	}
	f.lease(1)
	f.lease(2)
	if l, err := f.Lease(t.Context(), request(3)); !errors.Is(err, ErrPoolExhausted) {
		t.Errorf("an absent address was handed out: %+v, %v", l, err)
	}
	f.sync(pool(3)) // it is back: at the tail
	if l := f.byAddr()[addr(12)]; !l.Present || l.Since != f.clock.now {
		t.Errorf("came back as %+v", l)
	}
}

func TestStore_Sync_missingOnceOnly(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(3))
	f.sync(snap(addrs(10, 2)))
	f.clock.add(time.Minute)
	f.sync(pool(3))
	f.clock.add(time.Minute)
	f.sync(snap(addrs(10, 2))) // the first time again
	if l := f.byAddr()[addr(12)]; !l.Present {
		t.Error("absent although it was there in between")
	}
}

func TestStore_Sync_differentSecondAnswer(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(4))
	f.sync(snap(addrs(10, 3)))
	f.clock.add(absentAfter)
	f.sync(snap(addrs(10, 2))) // 13 is missing for the second time, 12 for the first
	m := f.byAddr()
	if m[addr(13)].Present || !m[addr(12)].Present {
		t.Errorf("13: %+v\n12: %+v", m[addr(13)], m[addr(12)])
	}
}

// Metadata never frees or reassigns an address in use.
func TestStore_Sync_leasedIsNeverTouched(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(3))
	l := f.lease(1)
	f.sync(snap(nil))
	f.clock.add(time.Minute)
	f.sync(snap(nil))
	f.clock.add(2 * forgetAfter)
	empty := snap(nil)
	empty.Digest[0]++
	f.sync(empty)
	got := f.byAddr()
	if h := got[l.Addr]; h.State != Leased || h.Generation != l.Generation || h.Owner != l.Owner || h.Present {
		t.Errorf("leased address became %+v", h)
	}
	if len(got) != 1 {
		t.Errorf("%d addresses are kept, want the leased one", len(got))
	}
	f.del(1)
	f.clock.add(time.Hour)
	if _, err := f.Lease(t.Context(), request(2)); !errors.Is(err, ErrPoolExhausted) {
		t.Errorf("an address that the NIC lost was handed out: %v", err)
	}
	f.sync(pool(3))
	f.lease(2)
}

func TestStore_Sync_onHostLink(t *testing.T) {
	f := newFixture(t)
	all := addrs(10, 3)
	f.sync(snap(all, addr(10), addr(11)))
	if l := f.byAddr()[addr(10)]; l.Blocked != OnHostLink || l.State != Free {
		t.Errorf("squatted address is %+v", l)
	}
	if l := f.lease(1); l.Addr != addr(12) {
		t.Errorf("got %s, want 10.20.0.12", l.Addr)
	}
	f.clock.add(time.Second)
	f.sync(snap(all, addr(11))) // same document, so same digest
	if l := f.byAddr()[addr(10)]; l.Blocked != NotBlocked {
		t.Errorf("still blocked: %+v", l)
	}
	if l := f.lease(2); l.Addr != addr(10) {
		t.Errorf("got %s, want 10.20.0.10", l.Addr)
	}
}

func TestStore_Sync_skippedNIC(t *testing.T) {
	f := newFixture(t)
	both := pool(2)
	both.NICs = append(both.NICs, NIC{MAC: mac2, Link: "eth1", Primary: addr(260), Addrs: addrs(266, 2)})
	both.Digest = digestOf(both)
	f.sync(both)
	one := pool(2)
	one.Skipped = []MAC{mac2}
	for range 3 {
		f.sync(one)
		f.clock.add(time.Minute)
	}
	m := f.byAddr()
	for _, a := range addrs(266, 2) {
		if !m[a].Present {
			t.Errorf("%s of a skipped NIC: %+v", a, m[a])
		}
	}
	one.Skipped = nil
	for range 2 {
		f.sync(one)
		f.clock.add(time.Minute)
	}
	if m := f.byAddr(); m[addr(266)].Present {
		t.Errorf("NIC is gone, its address: %+v", m[addr(266)])
	}
}

// A NIC that the snapshot lacks altogether may have been detached: nothing of it is handed out, though its addresses count as there
// until they were missing twice; what pods have stays theirs, and when it is back all is as before.
func TestStore_Sync_unlistedNICIsNotHandedOut(t *testing.T) {
	f := newFixture(t)
	one := pool(1)
	both := pool(1)
	both.NICs = append(both.NICs, NIC{MAC: mac2, Link: "eth1", Primary: addr(260), Addrs: addrs(266, 2)})
	both.Digest = digestOf(both)
	f.sync(both)
	f.lease(1)
	l := f.lease(2)
	if l.NIC != mac2 {
		t.Fatalf("leased %+v", l)
	}
	f.sync(one)
	if _, err := f.Lease(t.Context(), request(3)); !errors.Is(err, ErrPoolExhausted) || !strings.Contains(err.Error(), "eth1") {
		t.Errorf("error is %v", err)
	}
	if a := f.byAddr()[addr(267)]; !a.Present {
		t.Errorf("absent after one observation: %+v", a)
	}
	if again := f.lease(2); !again.Existing || again.Generation != l.Generation {
		t.Errorf("live pod has %+v", again)
	}
	f.sync(both)
	if got := f.lease(3); got.Addr != addr(267) {
		t.Errorf("the NIC is back: got %+v", got)
	}
}

// Withhold holds until the next Sync, though that brings the same as the one before it.
func TestStore_Withhold(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(2))
	f.lease(1)
	if err := f.Withhold(t.Context(), mac1, mac2); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Lease(t.Context(), request(2)); !errors.Is(err, ErrPoolExhausted) {
		t.Errorf("error is %v", err)
	}
	f.sync(pool(2))
	f.lease(2)
}

// Nothing of a NIC whose primary isn't known is handed out, and what pods have there stays theirs.
func TestStore_Sync_skippedIsNotHandedOut(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(3))
	l := f.lease(1)
	f.sync(Snapshot{Skipped: []MAC{mac1}, Digest: pool(3).Digest})
	_, err := f.Lease(t.Context(), request(2))
	if !errors.Is(err, ErrPoolExhausted) || !strings.HasSuffix(err.Error(), "on eth0 02:00:5e:10:00:04 (which can't be used now)") {
		t.Errorf("error is %v", err)
	}
	req := request(2)
	req.Want = addr(12)
	if _, err := f.Lease(t.Context(), req); !errors.Is(err, ErrNotAvailable) {
		t.Errorf("error is %v, want ErrNotAvailable", err)
	}
	if again := f.lease(1); !again.Existing || again.Generation != l.Generation {
		t.Errorf("live pod has %+v", again)
	}
	if n := f.totals(); !n.Skipped || n.Free != 2 || n.Leased != 1 {
		t.Errorf("totals %+v", n)
	}
	f.sync(pool(3))
	if n := f.totals(); n.Skipped {
		t.Errorf("totals %+v", n)
	}
	f.lease(2)
}

// Skipping a NIC in between is no second observation.
func TestStore_Sync_skippedIsNoObservation(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(3))
	f.sync(snap(addrs(10, 2)))
	f.clock.add(time.Minute)
	f.sync(Snapshot{Skipped: []MAC{mac1}, Digest: [32]byte{9}})
	if l := f.byAddr()[addr(12)]; !l.Present {
		t.Error("absent after one observation")
	}
}

func TestStore_Sync_twoNICs(t *testing.T) {
	f := newFixture(t)
	s := pool(2)
	s.NICs = append(s.NICs, NIC{MAC: mac2, Link: "eth1", Primary: addr(260), Addrs: append(addrs(266, 2), addr(10), addr(4))})
	s.Digest = digestOf(s)
	f.sync(s)
	m := f.byAddr()
	if len(m) != 4 || m[addr(10)].NIC != mac1 || m[addr(266)].NIC != mac2 {
		t.Errorf("addresses: %+v", m)
	}
	v, err := f.Read(t.Context(), Hash{})
	if err != nil || len(v.Totals) != 2 || v.Totals[1].Link != "eth1" || v.Totals[1].Total != 2 || len(v.NICs) != 2 || v.NICs[1].Primary != addr(260) {
		t.Errorf("view %+v, %v", v, err)
	}
	seen := map[MAC]int{}
	for i := range 4 {
		seen[f.lease(i).NIC]++
	}
	if seen[mac1] != 2 || seen[mac2] != 2 {
		t.Errorf("leases by NIC: %v", seen)
	}
	_, err = f.Lease(t.Context(), request(9))
	if err == nil || !strings.Contains(err.Error(), "on eth0 02:00:5e:10:00:04; 2 total (2 leased") || !strings.HasSuffix(err.Error(), "on eth1 02:00:5e:10:00:05") {
		t.Errorf("error is %v", err)
	}
}

// The address that has been idle for longest goes first, whichever NIC has it.
func TestStore_Lease_longestIdleOfAllNICs(t *testing.T) {
	f := newFixture(t)
	s := pool(1)
	s.NICs = append(s.NICs, NIC{MAC: mac2, Link: "eth1", Primary: addr(260), Addrs: addrs(266, 1)})
	s.Digest = digestOf(s)
	f.sync(s)
	first, second := f.lease(1), f.lease(2)
	for _, end := range [][2]int{{1, 2}, {2, 1}} { // the keys in the order in which their pods end
		for _, key := range end {
			f.del(key)
			f.clock.add(time.Second)
		}
		f.clock.add(testCool)
		want := map[int]Lease{1: first, 2: second}[end[0]]
		if first = f.lease(1); first.Addr != want.Addr {
			t.Errorf("pods ended in the order %v: got %s, want %s", end, first.Addr, want.Addr)
		}
		second = f.lease(2)
	}
}

// An address that Azure moves to another NIC follows at once when it is free, and after its pod when it isn't.
func TestStore_Sync_movedAddress(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(2))
	f.lease(1) // .10
	moved := Snapshot{Digest: [32]byte{7}, NICs: []NIC{
		{MAC: mac1, Link: "eth0", Primary: addr(4)},
		{MAC: mac2, Link: "eth1", Primary: addr(260), Addrs: addrs(10, 2)},
	}}
	f.sync(moved)
	m := f.byAddr()
	if m[addr(10)].NIC != mac1 || m[addr(11)].NIC != mac2 {
		t.Errorf("leased on %s, free on %s", m[addr(10)].NIC, m[addr(11)].NIC)
	}
	f.del(1)
	f.sync(moved)
	if l := f.byAddr()[addr(10)]; l.NIC != mac2 {
		t.Errorf("released on %s, want %s", l.NIC, mac2)
	}
}

func TestStore_Sync_newEntersAtTail(t *testing.T) {
	f := newFixture(t)
	f.sync(snap(addrs(20, 2)))
	f.clock.add(time.Second)
	f.sync(snap(addrs(18, 4))) // 18 and 19 are new, and lower
	for i, want := range []int{20, 21, 18, 19} {
		if l := f.lease(i); l.Addr != addr(want) {
			t.Errorf("lease %d is %s, want %s", i, l.Addr, addr(want))
		}
	}
}

func TestStore_Sync_unchanged(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(50))
	before := f.byAddr()
	f.clock.add(time.Minute)
	again := pool(50)
	again.NICs[0].Addrs = make([]netip.Addr, 50) // the digest speaks for them: nobody looks
	f.sync(again)
	if after := f.byAddr(); len(after) != len(before) {
		t.Errorf("%d addresses, want %d", len(after), len(before))
	}
	for a, l := range f.byAddr() {
		if before[a] != l {
			t.Errorf("%s changed from %+v to %+v", a, before[a], l)
		}
	}
	v, err := f.Read(t.Context(), Hash{})
	if err != nil || v.SnapshotAt != f.clock.now || !v.SnapshotKnown || v.Digest != pool(50).Digest || !v.EverKnown {
		t.Errorf("view %+v, %v", v, err)
	}
}

func TestStore_Touch(t *testing.T) {
	f := newFixture(t)
	if err := f.Touch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if v, err := f.Read(t.Context(), Hash{}); err != nil || v.SnapshotKnown {
		t.Errorf("a touch made a snapshot: %+v, %v", v, err)
	}
	f.sync(pool(2))
	f.sync(snap(addrs(10, 1)))
	f.clock.add(time.Minute)
	if err := f.Touch(t.Context()); err != nil {
		t.Fatal(err)
	}
	v, err := f.Read(t.Context(), Hash{})
	if err != nil || v.SnapshotAt != f.clock.now {
		t.Errorf("snapshot at %s, %v", v.SnapshotAt, err)
	}
	if l := f.byAddr()[addr(11)]; l.Present {
		t.Error("a touch is a second look at the same answer")
	}
}

func TestStore_Sync_forgetsNIC(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(2))
	other := Snapshot{Digest: [32]byte{5}, NICs: []NIC{{MAC: mac2, Link: "eth0", Primary: addr(260), Addrs: addrs(266, 2)}}}
	for i := range 3 {
		other.Digest[0] = byte(i)
		f.sync(other)
		f.clock.add(2 * forgetAfter)
	}
	v, err := f.Read(t.Context(), Hash{})
	if err != nil || len(v.NICs) != 1 || v.NICs[0].MAC != mac2 || len(v.Totals) != 1 {
		t.Errorf("view %+v, %v", v, err)
	}
}

func TestStore_Sync_ipv6(t *testing.T) {
	f := newFixture(t)
	s := pool(1)
	six := netip.MustParseAddr("fd00::10")
	s.NICs[0].Addrs = append(s.NICs[0].Addrs, six)
	f.sync(s)
	got := map[netip.Addr]bool{f.lease(1).Addr: true, f.lease(2).Addr: true}
	if !got[six] || !got[addr(10)] {
		t.Errorf("leased %v", got)
	}
	if list, err := f.List(t.Context()); err != nil || len(list) != 2 || list[1].Addr != six {
		t.Errorf("list %+v, %v", list, err)
	}
}
