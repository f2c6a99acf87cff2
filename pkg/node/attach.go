package node

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// Attach is ADD; doc.go lists its steps.
func (n *Node) Attach(ctx context.Context, a Attachment) (Result, error) {
	if err := n.makeStateDir(); err != nil {
		return Result{}, err
	}
	held, err := n.lockContainer(ctx, lockOffset(a.Hash()))
	if err != nil {
		return Result{}, err
	}
	defer held.Unlock()

	pod, err := n.openPod(a.Netns)
	if err != nil {
		return Result{}, err
	}
	defer pod.Close()
	// Before anything is reserved: a refused ADD then has nothing to undo, and can't undo a live pod's lease.
	exists, err := pod.HasLink(a.IfName)
	if err != nil {
		return Result{}, err
	}
	if exists {
		return Result{}, fmt.Errorf("%w: %s in %s", ErrInterfaceExists, a.IfName, a.Netns)
	}
	if err := n.ensureFresh(ctx); err != nil {
		return Result{}, err
	}
	for range maxTries {
		res, inUse, err := n.attachOnce(ctx, pod, a)
		if inUse == nil || err != nil {
			return res, err
		}
		n.log.Warn("address taken while the pod was wired, next one", "use", inUse.String())
	}
	return Result{}, fmt.Errorf("%w: %d addresses in a row were taken by others", allocator.ErrPoolExhausted, maxTries)
}

// attachOnce leases one address and wires the pod with it. Somebody else's route to it that appeared in between comes back
// as inUse; the address is blocked then, and the caller takes the next.
func (n *Node) attachOnce(ctx context.Context, pod *routes.Pod, a Attachment) (res Result, inUse *routes.Use, err error) {
	n.uncounted = true
	g, err := n.addrs.Acquire(ctx, a)
	if err != nil {
		return res, nil, err
	}
	done := false
	defer func() { // runs on a panic too
		if !done {
			err = errors.Join(err, n.undo(ctx, a, g))
		}
	}()
	if !n.allocates() {
		if err = n.refuseUnfit(ctx, g); err != nil {
			return res, nil, err
		}
		use, err := n.heldByOther(ctx, a, g)
		if err != nil {
			return res, nil, err
		}
		if use != nil { // nothing of this ADD is wired, and who has the address is none of undo's business
			done = true
			return res, use, n.addrs.Reject(ctx, a, g, *use)
		}
	}
	if err = n.ensureNIC(ctx, g); err != nil {
		return res, nil, err
	}
	n.count(ctx, a, g)
	res, err = n.wire(ctx, pod, a, g)
	if errors.Is(err, routes.ErrRouteExists) {
		use, whoErr := n.who(ctx, g.Addr)
		if whoErr == nil && use.Kind != routes.Nobody && use.Kind != routes.Stale {
			done = true // in another way than undo would: the address must not come back
			return res, &use, errors.Join(n.teardown(ctx, a.Hash(), g), n.addrs.Reject(ctx, a, g, use))
		}
	}
	if err == nil {
		// The last step: a store that was lost or replaced under us would let another ADD have the address, and who took the
		// node-wide state away meanwhile may have done so before this pod could be counted.
		err = n.stillOurs(ctx, a, g)
	}
	done = err == nil
	return res, nil, err
}

// refuseUnfit judges an address that another IPAM plugin gave; what the store has was judged when it came in. A pod's route is in main
// and would come before the node's own way to the platform or to its gateway.
func (n *Node) refuseUnfit(ctx context.Context, g Grant) error {
	unfit := func(why string) error { return fmt.Errorf("%w: %s: %s", ErrUnfit, g.Addr, why) }
	rec, err := n.nics(ctx)
	switch {
	case err != nil:
		return err
	case !g.Addr.IsGlobalUnicast() && !g.Addr.IsLinkLocalUnicast():
		return unfit("no unicast address")
	case slices.Contains(notForPods, g.Addr):
		return unfit("the platform's, or the pods' gateway")
	case slices.ContainsFunc(rec.NICs, func(nic nicFact) bool { return nic.Gateway == g.Addr }):
		return unfit("gateway of this node")
	}
	return nil
}

// heldByOther asks the kernel about an address that another IPAM plugin gave: that plugin knows its own book and nothing of this
// node's kernel. nil, nil when it is free; what leads nowhere is removed. An address of the node itself never reaches the pod.
func (n *Node) heldByOther(ctx context.Context, a Attachment, g Grant) (*routes.Use, error) {
	use, err := n.who(ctx, g.Addr)
	switch {
	case err != nil:
		return nil, err
	case use.Kind == routes.HostLink:
		return nil, fmt.Errorf("%w: %s: %s", ErrUnfit, g.Addr, use)
	case use.Kind == routes.Stale:
		n.log.Warn("stale route removed", "addr", g.Addr, "use", use.String())
		return nil, n.kernel.DropStale(ctx, g.Addr, n.nicNames(ctx)...)
	case use.Kind == routes.Nobody, use.Kind == routes.Ours && use.Alias.Key == a.Hash():
		return nil, nil
	}
	return &use, nil
}

// stillOurs asks the store what the pod was wired for, its lease and the node-wide state. That the lease is gone is no fault of the
// attachment: the next try gets another one. Node-wide state that was taken away is brought back, or refused as at the beginning.
func (n *Node) stillOurs(ctx context.Context, a Attachment, g Grant) error {
	view, err := n.store.Read(ctx, a.Hash())
	if err == nil && n.allocates() {
		view, err = n.sureLease(ctx, a.Hash(), view)
	}
	if err != nil {
		return err
	}
	if lost := holds(view, g.Addr); lost != "" && n.allocates() {
		return fmt.Errorf("%w: %s", ErrLeaseLost, lost)
	}
	if n.servedBy(decodeRecord(view.Node)) {
		return nil
	}
	n.log.Warn("node-wide state was changed while the pod was wired")
	return n.ensureFresh(ctx)
}

// wire makes the link and the route. The order keeps a half-made pod unreachable: the mark is on the link before it is up,
// and the route comes last.
func (n *Node) wire(ctx context.Context, pod *routes.Pod, a Attachment, g Grant) (Result, error) {
	mtu, err := n.mtu(ctx, g)
	if err != nil {
		return Result{}, err
	}
	pair := routes.Pair{Name: linkName(n.conf.InterfacePrefix, a.Hash()), IfName: a.IfName, MTU: mtu}
	pair.HostMAC, pair.PodMAC = macs(a.Hash())
	if a.MAC != nil {
		pair.PodMAC = *a.MAC
	}
	if err := n.createPair(ctx, pod, &pair, a, g); err != nil {
		return Result{}, err
	}
	alias := routes.Alias{
		Addr: g.Addr, Generation: g.Generation, Network: networkHash(a.Network), Key: a.Hash(),
		NetnsInode: pod.Inode(), Pod: a.Namespace + "/" + a.Pod,
	}
	if err := n.kernel.SetAlias(ctx, pair.Index, alias.String()); err != nil {
		return Result{}, err
	}
	if err := pod.Configure(ctx, a.IfName, g.Addr, pair.HostMAC); err != nil {
		return Result{}, err
	}
	if err := n.kernel.HostEndUp(ctx, pair.Name, pair.Index); err != nil {
		return Result{}, err
	}
	if err := n.kernel.AddPodRoute(ctx, g.Addr, pair.Index); err != nil {
		return Result{}, err
	}
	if err := pod.AwaitRunning(ctx, a.IfName); err != nil {
		return Result{}, err
	}
	return Result{Addr: g.Addr, HostLink: pair.Name, HostMAC: pair.HostMAC, PodMAC: pair.PodMAC, MTU: mtu}, nil
}

// createPair replaces a link that an earlier ADD of the same attachment left behind; anybody else's link of that name is
// left alone and the ADD fails.
func (n *Node) createPair(ctx context.Context, pod *routes.Pod, pair *routes.Pair, a Attachment, g Grant) error {
	err := n.kernel.CreatePair(ctx, pod, pair)
	if !errors.Is(err, routes.ErrLinkExists) {
		return err
	}
	n.log.Warn("link of an earlier attempt replaced", "dev", pair.Name)
	if err := n.kernel.Remove(ctx, pair.Name, a.Hash(), g.Addr); err != nil {
		return err
	}
	return n.kernel.CreatePair(ctx, pod, pair)
}

// undo takes back what a failing ADD made, in a context of its own since the ADD's may be what ended.
func (n *Node) undo(ctx context.Context, a Attachment, g Grant) error {
	ctx, cancel := undoContext(ctx)
	defer cancel()
	teardown := func(ctx context.Context, _ Grant) error { return n.teardown(ctx, a.Hash(), g) }
	var err error
	if g.Existing { // the lease is older than this ADD: only the wiring is ours to undo
		err = teardown(ctx, g)
	} else {
		err = n.addrs.Release(ctx, a.Key, teardown)
	}
	if err != nil {
		return fmt.Errorf("undo: %w", err)
	}
	return nil
}

// Undo takes an ADD back whose answer could not be given.
func (n *Node) Undo(ctx context.Context, k Key) error {
	ctx, cancel := undoContext(ctx)
	defer cancel()
	return n.Detach(ctx, k)
}

func undoContext(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
}

func (n *Node) openPod(netns string) (*routes.Pod, error) {
	pod, err := n.kernel.OpenPod(netns)
	if err != nil {
		return nil, fmt.Errorf("%w: CNI_NETNS: %w", ErrNetns, err)
	}
	return pod, nil
}
