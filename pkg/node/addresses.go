package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// Addresses is where pods' addresses come from: the allocator in this process, or another IPAM plugin that is exec'ed.
type Addresses interface {
	// Acquire reserves an address for the attachment, or returns the one it has.
	Acquire(ctx context.Context, a Attachment) (Grant, error)
	// Reject gives a grant back whose address the kernel knows to be held by somebody else; it isn't handed out again.
	Reject(ctx context.Context, a Attachment, g Grant, holder routes.Use) error
	// Release frees what the attachment holds. It calls teardown once the release is noted and before the address can be
	// used again; without a record teardown gets a zero Grant.
	Release(ctx context.Context, k Key, teardown Teardown) error
	// Check fails unless the attachment holds exactly this address.
	Check(ctx context.Context, a Attachment, addr netip.Addr) error
	// Status fails when no address can be served.
	Status(ctx context.Context) error
	// GC releases everything of the network whose key isn't valid.
	GC(ctx context.Context, valid []Key) error
}

// Teardown removes what the kernel has of an attachment; a zero Grant says that nothing is recorded of it.
type Teardown func(context.Context, Grant) error

// NoLease is the generation of an address that another IPAM plugin gave: the link's alias is all that is known of it here, and
// no store has to have it.
const NoLease = 0

// Grant is an address that an attachment holds.
type Grant struct {
	Addr       netip.Addr
	Generation uint64
	NIC        allocator.MAC // the NIC that owns the address; zero when unknown
	LinkName   string        // of the host end, as it was recorded
	Meter      *allocator.Meter
	Existing   bool // held before this invocation: a failing ADD must not free it
}

// local serves addresses from the allocator.
type local struct{ *Node }

var _ Addresses = local{}

// maxTries bounds how many addresses one ADD finds in use before it gives up; each such address is blocked, so the next
// ADD starts behind them.
const maxTries = 8

// Acquire leases an address that the kernel agrees is free.
func (l local) Acquire(ctx context.Context, a Attachment) (Grant, error) {
	var blocked []error
	for range maxTries {
		lease, err := l.lease(ctx, a)
		if err != nil {
			return Grant{}, errors.Join(append(blocked, err)...)
		}
		g := grantOf(lease)
		use, err := l.settleOrAbandon(ctx, a, lease)
		if err != nil {
			return g, err
		}
		if use == nil {
			return g, nil
		}
		blocked = append(blocked, fmt.Errorf("address %s is in use: %s", g.Addr, *use))
		if err := l.Reject(ctx, a, g, *use); err != nil {
			return Grant{}, err
		}
	}
	return Grant{}, fmt.Errorf("%w: %w", allocator.ErrPoolExhausted, errors.Join(blocked...))
}

// lease takes an address from the store; when nothing is free, or the one that was asked for isn't known, it asks metadata
// once more.
func (l local) lease(ctx context.Context, a Attachment) (allocator.Lease, error) {
	req := allocator.Request{
		Owner: owner(a), LinkName: linkName(l.conf.InterfacePrefix, a.Hash()), Want: a.Want, Orphaned: a.Orphaned,
	}
	// ensure has read the record; ipam-vmss, whose pods have no link of ours, never asks for it.
	req.Metered = l.known != nil && l.known.wantsCounting() && req.Owner.Main == mainType
	req.Remade = req.Metered && l.known.remade()
	lease, err := l.store.Lease(ctx, req)
	// An address that nobody knows may be new on the NIC.
	if !errors.Is(err, allocator.ErrPoolExhausted) && !errors.Is(err, allocator.ErrNotOurs) {
		return lease, l.withSkipped(ctx, err)
	}
	refreshed, refreshErr := l.refreshExhausted(ctx)
	if refreshErr != nil {
		return lease, fmt.Errorf("%w; %w", err, refreshErr)
	}
	if refreshed {
		lease, err = l.store.Lease(ctx, req)
	}
	return lease, l.withSkipped(ctx, err)
}

// withSkipped names the NICs that can't be used in the error of somebody who gets no address.
func (l local) withSkipped(ctx context.Context, err error) error {
	if !errors.Is(err, allocator.ErrPoolExhausted) && !errors.Is(err, allocator.ErrNotAvailable) && !errors.Is(err, allocator.ErrNotOurs) {
		return err
	}
	rec, recErr := l.readRecord(ctx)
	if recErr != nil {
		return err
	}
	skipped := rec.skipped()
	if skipped != "" && errors.Is(err, allocator.ErrNotOurs) { // it may be of a NIC that can't be used now
		return fmt.Errorf("%w: %w%s", allocator.ErrNotAvailable, err, skipped)
	}
	return fmt.Errorf("%w%s", err, skipped)
}

// settleOrAbandon is settle, whose failure gives the lease back: nobody else knows of it yet.
func (l local) settleOrAbandon(ctx context.Context, a Attachment, lease allocator.Lease) (use *routes.Use, err error) {
	done := false
	defer func() { // runs on a panic too
		if !done {
			err = errors.Join(err, l.abandon(ctx, lease))
		}
	}()
	use, err = l.settle(ctx, a, lease)
	done = err == nil
	return use, err
}

// settle asks the kernel about the leased address: nil, nil when it is ours to use. What leads nowhere is removed, routes and
// conntrack entries alike.
func (l local) settle(ctx context.Context, a Attachment, lease allocator.Lease) (*routes.Use, error) {
	use, err := l.who(ctx, lease.Addr)
	if err != nil {
		return nil, err
	}
	switch {
	case use.Kind == routes.Stale:
		l.log.Warn("stale route removed", "addr", lease.Addr, "use", use.String())
		if err := l.kernel.DropStale(ctx, lease.Addr, l.nicNames(ctx)...); err != nil {
			return nil, err
		}
	case use.Kind == routes.Ours && use.Alias.Key == a.Hash():
		// The link of an earlier ADD of this attachment, whose pod is gone: it is replaced when the pair is made.
	case use.Kind != routes.Nobody:
		return &use, nil
	}
	if lease.Existing && !lease.FlushDue {
		return nil, nil
	}
	return nil, l.flushForNewUser(ctx, lease)
}

// flushForNewUser deletes the conntrack entries of an address that is about to have a new user. DEL's flush is not enough:
// while the address cools a client may go on sending by a Service, and each try makes an entry that outlives the cool-down
// (a SYN without an answer: 120 s) and would carry that client to the new pod. When DEL had to leave its flush open, this one
// must succeed, however large the table is.
func (l local) flushForNewUser(ctx context.Context, lease allocator.Lease) error {
	err := l.kernel.FlushConntrack(ctx, lease.Addr)
	switch {
	case lease.FlushDue && err == nil:
		return l.store.Flushed(ctx, lease)
	case err != nil && !lease.FlushDue:
		l.log.Warn("conntrack not flushed for a new pod", "addr", lease.Addr, "error", err)
		return nil
	}
	return err
}

// abandon gives back a lease that this invocation took and never wired.
func (l local) abandon(ctx context.Context, lease allocator.Lease) error {
	if lease.Existing {
		return nil
	}
	ctx, cancel := undoContext(ctx)
	defer cancel()
	if _, found, err := l.store.Release(ctx, lease.Owner.Key); err != nil || !found {
		return err
	}
	return l.store.Cool(ctx, lease, nil)
}

// Reject blocks the address.
func (l local) Reject(ctx context.Context, _ Attachment, g Grant, holder routes.Use) error {
	reason := allocator.UsedByOther
	if holder.Kind == routes.HostLink {
		reason = allocator.OnHostLink
	}
	l.log.Error("address blocked", "addr", g.Addr, "reason", reason, "use", holder.String())
	return l.store.Block(ctx, allocator.Lease{Addr: g.Addr, Generation: g.Generation}, reason)
}

// Release is the second half of DEL: leased -> releasing -> (torn down) -> cooling (I6).
func (l local) Release(ctx context.Context, k Key, teardown Teardown) error {
	return l.release(ctx, k.Hash(), teardown)
}

func (l local) release(ctx context.Context, h Hash, teardown Teardown) error {
	lease, found, storeErr := l.store.Release(ctx, h)
	g := Grant{}
	if found {
		g = grantOf(lease)
	}
	// A store that can't be written must not keep a dead pod wired; the error makes the runtime call again.
	if err := teardown(ctx, g); err != nil || storeErr != nil || !found {
		return errors.Join(storeErr, err)
	}
	if lease.Owner.Main != mainType {
		if err := l.kernel.DropMarker(ctx, lease.Addr); err != nil {
			return err
		}
	}
	lease.FlushDue = l.flush(ctx, lease.Addr) != nil
	return l.endCount(ctx, lease.Meter, func(last []allocator.Sample) error { return l.store.Cool(ctx, lease, last) })
}

// Check reads the lease back.
func (l local) Check(ctx context.Context, a Attachment, addr netip.Addr) error {
	view, err := l.store.Read(ctx, a.Hash())
	if err == nil {
		view, err = l.sureLease(ctx, a.Hash(), view)
	}
	if err != nil {
		return err
	}
	if lost := holds(view, addr); lost != "" {
		return fmt.Errorf("%w: %s", ErrBroken, lost)
	}
	return nil
}

// sureLease looks again where a view has no lease: a damaged page may hide it, and only a look at everything tells, and rebuilds.
func (n *Node) sureLease(ctx context.Context, h Hash, view allocator.View) (allocator.View, error) {
	if view.Lease != nil {
		return view, nil
	}
	if _, err := n.store.List(ctx); err != nil {
		return view, err
	}
	return n.store.Read(ctx, h)
}

// holds says in words that the lease isn't what it should be; "" if it is.
func holds(view allocator.View, addr netip.Addr) string {
	switch {
	case view.Lease == nil || view.Lease.State != allocator.Leased:
		return fmt.Sprintf("no lease of %s for this attachment", addr)
	case view.Lease.Addr != addr:
		return fmt.Sprintf("the lease is %s, not %s", view.Lease.Addr, addr)
	}
	return ""
}

func grantOf(l allocator.Lease) Grant {
	return Grant{Addr: l.Addr, Generation: l.Generation, NIC: l.NIC, LinkName: l.LinkName, Meter: l.Meter, Existing: l.Existing}
}

func owner(a Attachment) allocator.Owner {
	if a.Main == "" {
		a.Main = mainType
	}
	return allocator.Owner{
		Key: a.Hash(), Network: networkHash(a.Network), NetworkName: a.Network, ContainerID: a.ContainerID,
		IfName: a.IfName, Namespace: a.Namespace, Pod: a.Pod, UID: a.UID, Netns: a.Netns, Main: a.Main,
	}
}

// mainType is recorded with each lease that has a link of ours.
const mainType = "native-vmss"

// conntrackLimit is the table size above which a flush is left to whoever hands the address out next: one costs 0.5 ms at
// 1,000 entries and 75 ms at 200,000 (there is no form that doesn't walk the table).
const conntrackLimit = 20000

// flush removes the conntrack entries that name a released address; an error means that it is still due.
func (n *Node) flush(ctx context.Context, addr netip.Addr) error {
	count, err := n.kernel.ConntrackCount(ctx)
	if err != nil {
		return err
	}
	if count > conntrackLimit {
		return fmt.Errorf("flush conntrack of %s: %d entries, left for later", addr, count)
	}
	return n.kernel.FlushConntrack(ctx, addr)
}
