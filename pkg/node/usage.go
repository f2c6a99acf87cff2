package node

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/native-vmss/native-vmss/internal/boot"
	"github.com/native-vmss/native-vmss/pkg/accounting"
	"github.com/native-vmss/native-vmss/pkg/allocator"
)

// Usage is what pods and the node have sent and got. It folds first and shows totals of the store alone: what somebody has seen once is
// in the store, so whatever becomes of the counters afterwards, no total that was shown goes down.
func (n *Node) Usage(ctx context.Context) (accounting.Usage, error) {
	rec, err := n.readRecord(ctx)
	if err == nil {
		err = n.sameNamespaceAs(rec) // elsewhere the counters would be missed, and noted as gone
	}
	if err != nil {
		return accounting.Usage{}, err
	}
	u := accounting.Usage{Backend: rec.Wide.Accounting, Off: rec.notCounting(), MarksOff: rec.Counting.MarksOff}
	if u.MarksOff == "" && rec.Wide.MarkMask == 0 {
		u.MarksOff = "markMask is 0"
	}
	switch err := n.foldNow(ctx); {
	case errors.Is(err, accounting.ErrNotApplied):
		u.Off = "what counts was removed by others: 'vmssctl node repair' makes it again"
	case err != nil:
		n.countLog().Error("counters not read, values are those of the last fold", "error", err)
		u.Stale = true
	}
	on := u.Off == ""
	books, err := n.store.Books(ctx)
	if err != nil {
		return accounting.Usage{}, err
	}
	// From zero on: else the first one of a reason is no increase.
	u.Resets = map[string]uint64{allocator.ResetStore: 0, allocator.ResetCounters: 0, resetRules: 0}
	maps.Copy(u.Resets, books.Resets)
	u.Unknown = maps.Clone(books.Unknown)
	if u.Unknown == nil {
		u.Unknown = map[string]time.Duration{}
	}
	for _, s := range books.Node {
		u.Node = append(u.Node, usedOf(s))
	}
	if on {
		u.Node = withZeros(rec, u.Node)
	}
	for _, t := range books.Totals { // by namespace
		last := len(u.Namespaces) - 1
		if last < 0 || u.Namespaces[last].Namespace != t.Namespace {
			u.Namespaces = append(u.Namespaces, accounting.NamespaceUsage{Namespace: t.Namespace})
			last++
		}
		u.Namespaces[last].Samples = append(u.Namespaces[last].Samples, accounting.Sample(t.Sample))
	}
	for _, m := range books.Meters { // a namespace whose pods had no packet yet
		has := func(t accounting.NamespaceUsage) bool { return t.Namespace == m.Namespace }
		if on && m.Use != 0 && m.Off == 0 && !slices.ContainsFunc(u.Namespaces, has) {
			u.Namespaces = append(u.Namespaces, accounting.NamespaceUsage{Namespace: m.Namespace})
		}
	}
	for i := range u.Namespaces {
		u.Namespaces[i].Samples = withZeros(rec, u.Namespaces[i].Samples)
	}
	now := boot.Clock()
	for _, m := range books.Meters {
		if m.Use == 0 {
			continue
		}
		p := accounting.PodUsage{Namespace: m.Namespace, Pod: m.Pod, Addr: m.Addr, Use: m.Use, Off: m.Off != 0 || !on}
		if m.Off != 0 {
			u.Unknown[m.Namespace] += max(0, now-m.Off)
		}
		if on && rec.marks() && m.Off == 0 {
			p.Mark = accounting.Mark(rec.Counting.Mask, m.Slot)
		}
		for _, s := range m.Series {
			p.Samples = append(p.Samples, usedOf(s))
		}
		if !p.Off {
			p.Samples = withZeros(rec, p.Samples)
		}
		u.Pods = append(u.Pods, p)
	}
	return u, nil
}

// usedOf is a series' part of the totals.
func usedOf(s allocator.Series) accounting.Sample {
	return accounting.Sample{Direction: s.Direction, Class: s.Class, Bytes: s.Used.Bytes, Packets: s.Used.Packets}
}

// withZeros adds the directions and classes that are counted and had no packet: that is known, and known to be nothing.
func withZeros(rec record, samples []accounting.Sample) []accounting.Sample {
	for _, direction := range []string{accounting.RX, accounting.TX} {
		for _, class := range rec.classes() {
			has := func(s accounting.Sample) bool { return s.Direction == direction && s.Class == class }
			if !slices.ContainsFunc(samples, has) {
				samples = append(samples, accounting.Sample{Direction: direction, Class: class})
			}
		}
	}
	slices.SortFunc(samples, func(a, b accounting.Sample) int {
		return cmp.Or(cmp.Compare(a.Direction, b.Direction), cmp.Compare(a.Class, b.Class))
	})
	return samples
}

// foldNow folds what the backend in the kernel has counted; without one there is nothing to do.
func (n *Node) foldNow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, accountingTimeout)
	defer cancel()
	held, err := n.lockFold(ctx)
	if err != nil {
		return err
	}
	defer held.Unlock()
	rec, err := n.readRecord(ctx) // under the lock: nobody changes the backend now
	if err != nil || rec.Counting.Backend == "" {
		return err
	}
	b, err := n.openBackend(rec.Counting.Backend)
	if err != nil {
		return err
	}
	defer b.Close()
	return n.fold(ctx, b, rec, allocator.Fold{})
}

// notCounting says why pods are not counted now; empty: they are.
func (r record) notCounting() string {
	switch {
	case !r.wantsCounting():
		return "accounting.backend is none"
	case r.Counting.Off != "":
		return r.Counting.Off
	case r.Counting.Backend == "":
		return "not set up yet: the next ADD or 'vmssctl node repair' does it"
	}
	return ""
}

// isCounting reports whether pods are counted now.
func (r record) isCounting() bool { return r.notCounting() == "" }

// marks reports whether packets carry marks now.
func (r record) marks() bool { return r.isCounting() && r.Counting.Mask != 0 }

// Marks are the marks that packets of pods carry now, by the pod's address.
func (n *Node) Marks(ctx context.Context) (map[netip.Addr]uint32, error) {
	rec, err := n.readRecord(ctx)
	if err != nil || !rec.marks() {
		return nil, err
	}
	books, err := n.store.Books(ctx)
	if err != nil {
		return nil, err
	}
	marks := map[netip.Addr]uint32{}
	for _, m := range books.Meters {
		if m.Use != 0 && m.Off == 0 {
			marks[m.Addr] = accounting.Mark(rec.Counting.Mask, m.Slot)
		}
	}
	return marks, nil
}
