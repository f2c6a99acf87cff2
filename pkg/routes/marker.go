package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// markerTable holds a route per address that another main plugin's pod has. No rule looks it up: the route is the kernel's
// copy of a lease that no link of ours stands for.
const markerTable = 28299

func marker(addr netip.Addr) *netlink.Route {
	return &netlink.Route{Table: markerTable, Dst: hostNet(addr), Type: unix.RTN_UNREACHABLE, Protocol: Protocol}
}

// AddMarker notes that an address is in use by a pod whose link isn't ours.
func (k *Kernel) AddMarker(ctx context.Context, addr netip.Addr) error {
	err := k.rt.do(ctx, "marker-add", func(h *netlink.Handle) error { return h.RouteReplace(marker(addr)) })
	if err != nil {
		return fmt.Errorf("add marker %s: %w", hostPrefix(addr), err)
	}
	return nil
}

// DropMarker takes the note back; that there is none is no error.
func (k *Kernel) DropMarker(ctx context.Context, addr netip.Addr) error {
	err := k.rt.do(ctx, "marker-del", func(h *netlink.Handle) error { return h.RouteDel(marker(addr)) })
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("delete marker %s: %w", hostPrefix(addr), err)
	}
	return nil
}

// Markers lists the noted addresses.
func (k *Kernel) Markers(ctx context.Context) ([]netip.Addr, error) {
	filter := &netlink.Route{Table: markerTable, Protocol: Protocol}
	found, err := dump(ctx, k.rt, "marker-list", func(h *netlink.Handle) ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_V4, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("list markers: %w", err)
	}
	var out []netip.Addr
	for _, r := range found {
		if p := netPrefix(r.Dst); p.IsSingleIP() {
			out = append(out, p.Addr())
		}
	}
	return out, nil
}
