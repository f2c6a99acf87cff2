package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// AddPodRoute routes a pod's address to its host link. The route is added and never replaces one: of two attachments that
// were given the same address, by a store that lies or by two stores, the kernel lets one through.
func (k *Kernel) AddPodRoute(ctx context.Context, addr netip.Addr, index int) error {
	err := k.rt.do(ctx, "route-add", func(h *netlink.Handle) error { return h.RouteAdd(podRoute(addr, index)) })
	if errors.Is(err, unix.EEXIST) {
		err = ErrRouteExists
	}
	if err != nil {
		return fmt.Errorf("add route %s dev #%d: %w", hostPrefix(addr), index, err)
	}
	return nil
}

func podRoute(addr netip.Addr, index int) *netlink.Route {
	return &netlink.Route{
		LinkIndex: index, Dst: hostNet(addr), Scope: netlink.SCOPE_LINK, Protocol: Protocol, Table: unix.RT_TABLE_MAIN,
	}
}

// delRoute deletes a route of the main table; that there is none is no error.
func (k *Kernel) delRoute(ctx context.Context, r *netlink.Route) error {
	err := k.rt.do(ctx, "route-del", func(h *netlink.Handle) error { return h.RouteDel(r) })
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete route %s dev #%d: %w", netPrefix(r.Dst), r.LinkIndex, err)
	}
	return nil
}

// PodRoute is one of our routes to a pod.
type PodRoute struct {
	Addr  netip.Addr
	Index int // of the link
}

// PodRoutes lists our routes to single addresses in the main table.
func (k *Kernel) PodRoutes(ctx context.Context) ([]PodRoute, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN, Protocol: Protocol}
	found, err := dump(ctx, k.rt, "route-list", func(h *netlink.Handle) ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_V4, filter, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_PROTOCOL)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes to pods: %w", err)
	}
	var routes []PodRoute
	for _, r := range found {
		if p := netPrefix(r.Dst); p.IsSingleIP() {
			routes = append(routes, PodRoute{Addr: p.Addr(), Index: r.LinkIndex})
		}
	}
	return routes, nil
}
