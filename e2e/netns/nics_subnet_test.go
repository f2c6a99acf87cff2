package netns

import (
	"net/netip"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// nicsTwoInOne has a node with two NICs in one subnet; the first has these addresses.
func nicsTwoInOne(t testing.TB, first []netip.Addr) (*pathCloud, *stage, []string) {
	t.Helper()
	one, two := nicsFirst(1), nicsFirst(9)
	one.Secondaries = first
	c := newPathCloud(t, lab.CloudOptions{Nodes: []lab.CloudNodeOptions{{Name: "node1", NICs: []lab.CloudNIC{one, two}}}})
	s := c.nodes[0].pathAs(t)
	s.ipam["refresh"] = "1s"
	nics := c.Nodes[0].NICs
	return c, s, []string{"eth0", nics[0].MAC.String(), "eth1", nics[1].MAC.String(), nicsSubnet1.String()}
}

// Two NICs in one subnet: nothing is handed out of the second one, whoever asks is told which NICs and which subnet, and the first
// one's pods go on.
func TestNetnsNICs_two_in_one_subnet(t *testing.T) {
	t.Parallel()
	t.Run("the_first_ones_pods_go_on", func(t *testing.T) {
		t.Parallel()
		c, s, both := nicsTwoInOne(t, nicsFirst(1).Secondaries[:2])
		p, a := s.pathPod("one")
		lossless := s.stream(c.Hub, a.IP)
		works := func(when string) {
			t.Helper()
			if !s.answers(p, lab.CloudHub) || !s.answers(p, lab.CloudInternet) {
				t.Errorf("%s: the pod reaches nobody", when)
			}
			s.check("one", p, a).ok()
			if got := s.nicsNamed("eth1"); len(got) > 0 {
				t.Errorf("%s: made for the second NIC: %q", when, got)
			}
		}
		works("ADD")
		s.pathPod("two")
		t.Run("ADD_without_an_address_names_both_NICs_and_the_subnet", func(t *testing.T) {
			s.pathAs(t).add("three", s.Pod(t, "three")).fails(11, both...)
		})
		t.Run("ADD_that_wants_an_address_of_the_second_too", func(t *testing.T) {
			s.pathAs(t).add("four", s.Pod(t, "four"), withArgs("IgnoreUnknown=1;IP=10.20.9.10")).fails(11, append(both, "10.20.9.10")...)
		})
		t.Run("STATUS_stays_ready", func(t *testing.T) { s.pathAs(t).status().ok() })
		t.Run("repair_names_both_NICs_and_the_subnet", func(t *testing.T) {
			(&answer{stage: s.pathAs(t), Command: "repair", Msg: s.mustCtl("node", "repair")}).says(both...)
		})
		works("repair")
		lossless()
		// DHCP on both: the second one's default route may be the better one today. Azure's has a route to the metadata service too.
		s.sh("ip route del default; ip route add default via 10.20.0.1 dev eth0 metric 3; ip route add default via 10.20.0.1 dev eth1 metric 1; " +
			"ip route add 169.254.169.254 via 10.20.0.1 dev eth0")
		c.Azure.ForgetRequests()
		s.del("two", nil).ok()
		time.Sleep(nicsRefresh)
		if _, b := s.pathPod("five"); b.IP != nicsFirst(1).Secondaries[1] {
			t.Errorf("five got %s", b.IP)
		}
		if len(c.Azure.Requests("node1")) == 0 {
			t.Error("metadata was not asked: the change proves nothing")
		}
		if got := s.nicsNamed("eth1"); len(got) > 0 {
			t.Errorf("after a change of the default route, made for the second NIC: %q", got)
		}
	})
	t.Run("STATUS_of_a_node_whose_first_NIC_has_none", func(t *testing.T) {
		t.Parallel()
		_, s, both := nicsTwoInOne(t, nil)
		s.status().fails(50, both...)
		s.add("one", s.Pod(t, "one")).fails(11, both...)
		if held := s.held(); len(held) > 0 {
			t.Errorf("held: %v", held)
		}
	})
}
