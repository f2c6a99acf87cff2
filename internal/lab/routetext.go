package lab

import (
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var (
	routeTypes = map[int]string{
		unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast", unix.RTN_ANYCAST: "anycast", unix.RTN_MULTICAST: "multicast",
		unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibit", unix.RTN_THROW: "throw",
	}
	routeTables = map[int]string{unix.RT_TABLE_LOCAL: "local", unix.RT_TABLE_DEFAULT: "default"}
	routeProtos = map[int]string{
		unix.RTPROT_KERNEL: "kernel", unix.RTPROT_BOOT: "boot", unix.RTPROT_STATIC: "static", unix.RTPROT_DHCP: "dhcp", unix.RTPROT_RA: "ra",
	}
	routeScopes = map[netlink.Scope]string{unix.RT_SCOPE_LINK: "link", unix.RT_SCOPE_HOST: "host", unix.RT_SCOPE_NOWHERE: "nowhere"}
)

// routeText is a route as "ip route" writes it, with the protocol always and what isn't there left out.
func routeText(r netlink.Route, name func(int) string) string {
	var b strings.Builder
	add := func(word, value string) {
		if value != "" {
			b.WriteString(strings.TrimRight(" "+word, " ") + " " + value)
		}
	}
	dst := "default"
	if r.Dst != nil {
		if ones, bits := r.Dst.Mask.Size(); ones == bits && bits != 0 {
			dst = r.Dst.IP.String()
		} else if ones != 0 {
			dst = r.Dst.String()
		}
	}
	b.WriteString(strings.TrimSpace(routeTypes[r.Type] + " " + dst))
	if r.Gw != nil {
		add("via", r.Gw.String())
	}
	add("dev", name(r.LinkIndex))
	for _, hop := range r.MultiPath {
		add("nexthop via", fmt.Sprintf("%s dev %s weight %d", hop.Gw, name(hop.LinkIndex), hop.Hops+1))
	}
	if r.Table != unix.RT_TABLE_MAIN {
		add("table", named(routeTables, r.Table))
	}
	add("proto", named(routeProtos, int(r.Protocol)))
	add("scope", routeScopes[r.Scope])
	if r.Src != nil {
		add("src", r.Src.String())
	}
	if r.Priority != 0 {
		add("metric", fmt.Sprint(r.Priority))
	}
	if r.Flags&unix.RTNH_F_ONLINK != 0 {
		b.WriteString(" onlink")
	}
	if r.Flags&unix.RTNH_F_LINKDOWN != 0 {
		b.WriteString(" linkdown")
	}
	return b.String()
}

func named(names map[int]string, n int) string {
	if name := names[n]; name != "" {
		return name
	}
	return fmt.Sprint(n)
}
