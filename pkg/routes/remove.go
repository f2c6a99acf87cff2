package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Remove takes away the host link of an attachment and the route to its address, and makes sure that both are gone. It needs
// no namespace of the pod: the other end goes with this one. Removing what isn't there is no error.
//
// The name is derived from key, so a link of that name and of our group is the attachment's, whatever others wrote as its alias,
// unless that alias is ours for another key. A link of that name that is anything else is left alone and is ErrForeignLink. A zero
// addr means that the address is not known; the route then goes with the link. The kernel takes about 15 ms for the link.
func (k *Kernel) Remove(ctx context.Context, name string, key Hash, addr netip.Addr) error {
	link, found, err := k.Link(ctx, name)
	if err != nil {
		return fmt.Errorf("remove link %s: %w", name, err)
	}
	if found && link.Marked && link.Alias.Key != key {
		return fmt.Errorf("remove link %s: %w: alias %q", name, ErrForeignLink, link.AliasText)
	}
	if found {
		if err := k.removeLink(ctx, link, addr); err != nil {
			return err
		}
	}
	return k.verifyGone(ctx, name, key, addr)
}

// removeLink stops the traffic first: the link's own removal waits for the kernel's readers.
func (k *Kernel) removeLink(ctx context.Context, link PodLink, addr netip.Addr) error {
	if addr.IsValid() {
		if err := k.delRoute(ctx, podRoute(addr, link.Index)); err != nil {
			return err
		}
	}
	err := k.rt.do(ctx, "link-del", func(h *netlink.Handle) error { return h.LinkDel(byIndex(link.Index)) })
	if err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete link %s: %w", link.Name, err)
	}
	return nil
}

// verifyGone believes only the kernel: no link of the name, no route of ours to the address but another attachment's.
func (k *Kernel) verifyGone(ctx context.Context, name string, key Hash, addr netip.Addr) error {
	_, found, err := k.rt.linkByName(ctx, name)
	if err != nil {
		return err
	}
	if found {
		return fmt.Errorf("remove link %s: %w", name, ErrNotGone)
	}
	return k.RemoveRoute(ctx, key, addr)
}

// RemoveRoute removes a route of ours to the address that key holds: one that leads nowhere, as it stays when a link went without
// Remove, or to a link that others took all marks off. A route that another attachment has is left alone; one of key's own link is
// ErrNotGone, and so is one to a link whose mark can't be read. A zero addr means that there is none.
func (k *Kernel) RemoveRoute(ctx context.Context, key Hash, addr netip.Addr) error {
	if !addr.IsValid() {
		return nil
	}
	use, err := k.Who(ctx, addr)
	if err != nil {
		return err
	}
	switch {
	case use.Kind == Ours && use.Alias.Key == key, use.OwnRoute() && use.unread:
		return fmt.Errorf("remove route %s: %w: dev %s", hostPrefix(addr), ErrNotGone, use.Link)
	case use.OwnRoute() && (use.Kind == Stale || use.Kind == Foreign):
		return k.delRoute(ctx, exactly(use.route))
	}
	return nil
}
