package node

import (
	"cmp"
	"context"
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
	if err != nil {
		return accounting.Usage{}, err
	}
	u := accounting.Usage{Backend: rec.Wide.Accounting, Off: rec.Counting.Off, MarksOff: rec.Counting.MarksOff}
	if err := n.foldNow(ctx); err != nil {
		n.countLog().Error("counters not read, values are those of the last fold", "error", err)
		u.Stale = true
	}
	books, err := n.store.Books(ctx)
	if err != nil {
		return accounting.Usage{}, err
	}
	u.Resets, u.Unknown = books.Resets, maps.Clone(books.Unknown)
	if u.Unknown == nil {
		u.Unknown = map[string]time.Duration{}
	}
	for _, s := range books.Node {
		u.Node = append(u.Node, usedOf(s))
	}
	if rec.counting() {
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
	for i := range u.Namespaces {
		u.Namespaces[i].Samples = withZeros(rec, u.Namespaces[i].Samples)
	}
	now := boot.Clock()
	for _, m := range books.Meters {
		if m.Use == 0 {
			continue
		}
		p := accounting.PodUsage{Namespace: m.Namespace, Pod: m.Pod, Addr: m.Addr, Use: m.Use, Off: m.Off != 0 || !rec.counting()}
		if m.Off != 0 {
			u.Unknown[m.Namespace] += max(0, now-m.Off)
		}
		if rec.marks() && m.Off == 0 {
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
	classes := []string{accounting.Cluster, accounting.Internet}
	for _, c := range rec.Wide.Classes {
		classes = append(classes, c.Name)
	}
	for _, direction := range []string{accounting.RX, accounting.TX} {
		for _, class := range classes {
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
	return n.fold(ctx, b, nil)
}

// counting reports whether pods are counted now.
func (r record) counting() bool { return r.Counting.Backend != "" && r.Counting.Off == "" }

// marks reports whether packets carry marks now.
func (r record) marks() bool { return r.counting() && r.Counting.Mask != 0 }

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
