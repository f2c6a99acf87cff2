package routes

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ownTableRoutes lists our routes in the tables of the NICs.
func (k *Kernel) ownTableRoutes(ctx context.Context) ([]netlink.Route, error) {
	// Table unspec asks for the routes of every table.
	filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	all, err := dump(ctx, k.rt, "route-list", func(h *netlink.Handle) ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_V4, filter, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes of our tables: %w", err)
	}
	return slices.DeleteFunc(all, func(r netlink.Route) bool {
		return r.Protocol != Protocol || r.Table <= tableBase || r.Table > tableLast
	}), nil
}

// asTableRoute reads a route of the kernel; one that isn't of the form of ours is not equal to any of them.
func asTableRoute(r netlink.Route) tableRoute {
	out := tableRoute{table: r.Table, to: netPrefix(r.Dst), via: ipAddr(r.Gw), index: r.LinkIndex}
	onlink := r.Flags&unix.RTNH_F_ONLINK != 0
	if r.Priority != 0 || r.Type != unix.RTN_UNICAST || onlink != out.via.IsValid() {
		out.table = 0
	}
	return out
}

// kernelRoute is onlink: the gateway needs no route of its own, so it works however the NIC's address was set.
func (r tableRoute) kernelRoute() *netlink.Route {
	if !r.via.IsValid() {
		return &netlink.Route{
			Table: r.table, Dst: prefixNet(r.to), LinkIndex: r.index, Protocol: Protocol, Scope: netlink.SCOPE_LINK,
		}
	}
	return &netlink.Route{
		Table: r.table, Dst: prefixNet(r.to), Gw: addrIP(r.via), LinkIndex: r.index, Protocol: Protocol,
		Flags: int(netlink.FLAG_ONLINK),
	}
}

// addTableRoutes replaces a route of ours that leads elsewhere, so that no packet meets an empty table; one of somebody else
// in our table is an error.
func (k *Kernel) addTableRoutes(ctx context.Context, want []tableRoute, have []netlink.Route) (changed bool, err error) {
	for _, w := range want {
		if slices.ContainsFunc(have, func(h netlink.Route) bool { return asTableRoute(h) == w }) {
			continue
		}
		add := (*netlink.Handle).RouteAdd
		if slices.ContainsFunc(have, func(h netlink.Route) bool { return h.Table == w.table && netPrefix(h.Dst) == w.to }) {
			add = (*netlink.Handle).RouteReplace
		}
		err := k.rt.do(ctx, "table-route-add", func(h *netlink.Handle) error { return add(h, w.kernelRoute()) })
		if errors.Is(err, unix.ENETDOWN) {
			continue // the kernel has no routes for a link that is down; ApplyRules says so
		}
		if err != nil {
			return changed, fmt.Errorf("add route %s via %s to table %d: %w", w.to, w.via, w.table, err)
		}
		changed = true
		k.log.Info("route added", "table", w.table, "prefix", w.to, "gateway", w.via)
		k.note("route %s added to table %d", w.to, w.table)
	}
	return changed, nil
}

func (k *Kernel) delTableRoutes(ctx context.Context, have []netlink.Route, want []tableRoute) (changed bool, err error) {
	for _, r := range have {
		replaced := func(w tableRoute) bool { return w.table == r.Table && w.to == netPrefix(r.Dst) && r.Priority == 0 }
		if slices.ContainsFunc(want, replaced) {
			continue
		}
		err := k.rt.do(ctx, "table-route-del", func(h *netlink.Handle) error { return h.RouteDel(exactly(r)) })
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return changed, fmt.Errorf("delete route %s from table %d: %w", netPrefix(r.Dst), r.Table, err)
		}
		changed = true
		k.log.Info("route deleted", "table", r.Table, "prefix", netPrefix(r.Dst))
		k.note("route %s deleted from table %d", netPrefix(r.Dst), r.Table)
	}
	return changed, nil
}
