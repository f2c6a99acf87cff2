package allocator

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/boltfile"
)

// asHolder is what the kernel's alias keeps of a lease.
func asHolder(l Lease) Holder {
	return Holder{
		Addr: l.Addr, Generation: l.Generation, Key: l.Owner.Key, Network: l.Owner.Network,
		NetnsInode: l.Owner.NetnsInode, Pod: l.Owner.Namespace + "/" + l.Owner.Pod,
	}
}

func TestStore_rebuild_holders(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(4))
	a, b := f.lease(1), f.lease(2)
	f.clock.add(time.Minute)
	f.kernel = Observed{Ran: true, Holders: []Holder{asHolder(a), asHolder(b)}}
	if err := os.Remove(f.path()); err != nil {
		t.Fatal(err)
	}
	rebuilt := f.clock.now
	l, err := f.Lease(t.Context(), request(1))
	if err != nil || !l.Existing || l.Addr != a.Addr || l.Generation != a.Generation || l.NIC != (MAC{}) || l.Owner.Pod != "train/worker-1" {
		t.Fatalf("lease of a live pod: %+v, %v", l, err)
	}
	_, err = f.Lease(t.Context(), request(3))
	if !errors.Is(err, ErrPoolExhausted) || !strings.Contains(err.Error(), "2 total (2 leased, 0 releasing, 0 cooling, 0 blocked, 0 absent) on a NIC that is not known yet") {
		t.Errorf("error is %v", err)
	}
	v, err := f.Read(t.Context(), Hash{})
	if err != nil || v.SnapshotKnown || !v.EverKnown { // a node with pods is no new one
		t.Errorf("after a rebuild the view is %+v, %v", v, err)
	}
	f.clock.add(5 * time.Second)
	f.sync(pool(4))
	if n := f.totals(); n.Leased != 2 || n.Cooling != 2 || n.Free != 0 {
		t.Errorf("totals %+v, want 2 leased and 2 cooling", n)
	}
	if l := f.byAddr()[a.Addr]; l.NIC != mac1 || !l.Present || l.Owner.Key != a.Owner.Key {
		t.Errorf("a snapshot names the NIC: %+v", l)
	}
	f.clock.now = rebuilt + testCool - 1
	if _, err := f.Lease(t.Context(), request(3)); !errors.Is(err, ErrPoolExhausted) {
		t.Errorf("handed out %s after a rebuild: %v", f.clock.now-rebuilt, err)
	}
	f.clock.add(1)
	if l := f.lease(3); l.Addr == a.Addr || l.Addr == b.Addr || l.Generation <= b.Generation {
		t.Errorf("new lease %+v", l)
	}
	if f.asked != 2 { // the first use, and the loss
		t.Errorf("the kernel was asked %d times, want 2", f.asked)
	}
}

func TestStore_rebuild_firstBootIsFree(t *testing.T) {
	f := newFixture(t) // Ran is false: nothing of ours was in the kernel
	f.sync(pool(2))
	if n := f.totals(); n.Free != 2 {
		t.Errorf("totals %+v", n)
	}
}

func TestStore_rebuild_lateSnapshotIsFree(t *testing.T) {
	f := newFixture(t)
	f.kernel.Ran = true
	f.sync(pool(1))
	f.clock.add(testCool)
	f.sync(pool(2))
	if l := f.byAddr()[addr(11)]; l.State != Free {
		t.Errorf("new a cool-down after the rebuild: %+v", l)
	}
}

func TestStore_rebuild_otherBoot(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(5))
	for i := range 5 {
		f.lease(i)
	}
	two := []Holder{asHolder(f.lease(0)), asHolder(f.lease(1))}
	f.kernel = Observed{Holders: two} // an agent restored them from a checkpoint
	f.clock.now = 3 * time.Second
	f.reopen("boot-2", testCool)
	f.sync(pool(5))
	for pod := range 3 {
		l := f.lease(100 + pod)
		if l.Addr == two[0].Addr || l.Addr == two[1].Addr {
			t.Errorf("gave out the live %s", l.Addr)
		}
	}
	if n := f.totals(); n.Leased != 5 {
		t.Errorf("totals %+v", n)
	}
}

func TestStore_rebuild_generationAboveHolders(t *testing.T) {
	f := newFixture(t)
	high := uint64(f.clock.now) + 1e12
	f.kernel = Observed{Ran: true, Holders: []Holder{{Addr: addr(10), Generation: high, Key: Hash{1}}}}
	f.sync(pool(2))
	f.clock.add(testCool)
	if l := f.lease(1); l.Generation <= high {
		t.Errorf("generation %d is not above the holder's %d", l.Generation, high)
	}
}

func TestStore_rebuild_unknownKey(t *testing.T) {
	f := newFixture(t)
	f.kernel = Observed{Ran: true, Holders: []Holder{{Addr: addr(10), Generation: 7}, {Addr: addr(11), Generation: 8}, {Addr: addr(10), Generation: 6, Key: Hash{2}}}}
	if _, found, err := f.Release(t.Context(), Hash{}); found || err != nil {
		t.Errorf("Release of no key: %v, %v", found, err)
	}
	m := f.byAddr()
	if len(m) != 2 || m[addr(10)].Generation != 7 || m[addr(10)].State != Leased {
		t.Errorf("holders: %+v", m)
	}
	l, err := f.ReleaseAddr(t.Context(), addr(10), 7)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Cool(t.Context(), l, nil); err != nil {
		t.Fatal(err)
	}
	if l := f.byAddr()[addr(10)]; l.State != Cooling {
		t.Errorf("freed by address: %+v", l)
	}
}

func TestStore_rebuild_kernelFails(t *testing.T) {
	boom := errors.New("netlink is down")
	for name, kernel := range map[string]func(context.Context) (Observed, error){
		"error": func(context.Context) (Observed, error) { return Observed{}, boom },
		"none":  nil,
		"bad":   func(context.Context) (Observed, error) { return Observed{Holders: make([]Holder, 1)}, nil },
	} {
		s := Open(Options{Dir: t.TempDir(), BootID: "b", Now: func() time.Duration { return 1 }, Kernel: kernel})
		_, err := s.Lease(t.Context(), request(1))
		if !errors.Is(err, boltfile.ErrUnusable) {
			t.Errorf("%s: error is %v, want ErrUnusable", name, err)
		}
		if _, err := s.List(t.Context()); !errors.Is(err, boltfile.ErrUnusable) {
			t.Errorf("%s: error is %v, want ErrUnusable", name, err)
		}
	}
}
