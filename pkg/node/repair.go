package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// repairRefresh is what Repair may spend on asking metadata, when the NICs aren't those that are recorded.
const repairRefresh = 5 * time.Second

// Repaired is what one Repair found: Changed has a line for each thing that was put back or removed, in that order.
type Repaired struct {
	Changed []string
	Pods    int // links of pods that were looked at
	// Pending names a node-wide key that the configuration has changed since the last ADD; empty: none.
	Pending string
}

// Repair puts back what others flushed or changed: the node-wide state first, then each live pod's route, link and MAC, and
// removes links that an ADD never finished. It goes on after an error and reports all, what it did before one included.
func (n *Node) Repair(ctx context.Context) (done Repaired, err error) {
	n.noted = func(what string) { done.Changed = append(done.Changed, what) }
	n.kernel.OnChange(n.noted)
	defer func() {
		n.noted = nil
		n.kernel.OnChange(nil)
	}()
	done.Pods, err = n.repair(ctx)
	done.Pending = n.pending
	return done, err
}

func (n *Node) note(format string, args ...any) {
	if n.noted != nil {
		n.noted(fmt.Sprintf(format, args...))
	}
}

func (n *Node) repair(ctx context.Context) (pods int, err error) {
	if err := n.makeStateDir(); err != nil {
		return 0, err
	}
	if err := n.sameNamespace(ctx); err != nil {
		return 0, err
	}
	nodeErr := n.repairNode(ctx)
	if nodeErr != nil { // pods may still be mended, but none may have a route without the policy table
		if stands, err := n.kernel.PolicyTableExists(ctx); err != nil || !stands {
			return 0, errors.Join(nodeErr, err)
		}
	}
	leases, err := n.store.List(ctx)
	if err != nil {
		return 0, err
	}
	links, err := n.kernel.Links(ctx)
	if err != nil {
		return 0, err
	}
	byKey, byName := map[Hash]allocator.Lease{}, map[string]allocator.Lease{}
	for _, l := range leases {
		if l.State == allocator.Leased {
			byKey[l.Owner.Key], byName[n.linkNameOf(l)] = l, l
		}
	}
	errs := []error{nodeErr, n.namedNotOurs(ctx), n.repairMarkers(ctx, leases)}
	for _, link := range links {
		if !link.Marked {
			lease, leased := byName[link.Name]
			errs = append(errs, n.repairUnmarked(ctx, link, lease, leased))
		} else if link.Alias.Generation == NoLease {
			errs = append(errs, n.repairByMark(ctx, link))
		} else if lease, ok := byKey[link.Alias.Key]; ok && lease.Addr == link.Alias.Addr {
			errs = append(errs, n.repairPod(ctx, link, lease))
		} else {
			errs = append(errs, n.unknown(ctx, link))
		}
	}
	return len(links), errors.Join(append(errs, n.endGone(ctx, leases, links))...)
}

// pendingIn names a key that the next ADD will change: Repair puts back what the pods here were made with.
func (n *Node) pendingIn(rec record) string {
	stands, asked, differ := rec.Wide.differs(n.conf.Wide)
	if rec.Network != n.conf.Name || !differ {
		return ""
	}
	return fmt.Sprintf("%s is %s in the configuration, %s on the node: the next ADD changes it", asked.name, asked.value, stands.value)
}

// repairNode writes the node-wide state again, whatever the record says of it: rules inside a chain that stands may be gone.
func (n *Node) repairNode(ctx context.Context) error {
	rec, err := n.readRecord(ctx)
	if err != nil {
		return err
	}
	n.pending = n.pendingIn(rec)
	if rec.Network != "" { // what the pods here were made with, not what a file says today
		n.conf.Name, n.conf.Wide = rec.Network, rec.Wide
	}
	if stand, err := n.nicsStand(ctx, rec); err != nil {
		return err
	} else if !stand {
		asking, cancel := context.WithTimeout(ctx, repairRefresh)
		defer cancel()
		if err := n.Refresh(asking); err != nil {
			if left, goneErr := n.forgetGone(ctx); !left {
				return errors.Join(err, goneErr)
			}
			n.log.Warn("metadata not refreshed, rules written without the NICs that are gone", "error", err)
		}
	}
	held, err := n.lockNode(ctx)
	if err != nil {
		return err
	}
	defer held.Unlock()
	if rec, err = n.readRecord(ctx); err != nil {
		return err
	}
	want, err := n.claimed(ctx, rec)
	if err != nil {
		return err
	}
	return n.apply(ctx, want, want.hash())
}

// repairMarkers notes in the kernel again what pods of other main plugins have: a store that is rebuilt knows them by nothing else.
func (n *Node) repairMarkers(ctx context.Context, leases []allocator.Lease) error {
	marked, err := n.kernel.Markers(ctx)
	if err != nil {
		return err
	}
	for _, l := range leases {
		if l.State != allocator.Leased || l.Owner.Main == mainType || slices.Contains(marked, l.Addr) {
			continue
		}
		err := n.withContainer(ctx, lockOffset(l.Owner.Key), func() error {
			now, err := n.store.Read(ctx, l.Owner.Key)
			if err != nil || now.Lease == nil || now.Lease.Generation != l.Generation || now.Lease.State != allocator.Leased {
				return err // a DEL came first
			}
			if err := n.kernel.AddMarker(ctx, l.Addr); err != nil {
				return err
			}
			n.note("marker of %s, which a pod of %s has, put back", l.Addr, l.Owner.Main)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Skipped says what isn't handed out and why: all of a NIC, as of metadata's last answer, and addresses that are on a NIC's link.
func (n *Node) Skipped(ctx context.Context) ([]string, error) {
	rec, err := n.readRecord(ctx)
	if err != nil {
		return nil, err
	}
	leases, err := n.store.List(ctx)
	if err != nil {
		return nil, err
	}
	var onLink []string
	for _, l := range leases {
		if l.Blocked == allocator.OnHostLink {
			onLink = append(onLink, l.Addr.String())
		}
	}
	if len(onLink) == 0 {
		return rec.Skipped, nil
	}
	return append(rec.Skipped, fmt.Sprintf("%s: on-host-link: run 'vmssctl node prepare --force'", strings.Join(onLink, " "))), nil
}

// withContainer runs fn under the lock of the container whose hash begins a link's name.
func (n *Node) withContainer(ctx context.Context, offset int64, fn func() error) error {
	held, err := n.lockContainer(ctx, offset)
	if err != nil {
		return err
	}
	defer held.Unlock()
	return fn()
}

func (n *Node) repairPod(ctx context.Context, link routes.PodLink, lease allocator.Lease) error {
	return n.withContainer(ctx, lockOffset(lease.Owner.Key), func() error {
		now, err := n.store.Read(ctx, lease.Owner.Key)
		if err != nil || now.Lease == nil || now.Lease.Generation != lease.Generation || now.Lease.State != allocator.Leased {
			return err // a DEL or a new ADD came first
		}
		return errors.Join(n.repairMTU(ctx, link, lease), n.repairLink(ctx, link, n.linkNameOf(lease)))
	})
}

// repairByMark repairs a pod whose address is another IPAM's: its mark is all that is known of it.
func (n *Node) repairByMark(ctx context.Context, link routes.PodLink) error {
	return n.withContainer(ctx, lockOffset(link.Alias.Key), func() error {
		return n.repairLink(ctx, link, linkName(n.conf.InterfacePrefix, link.Alias.Key))
	})
}

// repairMTU puts the MTU of a host end back that others changed: a packet that is larger than the receiving end's MTU is dropped
// without a word. The pod's end tells whether they did: both were made alike. It stays where the NIC's has changed since, for the
// pod's end is not ours to change then.
func (n *Node) repairMTU(ctx context.Context, link routes.PodLink, lease allocator.Lease) error {
	pod, err := n.kernel.OpenPod(lease.Owner.Netns)
	if err != nil {
		return nil // the pod has ended, or the path is not of this process
	}
	defer pod.Close()
	inside, err := pod.MTU(ctx, lease.Owner.IfName)
	if err != nil || pod.Inode() != link.Alias.NetnsInode || inside == 0 || inside == link.MTU {
		return err
	}
	mtu, err := n.mtu(ctx, grantOf(lease))
	if err != nil || mtu == link.MTU || inside > mtu {
		return err
	}
	return n.kernel.SetHostMTU(ctx, link, mtu)
}

// repairLink looks at the link again, since the list of links is older than the lock: pods end without DEL too. name is what the link
// should be called, but for its prefix, which a configuration may have changed since.
func (n *Node) repairLink(ctx context.Context, link routes.PodLink, name string) error {
	now, found, err := n.kernel.Link(ctx, link.Name)
	if err != nil || !found || now.Index != link.Index || now.Alias.Key != link.Alias.Key || now.Alias.Addr != link.Alias.Addr {
		return err
	}
	if offset, ours := lockOffsetOf(now.Name); !ours || offset != lockOffset(now.Alias.Key) {
		if err := n.kernel.RenameHostEnd(ctx, now, name); err != nil {
			return err
		}
		now.Name, link.Name = name, name
	}
	host, _ := macs(link.Alias.Key)
	if err := n.kernel.RepairHostEnd(ctx, now, host); err != nil {
		return fmt.Errorf("repair %s: %w", link.Name, err)
	}
	return n.repairRoute(ctx, link)
}

func (n *Node) repairRoute(ctx context.Context, link routes.PodLink) error {
	addr := link.Alias.Addr
	use, err := n.who(ctx, addr)
	if err != nil {
		return err
	}
	switch use.Kind {
	case routes.Ours:
		if use.Alias.Key == link.Alias.Key {
			return nil
		}
		return fmt.Errorf("address %s of %s: %s", addr, link.Name, use)
	case routes.Stale:
		if err := n.kernel.DropStale(ctx, addr, n.nicNames(ctx)...); err != nil {
			return err
		}
	case routes.HostLink:
		return fmt.Errorf("address %s of %s: on-host-link: %s: run 'vmssctl node prepare --force'", addr, link.Name, use)
	case routes.Foreign:
		return fmt.Errorf("address %s of %s: %s", addr, link.Name, use)
	}
	n.log.Warn("route of a pod put back", "addr", addr, "dev", link.Name)
	if err := n.kernel.AddPodRoute(ctx, addr, link.Index); err != nil {
		return err
	}
	n.note("route of %s to %s put back", addr, link.Name)
	return nil
}

// repairUnmarked removes a link that an ADD made and never marked: whoever gets its container's lock knows that no ADD runs, so
// no age is needed. A link that is up was marked once, for that comes before; with a lease it is a live pod's and
// gets its mark back. So does one whose mark others overwrote; without a lease nobody can tell whose it is, so it is named. What a
// later version wrote stays.
func (n *Node) repairUnmarked(ctx context.Context, link routes.PodLink, lease allocator.Lease, leased bool) error {
	offset, ok := lockOffsetOf(link.Name)
	if !ok || link.AliasText != "" && !link.AliasOfOthers() {
		return nil
	}
	return n.withContainer(ctx, offset, func() error {
		now, found, err := n.kernel.Link(ctx, link.Name)
		if err != nil || !found || now.AliasText != link.AliasText {
			return err // an ADD marked it since
		}
		if leased && n.lostMark(ctx, now, lease) {
			return n.mark(ctx, now, lease)
		}
		if wasMarked(now) {
			return fmt.Errorf("%w: %s, its alias is %q", ErrUnknownLink, now.Name, now.AliasText)
		}
		return n.removeUnfinished(ctx, now)
	})
}

// removeUnfinished removes a link that its ADD never marked, under that container's lock.
func (n *Node) removeUnfinished(ctx context.Context, link routes.PodLink) error {
	n.log.Warn("unfinished link removed", "dev", link.Name)
	if err := n.kernel.Remove(ctx, link.Name, Hash{}, netip.Addr{}); err != nil {
		return err
	}
	n.note("unfinished link %s removed", link.Name)
	return nil
}

// mark writes the alias of a live pod again, from the lease.
func (n *Node) mark(ctx context.Context, link routes.PodLink, lease allocator.Lease) error {
	view, err := n.store.Read(ctx, lease.Owner.Key)
	if err != nil || view.Lease == nil || view.Lease.Generation != lease.Generation || view.Lease.State != allocator.Leased {
		return err
	}
	o := lease.Owner
	if pod, err := n.kernel.OpenPod(o.Netns); err == nil { // the lease has its path alone
		o.NetnsInode = pod.Inode()
		pod.Close()
	}
	link.Alias = routes.Alias{
		Addr: lease.Addr, Generation: lease.Generation, Network: o.Network, Key: o.Key, NetnsInode: o.NetnsInode,
		Pod: o.Namespace + "/" + o.Pod,
	}
	n.log.Warn("mark of a pod's link put back", "dev", link.Name, "addr", lease.Addr, "was", link.AliasText)
	if err := n.kernel.SetAlias(ctx, link.Index, link.Alias.String()); err != nil {
		return err
	}
	n.note("mark of %s, the link of %s, put back", link.Name, lease.Addr)
	return n.repairLink(ctx, link, link.Name)
}

// unknown names a marked link whose key has no lease, or another address than the lease. It is left alone: nothing of ours
// leaves such a link behind, so it is a live pod's, and what is wrong is the store (another state directory, an old copy). A
// DEL finds the link by its mark.
func (n *Node) unknown(ctx context.Context, link routes.PodLink) error {
	return n.withContainer(ctx, lockOffset(link.Alias.Key), func() error {
		view, err := n.store.Read(ctx, link.Alias.Key)
		if err != nil {
			return err
		}
		if view.Lease != nil && view.Lease.Addr == link.Alias.Addr {
			return nil // leased since, or being released: a DEL will come
		}
		// The list of links is older than the lock: the same pod may have come again with another address.
		now, found, err := n.kernel.Link(ctx, link.Name)
		if err != nil || !found || now.Index != link.Index || now.AliasText != link.AliasText {
			return err
		}
		return fmt.Errorf("%w: %s has %s of %s", ErrUnknownLink, link.Name, link.Alias.Addr, link.Alias.Pod)
	})
}
