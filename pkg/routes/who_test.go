package routes

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/nstest"
)

const freeAddr = "10.20.0.10"

func TestNetnsWho(t *testing.T) {
	foreign := "ip link add cali1 type veth peer name x ; ip link set cali1 up ; ip link set x up ; ip route add 10.20.0.10/32 dev cali1"
	tests := []struct {
		name, setup string
		want        UseKind
		why         string
	}{
		{"free", "true", Nobody, ""},
		{"no route at all", "ip route flush table main", Nobody, ""},
		{"wider blackhole", "ip route add blackhole 10.20.0.0/26", Nobody, ""},
		{"wider route to a live link", "ip route add 10.20.0.8/29 dev cali0", Nobody, ""},
		{"address of the NIC", "ip addr add 10.20.0.10/16 dev eth0", HostLink, "eth0"},
		{"address of lo", "ip addr add 10.20.0.10/32 dev lo", HostLink, "lo"},
		{"address and rules", "ip rule add prio 9 to 1.2.3.4 lookup 9 ; ip addr add 10.20.0.10/32 dev lo", HostLink, "lo"},
		{"route to the NIC", "ip route add 10.20.0.10/32 dev eth0", Stale, "eth0"},
		{"route by the NIC's gateway", "ip route add 10.20.0.10/32 via 10.20.0.1", Stale, "eth0"},
		{"route to lo", "ip route add 10.20.0.10/32 dev lo", Stale, "lo"},
		{"blackhole", "ip route add blackhole 10.20.0.10/32", Stale, "error type"},
		{"unreachable", "ip route add unreachable 10.20.0.10/32 metric 9", Stale, "error type"},
		{"prohibit", "ip route add prohibit 10.20.0.10/32", Stale, "error type"},
		{"link without carrier", "ip link set nocarrier up ; ip route add 10.20.0.10/32 dev nocarrier", Stale, "down"},
		{"foreign", foreign, Foreign, "cali1"},
		{"foreign, other table first", foreign + " ; ip rule add prio 5 lookup 7 ; ip route add 10.0.0.0/8 dev eth0 table 7", Foreign, "cali1"},
		{"foreign, blackhole rule first", foreign + " ; ip rule add prio 5 to 10.20.0.0/24 blackhole", Foreign, "cali1"},
		{"foreign, main looked up by no rule", foreign + " ; ip rule del prio 32766", Foreign, "cali1"},
		{"free, other table first", "ip rule add prio 5 lookup 7 ; ip route add 10.0.0.0/8 dev eth0 table 7", Nobody, ""},
		{"foreign, several links", "ip route add 10.20.0.10/32 nexthop dev cali0 nexthop dev eth0", Foreign, "several"},
		{"ours, alias erased", "ip link set cali0 group 28278 ; ip route add 10.20.0.10/32 dev cali0 proto 217", Foreign, "lost its alias"},
		{"ours, all marks erased", "ip route add 10.20.0.10/32 dev cali0 proto 217", Foreign, "cali0"},
		{"ours, to the NIC", "ip route add 10.20.0.10/32 dev eth0 proto 217", Stale, "eth0"},
		{"later version", "ip link set cali0 group 28278 alias nvm2 ; ip route add 10.20.0.10/32 dev cali0", Foreign, "can't be read"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			l.runAll("ip link add cali0 type veth peer name y ; ip link set cali0 up ; ip link set y up")
			l.runAll("ip link add nocarrier type veth peer name z")
			l.runAll(tt.setup)
			use, err := l.k.Who(t.Context(), netip.MustParseAddr(freeAddr), "eth0")
			must(t, err)
			if use.Kind != tt.want || !strings.Contains(use.String(), tt.why) {
				t.Errorf("%s, want %s with %q", use, tt.want, tt.why)
			}
			l.dropStale(use.Kind)
		})
	}
}

// runAll runs commands that are separated by " ; " on the node.
func (l *lab) runAll(lines string) {
	l.t.Helper()
	for line := range strings.SplitSeq(lines, " ; ") {
		l.node.Run(line)
	}
}

// dropStale expects that what is stale is gone afterwards, and that nothing else is touched.
func (l *lab) dropStale(kind UseKind) {
	l.t.Helper()
	addr := netip.MustParseAddr(freeAddr)
	before := l.node.Run("ip -4 route show table all")
	err := l.k.DropStale(l.t.Context(), addr, "eth0")
	after := l.node.Run("ip -4 route show table all")
	switch kind {
	case Nobody:
		must(l.t, err)
	case Stale:
		must(l.t, err)
		use, err := l.k.Who(l.t.Context(), addr, "eth0")
		must(l.t, err)
		if use.Kind != Nobody || strings.Count(before, "\n") != strings.Count(after, "\n")+1 {
			l.t.Errorf("after DropStale: %s, routes\n%s", use, after)
		}
		return
	default:
		wantError(l.t, err, ErrNotStale)
	}
	if before != after {
		l.t.Errorf("routes changed from\n%s\nto\n%s", before, after)
	}
}

func TestNetnsWho_ours(t *testing.T) {
	l := newLab(t)
	a := l.attach(1, freeAddr)
	for _, rules := range []string{"true", "ip rule add prio 9 to 1.2.3.4 lookup 9"} {
		l.node.Run(rules)
		use, err := l.k.Who(t.Context(), a.addr, "eth0")
		must(t, err)
		if use.Kind != Ours || use.Alias.Key != a.key || use.Link != a.pair.Name || !use.Up {
			t.Errorf("%+v", use)
		}
	}
	wantError(t, l.k.DropStale(t.Context(), a.addr, "eth0"), ErrNotStale)
	// The link of another address: nobody's route.
	l.node.Run("ip route add 10.20.0.12/32 dev " + a.pair.Name)
	use, err := l.k.Who(t.Context(), netip.MustParseAddr("10.20.0.12"), "eth0")
	must(t, err)
	if use.Kind != Stale || !strings.Contains(use.Why, freeAddr) {
		t.Errorf("%+v", use)
	}
	// The pod's end is down: the pod lives and keeps its address.
	a.Run("ip link set eth0 down")
	use, err = l.k.Who(t.Context(), a.addr)
	must(t, err)
	if use.Kind != Ours {
		t.Errorf("%+v", use)
	}
}

func TestNetnsAddPodRoute_exclusive(t *testing.T) {
	l := newLab(t)
	l.attach(1, freeAddr)
	pod, p := l.open(nstest.Beside(t)), testPair(2)
	must(t, l.k.CreatePair(t.Context(), pod, &p))
	must(t, l.k.HostEndUp(t.Context(), p.Name, p.Index))
	before := l.node.Run("ip route")
	wantError(t, l.k.AddPodRoute(t.Context(), netip.MustParseAddr(freeAddr), p.Index), ErrRouteExists)
	if after := l.node.Run("ip route"); before != after {
		t.Errorf("routes changed: %s", after)
	}
	routes, err := l.k.PodRoutes(t.Context())
	must(t, err)
	if len(routes) != 1 || routes[0].Addr != netip.MustParseAddr(freeAddr) {
		t.Errorf("%+v", routes)
	}
	wantError(t, l.k.AddPodRoute(canceled(), netip.MustParseAddr(freeAddr), p.Index), canceled().Err())
}
