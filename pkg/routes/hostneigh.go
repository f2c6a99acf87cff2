package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// fixedNeigh finds an entry for the pod's address on its host end that the kernel never asks about again. None is ours: with a wrong
// MAC in it the pod gets nothing. On a link without ARP every entry is of that kind, and goes when ARP is back.
func (k *Kernel) fixedNeigh(ctx context.Context, link PodLink, addr netip.Addr) (*netlink.Neigh, error) {
	if link.NoARP || !addr.IsValid() {
		return nil, nil
	}
	found, err := dump(ctx, k.rt, "neigh-list", func(h *netlink.Handle) ([]netlink.Neigh, error) {
		return h.NeighList(link.Index, netlink.FAMILY_V4)
	})
	if err != nil {
		return nil, fmt.Errorf("list neighbours of %s: %w", link.Name, err)
	}
	for _, n := range found {
		if ipAddr(n.IP) == addr && n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0 {
			return &n, nil
		}
	}
	return nil, nil
}

// checkHostNeigh: an entry that others made with the pod's MAC does no harm.
func (k *Kernel) checkHostNeigh(ctx context.Context, link PodLink, want HostWant) []string {
	n, err := k.fixedNeigh(ctx, link, want.Addr)
	switch {
	case err != nil:
		return []string{err.Error()}
	case n == nil || hardware(n.HardwareAddr) == want.PodMAC || want.PodMAC == [6]byte{}:
		return nil
	}
	return []string{fmt.Sprintf("host link %s has a permanent neighbour %s with MAC %s instead of %s",
		link.Name, want.Addr, n.HardwareAddr, macString(want.PodMAC))}
}

// dropFixedNeigh has the kernel ask the pod again: what MAC it has now only the pod knows.
func (k *Kernel) dropFixedNeigh(ctx context.Context, link PodLink) error {
	n, err := k.fixedNeigh(ctx, link, link.Alias.Addr)
	if err != nil || n == nil {
		return err
	}
	err = k.rt.do(ctx, "neigh-del", func(h *netlink.Handle) error { return h.NeighDel(n) })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove neighbour %s from %s: %w", n.IP, link.Name, err)
	}
	k.log.Warn("permanent neighbour of a host end removed", "dev", link.Name, "addr", link.Alias.Addr, "mac", n.HardwareAddr.String())
	k.note("permanent neighbour %s (%s) removed from host link %s", n.IP, n.HardwareAddr, link.Name)
	return nil
}
