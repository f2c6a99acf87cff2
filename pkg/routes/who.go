package routes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// UseKind says who has an address, as far as this node's kernel knows.
type UseKind int

// The kinds of use.
const (
	// Nobody: the main table has no route for exactly this address.
	Nobody UseKind = iota
	// Ours: the route leads to a link of ours whose alias names the address.
	Ours
	// HostLink: the address is one of the node's own.
	HostLink
	// Foreign: a route leads to a live link that is not one of the node's NICs and doesn't say that it is ours for the address: another
	// CNI's pod, or one of ours whose marks others erased.
	Foreign
	// Stale: the route leads nowhere for a pod. It goes to a NIC, to a link that is down, or to none.
	Stale
)

func (k UseKind) String() string {
	return [...]string{"nobody", "ours", "host link", "foreign", "stale"}[k]
}

// Use is what the kernel knows about one address.
type Use struct {
	Kind  UseKind
	Link  string // name of the link that the route leads to, if any
	Index int
	Up    bool   // link is administratively up
	Alias Alias  // for Ours
	Why   string // for people, not for Nobody

	route  netlink.Route // for Stale: what DropStale deletes
	unread bool          // for Foreign: a link of our group whose alias nobody here can read
}

// OwnRoute reports whether we made the route.
func (u Use) OwnRoute() bool { return u.route.Protocol == Protocol }

func (u Use) String() string {
	if u.Link == "" {
		return fmt.Sprintf("%s (%s)", u.Kind, u.Why)
	}
	return fmt.Sprintf("%s (%s, dev %s)", u.Kind, u.Why, u.Link)
}

// Who asks the kernel about one address, without a dump: the lookup of a packet to it, with the matched route as the answer.
// The names in nics are the node's own NICs; physical links count as NICs even when they aren't named.
func (k *Kernel) Who(ctx context.Context, addr netip.Addr, nics ...string) (Use, error) {
	addr = addr.Unmap()
	route, found, err := k.exactRoute(ctx, addr)
	if err != nil {
		return Use{}, fmt.Errorf("look up %s: %w", addr, err)
	}
	if !found {
		return Use{Kind: Nobody}, nil
	}
	use, err := k.classify(ctx, addr, route, nics)
	if err != nil {
		return Use{}, fmt.Errorf("look up %s: %w", addr, err)
	}
	return use, nil
}

// exactRoute finds the route that decides about addr alone: that of a local address, or a /32 of the main table.
//
// A packet's lookup finds the longest match of the first table that has one. So a match in main tells all about main. A match
// in another table tells nothing about it, nor does an error, which a rule or a route of an error type made: only then main is
// read.
func (k *Kernel) exactRoute(ctx context.Context, addr netip.Addr) (netlink.Route, bool, error) {
	route, err := k.lookup(ctx, addr)
	// Without any route: somebody may have taken away the rule that looks main up.
	if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EACCES) {
		return k.exactByDump(ctx, addr)
	}
	if err != nil {
		return netlink.Route{}, false, err
	}
	switch {
	case isLocal(route):
		return route, true, nil
	case route.Table == unix.RT_TABLE_MAIN:
		return route, netPrefix(route.Dst) == hostPrefix(addr), nil
	case route.Table == unix.RT_TABLE_DEFAULT, route.Table >= tableBase && route.Table <= tableLast:
		return netlink.Route{}, false, nil // both are asked after main only
	}
	return k.exactByDump(ctx, addr)
}

func (k *Kernel) lookup(ctx context.Context, addr netip.Addr) (route netlink.Route, err error) {
	var found []netlink.Route
	err = k.rt.do(ctx, "route-get", func(h *netlink.Handle) (err error) {
		found, err = h.RouteGetWithOptions(addrIP(addr), &netlink.RouteGetOptions{FIBMatch: true})
		return err
	})
	if err != nil {
		return route, err
	}
	if len(found) != 1 {
		return route, fmt.Errorf("%d answers to one lookup", len(found))
	}
	return found[0], nil
}

func (k *Kernel) exactByDump(ctx context.Context, addr netip.Addr) (netlink.Route, bool, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
	found, err := dump(ctx, k.rt, "route-list", func(h *netlink.Handle) ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_V4, filter, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return netlink.Route{}, false, err
	}
	// Routes of one destination come in the order of their metrics: the first one decides.
	i := slices.IndexFunc(found, func(r netlink.Route) bool { return netPrefix(r.Dst) == hostPrefix(addr) })
	if i < 0 {
		return netlink.Route{}, false, nil
	}
	return found[i], true, nil
}

// classify judges the route that decides about addr.
func (k *Kernel) classify(ctx context.Context, addr netip.Addr, route netlink.Route, nics []string) (Use, error) {
	use := Use{Index: route.LinkIndex, route: route}
	if route.LinkIndex == 0 {
		return routeWithoutLink(use, route), nil
	}
	link, found, err := k.rt.linkByIndex(ctx, route.LinkIndex)
	if err != nil {
		return Use{}, err
	}
	if !found {
		use.Kind, use.Why = Stale, "its link is gone"
		return use, nil
	}
	a := link.Attrs()
	use.Link, use.Up = a.Name, a.Flags&net.FlagUp != 0
	switch {
	case isLocal(route):
		use.Kind, use.Why = HostLink, "address of the node"
	case a.Group == Group:
		use.judgeOurs(a.Alias, addr)
	case slices.Contains(nics, a.Name) || isPhysical(link):
		use.Kind, use.Why = Stale, "route to a NIC"
	case a.Flags&net.FlagLoopback != 0:
		use.Kind, use.Why = Stale, "route to the loopback"
	case !use.Up || a.Flags&net.FlagRunning == 0:
		use.Kind, use.Why = Stale, "link is down"
	default:
		use.Kind, use.Why = Foreign, fmt.Sprintf("route of protocol %d", int(route.Protocol))
	}
	return use, nil
}

// isLocal looks at the type too: as long as there are no policy rules, the kernel keeps local and main in one table and calls
// it main.
func isLocal(r netlink.Route) bool {
	switch r.Type {
	case unix.RTN_LOCAL, unix.RTN_BROADCAST, unix.RTN_ANYCAST, unix.RTN_MULTICAST:
		return true
	}
	return r.Table == unix.RT_TABLE_LOCAL
}

func routeWithoutLink(use Use, route netlink.Route) Use {
	use.Kind, use.Why = Foreign, "route over several links"
	switch route.Type {
	case unix.RTN_BLACKHOLE, unix.RTN_UNREACHABLE, unix.RTN_PROHIBIT, unix.RTN_THROW:
		use.Kind, use.Why = Stale, "route of an error type"
	}
	return use
}

// judgeOurs judges a route to a link of our group by the link's alias. A text that can't be read may be a later version's
// alias: the link is somebody's, and stays. So does one without a text: a pod lives behind it.
func (u *Use) judgeOurs(text string, addr netip.Addr) {
	alias, err := ParseAlias(text)
	switch {
	case text == "": // an ADD writes it before the link is up, so before there can be a route: somebody erased it
		u.Kind, u.Why = Foreign, "link of our group that lost its alias"
	case err != nil:
		u.Kind, u.Why, u.unread = Foreign, "link of our group with an alias that can't be read", true
	case alias.Addr != addr:
		u.Kind, u.Why = Stale, "link holds "+alias.Addr.String()
	case !u.Up:
		u.Kind, u.Why = Stale, "link is down"
	default:
		u.Kind, u.Why, u.Alias = Ours, alias.Pod, alias
	}
}

// isPhysical tells a device that a driver made from one that somebody asked the kernel for.
func isPhysical(link netlink.Link) bool {
	a := link.Attrs()
	return link.Type() == "device" && a.Flags&net.FlagLoopback == 0 && len(a.HardwareAddr) == 6
}

// staleRoutes bounds how many stale routes of one address, each with another metric, DropStale deletes.
const staleRoutes = 8

// DropStale deletes the stale routes of exactly this address, the one case in which we delete what isn't marked as ours.
// It is an error if the address turns out to be in use.
func (k *Kernel) DropStale(ctx context.Context, addr netip.Addr, nics ...string) error {
	for range staleRoutes {
		use, err := k.Who(ctx, addr, nics...)
		if err != nil || use.Kind == Nobody {
			return err
		}
		if use.Kind != Stale {
			return fmt.Errorf("drop stale route %s: %w: %s", hostPrefix(addr), ErrNotStale, use)
		}
		if err := k.delRoute(ctx, exactly(use.route)); err != nil {
			return err
		}
		k.log.Info("stale route deleted", "addr", addr, "dev", use.Link, "why", use.Why)
		k.note("stale route of %s deleted: %s", addr, use)
	}
	return fmt.Errorf("drop stale route %s: %w", hostPrefix(addr), ErrNotGone)
}

// exactly keeps what names a route to the kernel.
func exactly(r netlink.Route) *netlink.Route {
	return &netlink.Route{
		Dst: r.Dst, Table: r.Table, Type: r.Type, Protocol: r.Protocol, Scope: r.Scope, Priority: r.Priority, Tos: r.Tos,
		LinkIndex: r.LinkIndex, Gw: r.Gw,
	}
}
