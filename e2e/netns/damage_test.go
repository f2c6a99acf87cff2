package netns

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	// A pod here is an interface: each has a lease, a link, a route and traffic of its own, and a few namespaces are made faster
	// than one for each.
	damagePods  = 120 // enough for a page of every kind
	damageSoak  = 800
	damageInOne = 20
	damagePage  = 4096
)

// damageLease is what must be known of an address again: the first half of the key's hash is what the index has.
type damageLease struct {
	State      string
	Generation uint64
	Key        string
}

// damagePod is an interface of a live pod.
type damagePod struct {
	id, ifname string
	space      *lab.Namespace
	added      *answer
}

// damaged is a node with many live pods, and its store as it was before the damage.
type damaged struct {
	*stage
	pods   []damagePod
	good   []byte
	leases map[netip.Addr]damageLease
	kernel []string
	fresh  [2]*lab.Namespace
	cases  int
	quiet  []func() // end the neighbours' talk, and want all of it answered
}

// newDamaged has n live pods, and one address more.
func newDamaged(t *testing.T, n int) *damaged {
	t.Helper()
	pool := lab.AddrRange(netip.MustParseAddr("10.20.0.10"), n+2)
	pool = slices.DeleteFunc(pool, func(a netip.Addr) bool { return a == netip.MustParseAddr("10.20.0.255") }) // eth0's broadcast
	d := &damaged{stage: newStage(t, lab.SimpleOptions{Pool: pool[:n+1]})}
	d.ipam["cooldown"] = "1ms" // a rebuild lets every address rest
	d.settle()
	for i := range n {
		if i%damageInOne == 0 {
			d.pods = append(d.pods, damagePod{id: fmt.Sprintf("live%d", i), space: d.Pod(t, fmt.Sprintf("live%d", i))})
		} else {
			d.pods = append(d.pods, d.pods[i-1])
		}
		d.pods[i].ifname = fmt.Sprintf("eth%d", i%damageInOne)
	}
	pathMany(n, func(i int) {
		p := &d.pods[i]
		edits := []edit{withIfName(p.ifname)}
		if i == n/2 { // its record is larger than a page
			edits = append(edits, podNamed(strings.Repeat("s", damagePage), "web-0"))
		}
		p.added = d.add(p.id, p.space, edits...)
	})
	for _, p := range d.pods {
		p.added.ok()
	}
	d.fresh = [2]*lab.Namespace{d.Pod(t, "fresh0"), d.Pod(t, "fresh1")}
	d.good, d.kernel = d.storeBytes(), d.ourState()
	var err error
	if d.leases, err = d.leaseTable(); err != nil || len(d.leases) != n {
		t.Fatalf("%d leases, want %d: %v", len(d.leases), n, err)
	}
	return d
}

// talk has two pods talk all the time: with each other, and with the gateway.
func (d *damaged) talk() {
	d.t.Helper()
	a, b := d.pods[0], d.pods[damageInOne]
	for _, space := range []*lab.Namespace{d.GW, b.space} {
		to := lab.SimpleGateway
		if space == b.space {
			to = b.added.IP
		}
		if _, err := space.EchoTCP(netip.AddrPortFrom(to, 9000)); err != nil {
			d.t.Fatal(err)
		}
		st, err := a.space.StartStream(d.t.Context(), netip.AddrPortFrom(to, 9000), 5*time.Millisecond)
		if err != nil {
			d.t.Fatal(err)
		}
		d.quiet = append(d.quiet, d.stream(a.space, to), func() {
			if r := st.Stop(); r.Err != nil || r.Sent == 0 || r.Echoed != r.Sent {
				d.t.Errorf("TCP stream to %s broke: %d of %d echoed: %v", to, r.Echoed, r.Sent, r.Err)
			}
		})
	}
}

func (d *damaged) endTalk() {
	for _, end := range d.quiet {
		end()
	}
}

// leaseTable reads the store without the product; a damaged one makes it fail. It sees no sums: what is wrong in a value it takes
// as it is.
func (s *stage) leaseTable() (out map[netip.Addr]damageLease, err error) {
	copied := filepath.Join(s.t.TempDir(), "ipam.db")
	if err := os.WriteFile(copied, s.storeBytes(), 0o600); err != nil {
		return nil, err
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	db, err := bolt.Open(copied, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		return nil, err
	}
	out = map[netip.Addr]damageLease{}
	err = db.View(func(tx *bolt.Tx) error {
		records, keys := tx.Bucket([]byte("addr4")), tx.Bucket([]byte("keys"))
		if records == nil || keys == nil {
			return errors.New("a bucket is missing")
		}
		return errors.Join(records.ForEach(func(k, v []byte) error {
			a, ok := netip.AddrFromSlice(k)
			if !ok || len(v) < 12 || int(v[0]) >= len(states) {
				return fmt.Errorf("record %x: %x", k, v)
			}
			if st := states[v[0]]; st == "leased" || st == "releasing" {
				l := out[a]
				l.State, l.Generation = st, generationIn(v)
				out[a] = l
			}
			return nil
		}), keys.ForEach(func(k, _ []byte) error {
			if len(k) != 12 {
				return fmt.Errorf("key %x", k)
			}
			a, _ := netip.AddrFromSlice(k[8:])
			l := out[a]
			l.Key = fmt.Sprintf("%x", k[:8])
			out[a] = l
			return nil
		}))
	})
	return out, errors.Join(err, db.Close())
}

// generationIn finds the generation in a record, as pkg/allocator/doc.go draws it.
func generationIn(v []byte) uint64 {
	at := 12
	for _, field := range []struct{ flag, size int }{{0x04, 8}, {0x08, 9}} {
		if int(v[1])&field.flag != 0 {
			at += field.size
		}
	}
	if v[1]&0x10 == 0 || len(v) < at+8 {
		return 0
	}
	return binary.LittleEndian.Uint64(v[at:])
}

// pages lists the pages of the store by kind, as bbolt sees them; the second page of a large record is of kind overflow.
func (d *damaged) pages() map[string][]int {
	d.t.Helper()
	copied := filepath.Join(d.t.TempDir(), "ipam.db")
	if err := os.WriteFile(copied, d.good, 0o600); err != nil {
		d.t.Fatal(err)
	}
	db, err := bolt.Open(copied, 0o600, &bolt.Options{ReadOnly: true, PreLoadFreelist: true})
	if err != nil {
		d.t.Fatal(err)
	}
	defer db.Close()
	kinds := map[string][]int{}
	err = db.View(func(tx *bolt.Tx) error {
		for id := 0; ; id++ {
			page, err := tx.Page(id)
			if page == nil || err != nil {
				return err
			}
			kind := page.Type
			if kind == "meta" {
				kind = fmt.Sprint("meta", id)
			}
			kinds[kind] = append(kinds[kind], id)
			for range page.OverflowCount {
				if id++; page.Type != "free" {
					kinds["overflow"] = append(kinds["overflow"], id)
				}
			}
		}
	})
	if err != nil {
		d.t.Fatal(err)
	}
	return kinds
}

// damageWays spoil a page of a file; n counts the cases.
var damageWays = map[string]func(file []byte, page, n int) []byte{
	"cut":    func(file []byte, page, n int) []byte { return file[:page*damagePage+n%2*1000] },
	"zeroed": func(file []byte, page, _ int) []byte { return spoilt(file, page, func(p []byte) { clear(p) }) },
	"flipped": func(file []byte, page, _ int) []byte {
		return spoilt(file, page, func(p []byte) {
			for i := range p {
				p[i] ^= 0xff
			}
		})
	},
	"a_byte": func(file []byte, page, n int) []byte {
		return spoilt(file, page, func(p []byte) {
			last := max(len(bytes.TrimRight(p, "\x00")), 1) - 1 // of the last key or value
			p[[]int{flagsAt, countAt, elementAt, last}[n%4]] ^= 0x05
		})
	},
}

// Of a page's header (bbolt v1.5.0, internal/common/page.go); the first element's head follows.
const flagsAt, countAt, elementAt = 8, 10, 20

func spoilt(file []byte, page int, f func(p []byte)) []byte {
	bad := bytes.Clone(file)
	f(bad[page*damagePage : (page+1)*damagePage])
	return bad
}

// first is the command that meets the damage; each case has another one.
func (d *damaged) first(n int) (name string, meet func(victim *lab.Namespace)) {
	one := d.pods[n%len(d.pods)]
	firsts := []struct {
		name string
		meet func(victim *lab.Namespace)
	}{
		{"ADD", func(*lab.Namespace) {}}, // that of try
		{"CHECK", func(*lab.Namespace) { d.checks(one) }},
		{"DEL", func(victim *lab.Namespace) {
			d.del("victim", victim).ok()
			d.podEmpty(victim, "after DEL")
		}},
		{"STATUS", func(*lab.Namespace) { d.ready() }},
		{"GC", func(*lab.Namespace) {
			var valid []any
			for _, p := range d.pods {
				valid = append(valid, map[string]any{"containerID": p.id, "ifname": p.ifname})
			}
			d.gcWith(map[string]any{"cni.dev/valid-attachments": valid}).ok()
		}},
		{"list", func(*lab.Namespace) { d.mustCtl("ipam", "list") }},
		{"repair", func(*lab.Namespace) { d.mustCtl("node", "repair") }},
	}
	f := firsts[n%len(firsts)]
	return f.name, f.meet
}

// ready wants STATUS to succeed. Its second may not be enough for a rebuild on a busy machine: then it says so, and is asked again.
func (d *damaged) ready() {
	d.t.Helper()
	var a *answer
	pathEventually(patience, func() bool {
		a = d.status()
		return a.OK() || a.Code != 50 || !strings.Contains(a.Msg, "deadline exceeded")
	})
	a.ok()
}

func (d *damaged) checks(p damagePod) {
	d.t.Helper()
	d.run(d.call("CHECK", p.id, p.space, withIfName(p.ifname), withStdin(d.prev(p.added)))).ok()
}

// try puts a damaged file in the store's place and runs what a node runs. Whatever these meet: no live pod's address is given
// out, the one that is free can be had by one pod, and in the end every live pod is leased what it had, under its key and
// generation. It returns the file that was set aside.
func (d *damaged) try(t *testing.T, damage func(good []byte) []byte) (aside []byte) {
	t.Helper()
	of := *d
	of.stage = d.stage.pathAs(t)
	d.cases++
	return of.tryFirst(d.cases, damage)
}

func (d *damaged) tryFirst(n int, damage func(good []byte) []byte) (aside []byte) {
	d.t.Helper()
	d.put(d.good)
	fresh := d.fresh
	name, meet := d.first(n)
	if name == "DEL" {
		d.add("victim", fresh[0]).ok()
	}
	bad := damage(d.storeBytes())
	d.put(bad)
	meet(fresh[0])
	got := d.pathRetried("fresh0", fresh[0]).ok()
	if _, live := d.leases[got.IP]; live {
		d.t.Fatalf("first %s: %s of a live pod was given out", name, got.IP)
	}
	d.add("fresh1", fresh[1]).fails(11)
	d.podEmpty(fresh[1], "after a refused ADD")
	d.ready()
	d.del("fresh0", fresh[0]).ok()
	d.allKnown(name)
	if now := d.ourState(); !slices.Equal(now, d.kernel) {
		d.t.Errorf("first %s: links and routes %s", name, cmp.Diff(d.kernel, now))
	}
	return d.aside()
}

// aside reads the damaged file that is kept, nil when there is none; one damage makes one such file.
func (d *damaged) aside() []byte {
	d.t.Helper()
	names := d.asideNames()
	if len(names) == 0 {
		return nil
	}
	if len(names) > 1 {
		d.t.Errorf("set aside more than once: %v", names)
	}
	b, err := os.ReadFile(names[0])
	if err != nil {
		d.t.Error(err)
	}
	return b
}

func (d *damaged) asideNames() []string {
	names, err := filepath.Glob(d.Node.Path(stateDir + "/*damaged-*"))
	if err != nil {
		d.t.Fatal(err)
	}
	return names
}

// allKnown wants every live pod's lease to be what it was. Damage is found when it is met: where the plain reader still sees some,
// the CHECKs of those pods meet it.
func (d *damaged) allKnown(first string) {
	d.t.Helper()
	d.mustCtl("ipam", "list")
	now, err := d.leaseTable()
	for _, p := range d.pods {
		if err != nil || now[p.added.IP] != d.leases[p.added.IP] {
			d.checks(p)
		}
	}
	now, err = d.leaseTable()
	if err != nil || !maps.Equal(now, d.leases) {
		d.t.Errorf("first %s: leases of live pods (-before +after the damage): %v %s", first, err, cmp.Diff(d.leases, now))
	}
}

// put replaces the store's file, while nobody has it open, and forgets those set aside. Nil: there is none.
func (d *damaged) put(file []byte) {
	d.t.Helper()
	db := d.Node.Path(stateDir + "/ipam.db")
	for _, name := range append(d.asideNames(), db) {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			d.t.Fatal(err)
		}
	}
	if file == nil {
		return
	}
	if err := os.WriteFile(db, file, 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// Every kind of page is damaged in every way, and in the long form every page, in a store of pods that live: nobody's address is
// given out, and everybody's lease is as it was. In make test the store has fewer pods than the 800 of the long form; it has pages
// of every kind all the same.
func TestNetnsDamage_pages(t *testing.T) {
	t.Parallel()
	ways := slices.Sorted(maps.Keys(damageWays))
	if os.Getenv("NVT_SOAK") == "" {
		d := newDamaged(t, damagePods)
		kinds := d.everyKind()
		d.talk()
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			for _, way := range append(ways, "a_byte") {
				d.tryPage(t, kind, way, kinds[kind][len(kinds[kind])/2])
			}
		}
		d.endTalk()
		return
	}
	for _, way := range ways {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			d := newDamaged(t, damageSoak)
			d.everyKind()
			d.talk()
			for page := range len(d.good) / damagePage {
				d.tryPage(t, fmt.Sprint("page", page), way, page)
			}
			d.endTalk()
		})
	}
}

func (d *damaged) tryPage(t *testing.T, name, way string, page int) {
	t.Helper()
	if t.Failed() { // what is left of one case would be the next one's fault
		return
	}
	t.Run(fmt.Sprintf("%s_%s_%d", name, way, d.cases), func(t *testing.T) {
		aside := d.try(t, func(good []byte) []byte { return damageWays[way](good, page, d.cases) })
		// A record's second page has nothing but what only its sum tells.
		if name == "overflow" && aside == nil {
			t.Error("nobody noticed")
		}
	})
}

// everyKind wants the store to have pages of every kind.
func (d *damaged) everyKind() map[string][]int {
	d.t.Helper()
	kinds := d.pages()
	for _, kind := range []string{"branch", "free", "freelist", "leaf", "meta0", "meta1", "overflow"} {
		if len(kinds[kind]) == 0 {
			d.t.Fatalf("no page of kind %s: %v", kind, kinds)
		}
	}
	d.t.Logf("%d live pods, %d pages: %v", len(d.pods), len(d.good)/damagePage, kinds)
	return kinds
}

// The damage is met in the middle of an ADD that asks metadata, after the ADD has read the store once and found nothing wrong: a
// reader doesn't look at the list of free pages.
func TestNetnsDamage_met_by_a_refresh(t *testing.T) {
	t.Parallel()
	d := newDamaged(t, damageInOne)
	kinds := d.pages()
	for i, kind := range slices.Sorted(maps.Keys(kinds)) {
		late := withEnv(fmt.Sprintf("NVT_CLOCK_OFFSET=%dm", 2*(i+1))) // each later than the question of the one before
		t.Run(kind, func(t *testing.T) {
			d := &damaged{stage: d.stage.pathAs(t), pods: d.pods, good: d.good, leases: d.leases}
			d.put(damageWays["zeroed"](d.good, kinds[kind][0], 0))
			asked := len(d.MD.Requests())
			p := d.Pod(t, "p"+kind)
			a := d.runOf(pathFailing, d.call("ADD", "new", p, late)).ok()
			if _, live := d.leases[a.IP]; live {
				t.Errorf("%s of a live pod was given out", a.IP)
			}
			if len(d.MD.Requests()) == asked {
				t.Error("metadata was not asked")
			}
			d.reaches(p, a.IP)
			d.del("new", p).ok()
			d.allKnown("ADD")
			d.put(d.good)
		})
	}
}

// A page that counts one key less than it holds hides a live pod's lease, and nothing that is left looks wrong. CHECK finds the lease
// all the same; after a DEL that didn't, repair does, and the address comes back.
func TestNetnsDamage_hidden_key(t *testing.T) {
	t.Parallel()
	d := newDamaged(t, 3*damageInOne) // fewer keys have no page of their own
	pages := d.pages()["leaf"]
	at := slices.IndexFunc(pages, func(page int) bool { return d.hide(page) != nil })
	if at < 0 {
		t.Fatal("no page hides a key")
	}
	hidden := d.hide(pages[at])
	d.checks(*hidden)
	d.allKnown("CHECK")

	hidden = d.hide(pages[at])
	d.run(d.call("DEL", hidden.id, hidden.space, withIfName(hidden.ifname))).ok()
	d.mustCtl("node", "repair")
	now, err := d.leaseTable()
	if _, leased := now[hidden.added.IP]; err != nil || leased || len(now) != len(d.leases)-1 {
		t.Errorf("%d leases of %d, %s leased %v, %v", len(now), len(d.leases), hidden.added.IP, leased, err)
	}
}

// hide damages a page, and returns the pod whose key is hidden then: nil when it is no page of the index.
func (d *damaged) hide(page int) *damagePod {
	d.t.Helper()
	d.put(spoilt(d.good, page, func(p []byte) {
		if n := binary.LittleEndian.Uint16(p[countAt:]); n > 0 {
			binary.LittleEndian.PutUint16(p[countAt:], n-1)
		}
	}))
	now, err := d.leaseTable()
	if err != nil {
		return nil
	}
	for i, p := range d.pods {
		l, was := now[p.added.IP], d.leases[p.added.IP]
		if was.Key != "" && l.Key == "" && l.Generation == was.Generation {
			return &d.pods[i]
		}
	}
	return nil
}

// BR-32: the file is cut, overwritten or another one. The numbers are the case's own.
func TestNetnsDamage_files(t *testing.T) {
	t.Parallel()
	n := 2 * damageInOne
	if os.Getenv("NVT_SOAK") != "" {
		n = damageSoak
	}
	d := newDamaged(t, n)
	random := make([]byte, len(d.good))
	_, _ = rand.Read(random)
	files := map[string][]byte{
		"2_64_bytes_of_EE_at_the_root_page": spoilt(d.good, rootPage(d.good), func(p []byte) {
			copy(p, bytes.Repeat([]byte{0xee}, 64))
		}),
		"3_zeros": make([]byte, len(d.good)), "4_random": random, "5_a_text": []byte(strings.Repeat("this is no store\n", 2000)),
		"missing": nil, "empty": {}, "one_byte": {'x'},
		"another_programs_store":           damageForeign(t, "metadata"),
		"our_buckets_without_the_last_key": damageForeign(t, "addr4", "keys", "free", "cooling", "nics", "counts", "state", "meta"),
	}
	for _, size := range []int{100, 4095, 4096, 8191, 8192, 12288, 20480} {
		files[fmt.Sprint("1_cut_to_", size)] = d.good[:size]
	}
	d.talk()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		t.Run(name, func(t *testing.T) {
			file := files[name]
			aside := d.try(t, func([]byte) []byte { return file })
			if !bytes.Equal(aside, file) && len(file) > 0 && !strings.HasPrefix(name, "2") { // which is found when it is read
				t.Errorf("%d bytes were set aside, want the damaged file, %d bytes", len(aside), len(file))
			}
		})
	}
	d.endTalk()
}

// rootPage is the page that the newer of the two meta pages names (bbolt v1.5.0, internal/common/meta.go).
func rootPage(file []byte) int {
	at := func(page, offset int) uint64 { return binary.LittleEndian.Uint64(file[page*damagePage+offset:]) }
	const header, root, txid = 16, 16, 48
	newer := 0
	if at(1, header+txid) > at(0, header+txid) {
		newer = 1
	}
	return int(at(newer, header+root))
}

func damageForeign(t *testing.T, buckets ...string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "foreign.db")
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		var errs []error
		for _, name := range buckets {
			_, err := tx.CreateBucket([]byte(name))
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	b, readErr := os.ReadFile(path)
	if err := errors.Join(err, db.Close(), readErr); err != nil {
		t.Fatal(err)
	}
	return b
}
