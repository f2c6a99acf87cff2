package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/native-vmss/native-vmss/internal/boltfile"
	"github.com/native-vmss/native-vmss/pkg/accounting"
	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

const (
	// accountingTimeout bounds what counting may cost an ADD, a DEL or the writing of node-wide state: another tool may hold the lock
	// of iptables for a minute.
	accountingTimeout = 3 * time.Second
	// accountingLayout changes when the objects of a backend do.
	accountingLayout = 1
)

// counting is what the record says of accounting: what stands in the kernel, and what doesn't.
type counting struct {
	Backend  string `json:"backend,omitempty"`  // whose objects are in the kernel
	Hash     string `json:"hash,omitempty"`     // of the configuration that they were made from
	Mask     uint32 `json:"mask,omitempty"`     // where packets carry marks
	Standing string `json:"standing,omitempty"` // what the backend calls that which stands
	// Off and MarksOff say why there is no counting and why there are no marks, where the configuration wants them.
	Off      string `json:"off,omitempty"`
	MarksOff string `json:"marksOff,omitempty"`
}

// wantsCounting reports whether the node's configuration wants pods counted.
func (r record) wantsCounting() bool {
	return r.Wide.Accounting != accounting.None && r.Wide.Accounting != ""
}

// alwaysCluster are peers that are never the internet, whatever nativeCIDRs says: the platform's addresses, what answers on a link-local
// address of the node, and the node itself where it reaches a host port by localhost.
var alwaysCluster = []netip.Prefix{
	netip.MustParsePrefix("168.63.129.16/32"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("127.0.0.0/8"),
}

// countingConf is what the record's configuration makes the static part of accounting from.
func (r record) countingConf() accounting.Config {
	c := accounting.Config{Classes: slices.Clone(r.Wide.Classes), NICs: r.links(), MarkMask: r.Counting.Mask}
	cluster := append(slices.Clone(r.Wide.NativeCIDRs), alwaysCluster...)
	for _, nic := range r.NICs {
		cluster = append(cluster, nic.Subnets...)
	}
	c.Classes = append(c.Classes, accounting.Class{Name: accounting.Cluster, Prefixes: slices.DeleteFunc(cluster, func(p netip.Prefix) bool {
		return !p.Addr().Is4()
	})})
	b, _ := json.Marshal(struct { // plain data: can't fail
		Layout  int
		Backend string
		Conf    accounting.Config
	}{accountingLayout, r.Wide.Accounting, c})
	sum := sha256.Sum256(b)
	c.Hash = hex.EncodeToString(sum[:8])
	return c
}

// classes are the names of the traffic classes that are counted.
func (r record) classes() []string {
	names := []string{accounting.Cluster, accounting.Internet}
	for _, c := range r.Wide.Classes {
		names = append(names, c.Name)
	}
	return names
}

// remade reports whether each pod's counters are made anew with it; else they belong to its address.
func (r record) remade() bool { return r.Wide.Accounting == accounting.IPTables }

// countLog is for what fails in accounting and costs a pod nothing: nobody else hears of it.
func (n *Node) countLog() *slog.Logger { return n.log.With("task", "accounting") }

// openBackend makes a backend by the name that a configuration or a record has; none is nil.
func (n *Node) openBackend(name string) (accounting.Backend, error) {
	switch name {
	case accounting.NFTables:
		return accounting.NewNFTables(n.log)
	case accounting.IPTables:
		return accounting.NewIPTables(n.log)
	}
	return nil, nil
}

// applyCounting brings accounting to what the record's configuration wants and folds what was counted since. Nothing that fails
// here may cost a pod its network: the record says why nothing is counted, and the next Repair tries again.
func (n *Node) applyCounting(ctx context.Context, rec *record) error {
	var links []routes.PodLink
	var names []string
	var err error
	// Listed before accounting's lock and its time: where links come and go, the kernel lets a list wait for seconds.
	if rec.wantsCounting() {
		links, names, err = n.kernel.LinksAndNames(ctx)
		err = notNow(err)
	}
	ctx, cancel := context.WithTimeout(ctx, accountingTimeout)
	defer cancel()
	was := rec.Counting
	if err == nil {
		err = n.leaveBackend(ctx, rec)
	}
	if err == nil && rec.wantsCounting() {
		err = n.enterBackend(ctx, rec, links, names)
	}
	if errors.Is(err, errNotNow) { // what stands goes on as it was
		n.countLog().Error("accounting not looked at", "error", err)
		return fmt.Errorf("accounting was not looked at: %w", err)
	}
	rec.Counting.Off = ""
	if err != nil {
		rec.Counting.Off = err.Error()
		if was.Off != rec.Counting.Off {
			n.countLog().Error("pods are not counted", "backend", rec.Wide.Accounting, "error", err)
		}
	} else if was.Off != "" {
		n.note("pods are counted again")
	}
	switch m := rec.Counting.MarksOff; {
	case m == was.MarksOff:
	case m != "":
		n.countLog().Warn("packets carry no marks", "reason", m)
		n.note("packets carry no marks: %s", m)
	default:
		n.note("packets carry marks again")
	}
	if err != nil {
		return fmt.Errorf("pods are not counted: %w", err)
	}
	return nil
}

// errNotNow is a failure that says nothing of whether packets are counted: a lock that is held, a store that can't be read, a tool that is
// gone while its rules are in the kernel.
var errNotNow = errors.New("not now")

func notNow(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", errNotNow, err)
}

// leaveBackend removes what another backend than the wanted one left in the kernel, once its counters are in the totals.
func (n *Node) leaveBackend(ctx context.Context, rec *record) error {
	old := rec.Counting.Backend
	if old == rec.Wide.Accounting {
		return nil
	}
	if old == "" { // the record is new: the store may be, while the kernel has what a network with another backend left
		return n.dropOthers(ctx, rec.Wide.Accounting)
	}
	b, err := n.openBackend(old)
	if err != nil {
		return err
	}
	defer b.Close()
	held, err := n.lockFold(ctx)
	if err != nil {
		return notNow(err)
	}
	defer held.Unlock()
	if err := b.Halt(ctx); err != nil { // else what comes between the last reading and the removal is in no total
		return err
	}
	if err := n.fold(ctx, b, *rec, allocator.Fold{}); err != nil {
		n.countLog().Error("bytes since the last fold are lost", "backend", old, "error", err)
		if _, err := n.store.Fold(ctx, allocator.Fold{Resets: map[string]uint64{resetRules: 1}}); err != nil {
			return notNow(err)
		}
	}
	if err := drop(ctx, b, old); err != nil {
		return err
	}
	n.countLog().Info("accounting removed", "backend", old)
	n.note("accounting by %s removed", old)
	rec.Counting = counting{}
	return notNow(n.store.StopMeters(ctx))
}

// dropOthers removes what backends that aren't wanted have in the kernel. To ask for iptables' rules costs a process each time, so only
// Repair does.
func (n *Node) dropOthers(ctx context.Context, wanted string) error {
	var errs []error
	if wanted != accounting.NFTables {
		errs = append(errs, n.dropBackend(ctx, accounting.NFTables))
	}
	if wanted != accounting.IPTables && n.noted != nil {
		if err := n.dropBackend(ctx, accounting.IPTables); !errors.Is(err, accounting.ErrUnavailable) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// dropBackend removes all that a backend has in the kernel.
func (n *Node) dropBackend(ctx context.Context, name string) error {
	b, err := n.openBackend(name)
	if err != nil {
		return err
	}
	defer b.Close()
	return drop(ctx, b, name)
}

func drop(ctx context.Context, b accounting.Backend, name string) error {
	if err := b.Drop(ctx); err != nil {
		return fmt.Errorf("remove what accounting by %s left: %w", name, err)
	}
	return nil
}

// dropCounting removes accounting from the node, and tells whose it was. What a host can't have needs no removal.
func (n *Node) dropCounting(ctx context.Context) (had string, err error) {
	rec, err := n.readRecord(ctx)
	if err != nil {
		return "", err
	}
	var errs []error
	for _, name := range []string{accounting.NFTables, accounting.IPTables} {
		err := n.dropBackend(ctx, name)
		if err != nil && (name == rec.Counting.Backend || !errors.Is(err, accounting.ErrUnavailable)) {
			errs = append(errs, err)
		}
	}
	had = rec.Counting.Backend
	if err := errors.Join(errs...); err != nil || had == "" {
		return had, err
	}
	rec.Counting = counting{}
	return had, errors.Join(n.store.StopMeters(ctx), n.putRecord(ctx, rec))
}

// enterBackend has the wanted backend count. The links of pods and the names of all are from before.
func (n *Node) enterBackend(ctx context.Context, rec *record, links []routes.PodLink, names []string) error {
	was := rec.Counting
	later := func(err error) error { // all stays as it was
		rec.Counting = was
		return notNow(err)
	}
	n.decideMarks(ctx, rec, names)
	conf := rec.countingConf()
	stood := rec.Counting.Backend == rec.Wide.Accounting // then what Apply finds is what it made, or another's doing
	renewed := stood && rec.Counting.Hash != conf.Hash
	removed := false
	failed := func(err error) error { // what stands counts on
		if stood && !renewed && !removed {
			return later(err)
		}
		return err
	}
	b, err := n.openBackend(rec.Wide.Accounting)
	if err != nil {
		return failed(err)
	}
	defer b.Close()
	// From here to the end no ADD makes an address's counters: what isn't on the list goes.
	held, err := n.lockFold(ctx)
	if err != nil {
		return later(err)
	}
	defer held.Unlock()
	subjects, err := n.subjects(ctx, links)
	if err != nil {
		return later(err)
	}
	if stood { // what is written anew below begins at zero; a class may go, and its counters with it
		err := n.fold(ctx, b, *rec, allocator.Fold{})
		if removed = errors.Is(err, accounting.ErrNotApplied); err != nil {
			n.countLog().Error("bytes since the last fold may be lost", "error", err)
		}
	}
	found, err := b.Standing(ctx)
	if err != nil {
		return failed(err)
	}
	level := slog.LevelWarn // others have changed what was there
	if !stood || renewed {
		level = slog.LevelInfo
	}
	changed, doubted, err := b.Apply(ctx, conf, subjects)
	for _, what := range changed {
		n.countLog().Log(ctx, level, "accounting put right", "change", what)
		n.note("accounting: %s", what)
	}
	if err != nil {
		return failed(err)
	}
	if !stood && rec.Wide.Accounting == accounting.IPTables {
		n.countLog().Warn(iptablesPrice)
		n.note(iptablesPrice)
	}
	if removed {
		doubted = append(doubted, "others had removed all of it")
	} else if stood && found != "" && was.Standing != "" && found != was.Standing {
		doubted = append(doubted, "others have removed all of it and made it again")
	}
	// Rules of iptables begin anew with another configuration: what came between the reading and the writing is lost.
	if renewed && rec.Wide.Accounting == accounting.IPTables {
		doubted = append(doubted, "rules were written anew for another configuration")
	}
	reasons := map[string]uint64{}
	if stood && len(doubted) > 0 {
		n.countLog().Error("bytes since the last fold may be counted twice or not at all", "changes", strings.Join(doubted, "; "))
		for _, what := range doubted {
			if !slices.Contains(changed, what) {
				n.note("accounting: %s", what)
			}
		}
		reasons[resetRules] = 1
	}
	rec.Counting.Backend, rec.Counting.Hash, rec.Counting.Off = rec.Wide.Accounting, conf.Hash, ""
	if rec.Counting.Standing, err = b.Standing(ctx); err != nil {
		n.countLog().Warn("not known what stands", "error", err)
	}
	if err := n.fold(ctx, b, *rec, allocator.Fold{Made: true, Resets: reasons}); err != nil {
		n.countLog().Error("counters not added to the totals", "error", err)
		return notNow(fmt.Errorf("counters not added to the totals: %w", err))
	}
	return nil
}

// iptablesPrice is what bench measures, row traffic.
const iptablesPrice = "counting by iptables makes a packet slower with each pod: at 30 pods a round trip takes 1.05 times as long, at 250 pods 1.2 to 1.4 times"

// decideMarks has packets carry marks where nobody else uses the mask's bits. Counters never need them.
func (n *Node) decideMarks(ctx context.Context, rec *record, links []string) {
	why, err := accounting.MaskTaken(ctx, rec.Wide.MarkMask, links)
	if err != nil && rec.Counting.Backend == rec.Wide.Accounting { // that can't be told now: what stands goes on
		n.countLog().Warn("not known whether markMask is free", "error", err)
		return
	}
	if err != nil {
		why = "not known whether markMask is free: " + err.Error()
	}
	rec.Counting.Mask, rec.Counting.MarksOff = rec.Wide.MarkMask, why
	if why != "" {
		rec.Counting.Mask = 0
	}
}

// resetRules is the reason of a reset that found rules of ours doubled or gone.
const resetRules = "rules"

// fold adds what the counters have beyond the last fold to the totals. It runs under the fold's lock, from the reading to the commit: two
// readings that are committed in the wrong order would count bytes twice. f has what the caller knows beyond the reading.
func (n *Node) fold(ctx context.Context, b accounting.Backend, rec record, f allocator.Fold) error {
	books, err := n.store.Books(ctx) // whose the addresses are; a use that ends after this is not this fold's
	if err != nil {
		return err
	}
	reading, err := b.Read(ctx)
	if errors.Is(err, accounting.ErrNotApplied) { // others removed it: nobody is counted until the next repair
		err = errors.Join(err, n.store.StopMeters(ctx))
	}
	if err != nil {
		return fmt.Errorf("read counters: %w", err)
	}
	f.Live, f.Node, f.Classes = map[netip.Addr]allocator.Use{}, samples(reading.Node), rec.classes()
	for _, m := range books.Meters {
		if m.Use != 0 {
			f.Live[m.Addr] = allocator.Use{Use: m.Use, Samples: samples(reading.Of(subjectOf(m)))}
		}
	}
	res, err := n.store.Fold(ctx, f)
	if res.On > 0 {
		n.note("accounting: %d pods are counted from here on", res.On)
	}
	for _, a := range res.Reset {
		n.countLog().Error("counters were lower than before: bytes since the last fold are lost", "addr", a)
		n.note("counters of %s were set back by others", a)
	}
	return err
}

// lockFold is for what looks at all addresses; what is about one takes it shared, for its container's lock keeps others off that address.
func (n *Node) lockFold(ctx context.Context) (*boltfile.Held, error) {
	ctx, cancel := context.WithTimeout(ctx, min(n.conf.IPAM.LockTimeout, accountingTimeout))
	defer cancel()
	return boltfile.Lock(ctx, n.path(foldLockFile))
}

func (n *Node) lockFoldShared(ctx context.Context) (*boltfile.Held, error) {
	ctx, cancel := context.WithTimeout(ctx, min(n.conf.IPAM.LockTimeout, accountingTimeout))
	defer cancel()
	return boltfile.LockShared(ctx, n.path(foldLockFile))
}

// samples are a backend's in the store's terms.
func samples(in []accounting.Sample) []allocator.Sample {
	if in == nil {
		return nil
	}
	out := make([]allocator.Sample, 0, len(in))
	for _, s := range in {
		out = append(out, allocator.Sample(s))
	}
	return out
}
