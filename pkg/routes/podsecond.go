package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	// secondMetric + index is the metric of a further link's routes in the pod's main table: the first link's come before them.
	secondMetric = 100
	// podTableBase + index is the pod's table for a further link. The pod's tables are not the node's.
	podTableBase = 28300
)

// configureSecond gives routes to a link of a pod that has a default route already:
//
//	main:        169.254.1.1 dev eth1 metric M · default via 169.254.1.1 dev eth1 metric M     should the first link go
//	table 283xx: 169.254.1.1 dev eth1 · default via 169.254.1.1 dev eth1
//	rule:        from 10.20.0.11 lookup 283xx
//
// Without the rule answers of the second address would leave by the first link, where the node drops them as spoofed.
func (p *Pod) configureSecond(ctx context.Context, index int, addr netip.Addr) error {
	rule := netlink.NewRule()
	rule.Family, rule.Src, rule.Table, rule.Protocol = netlink.FAMILY_V4, hostNet(addr), podTableBase+index, Protocol
	var routes []*netlink.Route
	for _, at := range []struct{ table, metric int }{{unix.RT_TABLE_MAIN, secondMetric + index}, {podTableBase + index, 0}} {
		for _, r := range []*netlink.Route{gatewayRoute(index), defaultRoute(index)} {
			r.Table, r.Priority = at.table, at.metric
			if r.Gw != nil {
				r.Flags = int(netlink.FLAG_ONLINK)
			}
			routes = append(routes, r)
		}
	}
	for _, r := range routes {
		if err := p.rt.do(ctx, "pod-second-route-add", func(h *netlink.Handle) error { return h.RouteAdd(r) }); err != nil {
			return fmt.Errorf("add route %s metric %d table %d: %w", netPrefix(r.Dst), r.Priority, r.Table, err)
		}
	}
	err := p.rt.do(ctx, "pod-second-rule-add", func(h *netlink.Handle) error { return h.RuleAdd(rule) })
	if err != nil && !errors.Is(err, unix.EEXIST) { // an earlier link of the pod had the same number and address
		return fmt.Errorf("add rule from %s lookup %d: %w", addr, rule.Table, err)
	}
	return nil
}
