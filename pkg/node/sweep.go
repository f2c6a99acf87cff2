package node

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"time"

	"github.com/native-vmss/native-vmss/internal/boot"
	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// sweepAfter is how long a lease's link must have been seen missing before the lease is collected: an ADD that is still at
// work has no link yet, and 30 s is its deadline.
const sweepAfter = 60 * time.Second

// Swept is what one Sweep found. Collected are the leases that it freed, Waiting those that it will free.
type Swept struct {
	Collected []Collectable
	Waiting   []Collectable
}

// Collectable is a lease whose pod's link is gone.
type Collectable struct {
	Addr netip.Addr
	Pod  string        // as namespace/name; empty where the caller didn't say
	New  bool          // nobody saw it without a link before
	In   time.Duration // until a sweep collects it, if it is so still
}

// Sweep collects leases whose link is gone: two observations at least 60 s apart, the second under the container's lock,
// with the same generation. Leases that other main plugins made have no link of ours and are never touched.
func (n *Node) Sweep(ctx context.Context) (swept Swept, err error) {
	if err := n.sameNamespace(ctx); err != nil {
		return swept, err
	}
	gone, err := n.dead(ctx)
	if err != nil {
		return swept, err
	}
	ripe, waiting, err := n.noteGone(ctx, gone)
	if err != nil {
		return swept, err
	}
	swept.Waiting = waiting
	var errs []error
	for _, lease := range ripe {
		done, err := n.collect(ctx, lease)
		if err != nil {
			errs = append(errs, fmt.Errorf("collect %s: %w", lease.Addr, err))
		} else if done {
			swept.Collected = append(swept.Collected, collectable(lease))
		}
	}
	return swept, errors.Join(errs...)
}

func collectable(l allocator.Lease) Collectable {
	c := Collectable{Addr: l.Addr, Pod: l.Owner.Pod}
	if l.Owner.Namespace != "" { // a rebuilt store has both in one
		c.Pod = l.Owner.Namespace + "/" + l.Owner.Pod
	}
	if c.Pod == "/" {
		c.Pod = ""
	}
	return c
}

// dead lists the leases made by native-vmss for which the kernel has no link.
func (n *Node) dead(ctx context.Context) ([]allocator.Lease, error) {
	leases, err := n.store.List(ctx) // store first, kernel second: a lease made in between is not in the list
	if err != nil {
		return nil, err
	}
	links, err := n.kernel.Links(ctx)
	if err != nil {
		return nil, err
	}
	alive, named := map[Hash]bool{}, map[string]bool{}
	for _, l := range links {
		if l.Marked {
			alive[l.Alias.Key] = true
		} else if wasMarked(l) {
			named[l.Name] = true
		}
	}
	var out []allocator.Lease
	for _, l := range leases {
		held := l.State == allocator.Leased || l.State == allocator.Releasing
		if held && l.Owner.Main == mainType && !alive[l.Owner.Key] && !named[n.linkNameOf(l)] {
			out = append(out, l)
		}
	}
	return out, nil
}

// wasMarked tells of a link of ours without its alias whether it once had one: it comes before the link is up.
func wasMarked(l routes.PodLink) bool { return l.Up || l.AliasText != "" }

// linkNameOf is the name that was recorded; a rebuilt record has none.
func (n *Node) linkNameOf(l allocator.Lease) string {
	if l.LinkName != "" {
		return l.LinkName
	}
	return linkName(n.conf.InterfacePrefix, l.Owner.Key)
}

func goneKey(l allocator.Lease) string {
	return fmt.Sprintf("%s/%x", hex.EncodeToString(l.Owner.Key[:]), l.Generation)
}

// noteGone records when each was first seen without a link, and returns those that were so long enough and those that weren't.
func (n *Node) noteGone(ctx context.Context, gone []allocator.Lease) (ripe []allocator.Lease, waiting []Collectable, err error) {
	held, err := n.lockNode(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer held.Unlock()
	rec, err := n.readRecord(ctx)
	if err != nil {
		return nil, nil, err
	}
	now, seen := boot.Clock(), map[string]time.Duration{}
	for _, l := range gone {
		first, known := rec.Gone[goneKey(l)]
		if !known || first > now { // the boot clock never steps; if it did, nothing may wait for the time it had
			first = now
		}
		seen[goneKey(l)] = first
		if known && now-first >= sweepAfter {
			ripe = append(ripe, l)
			continue
		}
		c := collectable(l)
		c.New, c.In = !known, first+sweepAfter-now
		waiting = append(waiting, c)
	}
	if len(rec.Gone) == 0 && len(seen) == 0 {
		return nil, nil, nil
	}
	rec.Gone = seen
	return ripe, waiting, n.putRecord(ctx, rec)
}

// collect looks once more under the container's lock: a link that came back, or a lease of another generation, stays.
func (n *Node) collect(ctx context.Context, lease allocator.Lease) (bool, error) {
	h := lease.Owner.Key
	done := false
	err := n.detach(ctx, h, func(ctx context.Context, teardown Teardown) error {
		view, err := n.store.Read(ctx, h)
		if err != nil || view.Lease == nil || view.Lease.Generation != lease.Generation {
			return err
		}
		if has, err := n.hasLink(ctx, lease); err != nil || has {
			return err
		}
		if err := n.leadsNowhere(ctx, lease); err != nil {
			return err
		}
		n.log.Warn("lease without a link collected", "addr", lease.Addr, "pod", lease.Owner.Pod, "ns", lease.Owner.Namespace)
		done = true
		return local{n}.release(ctx, h, teardown)
	})
	return done, err
}

// hasLink looks for the lease's link by its name. One whose alias others overwrote or erased is a live pod's all the same.
func (n *Node) hasLink(ctx context.Context, lease allocator.Lease) (bool, error) {
	link, found, err := n.kernel.Link(ctx, n.linkNameOf(lease))
	if errors.Is(err, routes.ErrForeignLink) {
		return false, nil
	}
	if !found || err != nil {
		return false, err
	}
	return link.Marked && link.Alias.Key == lease.Owner.Key || !link.Marked && n.lostMark(ctx, link, lease), nil
}

// lostMark tells of a link of ours without its alias whether it is the pod's of this lease: it was up or has another alias, or the pod's
// end has the address, which an ADD gives it after the mark.
func (n *Node) lostMark(ctx context.Context, link routes.PodLink, lease allocator.Lease) bool {
	if wasMarked(link) {
		return true
	}
	pod, err := n.kernel.OpenPod(lease.Owner.Netns)
	if err != nil {
		// Ended, or the path is another thing by now: a link that never was up is nobody's then. Any other error tells nothing.
		return !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, routes.ErrNotNetns) && !errors.Is(err, routes.ErrOwnNetns)
	}
	defer pod.Close()
	has, err := pod.HasAddr(ctx, lease.Owner.IfName, link.Index, lease.Addr)
	return has || err != nil
}

// leadsNowhere wants no live link behind a route of ours to a lease's address: others may have renamed the pod's link and taken its marks
// off. One that says that it is another attachment's took the address over.
func (n *Node) leadsNowhere(ctx context.Context, lease allocator.Lease) error {
	use, err := n.who(ctx, lease.Addr)
	if err == nil && (use.Kind == routes.Foreign && use.OwnRoute() || use.Kind == routes.Ours && use.Alias.Key == lease.Owner.Key) {
		err = fmt.Errorf("%w: %s of %s: %s", ErrUnknownLink, lease.Addr, lease.Owner.Pod, use)
	}
	return err
}

// removeDead is GC without a list: what has no link goes at once, since no ADD runs during a GC.
func (n *Node) removeDead(ctx context.Context) error {
	gone, err := n.dead(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, lease := range gone {
		if lease.Owner.Network != networkHash(n.conf.Name) {
			continue
		}
		_, err := n.collect(ctx, lease)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
