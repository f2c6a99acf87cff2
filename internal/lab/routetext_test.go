package lab

import (
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// People compare a leftover with what ip shows.
func TestRouteText(t *testing.T) {
	prefix := func(s string) *net.IPNet {
		_, p, err := net.ParseCIDR(s)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	name := func(i int) string { return map[int]string{2: "eth0"}[i] }
	for want, r := range map[string]netlink.Route{
		"10.20.1.11 dev eth0 proto 217 scope link": {
			Dst: prefix("10.20.1.11/32"), LinkIndex: 2, Table: 254, Protocol: 217, Type: unix.RTN_UNICAST, Scope: unix.RT_SCOPE_LINK,
		},
		"default via 10.20.0.1 dev eth0 proto dhcp src 10.20.0.4 metric 100": {
			Dst: prefix("0.0.0.0/0"), LinkIndex: 2, Gw: net.IPv4(10, 20, 0, 1), Table: 254, Protocol: 16, Type: unix.RTN_UNICAST,
			Src: net.IPv4(10, 20, 0, 4), Priority: 100,
		},
		"default proto boot": {Table: 254, Protocol: 3, Type: unix.RTN_UNICAST},
		"unreachable 10.20.1.11 table 28299 proto boot": {
			Dst: prefix("10.20.1.11/32"), Table: 28299, Protocol: 3, Type: unix.RTN_UNREACHABLE,
		},
		"10.20.0.0/24 via 10.20.0.1 dev eth0 table 28201 proto 217 onlink": {
			Dst: prefix("10.20.0.0/24"), LinkIndex: 2, Gw: net.IPv4(10, 20, 0, 1), Table: 28201, Protocol: 217, Type: unix.RTN_UNICAST,
			Flags: unix.RTNH_F_ONLINK,
		},
	} {
		if got := routeText(r, name); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
