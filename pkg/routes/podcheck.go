package routes

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// PodWant is what a pod's namespace should hold. Zero fields aren't checked.
type PodWant struct {
	IfName    string
	Addr      netip.Addr
	MTU       int     // the largest that fits; a chained plugin may have set a smaller one
	HostMAC   [6]byte // of the host end, as it is now
	PodMAC    [6]byte
	HostIndex int // of the host end
	// Asks says that the pod may have to ask for its gateway: a chained plugin changed its MAC, and the kernel dropped the
	// permanent neighbour.
	Asks bool
}

// Check compares the pod with want and says in words what is wrong; nothing is changed. Other addresses, routes and links in
// the pod are no finding: chained plugins add them.
func (p *Pod) Check(ctx context.Context, want PodWant) []string {
	link, found, err := p.rt.linkByName(ctx, want.IfName)
	if err != nil {
		return []string{err.Error()}
	}
	if !found {
		return []string{fmt.Sprintf("%s is missing in the pod", want.IfName)}
	}
	a := link.Attrs()
	f := checkPodLink(a, want)
	f = append(f, p.checkAddr(ctx, a, want)...)
	f = append(f, p.checkRoutes(ctx, a)...)
	return append(f, p.checkNeigh(ctx, a, want)...)
}

func checkPodLink(a *netlink.LinkAttrs, want PodWant) []string {
	var f []string
	if a.Flags&net.FlagUp == 0 {
		f = append(f, fmt.Sprintf("%s in the pod is down", a.Name))
	}
	if want.MTU != 0 && a.MTU > want.MTU {
		f = append(f, fmt.Sprintf("%s in the pod has MTU %d, more than %d", a.Name, a.MTU, want.MTU))
	}
	if want.PodMAC != [6]byte{} && hardware(a.HardwareAddr) != want.PodMAC {
		f = append(f, fmt.Sprintf("%s in the pod has MAC %s instead of %s", a.Name, a.HardwareAddr, macString(want.PodMAC)))
	}
	if want.HostIndex != 0 && a.ParentIndex != want.HostIndex {
		f = append(f, fmt.Sprintf("%s in the pod is the other end of link #%d instead of #%d", a.Name, a.ParentIndex, want.HostIndex))
	}
	return f
}

func (p *Pod) checkAddr(ctx context.Context, a *netlink.LinkAttrs, want PodWant) []string {
	has, err := p.linkHasAddr(ctx, a.Index, want.Addr)
	if err != nil {
		return []string{fmt.Sprintf("list addresses of %s in the pod: %v", a.Name, err)}
	}
	if want.Addr.IsValid() && !has {
		return []string{fmt.Sprintf("address %s is missing on %s in the pod", hostPrefix(want.Addr), a.Name)}
	}
	return nil
}

func (p *Pod) linkHasAddr(ctx context.Context, index int, addr netip.Addr) (bool, error) {
	addrs, err := dump(ctx, p.rt, "pod-addr-list", func(h *netlink.Handle) ([]netlink.Addr, error) {
		return h.AddrList(byIndex(index), netlink.FAMILY_V4)
	})
	return slices.ContainsFunc(addrs, func(x netlink.Addr) bool { return netPrefix(x.IPNet) == hostPrefix(addr) }), err
}

// HasAddr tells whether the other end of a host link is this pod's interface and has the address.
func (p *Pod) HasAddr(ctx context.Context, ifname string, hostIndex int, addr netip.Addr) (bool, error) {
	link, found, err := p.rt.linkByName(ctx, ifname)
	if err != nil || !found || link.Attrs().ParentIndex != hostIndex {
		return false, err
	}
	return p.linkHasAddr(ctx, link.Attrs().Index, addr)
}

// checkRoutes takes routes of any table: a chained sbr moves them to one of its own.
func (p *Pod) checkRoutes(ctx context.Context, a *netlink.LinkAttrs) []string {
	filter := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	routes, err := dump(ctx, p.rt, "pod-route-list", func(h *netlink.Handle) ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_V4, filter, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return []string{fmt.Sprintf("list routes of the pod: %v", err)}
	}
	var f []string
	toGateway := func(r netlink.Route) bool {
		return netPrefix(r.Dst) == hostPrefix(gateway) && r.LinkIndex == a.Index
	}
	if !slices.ContainsFunc(routes, toGateway) {
		f = append(f, fmt.Sprintf("route to %s dev %s is missing in the pod", gateway, a.Name))
	}
	byGateway := func(r netlink.Route) bool {
		return netPrefix(r.Dst).Bits() == 0 && ipAddr(r.Gw) == gateway && r.LinkIndex == a.Index
	}
	if !slices.ContainsFunc(routes, byGateway) {
		f = append(f, fmt.Sprintf("default route via %s dev %s is missing in the pod", gateway, a.Name))
	}
	return f
}

func (p *Pod) checkNeigh(ctx context.Context, a *netlink.LinkAttrs, want PodWant) []string {
	neighs, err := dump(ctx, p.rt, "pod-neigh-list", func(h *netlink.Handle) ([]netlink.Neigh, error) {
		return h.NeighList(a.Index, netlink.FAMILY_V4)
	})
	if err != nil {
		return []string{fmt.Sprintf("list neighbours of the pod: %v", err)}
	}
	i := slices.IndexFunc(neighs, func(n netlink.Neigh) bool { return ipAddr(n.IP) == gateway })
	if want.Asks && (i < 0 || len(neighs[i].HardwareAddr) == 0) { // not asked yet
		return nil
	}
	if i < 0 || neighs[i].State&netlink.NUD_PERMANENT == 0 && !want.Asks {
		return []string{fmt.Sprintf("permanent neighbour %s is missing on %s in the pod", gateway, a.Name)}
	}
	mac := hardware(neighs[i].HardwareAddr)
	if want.HostMAC != [6]byte{} && mac != want.HostMAC {
		return []string{fmt.Sprintf("neighbour %s of the pod has MAC %s, but the host end has %s",
			gateway, macString(mac), macString(want.HostMAC))}
	}
	return nil
}
