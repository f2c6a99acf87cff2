package routes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// NIC is a link that may be one of the machine's network interfaces.
type NIC struct {
	Name     string
	Index    int
	MAC      [6]byte
	MTU      int
	Up       bool
	Kind     string // "device" for a physical one
	Parent   int    // index of the link it stands on, for a macvlan or VLAN; the peer's, for a veth
	Addrs    []NICAddr
	Defaults []DefaultRoute // of the main table, through this link
}

// NICAddr is an IPv4 address of a link.
type NICAddr struct {
	Prefix    netip.Prefix // address and length of its subnet
	Dynamic   bool         // a lease: it has a lifetime
	Secondary bool         // in the kernel's sense: an address of the same subnet was there before it
}

// DefaultRoute is a default route of the main table.
type DefaultRoute struct {
	Gateway netip.Addr // zero without one
	Metric  int
	PrefSrc netip.Addr // zero without one
}

// NICs lists the links that have a MAC and no master, with addresses and default routes. Links of our group and the loopback
// aren't among them, nor is the twin of a NIC with accelerated networking: its master is that NIC.
func (k *Kernel) NICs(ctx context.Context) ([]NIC, error) {
	links, err := dump(ctx, k.rt, "link-list", (*netlink.Handle).LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	addrs, err := k.addrs(ctx)
	if err != nil {
		return nil, err
	}
	defaults, err := k.defaults(ctx)
	if err != nil {
		return nil, err
	}
	var nics []NIC
	for _, l := range links {
		a := l.Attrs()
		if a.MasterIndex != 0 || len(a.HardwareAddr) != 6 || a.Flags&net.FlagLoopback != 0 || a.Group == Group {
			continue
		}
		nics = append(nics, NIC{
			Name: a.Name, Index: a.Index, MAC: hardware(a.HardwareAddr), MTU: a.MTU, Up: a.Flags&net.FlagUp != 0,
			Kind: l.Type(), Parent: a.ParentIndex, Addrs: addrs[a.Index], Defaults: defaults[a.Index],
		})
	}
	return nics, nil
}

// HostAddrs lists all IPv4 addresses of the node: address -> name of its link.
func (k *Kernel) HostAddrs(ctx context.Context) (map[netip.Addr]string, error) {
	addrs, err := k.addrs(ctx)
	if err != nil {
		return nil, err
	}
	links, err := dump(ctx, k.rt, "link-list", (*netlink.Handle).LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	host := map[netip.Addr]string{}
	for _, l := range links {
		for _, a := range addrs[l.Attrs().Index] {
			host[a.Prefix.Addr()] = l.Attrs().Name
		}
	}
	return host, nil
}

// addrs lists IPv4 addresses: index of the link -> its addresses, in the kernel's order.
func (k *Kernel) addrs(ctx context.Context) (map[int][]NICAddr, error) {
	found, err := dump(ctx, k.rt, "addr-list", func(h *netlink.Handle) ([]netlink.Addr, error) {
		return h.AddrList(nil, netlink.FAMILY_V4)
	})
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	addrs := map[int][]NICAddr{}
	for _, a := range found {
		addrs[a.LinkIndex] = append(addrs[a.LinkIndex], NICAddr{
			Prefix:    netPrefix(a.IPNet),
			Dynamic:   a.Flags&unix.IFA_F_PERMANENT == 0,
			Secondary: a.Flags&unix.IFA_F_SECONDARY != 0,
		})
	}
	return addrs, nil
}

// defaults lists the default routes of main: index of the link -> routes. A route over several links counts for each.
func (k *Kernel) defaults(ctx context.Context) (map[int][]DefaultRoute, error) {
	filter := &netlink.Route{Table: unix.RT_TABLE_MAIN}
	found, err := dump(ctx, k.rt, "route-list", func(h *netlink.Handle) ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_V4, filter, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list default routes: %w", err)
	}
	defaults := map[int][]DefaultRoute{}
	for _, r := range found {
		if p := netPrefix(r.Dst); r.Type != unix.RTN_UNICAST || p.Bits() != 0 {
			continue
		}
		hops := r.MultiPath
		if len(hops) == 0 {
			hops = []*netlink.NexthopInfo{{LinkIndex: r.LinkIndex, Gw: r.Gw}}
		}
		for _, hop := range hops {
			defaults[hop.LinkIndex] = append(defaults[hop.LinkIndex], DefaultRoute{
				Gateway: ipAddr(hop.Gw), Metric: r.Priority, PrefSrc: ipAddr(r.Src),
			})
		}
	}
	return defaults, nil
}

// RemoveAddress takes an address off a link of the node; that it isn't there is no error.
//
// With the first address of a subnet the kernel removes all later ones of that subnet too, unless promote_secondaries is set:
// a node could lose its own address that way, so this is refused.
func (k *Kernel) RemoveAddress(ctx context.Context, nic string, addr netip.Addr) error {
	link, found, err := k.rt.linkByName(ctx, nic)
	if err == nil && !found {
		err = unix.ENODEV
	}
	if err == nil {
		err = k.removeAddress(ctx, link.Attrs(), addr)
	}
	if err != nil {
		return fmt.Errorf("remove %s from %s: %w", addr, nic, err)
	}
	return nil
}

func (k *Kernel) removeAddress(ctx context.Context, link *netlink.LinkAttrs, addr netip.Addr) error {
	all, err := k.addrs(ctx)
	if err != nil {
		return err
	}
	for _, a := range all[link.Index] {
		if a.Prefix.Addr() != addr {
			continue
		}
		if err := k.othersStay(link.Name, a, all[link.Index]); err != nil {
			return err
		}
		gone := &netlink.Addr{IPNet: prefixAsIs(a.Prefix)}
		err := k.rt.do(ctx, "addr-del", func(h *netlink.Handle) error { return h.AddrDel(byIndex(link.Index), gone) })
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return err
		}
	}
	return nil
}

// othersStay refuses when a has later addresses of its subnet behind it and the kernel wouldn't promote one of them.
func (k *Kernel) othersStay(link string, a NICAddr, all []NICAddr) error {
	if a.Secondary {
		return nil
	}
	promote := 0
	err := k.space.do(func() error {
		for _, name := range []string{allLinks, link} {
			n, err := readSysctl(conf4(name, "promote_secondaries"))
			if err != nil {
				return err
			}
			promote |= n
		}
		return nil
	})
	if err != nil || promote != 0 {
		return err
	}
	for _, o := range all {
		if o.Secondary && o.Prefix.Masked() == a.Prefix.Masked() {
			return fmt.Errorf("%w: %s is one; set net.ipv4.conf.%s.promote_secondaries to 1", ErrTakesOthers, o.Prefix.Addr(), link)
		}
	}
	return nil
}
