package allocator

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/bbolt"
)

// A store of 1,000 addresses, 800 of them leased, is damaged in every way; live are the leases that the kernel shows.
const damagePods, damagePool = 800, 1000

type damageLab struct {
	t    *testing.T
	good []byte
	live map[netip.Addr]Lease
	now  *clock
}

func newDamageLab(t *testing.T) *damageLab {
	t.Helper()
	f := newFixture(t)
	f.sync(pool(damagePool))
	fillStore(t, f.Store, 0, damagePods)
	b, err := os.ReadFile(f.path())
	if err != nil {
		t.Fatal(err)
	}
	lab := &damageLab{t: t, good: b, live: map[netip.Addr]Lease{}, now: f.clock}
	for a, l := range f.byAddr() {
		if l.State == Leased {
			lab.live[a] = l
		}
	}
	if len(lab.live) != damagePods {
		t.Fatalf("%d leases, want %d", len(lab.live), damagePods)
	}
	return lab
}

// try runs a node's usual calls on a damaged file. Whatever they meet: nobody's address is given out or changes hands.
func (lab *damageLab) try(name string, content []byte) (rebuilt bool) {
	t := lab.t
	t.Helper()
	f := lab.on(content)
	defer func() { _ = os.RemoveAll(f.dir) }() // hundreds of them: not at the test's end
	for i, pod := range []int{5, 123, 400, 799} {
		l, err := f.Lease(t.Context(), request(pod))
		if want := lab.live[l.Addr]; err != nil || !l.Existing || l.Generation != want.Generation || l.Owner.Key != want.Owner.Key {
			t.Errorf("%s: live pod %d has %+v, %v", name, pod, l, err)
		}
		fresh, err := f.Lease(t.Context(), request(10000+i))
		if _, taken := lab.live[fresh.Addr]; taken {
			t.Errorf("%s: %s of a live pod was given out", name, fresh.Addr)
		}
		if err == nil {
			f.kernel.Holders = append(f.kernel.Holders, asHolder(fresh))
		} else if !errors.Is(err, ErrPoolExhausted) {
			t.Errorf("%s: %v", name, err)
		}
		if i == 1 {
			f.sync(pool(damagePool))
			f.clock.add(testCool)
		}
	}
	if _, found, err := f.Release(t.Context(), request(77777).Key); found || err != nil {
		t.Errorf("%s: release of an unknown key: %v, %v", name, found, err)
	}
	got := f.byAddr()
	for a, l := range lab.live {
		if g := got[a]; g.State != Leased || g.Owner.Key != l.Owner.Key || g.Generation != l.Generation {
			t.Errorf("%s: %s is %+v", name, a, g)
		}
	}
	if _, err := f.Read(t.Context(), Hash{}); err != nil {
		t.Errorf("%s: Read: %v", name, err)
	}
	kept, _ := filepath.Glob(filepath.Join(f.dir, "*.damaged-*"))
	if len(kept) > 1 {
		t.Errorf("%s: rebuilt more than once: %v", name, kept)
	}
	return f.asked > 0
}

// Of a page's header (bbolt v1.5.0, internal/common/page.go).
const pageSize, flagsAt, countAt, branchPage, leafPage = 4096, 8, 10, 1, 2

func TestStore_damage_pages(t *testing.T) {
	lab := newDamageLab(t)
	const page = 4096
	ways := []struct {
		name  string
		every int // pages; 1 is all of them
		spoil func(p []byte)
	}{
		{"zero", 1, func(p []byte) { clear(p) }},
		{"flip", 1, func(p []byte) {
			for i := range p {
				p[i] ^= 0xff
			}
		}},
		{"random", 4, func(p []byte) {
			for i := range p {
				p[i] = byte(rand.Uint32())
			}
		}},
	}
	for n := range len(lab.good) / page {
		for _, way := range ways {
			if n%way.every != 0 || testing.Short() && n%8 > 1 { // -short: every fourth page; make test takes them all
				continue
			}
			bad := bytes.Clone(lab.good)
			way.spoil(bad[n*page : (n+1)*page])
			lab.try(fmt.Sprintf("page %d %s", n, way.name), bad)
		}
		if n%4 == 0 {
			lab.try(fmt.Sprintf("cut at page %d", n), lab.good[:n*page])
		}
		if t.Failed() {
			return
		}
	}
}

func TestStore_damage_bytes(t *testing.T) {
	lab := newDamageLab(t)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 80 {
		bad := bytes.Clone(lab.good)
		at := 8192 + r.IntN(len(bad)-8192)
		bad[at] ^= 1 << r.IntN(8)
		lab.try(fmt.Sprintf("seed %d: %d: bit of byte %d", seed, i, at), bad)
		if t.Failed() {
			return
		}
	}
}

// A flipped bit in an index key, on a leaf or on an inner page, hides a lease: "not found" must not be believed.
func TestStore_damage_keys(t *testing.T) {
	lab := newDamageLab(t)
	found := 0
	for pod := 0; pod < damagePods; pod += 7 {
		key := request(pod).Key
		for at := 0; ; {
			n := bytes.Index(lab.good[at:], key[:keyPrefix])
			if n < 0 {
				break
			}
			at += n + 1
			found++
			bad := bytes.Clone(lab.good)
			bad[at-1+pod%keyPrefix] ^= 0x80 >> (pod % 8)
			lab.tryPod(pod, bad)
		}
	}
	if found < damagePods/7 {
		t.Errorf("%d keys found in the file", found)
	}
}

// On an inner page a flipped key hides its neighbours: the search ends in the page before theirs or after it.
func TestStore_damage_innerKeys(t *testing.T) {
	lab := newDamageLab(t)
	pods := make([]int, damagePods)
	for i := range pods {
		pods[i] = i
	}
	prefix := func(pod int) []byte { key := request(pod).Key; return key[:keyPrefix] }
	slices.SortFunc(pods, func(a, b int) int { return bytes.Compare(prefix(a), prefix(b)) })
	inner := 0
	for i := 1; i < len(pods)-1; i++ {
		key := prefix(pods[i])
		for at := 0; ; at++ {
			n := bytes.Index(lab.good[at:], key)
			if n < 0 {
				break
			}
			if at += n; !onInnerPage(lab.good, at) {
				continue
			}
			inner++
			bad := bytes.Clone(lab.good)
			bad[at] ^= 0x80
			lab.tryPod(pods[i-1], bad)
			lab.tryPod(pods[i+1], bad)
		}
	}
	if inner == 0 {
		t.Error("no key is on an inner page")
	}
}

// onInnerPage looks at the flags in the header of the page: 1 is a branch (bbolt v1.5.0, internal/common/page.go).
func onInnerPage(file []byte, at int) bool {
	return file[at/pageSize*pageSize+flagsAt] == branchPage
}

// A page that counts one key less than it holds hides its last one, and nothing that is left looks wrong. List, which sweep, repair
// and GC begin with, finds it: afterwards every live pod is found by its key.
func TestStore_damage_hiddenKey(t *testing.T) {
	lab := newDamageLab(t)
	for at := 0; at < len(lab.good); at += pageSize {
		bad := bytes.Clone(lab.good)
		count := bad[at+countAt:]
		n := binary.LittleEndian.Uint16(count)
		if bad[at+flagsAt] != leafPage || n == 0 {
			continue
		}
		binary.LittleEndian.PutUint16(count, n-1)
		f := lab.on(bad)
		f.byAddr()
		err := f.view(t.Context(), "look keys up", func(tx *txn) error {
			for a, l := range lab.live {
				got, r, found, err := tx.byKey(l.Owner.Key)
				if err != nil {
					return err
				}
				if !found || got != a || r.Generation != l.Generation {
					return fmt.Errorf("lease of %s: found %v, %s", a, found, got)
				}
			}
			return nil
		})
		if err != nil {
			t.Errorf("page %d: %v", at/pageSize, err)
		}
		_ = os.RemoveAll(f.dir)
	}
}

// on is a node whose store is this file.
func (lab *damageLab) on(content []byte) *fixture {
	f := &fixture{t: lab.t, dir: memDir(lab.t), clock: &clock{now: lab.now.now}}
	f.reopen("boot-1", testCool)
	f.kernel = Observed{Ran: true}
	for _, l := range lab.live {
		f.kernel.Holders = append(f.kernel.Holders, asHolder(l))
	}
	if err := os.WriteFile(f.path(), content, 0o600); err != nil {
		lab.t.Fatal(err)
	}
	return f
}

// tryPod asks for the lease of one live pod.
func (lab *damageLab) tryPod(pod int, content []byte) {
	f := lab.on(content)
	defer func() { _ = os.RemoveAll(f.dir) }()
	if l, err := f.Lease(lab.t.Context(), request(pod)); err != nil || !l.Existing {
		lab.t.Errorf("live pod %d has %s, existing %v, %v", pod, l.Addr, l.Existing, err)
	}
}

func TestStore_damage_files(t *testing.T) {
	lab := newDamageLab(t)
	random := make([]byte, len(lab.good))
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	tests := map[string][]byte{
		"zeros": make([]byte, len(lab.good)), "random": random, "empty": {},
		"text": []byte(strings.Repeat("this is no store\n", 5000)), "foreign": foreignBolt(t),
	}
	for _, n := range []int{100, 4095, 4096, 8191, 8192, 12288, 20480} {
		tests[fmt.Sprint("cut at ", n)] = lab.good[:n]
	}
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		if !lab.try(name, tests[name]) {
			t.Errorf("%s: taken for a good store", name)
		}
	}
	if lab.try("good", lab.good) {
		t.Error("the good file was rebuilt")
	}
}

func foreignBolt(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "foreign.db")
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for name := range fills { // even with our bucket names
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		return nil
	})
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// tamper changes a store in a way that keeps every sum right.
func (f *fixture) tamper(fn func(t *txn) error) {
	f.t.Helper()
	if err := f.update(f.t.Context(), "tamper", fn); err != nil {
		f.t.Fatal(err)
	}
}

// Records, indexes and counters that contradict each other are damage, each found by the call that would be misled.
func TestStore_damage_contradictions(t *testing.T) {
	tests := map[string]func(f *fixture, t *txn) error{
		"queue leads to a leased address": func(_ *fixture, t *txn) error {
			r := record{NIC: 1, Present: true}
			return t.put(bucketFree, r.entries(addr(10))[0].key, nil)
		},
		"queue has an address at an earlier time": func(_ *fixture, t *txn) error {
			r, _, err := t.record(addr(11))
			if err != nil {
				return err
			}
			r.Since--
			return t.put(bucketFree, r.entries(addr(11))[0].key, nil)
		},
		"queue leads nowhere": func(_ *fixture, t *txn) error {
			r := record{NIC: 1, Present: true}
			return t.put(bucketFree, r.entries(addr(999))[0].key, nil)
		},
		"queue is empty, counters are not": func(_ *fixture, t *txn) error {
			b, err := t.bucket(bucketFree)
			if err != nil {
				return err
			}
			k, _ := b.Cursor().First()
			return b.Delete(k)
		},
		"counters are too low":  func(_ *fixture, t *txn) error { return t.putCounts(1, counts{}) },
		"record is none":        func(_ *fixture, t *txn) error { return t.put(bucketV4, addr(11).AsSlice(), []byte{99}) },
		"generation is none":    func(_ *fixture, t *txn) error { return t.put(bucketState, keyGeneration, []byte{1}) },
		"NIC is none":           func(_ *fixture, t *txn) error { return t.put(bucketNICs, mac1[:], []byte{1}) },
		"no bucket for free":    func(_ *fixture, t *txn) error { return t.tx.DeleteBucket([]byte(bucketFree)) },
		"no bucket for keys":    func(_ *fixture, t *txn) error { return t.tx.DeleteBucket([]byte(bucketKeys)) },
		"queue has a short key": func(_ *fixture, t *txn) error { return t.put(bucketFree, []byte{0, 1}, nil) },
	}
	for name, tamper := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.sync(pool(2))
			l := f.lease(1)
			f.kernel = Observed{Ran: true, Holders: []Holder{asHolder(l)}}
			f.asked = 0
			f.tamper(func(t *txn) error { return tamper(f, t) })
			if got, err := f.Lease(t.Context(), request(2)); !errors.Is(err, ErrPoolExhausted) || f.asked != 1 {
				t.Errorf("Lease: %+v, %v; the kernel was asked %d times", got, err, f.asked)
			}
			if got := f.lease(1); got.Addr != l.Addr || got.Generation != l.Generation {
				t.Errorf("live pod has %+v", got)
			}
		})
	}
}

// rm in the middle of an ADD: the lease isn't there any more when ADD looks for it at its end.
func TestStore_damage_removedInTheMiddle(t *testing.T) {
	f := newFixture(t)
	f.sync(pool(2))
	l := f.lease(1)
	for _, name := range []string{storeFile, lockFile} {
		if err := os.Remove(filepath.Join(f.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if v, err := f.Read(t.Context(), l.Owner.Key); err != nil || v.Lease != nil {
		t.Errorf("Read: %+v, %v", v.Lease, err)
	}
	if err := f.Block(t.Context(), l, UsedByOther); !errors.Is(err, ErrStale) {
		t.Errorf("Block: %v, want ErrStale", err)
	}
	if err := f.Cool(t.Context(), l, nil); err != nil {
		t.Errorf("Cool of a lease that is gone: %v", err)
	}
}
