package allocator

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const testCool = 30 * time.Second

var (
	mac1 = MAC{2, 0, 0x5e, 0x10, 0, 4}
	mac2 = MAC{2, 0, 0x5e, 0x10, 0, 5}
)

// clock is a boot clock that tests move.
type clock struct{ now time.Duration }

func (c *clock) add(d time.Duration) { c.now += d }

// fixture is a store in a directory of its own, with a clock and a kernel that the test sets.
type fixture struct {
	*Store
	t      testing.TB
	dir    string
	clock  *clock
	kernel Observed
	asked  int // how often a rebuild asked the kernel
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: memDir(t), clock: &clock{now: 100 * time.Second}}
	f.reopen("boot-1", testCool)
	t.Cleanup(func() {
		if !t.Failed() {
			f.invariants()
		}
	})
	return f
}

// memDir is a temporary directory on tmpfs, where stores live.
func memDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "nvt-store-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (f *fixture) reopen(bootID string, cool time.Duration) {
	f.Store = Open(Options{
		Dir: f.dir, CoolDown: cool, LockTimeout: 10 * time.Second, BootID: bootID,
		Now:    func() time.Duration { return f.clock.now },
		Kernel: func(context.Context) (Observed, error) { f.asked++; return f.kernel, nil },
	})
}

func (f *fixture) path() string { return filepath.Join(f.dir, storeFile) }

func addr(n int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 20, byte(n >> 8), byte(n)})
}

func addrs(from, n int) (all []netip.Addr) {
	for i := range n {
		all = append(all, addr(from+i))
	}
	return all
}

// pool is the snapshot of one NIC with the addresses .10, .11, …
func pool(n int) Snapshot { return snap(addrs(10, n)) }

func snap(all []netip.Addr, onLink ...netip.Addr) Snapshot {
	s := Snapshot{NICs: []NIC{{
		MAC: mac1, Link: "eth0", Primary: addr(4), Subnets: []netip.Prefix{netip.MustParsePrefix("10.20.0.0/16")},
		Addrs: all, OnLink: onLink,
	}}}
	s.Digest = digestOf(s)
	return s
}

func digestOf(s Snapshot) (d [32]byte) {
	d[31] = 1
	for _, n := range s.NICs {
		for _, a := range n.Addrs {
			b := a.As4()
			for i := range 24 {
				d[i] = d[i]*31 + b[i%4] + n.MAC[5]
			}
		}
	}
	return d
}

func (f *fixture) sync(s Snapshot) {
	f.t.Helper()
	if err := f.Sync(f.t.Context(), s); err != nil {
		f.t.Fatalf("Sync: %v", err)
	}
}

// request is one of pod n.
func request(n int) Request {
	o := Owner{
		NetworkName: "native-vmss", ContainerID: fmt.Sprintf("%064x", n), IfName: "eth0", Namespace: "train",
		Pod: fmt.Sprintf("worker-%d", n), UID: fmt.Sprintf("8f5a1c2e-0000-4000-8000-%012x", n),
		Netns: fmt.Sprintf("/var/run/netns/cni-8f5a1c2e-0000-4000-8000-%012x", n), NetnsInode: uint64(4026532000 + n), Main: "native-vmss",
	}
	o.Key, o.Network = deriveKey(&o), deriveNetwork(&o)
	return Request{Owner: o, LinkName: fmt.Sprintf("veth%x", o.Key)[:15]}
}

func (f *fixture) lease(n int) Lease {
	f.t.Helper()
	l, err := f.Lease(f.t.Context(), request(n))
	if err != nil {
		f.t.Fatalf("Lease(pod %d): %v", n, err)
	}
	return l
}

// del is a whole DEL of pod n.
func (f *fixture) del(n int) Lease {
	f.t.Helper()
	l, found, err := f.Release(f.t.Context(), request(n).Key)
	if err != nil || !found {
		f.t.Fatalf("Release(pod %d): found %v, %v", n, found, err)
	}
	if err := f.Cool(f.t.Context(), l, nil); err != nil {
		f.t.Fatalf("Cool(pod %d): %v", n, err)
	}
	return l
}

func (f *fixture) totals() Totals {
	f.t.Helper()
	v, err := f.Read(f.t.Context(), Hash{})
	if err != nil {
		f.t.Fatalf("Read: %v", err)
	}
	if len(v.Totals) != 1 {
		f.t.Fatalf("totals of %d NICs: %+v", len(v.Totals), v.Totals)
	}
	return v.Totals[0]
}

func (f *fixture) byAddr() map[netip.Addr]Lease {
	f.t.Helper()
	list, err := f.List(context.Background())
	if err != nil {
		f.t.Fatalf("List: %v", err)
	}
	m := make(map[netip.Addr]Lease, len(list))
	for _, l := range list {
		m[l.Addr] = l
	}
	return m
}

// invariants rechecks the whole store through its public surface and, bucket by bucket, against its own records.
func (f *fixture) invariants() {
	f.t.Helper()
	if _, err := os.Stat(f.path()); errors.Is(err, os.ErrNotExist) {
		return
	}
	err := f.view(context.Background(), "check", func(t *txn) error { return t.verify() })
	if err != nil {
		f.t.Errorf("invariants: %v", err)
	}
}

// verify recomputes indexes and counters from the records.
func (t *txn) verify() error {
	wantIdx := map[string]bool{}
	wantCounts := map[uint16]counts{}
	held := map[Hash]netip.Addr{}
	err := t.each(func(a netip.Addr, v []byte) error {
		r, err := decodeRecord(v)
		if err != nil {
			return err
		}
		for _, e := range r.entries(a) {
			wantIdx[e.bucket+string(e.key)] = true
		}
		c := wantCounts[r.NIC]
		c[r.class()]++
		wantCounts[r.NIC] = c
		if r.held() && r.Owner.Key != (Hash{}) {
			if other, dup := held[r.Owner.Key]; dup {
				return fmt.Errorf("%s and %s have the same key", a, other)
			}
			held[r.Owner.Key] = a
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, bucket := range []string{bucketFree, bucketCooling, bucketKeys, bucketBlocked, bucketMissing} {
		err := t.walk(bucket, nil, func(k, _ []byte) (bool, error) {
			if !wantIdx[bucket+string(k)] {
				return false, fmt.Errorf("%s/%x follows from no record", bucket, k)
			}
			delete(wantIdx, bucket+string(k))
			return true, nil
		})
		if err != nil {
			return err
		}
	}
	if len(wantIdx) > 0 {
		return fmt.Errorf("%d index entries are missing", len(wantIdx))
	}
	if _, err := t.books(); err != nil {
		return err
	}
	return t.walk(bucketCounts, nil, func(k, _ []byte) (bool, error) {
		id := binary.BigEndian.Uint16(k)
		c, err := t.counts(id)
		if err == nil && c != wantCounts[id] {
			err = fmt.Errorf("counts of NIC %d: %v, records say %v", id, c, wantCounts[id])
		}
		return true, err
	})
}

func TestStore_Lease_longestIdleFirst(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(3))
	for i := range 3 {
		if l := f.lease(i); l.Addr != addr(10+i) {
			t.Errorf("pod %d got %s, want %s", i, l.Addr, addr(10+i))
		}
	}
	for i, pod := range []int{1, 0, 2} { // released in another order than leased
		f.clock.add(time.Second)
		f.del(pod)
		_ = i
	}
	f.clock.add(testCool)
	for i, want := range []int{11, 10, 12} {
		if l := f.lease(10 + i); l.Addr != addr(want) {
			t.Errorf("got %s, want %s", l.Addr, addr(want))
		}
	}
}

func TestStore_Lease_roundTrip(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(1))
	got := f.lease(7)
	req := request(7)
	want := Lease{
		Addr: addr(10), Generation: got.Generation, NIC: mac1, State: Leased, Since: f.clock.now, Present: true,
		Owner: req.Owner, LinkName: req.LinkName, Time: got.Time,
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("lease (-want +got):\n%s", diff)
	}
	if time.Since(got.Time) > time.Minute {
		t.Errorf("time of lease is %s", got.Time)
	}
	again := f.lease(7)
	want.Existing = true
	if diff := cmp.Diff(want, again, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("second lease (-want +got):\n%s", diff)
	}
	v, err := f.Read(t.Context(), req.Key)
	if err != nil || v.Lease == nil || v.Lease.Generation != got.Generation {
		t.Errorf("Read: %+v, %v", v.Lease, err)
	}
}
