package allocator

import (
	"bytes"
	"compress/gzip"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// writeSchema1 makes the store of schema 1 anew:
//
//	go test ./pkg/allocator -run '^TestStore_schema1$' -write-schema1
//
// It is no golden file to be kept up to date: it stands for stores that are out there, and once a newer schema is written no
// program can make it again.
var writeSchema1 = flag.Bool("write-schema1", false, "write testdata/schema1.db.gz and its listing with this code")

const (
	schema1File    = "testdata/schema1.db.gz"
	schema1Listing = "testdata/schema1.txt"
	schema1Clock   = 1000 * time.Second // when the last of it was written
	schema1Boot    = "5ca1ab1e-0000-4000-8000-000000000001"
)

// makeSchema1 brings addresses into every state that a record can be in.
func (f *fixture) makeSchema1() {
	f.t.Helper()
	must := func(err error) {
		f.t.Helper()
		if err != nil {
			f.t.Fatal(err)
		}
	}
	f.clock.now = 600 * time.Second
	f.kernel = Observed{Ran: true, Holders: []Holder{{ // a pod of whom no names are known
		Addr: addr(50), Generation: 77, Key: Hash{1, 2, 3}, Network: Hash{4, 5, 6}, NetnsInode: 4026532050, Pod: "train/rebuilt",
		Main: "native-vmss",
	}, {
		Addr: addr(51), Generation: 78, Key: Hash{7, 8, 9}, Pod: "unknown", Main: "unknown",
	}}}
	f.reopen(schema1Boot, testCool)
	s := pool(10) // .10 to .19
	s.NICs[0].Addrs = append(s.NICs[0].Addrs, addr(50))
	s.NICs = append(s.NICs, NIC{
		MAC: mac2, Link: "eth1", Primary: addr(256 + 4),
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.20.1.0/24"), netip.MustParsePrefix("fd00::/64")},
		Addrs:   []netip.Addr{addr(256 + 50), addr(256 + 51), netip.MustParseAddr("fd00::10")},
	})
	s.NICs[0].OnLink = addrs(15, 1)
	s.Digest[0]++
	f.sync(s)
	f.clock.now = 700 * time.Second
	pods := map[netip.Addr]int{}
	for n := range 9 {
		pods[f.lease(n).Addr] = n
		f.clock.add(time.Second)
	}
	_, _, err := f.Release(f.t.Context(), request(pods[addr(11)]).Key)
	must(err)
	f.clock.now = 985 * time.Second
	f.del(pods[addr(12)])
	cooling, found, err := f.Release(f.t.Context(), request(pods[addr(13)]).Key)
	if must(err); !found {
		f.t.Fatal("no lease of .13")
	}
	cooling.FlushDue = true
	must(f.Cool(f.t.Context(), cooling))
	must(f.Block(f.t.Context(), f.byAddr()[addr(14)], UsedByOther))
	must(f.PutNode(f.t.Context(), []byte(`{"network":"native-vmss","applied":"0123456789abcdef"}`)))
	s.Skipped, s.NICs = []MAC{mac2}, s.NICs[:1:1]
	s.NICs[0].Addrs = append(addrs(10, 6), addr(17), addr(19), addr(50)) // .16 leased, .18 free or not: both missing
	s.Digest[0]++
	f.clock.now = 988 * time.Second
	f.sync(s)
	f.clock.now = 999 * time.Second
	f.sync(s)
	s.NICs[0].Addrs = append(addrs(10, 6), addr(17), addr(50)) // .19 missing once
	s.Digest[0]++
	f.clock.now = schema1Clock
	f.sync(s)
}

// listing is all that callers can learn from a store, in words.
func (f *fixture) listing() string {
	f.t.Helper()
	var b strings.Builder
	list, err := f.List(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	for _, l := range list {
		if l.Time.IsZero() == (l.Owner.NetworkName != "") {
			f.t.Errorf("%s is %s since %s", l.Addr, l.State, l.Time)
		}
		o := l.Owner
		fmt.Fprintf(&b, "%s %s generation %d since %s nic %s present %t blocked %q flush due %t link %q\n",
			l.Addr, l.State, l.Generation, l.Since, l.NIC, l.Present, l.Blocked, l.FlushDue, l.LinkName)
		if o != (Owner{}) {
			fmt.Fprintf(&b, "\tkey %x network %x %q id %q ifname %q ns %q pod %q uid %q netns %q inode %d main %q\n", o.Key, o.Network,
				o.NetworkName, o.ContainerID, o.IfName, o.Namespace, o.Pod, o.UID, o.Netns, o.NetnsInode, o.Main)
		}
	}
	v, err := f.Read(f.t.Context(), Hash{})
	if err != nil {
		f.t.Fatal(err)
	}
	fmt.Fprintf(&b, "node %s\nsnapshot at %s known %t digest %x ever known %t next ready %s\n",
		v.Node, v.SnapshotAt, v.SnapshotKnown, v.Digest, v.EverKnown, v.NextReady)
	for _, n := range v.NICs {
		fmt.Fprintf(&b, "nic %s\n", fmt.Sprint(n))
	}
	for _, n := range v.Totals {
		fmt.Fprintf(&b, "totals %+v\n", n)
	}
	return b.String()
}

// A store that the first schema's program wrote is read by today's: every lease, cooling, blocked and absent address, with its
// generation and all that is known of its pod; it is neither rebuilt nor taken for damaged.
func TestStore_schema1(t *testing.T) {
	if *writeSchema1 {
		rewriteSchema1(t)
	}
	f := schema1(t)
	want, err := os.ReadFile(schema1Listing)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), f.listing()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	f.invariants()
	if f.asked != 0 {
		t.Error("the store was made anew from the kernel")
	}
}

// And it goes on from there: leases end and begin as if the program had never changed.
func TestStore_schema1_goesOn(t *testing.T) {
	f := schema1(t)
	before := f.byAddr()
	held := before[addr(10)]
	l, err := f.Lease(t.Context(), Request{Owner: held.Owner, LinkName: held.LinkName})
	if err != nil || !l.Existing || l.Addr != held.Addr || l.Generation != held.Generation {
		t.Errorf("ADD of a live pod: %+v %v", l, err)
	}
	if v, err := f.Read(t.Context(), Hash{1, 2, 3}); err != nil || v.Lease == nil || v.Lease.Addr != addr(50) {
		t.Errorf("a pod without names: %+v %v", v.Lease, err)
	}
	_, err = f.Lease(t.Context(), request(100))
	if !errors.Is(err, ErrPoolExhausted) || !strings.Contains(err.Error(), "ready in 15s") {
		t.Errorf("ADD while two cool: %v", err)
	}
	f.clock.add(15 * time.Second)
	fresh := f.lease(100)
	if fresh.Addr != addr(12) && fresh.Addr != addr(13) {
		t.Errorf("after the cool-down %s was given out", fresh.Addr)
	}
	for a, l := range before {
		if fresh.Generation <= l.Generation {
			t.Errorf("generation %d of a new lease, %s had %d", fresh.Generation, a, l.Generation)
		}
	}
	if _, found, err := f.Release(t.Context(), held.Owner.Key); err != nil || !found {
		t.Errorf("DEL: found %t, %v", found, err)
	}
	if err := f.Cool(t.Context(), held); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if err := f.Cool(t.Context(), before[addr(11)]); err != nil { // the DEL that had begun
		t.Errorf("DEL that had begun: %v", err)
	}
	for _, a := range addrs(10, 2) {
		if l := f.byAddr()[a]; l.State != Cooling {
			t.Errorf("%s is %s", a, l.State)
		}
	}
}

// schema1 is a fixture on the kept store. A rebuild would find an empty kernel.
func schema1(t *testing.T) *fixture {
	t.Helper()
	packed, err := os.Open(schema1File)
	if err != nil {
		t.Fatal(err)
	}
	defer packed.Close()
	r, err := gzip.NewReader(packed)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	f := newFixture(t)
	if err := os.WriteFile(f.path(), raw, 0o600); err != nil {
		t.Fatal(err)
	}
	f.clock.now = schema1Clock
	f.reopen(schema1Boot, testCool)
	return f
}

func rewriteSchema1(t *testing.T) {
	t.Helper()
	if schema != 1 {
		t.Fatalf("this code writes schema %d", schema)
	}
	f := newFixture(t)
	f.makeSchema1()
	raw, err := os.ReadFile(f.path())
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(schema1File), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{schema1File: packed.Bytes(), schema1Listing: []byte(f.listing())} {
		if err := os.WriteFile(name, text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
