package allocator

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// booksLab is a store of 60 counted pods in 40 namespaces, and others that are over.
func newBooksLab(t *testing.T) (*damageLab, Books) {
	t.Helper()
	f := newFixture(t)
	f.sync(pool(damagePool))
	fold := Fold{Made: true, Live: map[netip.Addr]Use{}, Node: live(1000, 2000), Resets: map[string]uint64{"rules": 1}}
	for n := range 80 {
		l := f.meteredLease(n, fmt.Sprintf("namespace-%d", n%40))
		fold.Live[l.Addr] = Use{l.Generation, live(uint64(n+1)*1000, uint64(n+1))}
		if n >= 60 {
			f.cool(l, live(uint64(n), 5))
		}
	}
	_, err := f.Fold(t.Context(), fold)
	f.must(err)
	f.must(f.SetMeter(t.Context(), addr(20), f.byAddr()[addr(20)].Generation, nil, true))
	f.clock.add(1)
	f.must(f.SetMeter(t.Context(), addr(20), f.byAddr()[addr(20)].Generation, nil, false))
	good, err := os.ReadFile(f.path())
	f.must(err)
	lab := &damageLab{t: t, good: good, live: map[netip.Addr]Lease{}, now: f.clock}
	for a, l := range f.byAddr() {
		if l.State == Leased {
			lab.live[a] = l
		}
	}
	return lab, f.books()
}

// tryBooks reads the books and folds, then: either all is as it was, or the store was set aside and the loss is counted.
func (lab *damageLab) tryBooks(name string, content []byte, want Books) (rebuilt bool) {
	t := lab.t
	t.Helper()
	f := lab.on(content)
	defer func() { _ = os.RemoveAll(f.dir) }()
	got, err := f.Books(t.Context())
	if err != nil {
		t.Errorf("%s: Books: %v", name, err)
		return false
	}
	for a, l := range lab.live {
		f.fold(a, l.Generation, live(1<<30, 1<<30))
		break
	}
	// A store that is rebuilt between the two halves has the pod again, for the kernel shows it: the runtime's next DEL ends it.
	for err = ErrStale; errors.Is(err, ErrStale); {
		var l Lease
		if l, _, err = f.Release(t.Context(), lab.live[addr(10)].Owner.Key); err == nil {
			err = f.Cool(t.Context(), l, live(1<<30, 1<<30))
		}
	}
	f.must(err)
	if f.asked == 0 {
		if diff := cmp.Diff(want, got, byteForByte); diff != "" {
			t.Errorf("%s: books that nobody found damaged (-want +got):\n%s", name, diff)
		}
		return false
	}
	if b := f.books(); b.Resets[ResetStore] != 1 {
		t.Errorf("%s: rebuilt, resets %v", name, b.Resets)
	}
	if kept, _ := filepath.Glob(filepath.Join(f.dir, "*.damaged-*")); len(kept) != 1 {
		t.Errorf("%s: set aside %v", name, kept)
	}
	return true
}

func TestStore_damage_books(t *testing.T) {
	lab, want := newBooksLab(t)
	if lab.tryBooks("good", lab.good, want) {
		t.Fatal("the good file was rebuilt")
	}
	found := map[string]int{}
	try := func(way string, n int, bad []byte) {
		if lab.tryBooks(fmt.Sprintf("page %d %s", n, way), bad, want) {
			found[way]++
		}
	}
	for n := range len(lab.good) / pageSize {
		page := func() (file, page []byte) {
			file = bytes.Clone(lab.good)
			return file, file[n*pageSize : (n+1)*pageSize]
		}
		file, p := page()
		clear(p)
		try("zero", n, file)
		file, p = page()
		for i := range p {
			p[i] ^= 0xff
		}
		try("flip", n, file)
		file, p = page()
		p[rand.IntN(pageSize)] ^= 1 << rand.IntN(8)
		try("bit", n, file)
		file, p = page()
		if count := binary.LittleEndian.Uint16(p[countAt:]); p[flagsAt] == leafPage && count > 0 {
			binary.LittleEndian.PutUint16(p[countAt:], count-1)
			try("hidden key", n, file)
		}
	}
	for _, way := range []string{"zero", "flip", "hidden key"} {
		if found[way] < 3 {
			t.Errorf("%s was found %d times", way, found[way])
		}
	}
}

// Meters, numbers, totals and what counts them that contradict each other are damage.
func TestStore_damage_booksContradict(t *testing.T) {
	change := func(fn func(*summary)) func(*txn) error {
		return func(t *txn) error {
			sum, err := t.summary()
			fn(&sum)
			return errors.Join(err, t.putSummary(sum))
		}
	}
	tests := map[string]func(t *txn) error{
		"no summary":         func(t *txn) error { return t.remove(bucketState, keyBooks) },
		"summary is none":    func(t *txn) error { return t.put(bucketState, keyBooks, []byte{1}) },
		"a meter too few":    change(func(s *summary) { s.slots++ }),
		"a meter too many":   change(func(s *summary) { s.slots-- }),
		"a total too few":    change(func(s *summary) { s.namespaces++ }),
		"number twice":       func(t *txn) error { return t.putMeter(Meter{Addr: addr(99), Slot: 1}) },
		"number in use free": func(t *txn) error { return t.put(bucketSlots, nicPrefix(1), nil) },
		"number 0":           func(t *txn) error { return t.put(bucketSlots, nicPrefix(0), nil) },
		"number is none":     func(t *txn) error { return t.put(bucketSlots, []byte{1}, nil) },
		"meter is none":      func(t *txn) error { return t.put(bucketMeters, addr(10).AsSlice(), []byte{9}) },
		"meter of nothing":   func(t *txn) error { return t.put(bucketMeters, []byte{9}, (&Meter{}).encode()) },
		"total is none":      func(t *txn) error { return t.put(bucketTotals, totalKey("train"), []byte{9}) },
		"total of another":   func(t *txn) error { return t.put(bucketTotals, totalKey("train"), (&total{namespace: "x"}).encode()) },
		"no bucket meters":   func(t *txn) error { return t.tx.DeleteBucket([]byte(bucketMeters)) },
		"no bucket totals":   func(t *txn) error { return t.tx.DeleteBucket([]byte(bucketTotals)) },
		"no bucket slots":    func(t *txn) error { return t.tx.DeleteBucket([]byte(bucketSlots)) },
	}
	for name, tamper := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.sync(pool(2))
			l := f.meteredLease(1, "train")
			f.fold(l.Addr, l.Generation, live(5, 5))
			f.kernel, f.asked = Observed{Ran: true, Holders: []Holder{asHolder(l)}}, 0
			f.tamper(tamper)
			if b := f.books(); f.asked != 1 || b.Resets[ResetStore] != 1 {
				t.Errorf("books %+v; the kernel was asked %d times", b, f.asked)
			}
		})
	}
}
