package routes

import (
	"net"
	"net/netip"

	"go4.org/netipx"
)

// The netlink library speaks net.IP and net.IPNet: this file is the border.

// hostNet is the network that holds nothing but addr.
func hostNet(addr netip.Addr) *net.IPNet { return netipx.PrefixIPNet(hostPrefix(addr)) }

func hostPrefix(addr netip.Addr) netip.Prefix {
	addr = addr.Unmap()
	return netip.PrefixFrom(addr, addr.BitLen())
}

func prefixNet(p netip.Prefix) *net.IPNet { return netipx.PrefixIPNet(p.Masked()) }

func addrIP(addr netip.Addr) net.IP { return addr.Unmap().AsSlice() }

// ipAddr is the zero address for what isn't an address.
func ipAddr(ip net.IP) netip.Addr {
	addr, _ := netipx.FromStdIP(ip)
	return addr
}

// netPrefix keeps the address of n as it is, unmasked; it is the zero prefix for what isn't one.
func netPrefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	p, _ := netipx.FromStdIPNet(n)
	if !p.IsValid() {
		return p
	}
	addr := ipAddr(n.IP)
	return netip.PrefixFrom(addr, p.Bits())
}

// hardware is the zero MAC for links that have none or a longer one.
func hardware(mac net.HardwareAddr) (m [6]byte) {
	if len(mac) == len(m) {
		copy(m[:], mac)
	}
	return m
}

func macString(m [6]byte) string { return net.HardwareAddr(m[:]).String() }

// prefixAsIs keeps the address of p, as addresses of links have it.
func prefixAsIs(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
