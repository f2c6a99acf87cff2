package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
)

// Reservation is what ipam-vmss answers to a main plugin other than ours.
type Reservation struct {
	Addr    netip.Prefix // with the subnet's length
	Gateway netip.Addr
}

// Reserve leases an address for another main plugin, which makes link and routes itself. It writes no node-wide state.
func (n *Node) Reserve(ctx context.Context, a Attachment) (r Reservation, err error) {
	if a.Main == "" || a.Main == mainType {
		a.Main = IPAMType // called by hand: whatever the configuration says, no link of ours stands for this lease
	}
	if err := n.makeStateDir(); err != nil {
		return Reservation{}, err
	}
	held, err := n.lockContainer(ctx, lockOffset(a.Hash()))
	if err != nil {
		return Reservation{}, err
	}
	defer held.Unlock()
	view, err := n.store.Read(ctx, a.Hash())
	if err != nil {
		return Reservation{}, err
	}
	// Before Acquire: it takes the main plugin's own route for somebody else's use of the address, and would block it.
	if view.Lease != nil {
		if err := n.refuseAttached(a); err != nil {
			return Reservation{}, err
		}
	}
	if _, err = n.refreshIfDue(ctx, view, len(decodeRecord(view.Node).NICs) > 0); err != nil {
		return Reservation{}, err
	}
	g, err := n.addrs.Acquire(ctx, a)
	if err != nil {
		return Reservation{}, err
	}
	done := g.Existing
	defer func() { // runs on a panic too: nobody will ever use it, and no DEL has to come
		if !done {
			ctx, cancel := undoContext(ctx)
			defer cancel()
			err = errors.Join(err, n.addrs.Release(ctx, a.Key, func(context.Context, Grant) error { return nil }))
		}
	}()
	rec, err := n.readRecord(ctx) // not the view's: Acquire may have found a NIC that is new
	if err == nil {
		r, err = reservation(rec.nicOf(g), g.Addr)
	}
	if err == nil {
		err = n.kernel.AddMarker(ctx, g.Addr)
	}
	done = done || err == nil
	return r, err
}

// refuseAttached protects a live pod: its main plugin fails on the interface that is there, and would then roll back by a DEL
// that frees the address.
func (n *Node) refuseAttached(a Attachment) error {
	pod, err := n.kernel.OpenPod(a.Netns)
	if err != nil {
		return nil //nolint:nilerr // what the namespace is, is the main plugin's to judge
	}
	defer pod.Close()
	exists, err := pod.HasLink(a.IfName)
	if err != nil {
		return err
	}
	if exists {
		return fmt.Errorf("%w: %s in %s", ErrAttached, a.IfName, a.Netns)
	}
	return nil
}

// reservation answers with the subnet's length and its third address as gateway: Azure keeps a subnet's first four, so no
// NIC ever has it. The subnet's own gateway (.1) would be put on the host by mains such as ptp, and the node would then
// hold its own gateway's address.
func reservation(nic nicFact, addr netip.Addr) (Reservation, error) {
	for _, s := range nic.Subnets {
		if s.Contains(addr) {
			gateway := s.Addr().Next().Next()
			return Reservation{Addr: netip.PrefixFrom(addr, s.Bits()), Gateway: gateway}, nil
		}
	}
	return Reservation{}, fmt.Errorf("%w: address %s is in no subnet of NIC %s", ErrNoMetadata, addr, nic.Link)
}

// CheckReservation fails unless the attachment holds exactly this address.
func (n *Node) CheckReservation(ctx context.Context, a Attachment, addr netip.Addr) error {
	if err := n.makeStateDir(); err != nil {
		return err
	}
	return n.addrs.Check(ctx, a, addr)
}

// ReleaseReservation is DEL of ipam-vmss. Other main plugins' pods have no mark of ours that would tell the address: unlike
// Detach it fails on a store that a newer version wrote, and the runtime calls again.
func (n *Node) ReleaseReservation(ctx context.Context, k Key) error {
	return n.detach(ctx, k.Hash(), func(ctx context.Context, teardown Teardown) error {
		return n.addrs.Release(ctx, k, teardown)
	})
}
