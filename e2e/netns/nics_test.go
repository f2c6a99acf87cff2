package netns

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// The files nics_*_test.go have a node with a NIC in each of two subnets.
var (
	nicsSubnet1  = netip.MustParsePrefix("10.20.0.0/20")
	nicsSubnet2  = netip.MustParsePrefix("10.20.16.0/20")
	nicsPrimary1 = netip.MustParseAddr("10.20.0.4")
	nicsPrimary2 = netip.MustParseAddr("10.20.16.4")
)

// nicsFirst and nicsSecond are NICs of a subnet each, numbered by their machine.
func nicsFirst(machine byte) lab.CloudNIC {
	return lab.CloudNIC{
		Subnet: nicsSubnet1, Primary: netip.AddrFrom4([4]byte{10, 20, 0, 3 + machine}),
		Secondaries: lab.AddrRange(netip.AddrFrom4([4]byte{10, 20, machine, 10}), 4),
	}
}

func nicsSecond(machine byte) lab.CloudNIC {
	return lab.CloudNIC{
		Subnet: nicsSubnet2, Primary: netip.AddrFrom4([4]byte{10, 20, 16, 3 + machine}),
		Secondaries: lab.AddrRange(netip.AddrFrom4([4]byte{10, 20, 16 + machine, 10}), 4),
	}
}

// nicsCloud has node1 with both NICs, node2 with one in the first subnet and node3 with one in the second.
func nicsCloud(t testing.TB) *pathCloud {
	t.Helper()
	return newPathCloud(t, lab.CloudOptions{Nodes: []lab.CloudNodeOptions{
		{Name: "node1", NICs: []lab.CloudNIC{nicsFirst(1), nicsSecond(1)}},
		{Name: "node2", NICs: []lab.CloudNIC{nicsFirst(2)}},
		{Name: "node3", NICs: []lab.CloudNIC{nicsSecond(3)}},
	}})
}

// podAt adds a pod with one certain address.
func (s *stage) podAt(id, ip string) (*lab.Namespace, *answer) {
	s.t.Helper()
	p := s.Pod(s.t, id)
	return p, s.add(id, p, withArgs("IgnoreUnknown=1;IP="+ip)).ok()
}

// rpFilter sets the reverse-path filter of all links and of each NIC.
func (s *stage) rpFilter(value string, nics ...string) {
	s.t.Helper()
	for _, link := range append([]string{"all"}, nics...) {
		s.sh("sysctl -qw net.ipv4.conf." + link + ".rp_filter=" + value)
	}
}

// Two NICs: Azure drops a packet that leaves by a NIC that doesn't own its source, so each answer here is proof of the egress.
func TestNetnsNICs_egress_follows_the_source(t *testing.T) {
	t.Parallel()
	c := nicsCloud(t)
	n1, n2 := c.nodes[0], c.nodes[1]
	on := func(s *stage, id, ip string) (*lab.Namespace, netip.Addr) {
		p, a := s.podAt(id, ip)
		return p, a.IP
	}
	p1, a1 := on(n1, "p1", "10.20.1.10")
	p3, a3 := on(n1, "p3", "10.20.17.10")
	p2, a2 := on(n2, "p2", "10.20.2.10")
	paths := []struct {
		name string
		from *lab.Namespace
		to   netip.Addr
		as   netip.Addr // source; zero: the kernel's choice
	}{
		{"NIC 1 pod to remote pod", p1, a2, netip.Addr{}},
		{"remote pod to NIC 1 pod", p2, a1, netip.Addr{}},
		{"NIC 2 pod to remote pod", p3, a2, netip.Addr{}},
		{"remote pod to NIC 2 pod", p2, a3, netip.Addr{}},
		{"NIC 1 pod to NIC 2 pod", p1, a3, netip.Addr{}},
		{"NIC 2 pod to NIC 1 pod", p3, a1, netip.Addr{}},
		{"NIC 2 pod to hub", p3, lab.CloudHub, netip.Addr{}},
		{"hub to NIC 2 pod", c.Hub, a3, netip.Addr{}},
		{"NIC 2 pod to internet", p3, lab.CloudInternet, netip.Addr{}},
		{"NIC 1 pod to internet", p1, lab.CloudInternet, netip.Addr{}},
		{"NIC 2 pod to its node", p3, nicsPrimary1, netip.Addr{}},
		{"node to NIC 2 pod", n1.Node.Namespace, a3, netip.Addr{}},
		{"node's second address to local pod", n1.Node.Namespace, a1, nicsPrimary2},
		{"hub to the node's second address", c.Hub, nicsPrimary2, netip.Addr{}},
		{"remote node to the node's second address", n2.Node.Namespace, nicsPrimary2, netip.Addr{}},
		{"remote pod to the node's second address", p2, nicsPrimary2, netip.Addr{}},
	}
	for _, mode := range []string{"pods", "node", "off"} {
		n1.top["remotePods"] = mode
		n1.add("again-"+mode, n1.Pod(t, "again-"+mode), withArgs("IgnoreUnknown=1")).ok() // node-wide: reaches all pods
		for _, rp := range []string{"0", "1", "2"} {
			n1.rpFilter(rp, "eth0", "eth1")
			for _, p := range paths {
				t.Run(fmt.Sprintf("%s_rp_filter_%s/%s", mode, rp, p.name), func(t *testing.T) {
					r, err := p.from.Ping(context.Background(), p.to, lab.PingOptions{Count: 1, Timeout: echoWait, From: p.as})
					if err != nil || r.Received != 1 {
						t.Errorf("%+v %v\n%s", r, err, n1.sh("ip rule; ip route show table all"))
					}
				})
			}
		}
	}
	saw := c.InternetSaw()
	want := []netip.Addr{nicsPrimary1, nicsPrimary2}
	if !slices.Equal(saw, want) {
		t.Errorf("the internet saw %v, want %v: the primary address of the NIC that a pod's address is on", saw, want)
	}
}
