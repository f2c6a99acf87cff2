package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// leaseSeconds is the life of a dynamic address: any finite value makes the kernel call it dynamic, as DHCP's are.
const leaseSeconds = 86400

// End is one end of a virtual cable.
type End struct {
	Space *Namespace
	Name  string
	MAC   net.HardwareAddr // nil: the kernel's choice
}

// Cable joins two namespaces by a veth pair with IPv6 off and both ends up. A zero MTU is 1500.
func Cable(a, b End, mtu int) error {
	if mtu == 0 {
		mtu = 1500
	}
	h, err := a.Space.Handle()
	if err != nil {
		return err
	}
	link := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: a.Name, MTU: mtu, HardwareAddr: a.MAC},
		PeerName:         b.Name,
		PeerHardwareAddr: b.MAC,
		PeerMTU:          uint32(mtu),
		PeerNamespace:    netlink.NsFd(b.Space.Fd()),
	}
	if err := h.LinkAdd(link); err != nil {
		return fmt.Errorf("make cable %s:%s to %s:%s: %w", a.Space.Name, a.Name, b.Space.Name, b.Name, err)
	}
	return errors.Join(bringUp(a), bringUp(b))
}

func bringUp(e End) error {
	if err := e.Space.Sysctl("net.ipv6.conf."+e.Name+".disable_ipv6", "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return e.Space.SetUp(e.Name)
}

// ReadSysctl reads a network setting of the namespace.
func (n *Namespace) ReadSysctl(name string) (value string, err error) {
	err = n.Do(func() error {
		b, err := os.ReadFile(sysctlPath(name))
		value = strings.TrimSpace(string(b))
		return err
	})
	return value, err
}

func sysctlPath(name string) string {
	return filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
}

// SetUp brings a link up.
func (n *Namespace) SetUp(link string) error {
	return n.withLink(link, func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetUp(l) })
}

// DelLink removes a link, and its peer with it.
func (n *Namespace) DelLink(link string) error { return n.withLink(link, (*netlink.Handle).LinkDel) }

// SetMAC gives a link another hardware address.
func (n *Namespace) SetMAC(link string, mac net.HardwareAddr) error {
	return n.withLink(link, func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetHardwareAddr(l, mac) })
}

// MAC reads a link's hardware address.
func (n *Namespace) MAC(link string) (mac net.HardwareAddr, err error) {
	err = n.withLink(link, func(_ *netlink.Handle, l netlink.Link) error {
		mac = l.Attrs().HardwareAddr
		return nil
	})
	return mac, err
}

// AddAddr puts an address on a link for good.
func (n *Namespace) AddAddr(link string, addr netip.Prefix) error { return n.addAddr(link, addr, 0) }

// AddDynamicAddr puts an address on a link as a DHCP client does: with a life that ends.
func (n *Namespace) AddDynamicAddr(link string, addr netip.Prefix) error {
	return n.addAddr(link, addr, leaseSeconds)
}

func (n *Namespace) addAddr(link string, addr netip.Prefix, life int) error {
	return n.withLink(link, func(h *netlink.Handle, l netlink.Link) error {
		return h.AddrAdd(l, &netlink.Addr{IPNet: ipNet(addr), ValidLft: life, PreferedLft: life})
	})
}

// DelAddr takes an address off a link.
func (n *Namespace) DelAddr(link string, addr netip.Prefix) error {
	return n.withLink(link, func(h *netlink.Handle, l netlink.Link) error {
		return h.AddrDel(l, &netlink.Addr{IPNet: ipNet(addr)})
	})
}

// AddRoute routes dst to a link; a valid gateway need not be on the link.
func (n *Namespace) AddRoute(dst netip.Prefix, gateway netip.Addr, link string) error {
	return n.withLink(link, func(h *netlink.Handle, l netlink.Link) error {
		r := &netlink.Route{LinkIndex: l.Attrs().Index, Dst: ipNet(dst), Scope: netlink.SCOPE_LINK}
		if gateway.IsValid() {
			r.Gw, r.Scope, r.Flags = gateway.AsSlice(), netlink.SCOPE_UNIVERSE, int(netlink.FLAG_ONLINK)
		}
		return h.RouteReplace(r)
	})
}

// AnyIP makes the namespace answer for every address of a prefix without holding one of them.
func (n *Namespace) AnyIP(prefix netip.Prefix) error {
	return n.withLink("lo", func(h *netlink.Handle, l netlink.Link) error {
		return h.RouteAdd(&netlink.Route{
			LinkIndex: l.Attrs().Index, Dst: ipNet(prefix), Table: unix.RT_TABLE_LOCAL, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST,
		})
	})
}

// Neighbours counts a link's IPv4 neighbours, failed and permanent ones included; multicast groups are no neighbours.
func (n *Namespace) Neighbours(link string) (count int, err error) {
	err = n.withLink(link, func(h *netlink.Handle, l netlink.Link) error {
		list, err := h.NeighList(l.Attrs().Index, unix.AF_INET)
		for _, nb := range list {
			if nb.State&netlink.NUD_NOARP == 0 {
				count++
			}
		}
		return err
	})
	return count, err
}

func (n *Namespace) linkIndex(link string) (index int, err error) {
	err = n.withLink(link, func(_ *netlink.Handle, l netlink.Link) error {
		index = l.Attrs().Index
		return nil
	})
	return index, err
}

func (n *Namespace) withLink(name string, f func(*netlink.Handle, netlink.Link) error) error {
	h, err := n.Handle()
	if err != nil {
		return err
	}
	l, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s in %s: %w", name, n.Name, err)
	}
	if err := f(h, l); err != nil {
		return fmt.Errorf("link %s in %s: %w", name, n.Name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
