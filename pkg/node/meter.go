package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/native-vmss/native-vmss/pkg/accounting"
	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// count has a pod's packets counted from its first one on: it comes before the link is up. It never costs the pod its network: what
// fails is logged and noted, and Repair brings it on.
func (n *Node) count(ctx context.Context, a Attachment, g Grant) {
	n.uncounted = false
	rec, err := n.nics(ctx)
	if err != nil || !rec.wantsCounting() {
		return
	}
	m := g.Meter
	if m == nil { // an address of another IPAM plugin, or a lease from before accounting
		begin := allocator.StartMeter{Addr: g.Addr, Key: a.Hash(), Namespace: a.Namespace, Pod: a.Pod, Remade: rec.remade()}
		started, err := n.store.StartMeter(ctx, begin)
		if err != nil {
			n.countLog().Error("pod is not counted", "addr", g.Addr, "error", err)
			return
		}
		m = &started
	}
	starting, cancel := context.WithTimeout(ctx, accountingTimeout)
	defer cancel()
	err = n.startCounting(starting, rec, *m, g.Existing)
	if errors.Is(err, accounting.ErrNotApplied) { // somebody removed the static part since the node-wide state was written
		if rec, err = n.recount(starting); err == nil {
			err = n.startCounting(starting, rec, *m, g.Existing)
		}
	}
	if err == nil {
		return
	}
	n.countLog().Error("pod is not counted", "addr", g.Addr, "error", err)
	if err := n.store.SetMeter(ctx, m.Addr, m.Use, nil, true); err != nil {
		n.countLog().Error("uncounted pod not noted", "addr", g.Addr, "error", err)
	}
}

// startCounting makes an address's counters unless they stand, and notes what they have: that is of its earlier pods. An ADD that is
// repeated goes on with its own.
func (n *Node) startCounting(ctx context.Context, rec record, m allocator.Meter, existing bool) error {
	if rec.Counting.Off != "" { // one pod waits for what is missing, not each
		return fmt.Errorf("%w: %s", errNotCounting, rec.Counting.Off)
	}
	b, err := n.openBackend(rec.Wide.Accounting)
	if err != nil {
		return err
	}
	defer b.Close()
	held, err := n.lockFoldShared(ctx) // an Apply that has listed the addresses without this one would remove it
	if err != nil {
		return err
	}
	defer held.Unlock()
	live, err := b.Start(ctx, rec.countingConf(), subjectOf(m))
	if err != nil || m.Off == 0 && (noted(m.Series, samples(live)) || existing && !below(m.Series, samples(live))) {
		return err
	}
	return n.store.SetMeter(ctx, m.Addr, m.Use, samples(live), false)
}

// errNotCounting says that accounting was found not to work here.
var errNotCounting = errors.New("accounting is off")

// recount makes the static part of accounting anew.
func (n *Node) recount(ctx context.Context) (record, error) {
	held, err := n.lockNode(ctx)
	if err != nil {
		return record{}, err
	}
	defer held.Unlock()
	rec, err := n.readRecord(ctx)
	if err != nil {
		return record{}, err
	}
	countErr := n.applyCounting(ctx, &rec)
	n.known = &rec
	if err := n.putRecord(ctx, rec); err != nil {
		return record{}, err
	}
	return rec, countErr
}

// endCount reads a use's last values, once its link is gone, and has commit fold them and end the use in one transaction. Under the fold's
// lock: a reading that is older must not be committed after it. That lock, and what can't be read, never hold up a DEL: then the
// bytes since the last fold are lost, and that is counted.
func (n *Node) endCount(ctx context.Context, m *allocator.Meter, commit func([]allocator.Sample) error) error {
	if m == nil || m.Off != 0 {
		return commit(nil)
	}
	reading, cancel := context.WithTimeout(ctx, accountingTimeout)
	defer cancel()
	held, err := n.lockFoldShared(reading)
	if err == nil {
		defer held.Unlock()
	}
	var last []allocator.Sample
	if err == nil {
		last, err = n.lastCount(reading, *m)
	}
	if err != nil {
		n.countLog().Error("last bytes of a pod are lost", "addr", m.Addr, "pod", m.Pod, "ns", m.Namespace, "error", err)
		if _, err := n.store.Fold(ctx, allocator.Fold{Resets: map[string]uint64{allocator.ResetCounters: 1}}); err != nil {
			n.countLog().Error("reset of counters not noted", "error", err)
		}
	}
	return commit(last)
}

// errNoCounters says that somebody removed the counters of a pod.
var errNoCounters = errors.New("its counters are gone")

// lastCount asks the kernel before the record, which takes longer to read than all else here: nftables' table stands only while it is the
// backend.
func (n *Node) lastCount(ctx context.Context, m allocator.Meter) ([]allocator.Sample, error) {
	live, err := n.lastBy(ctx, accounting.NFTables, m)
	if live != nil {
		return live, err
	}
	rec, recErr := n.nics(ctx)
	if recErr != nil || rec.Counting.Backend == "" {
		return nil, recErr
	}
	if rec.Counting.Backend != accounting.NFTables {
		live, err = n.lastBy(ctx, rec.Counting.Backend, m)
	}
	if err == nil && live == nil && !n.uncounted {
		err = errNoCounters
	}
	return live, err
}

func (n *Node) lastBy(ctx context.Context, backend string, m allocator.Meter) ([]allocator.Sample, error) {
	b, err := n.openBackend(backend)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	live, err := b.Stop(ctx, subjectOf(m))
	return samples(live), err
}

// endForeign ends the use of an address of another IPAM plugin; the store knows it by its key.
func (n *Node) endForeign(ctx context.Context, h Hash) error {
	ctx, cancel := context.WithTimeout(ctx, accountingTimeout)
	defer cancel()
	books, err := n.store.Books(ctx)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(books.Meters, func(m allocator.Meter) bool { return m.Use != 0 && m.Key == h })
	if i < 0 {
		return nil
	}
	m := books.Meters[i]
	return n.endCount(ctx, &m, func(last []allocator.Sample) error { return n.store.EndMeter(ctx, m.Addr, h, last) })
}

// endGone ends the uses of addresses of other IPAM plugins whose pods went without a DEL: no link has their mark.
func (n *Node) endGone(ctx context.Context, leases []allocator.Lease, links []routes.PodLink) error {
	books, err := n.store.Books(ctx)
	if err != nil {
		return err
	}
	known := map[Hash]bool{}
	for _, l := range leases {
		known[l.Owner.Key] = true
	}
	for _, l := range links {
		known[l.Alias.Key] = true
	}
	var errs []error
	for _, m := range books.Meters {
		if m.Use == 0 || known[m.Key] {
			continue
		}
		errs = append(errs, n.withContainer(ctx, lockOffset(m.Key), func() error {
			// The lists are older than the lock: the pod may have come since.
			if _, found, err := n.kernel.Link(ctx, linkName(n.conf.InterfacePrefix, m.Key)); found || err != nil {
				return err
			}
			return n.endForeign(ctx, m.Key)
		}))
	}
	return errors.Join(errs...)
}

// noted reports whether the store has these values as those up to which all is in the totals.
func noted(folded []allocator.Series, live []allocator.Sample) bool {
	at := map[series]allocator.Count{}
	for _, s := range folded {
		if s.Folded != (allocator.Count{}) {
			at[series{s.Direction, s.Class}] = s.Folded
		}
	}
	for _, s := range live {
		k := series{s.Direction, s.Class}
		if at[k] != (allocator.Count{Bytes: s.Bytes, Packets: s.Packets}) {
			return false
		}
		delete(at, k)
	}
	return len(at) == 0
}

// below reports whether a value is lower than what is in the totals: then the counters are new.
func below(folded []allocator.Series, live []allocator.Sample) bool {
	return slices.ContainsFunc(folded, func(f allocator.Series) bool {
		return !slices.ContainsFunc(live, func(s allocator.Sample) bool {
			return s.Direction == f.Direction && s.Class == f.Class && s.Bytes >= f.Folded.Bytes && s.Packets >= f.Folded.Packets
		}) && f.Folded != (allocator.Count{})
	})
}

type series struct{ direction, class string }
