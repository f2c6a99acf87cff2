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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/native-vmss/native-vmss/internal/boltfile"
)

// writeSchema makes the store of today's schema anew:
//
//	go test ./pkg/allocator -run '^TestStore_schema2$' -write-schema
//
// It is no golden file to be kept up to date: it stands for stores that are out there, and once a newer schema is written no
// program can make it again.
var writeSchema = flag.Bool("write-schema", false, "write the store of today's schema and its listing to testdata with this code")

const (
	keptClock = 1000 * time.Second // when the last of the kept stores was written
	keptBoot  = "5ca1ab1e-0000-4000-8000-000000000001"
)

func keptFile(n int) string    { return fmt.Sprintf("testdata/schema%d.db.gz", n) }
func keptListing(n int) string { return fmt.Sprintf("testdata/schema%d.txt", n) }

// makeRecords brings addresses into every state that a record can be in.
func (f *fixture) makeRecords() {
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
	f.reopen(keptBoot, testCool)
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
	must(f.Cool(f.t.Context(), cooling, nil))
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
	f.clock.now = keptClock
	f.sync(s)
}

// makeBooks has meters of each kind beside them.
func (f *fixture) makeBooks() {
	f.t.Helper()
	ctx := f.t.Context()
	six := netip.MustParseAddr("fd00:1::5")
	list, err := f.List(ctx)
	f.must(err)
	for _, l := range list {
		if l.State == Leased && l.Owner.Namespace != "" {
			m, err := f.StartMeter(ctx, StartMeter{Addr: l.Addr, Key: l.Owner.Key, Namespace: l.Owner.Namespace, Pod: l.Owner.Pod})
			f.must(err)
			f.must(f.SetMeter(ctx, m.Addr, m.Use, live(uint64(m.Slot)*100, 0), false))
		}
	}
	for n, namespace := range []string{"train", "infer", ""} {
		_, err = f.StartMeter(ctx, StartMeter{Addr: addr(512 + n), Key: Hash{byte(n + 1)}, Namespace: namespace, Pod: "foreign"})
		f.must(err)
	}
	m, err := f.StartMeter(ctx, StartMeter{Addr: six, Key: Hash{1}, Namespace: "infer", Pod: "off"})
	f.must(err)
	f.must(f.SetMeter(ctx, six, m.Use, live(70, 80), true))
	fold := Fold{Live: map[netip.Addr]Use{}, Node: live(1<<40, 99), Resets: map[string]uint64{"rules": 2}}
	for i, m := range f.books().Meters {
		if m.Off == 0 {
			fold.Live[m.Addr] = Use{m.Use, live(uint64(i*1000+1000), uint64(i*2000))}
		}
	}
	_, err = f.Fold(ctx, fold)
	f.must(err)
	f.must(f.EndMeter(ctx, addr(512), Hash{1}, live(1<<33, 1<<34)))
	f.must(f.EndMeter(ctx, addr(513), Hash{2}, nil))
	f.must(f.ForgetMeters(ctx, []netip.Addr{addr(513)}))
	m, err = f.StartMeter(ctx, StartMeter{Addr: addr(600), Key: Hash{1}, Namespace: "later"})
	f.must(err)
	f.must(f.SetMeter(ctx, m.Addr, m.Use, nil, true))
	f.clock.add(time.Second)
	_, err = f.Fold(ctx, Fold{Live: map[netip.Addr]Use{m.Addr: {m.Use, live(5, 5)}}})
	f.must(err)
	f.clock.add(-time.Second)
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

// A store that an earlier program wrote, or this one some time ago, is read by today's: every lease, cooling, blocked and absent
// address, with its generation and all that is known of its pod; it is neither rebuilt nor taken for damaged.
func TestStore_schema1(t *testing.T) {
	f := kept(t, 1)
	f.wantKept(1, f.listing())
	if b := f.books(); !cmp.Equal(b, Books{}) {
		t.Errorf("a store of schema 1 has books: %+v", b)
	}
	raw, err := os.ReadFile(f.path())
	f.must(err)
	if f.asked != 0 || !bytes.Equal(raw, unpack(t, 1)) {
		t.Errorf("reading changed the store; the kernel was asked %d times", f.asked)
	}
}

func TestStore_schema2(t *testing.T) {
	if *writeSchema {
		writeKept(t)
	}
	f := kept(t, 2)
	b := f.books()
	f.wantKept(2, f.listing()+b.text())
	if f.asked != 0 {
		t.Error("the store was made anew from the kernel")
	}
}

// The first change brings a store of schema 1 to schema 2: all that it knew stays, and traffic is counted from then on. The program
// of schema 1 leaves it alone afterwards.
func TestStore_schema1_migrates(t *testing.T) {
	f := kept(t, 1)
	v, err := f.Read(t.Context(), Hash{})
	f.must(err)
	f.must(f.PutNode(t.Context(), v.Node))
	f.wantKept(1, f.listing())
	if b := f.books(); len(b.Meters)+len(b.Totals)+len(b.Node)+len(b.Resets)+len(b.Unknown) > 0 || f.asked != 0 {
		t.Errorf("books %+v; the kernel was asked %d times", b, f.asked)
	}
	held := f.byAddr()[addr(10)]
	m, err := f.StartMeter(t.Context(), StartMeter{Addr: held.Addr, Key: held.Owner.Key, Namespace: held.Owner.Namespace})
	if err != nil || m.Slot != 1 || m.Use != held.Generation {
		t.Errorf("meter of a lease that schema 1 made: %+v, %v", m, err)
	}
	f.cool(held, live(100, 200))
	f.wantBytes(held.Owner.Namespace, 100, 200)

	before, err := os.ReadFile(f.path())
	f.must(err)
	old := boltfile.New(boltfile.Options{Path: f.path(), LockPath: f.dir + "/" + lockFile, Schema: 1, BootID: keptBoot})
	nothing := func(*bolt.Tx) error { return nil }
	if err := old.View(t.Context(), nothing); !errors.Is(err, boltfile.ErrNewerSchema) {
		t.Errorf("the program of schema 1 reads it: %v", err)
	}
	if err := old.Update(t.Context(), nothing); !errors.Is(err, boltfile.ErrNewerSchema) {
		t.Errorf("the program of schema 1 writes it: %v", err)
	}
	if after, err := os.ReadFile(f.path()); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the program of schema 1 changed it: %v", err)
	}
}

// Damage that the step from schema 1 meets is damage like any other.
func TestStore_schema1_damaged(t *testing.T) {
	f := kept(t, 1)
	db, err := bolt.Open(f.path(), 0o600, nil)
	f.must(err)
	err = db.Update(func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte(bucketState)) })
	f.must(errors.Join(err, db.Close()))
	f.must(f.PutNode(t.Context(), []byte("{}")))
	if f.asked != 1 {
		t.Errorf("the kernel was asked %d times", f.asked)
	}
}

// And it goes on from there: leases end and begin as if the program had never changed.
func TestStore_schema1_goesOn(t *testing.T) {
	f := kept(t, 1)
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
	if err := f.Cool(t.Context(), held, nil); err != nil {
		t.Errorf("DEL: %v", err)
	}
	if err := f.Cool(t.Context(), before[addr(11)], nil); err != nil { // the DEL that had begun
		t.Errorf("DEL that had begun: %v", err)
	}
	for _, a := range addrs(10, 2) {
		if l := f.byAddr()[a]; l.State != Cooling {
			t.Errorf("%s is %s", a, l.State)
		}
	}
}

// kept is a fixture on the kept store of a schema. A rebuild would find an empty kernel.
func kept(t *testing.T, n int) *fixture {
	t.Helper()
	f := newFixture(t)
	f.must(os.WriteFile(f.path(), unpack(t, n), 0o600))
	f.clock.now = keptClock
	f.reopen(keptBoot, testCool)
	return f
}

func unpack(t *testing.T, n int) []byte {
	t.Helper()
	packed, err := os.Open(keptFile(n))
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
	return raw
}

func (f *fixture) wantKept(n int, listing string) {
	f.t.Helper()
	want, err := os.ReadFile(keptListing(n))
	f.must(err)
	if diff := cmp.Diff(string(want), listing); diff != "" {
		f.t.Errorf("(-want +got):\n%s", diff)
	}
}

func writeKept(t *testing.T) {
	t.Helper()
	f := newFixture(t)
	f.makeRecords()
	f.makeBooks()
	raw, err := os.ReadFile(f.path())
	f.must(err)
	var packed bytes.Buffer
	w, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	f.must(err)
	_, err = w.Write(raw)
	f.must(err)
	f.must(w.Close())
	b := f.books()
	f.must(os.WriteFile(keptFile(schema), packed.Bytes(), 0o644))
	f.must(os.WriteFile(keptListing(schema), []byte(f.listing()+b.text()), 0o644))
}
