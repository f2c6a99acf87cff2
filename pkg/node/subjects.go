package node

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/native-vmss/native-vmss/pkg/accounting"
	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// subjects are the addresses that are counted: those that were pods' once and are still the node's, and pods that came before accounting.
func (n *Node) subjects(ctx context.Context, links []routes.PodLink) ([]accounting.Subject, error) {
	leases, err := n.store.List(ctx)
	if err != nil {
		return nil, err
	}
	if err := n.meterPods(ctx, leases, links); err != nil {
		return nil, err
	}
	if err := n.forgetMeters(ctx, leases); err != nil {
		return nil, err
	}
	books, err := n.store.Books(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]accounting.Subject, 0, len(books.Meters))
	for _, m := range books.Meters {
		out = append(out, subjectOf(m))
	}
	return out, nil
}

func subjectOf(m allocator.Meter) accounting.Subject {
	return accounting.Subject{Addr: m.Addr, Slot: m.Slot, Used: m.Use != 0, Counted: m.Use != 0 && m.Off == 0, Namespace: m.Namespace, Pod: m.Pod}
}

// meterPods begins to count pods that nobody counts: they are older than accounting here, or their ADD could not note it.
func (n *Node) meterPods(ctx context.Context, leases []allocator.Lease, links []routes.PodLink) error {
	books, err := n.store.Books(ctx)
	if err != nil {
		return err
	}
	counted := map[netip.Addr]uint64{}
	for _, m := range books.Meters {
		counted[m.Addr] = m.Use
	}
	for _, l := range leases {
		if l.State == allocator.Leased && l.Owner.Main == mainType && counted[l.Addr] != l.Generation {
			if err := n.meterPod(ctx, allocator.StartMeter{
				Addr: l.Addr, Key: l.Owner.Key, Leased: true, Namespace: l.Owner.Namespace, Pod: l.Owner.Pod,
			}); err != nil {
				return err
			}
		}
	}
	for _, l := range links { // of pods whose addresses are another IPAM plugin's the link's mark is all that is known
		if l.Marked && l.Alias.Generation == NoLease && counted[l.Alias.Addr] == 0 {
			now, stands, err := n.kernel.Link(ctx, l.Name) // the list is older than the lock
			if err != nil && !errors.Is(err, routes.ErrForeignLink) {
				return err
			}
			if !stands || now.Alias != l.Alias {
				continue
			}
			namespace, pod, _ := strings.Cut(l.Alias.Pod, "/")
			if err := n.meterPod(ctx, allocator.StartMeter{
				Addr: l.Alias.Addr, Key: l.Alias.Key, Unused: true, Namespace: namespace, Pod: pod,
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// meterPod notes one pod at a time: whoever runs out of time has those before it done, and the next repair goes on behind them.
func (n *Node) meterPod(ctx context.Context, begin allocator.StartMeter) error {
	m, err := n.store.StartMeter(ctx, begin)
	if err == nil { // what its counters may have is of an earlier pod: the next fold begins with it
		err = n.store.SetMeter(ctx, m.Addr, m.Use, nil, true)
	}
	if errors.Is(err, allocator.ErrStale) {
		return nil
	}
	return err
}

// forgetMeters gives up what is kept of addresses of other IPAM plugins that no pod has any more: nobody else knows them. Those of the
// store go with its records.
func (n *Node) forgetMeters(ctx context.Context, leases []allocator.Lease) error {
	books, err := n.store.Books(ctx)
	if err != nil {
		return err
	}
	var gone []netip.Addr
	for _, m := range books.Meters {
		ours := func(l allocator.Lease) bool { return l.Addr == m.Addr }
		if m.Use == 0 && !slices.ContainsFunc(leases, ours) {
			gone = append(gone, m.Addr)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return n.store.ForgetMeters(ctx, gone)
}
