package netns

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// BR-37: what an earlier pod or somebody else left under the address or the name.
func TestNetnsBR37_leftovers(t *testing.T) {
	t.Parallel()
	type leftover struct {
		script string
		stale  string // a text of "ip route show table all" that must be gone while the pod lives; "" for none
	}
	each(t, map[string]leftover{
		"1_route_to_the_NIC_is_replaced":         {"ip route add 10.20.0.10/32 dev eth0", "10.20.0.10 dev eth0"},
		"2_route_to_a_link_that_is_down":         {"ip link add old0 type ifb; ip link set old0 up; ip route add 10.20.0.10/32 dev old0; ip link set old0 down", "10.20.0.10 dev old0"},
		"2_route_to_a_link_that_lost_its_peer":   {"ip link add old0 type veth peer name old1; ip link set old0 up; ip route add 10.20.0.10/32 dev old0", "10.20.0.10 dev old0"},
		"3_blackhole_is_replaced":                {"ip route add blackhole 10.20.0.10", "blackhole 10.20.0.10"},
		"3_blackhole_and_route_of_other_metrics": {"ip route add blackhole 10.20.0.10 metric 7; ip route add 10.20.0.10/32 dev eth0 metric 9", "10.20.0.10 metric"},
		"5_foreign_rules_twice_are_left_alone":   {"ip rule add from 10.20.0.10 lookup 77; ip rule add from 10.20.0.10 lookup 77 prio 32000", ""},
		"6_permanent_neighbour_with_another_MAC": {"ip neigh add 10.20.0.10 lladdr 02:11:22:33:44:55 dev eth0 nud permanent", ""},
	}, func(t *testing.T, c leftover) {
		s := newStage(t, poolOf(1))
		s.settle()
		time.Sleep(1100 * time.Millisecond) // the pool is cooling
		clean := s.snapshot()
		s.sh(c.script)
		dirty := s.snapshot()
		p := s.Pod(t, "p1")
		a := s.add("c1", p).ok()
		s.reaches(p, a.IP)
		if c.stale != "" && strings.Contains(s.sh("ip route show table all"), c.stale) {
			t.Errorf("stale route %q is still there", c.stale)
		}
		s.check("c1", p, a).ok()
		s.del("c1", p).ok()
		if c.stale == "" {
			s.noLeak(dirty) // not ours, so it stays
			return
		}
		s.sh("ip link del old0 2>/dev/null || true")
		s.noLeak(clean)
	})

	const name = "HOSTLINK"
	each(t, map[string]string{
		"4_name_is_an_unrelated_link":  "ip link add HOSTLINK type ifb",
		"4_name_is_an_altname_of_eth0": "ip link property add dev eth0 altname HOSTLINK",
	}, func(t *testing.T, script string) {
		s := newStage(t, poolOf(1))
		link := linkOf("c1", "eth0")
		s.sh(strings.ReplaceAll(script, name, link))
		s.refusedOrOtherName(link, s.Pod(t, "p1"))
	})
	t.Run("4_name_is_the_link_of_a_live_pod", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, poolOf(1))
		link := linkOf("c1", "eth0")
		p9 := s.Pod(t, "p9")
		// Without IPv6: a link-local address of its own would arrive between two looks at the node.
		s.sh("ip link add " + link + " type veth peer name eth0 netns " + p9.Name + "; sysctl -qw net.ipv6.conf." + link + ".disable_ipv6=1; " +
			"ip link set " + link + " up; ip route add 10.20.0.99/32 dev " + link)
		s.in(p9, "ip addr add 10.20.0.99/32 dev eth0; ip link set eth0 up; ip route add default dev eth0")
		alive := func() {
			t.Helper()
			if !s.answers(s.Node.Namespace, netip.MustParseAddr("10.20.0.99")) {
				t.Error("the live pod p9 lost its link")
			}
		}
		alive()
		s.refusedOrOtherName(link, s.Pod(t, "p1"))
		alive()
	})
}

// refusedOrOtherName: ADD may use another name or fail cleanly; the link that has the name stays as it is.
func (s *stage) refusedOrOtherName(link string, p *lab.Namespace) {
	s.t.Helper()
	other := s.Pod(s.t, "other")
	s.add("other", other).ok() // node-wide state stands
	s.del("other", other).ok()
	time.Sleep(1100 * time.Millisecond)
	before := s.snapshot()
	if a := s.add("c1", p); a.OK() {
		if a.HostLink == link {
			s.t.Errorf("ADD took over the foreign link %s", link)
		}
		s.reaches(p, a.IP)
	} else {
		a.says(link)
		s.podIsBare(p)
	}
	s.del("c1", p).ok()
	s.noLeak(before)
}
