package netns

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/fakeazure"
	"github.com/native-vmss/native-vmss/internal/lab"
)

// nicsRefresh is the shortest age of the stored addresses at which an ADD asks metadata again.
const nicsRefresh = 1100 * time.Millisecond

// nicsStage has node1 with a NIC in the first subnet and n addresses on it, and node3 with one in the second.
func nicsStage(t testing.TB, n int) (*pathCloud, *stage) {
	t.Helper()
	one := nicsFirst(1)
	one.Secondaries = lab.AddrRange(one.Secondaries[0], n)
	c := newPathCloud(t, lab.CloudOptions{Nodes: []lab.CloudNodeOptions{
		{Name: "node1", NICs: []lab.CloudNIC{one}},
		{Name: "node3", NICs: []lab.CloudNIC{nicsSecond(3)}},
	}})
	s := c.nodes[0].pathAs(t)
	s.ipam["refresh"] = "1s"
	return c, s
}

// nicsListed makes metadata list these of node1's NICs, by number.
func (c *pathCloud) nicsListed(t testing.TB, numbers ...int) {
	t.Helper()
	vm := fakeazure.VM{Name: "node1"}
	for _, i := range numbers {
		nic := c.Nodes[0].NICs[i]
		vm.NICs = append(vm.NICs, fakeazure.NIC{
			Name: fmt.Sprintf("nic%d", i), MAC: fakeazure.MAC(nic.MAC), Primary: nic.Primary, Secondaries: nic.Secondaries,
			Subnet: strings.NewReplacer(".", "-", "/", "-").Replace(nic.Subnet.String()),
		})
	}
	if err := c.Azure.RemoveVM("node1"); err != nil {
		t.Fatal(err)
	}
	if err := c.Azure.AddVM(vm); err != nil {
		t.Fatal(err)
	}
}

// plug gives node1 its second NIC, or the same one again.
func (c *pathCloud) plug(t testing.TB) {
	t.Helper()
	if err := c.Plug(c.Nodes[0], nicsSecond(1)); err != nil {
		t.Fatal(err)
	}
}

// nicsNamed lists what of ours in the kernel has to do with the second NIC: by its subnet, its primary address or a link's name.
func (s *stage) nicsNamed(words ...string) (lines []string) {
	s.t.Helper()
	for line := range strings.Lines(s.sh("ip rule; ip route show table all proto " + pathProtocol + "; nft list table ip native_vmss")) {
		for _, w := range words {
			if strings.Contains(line, w) && !strings.Contains(line, "dev veth") {
				lines = append(lines, strings.TrimSpace(line))
				break
			}
		}
	}
	return lines
}

// nicsTwoWays wants a pod to reach the hub and a host of the second subnet, and these to reach it.
func (s *stage) nicsTwoWays(c *pathCloud, p *lab.Namespace, ip netip.Addr) {
	s.t.Helper()
	for _, host := range []struct {
		space *lab.Namespace
		addr  netip.Addr
	}{{c.Hub, lab.CloudHub}, {c.Nodes[len(c.Nodes)-1].Namespace, c.Nodes[len(c.Nodes)-1].NICs[0].Primary}} {
		if !s.answers(p, host.addr) || !s.answers(host.space, ip) {
			s.t.Errorf("pod %s and %s don't reach each other\n%s", ip, host.addr, s.sh("ip rule; ip route show table all"))
		}
	}
}

// A NIC is attached to a node with running pods, and detached again, in metadata and as a link: pods of the first NIC notice
// nothing, what is made for the second one comes and goes with it.
func TestNetnsNICs_hotplug(t *testing.T) {
	t.Parallel()
	c, s := nicsStage(t, 6)
	one, a1 := s.podAt("one", "10.20.1.10")
	if _, err := c.Hub.EchoTCP(netip.AddrPortFrom(netip.IPv4Unspecified(), 9000)); err != nil {
		t.Fatal(err)
	}
	tcp, err := one.StartStream(context.Background(), netip.AddrPortFrom(lab.CloudHub, 9000), 5*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	out, in := s.stream(one, lab.CloudHub), s.stream(c.Hub, a1.IP)

	c.plug(t)
	c.nicsListed(t, 0, 1)
	time.Sleep(nicsRefresh)
	two, a2 := s.podAt("two", "10.20.17.10")
	t.Run("a_new_NIC_is_used_after_a_refresh", func(t *testing.T) {
		s := s.pathAs(t)
		s.nicsTwoWays(c, two, a2.IP)
		s.check("two", two, a2).ok()
		s.check("one", one, a1).ok()
		if got := s.nicsNamed("10.20.16.", "eth1"); len(got) < 10 {
			t.Errorf("rules, routes and sets of the new NIC: %q", got)
		}
		if !s.answers(two, lab.CloudInternet) {
			t.Error("the new NIC's pod does not reach the internet")
		}
		if saw := c.InternetSaw(); len(saw) != 1 || saw[0] != nicsPrimary2 {
			t.Errorf("the internet saw %v, want the new NIC's primary address", saw)
		}
	})
	s.sh("ip link del eth1")
	t.Run("CHECK_names_a_NIC_that_is_gone_to_its_own_pods_only", func(t *testing.T) {
		s := s.pathAs(t)
		s.check("two", two, a2).fails(103, "eth1", c.Nodes[0].NICs[1].MAC.String(), a2.IP.String())
		s.check("one", one, a1).ok()
	})
	t.Run("nothing_is_handed_out_of_a_NIC_that_is_gone", func(t *testing.T) {
		s := s.pathAs(t) // metadata lists it still, as it does for a while
		s.add("three", s.Pod(t, "three"), withArgs("IgnoreUnknown=1;IP=10.20.17.11")).fails(11, c.Nodes[0].NICs[1].MAC.String())
		c.nicsListed(t, 0)
		for i := range 2 {
			id := fmt.Sprintf("later%d", i)
			if _, a := s.pathPod(id); !nicsFirst(1).Subnet.Contains(a.IP) {
				t.Errorf("a new pod got %s", a.IP)
			}
			time.Sleep(nicsRefresh) // the second one: metadata doesn't list it any more
		}
	})
	t.Run("repair_removes_what_was_made_for_it", func(t *testing.T) {
		s := s.pathAs(t)
		s.mustCtl("node", "repair")
		if got := s.nicsNamed("10.20.16.", "eth1"); len(got) > 0 {
			t.Errorf("left of the NIC: %q", got)
		}
		s.check("two", two, a2).fails(103, c.Nodes[0].NICs[1].MAC.String(), a2.IP.String())
		s.check("one", one, a1).ok()
	})
	c.plug(t) // eth2 now
	c.nicsListed(t, 0, 2)
	t.Run("its_pods_go_on_when_it_comes_back_under_another_name", func(t *testing.T) {
		s := s.pathAs(t)
		time.Sleep(nicsRefresh)
		s.pathPod("again")
		s.nicsTwoWays(c, two, a2.IP)
		s.check("two", two, a2).ok()
		if got := s.nicsNamed("eth1"); len(got) > 0 {
			t.Errorf("the old name: %q", got)
		}
	})
	s.sh("ip link del eth2")
	t.Run("DEL_works_without_the_NIC", func(t *testing.T) {
		s := s.pathAs(t)
		s.del("two", two).ok()
		s.podEmpty(two, "after DEL")
		s.mustCtl("node", "repair")
		if got := s.nicsNamed("10.20.16.", "10.20.17.", "eth1", "eth2"); len(got) > 0 {
			t.Errorf("left of the NIC: %q", got)
		}
	})
	out()
	in()
	if r := tcp.Stop(); r.Err != nil || r.Sent != r.Echoed || r.Sent == 0 {
		t.Errorf("the TCP stream of the first NIC's pod: %+v", r)
	}
}

// The same while metadata gives no answer: that one NIC is gone keeps the other from nothing.
func TestNetnsNICs_detached_while_metadata_is_out(t *testing.T) {
	t.Parallel()
	for _, first := range []string{"ADD", "repair"} {
		t.Run(first+"_leaves_the_NIC_out", func(t *testing.T) {
			t.Parallel()
			s := newStage(t, lab.SimpleOptions{Pool2: lab.AddrRange(netip.MustParseAddr("10.20.1.50"), 9)})
			one, a := s.podAt("one", "10.20.0.10")
			s.podAt("two", "10.20.1.50")
			s.MD.HandleFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusNotFound) })
			s.sh("ip link del eth1")
			if first == "repair" {
				s.mustCtl("node", "repair")
			}
			for i := range 4 { // all that the first NIC has
				p, b := s.pathPod(fmt.Sprintf("later%d", i))
				if !lab.SimpleSubnet.Contains(b.IP) {
					t.Errorf("a new pod got %s", b.IP)
				}
				s.reaches(p, b.IP)
			}
			s.add("more", s.Pod(t, "more")).fails(11, "eth1 "+lab.SimpleMAC2+" (which can't be used now)")
			if got := s.nicsNamed("10.20.1.", "eth1"); len(got) > 0 {
				t.Errorf("left of the NIC: %q", got)
			}
			s.check("one", one, a).ok()
			s.reaches(one, a.IP)
		})
	}
}

// A full node gets a NIC: the ADD that asks metadata because nothing is free makes its rules too.
func TestNetnsNICs_hotplug_on_a_full_node(t *testing.T) {
	t.Parallel()
	c, s := nicsStage(t, 1)
	s.ipam["refresh"] = "1h"
	s.pathPod("one")
	c.plug(t)
	c.nicsListed(t, 0, 1)
	time.Sleep(5100 * time.Millisecond) // with nothing free metadata is asked every 5 s at most
	p, a := s.pathPod("two")
	if !nicsSubnet2.Contains(a.IP) {
		t.Fatalf("the pod got %s", a.IP)
	}
	s.nicsTwoWays(c, p, a.IP)
	s.check("two", p, a).ok()
}

// The same for a pod of another main plugin: the answer has the new NIC's subnet.
func TestNetnsNICs_hotplug_on_a_full_node_under_another_main(t *testing.T) {
	t.Parallel()
	c, s := nicsStage(t, 1)
	s.ipam["refresh"] = "1h"
	s.pathPod("one")
	c.plug(t)
	c.nicsListed(t, 0, 1)
	time.Sleep(5100 * time.Millisecond)
	call := s.call("ADD", "two", s.Pod(t, "two"))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	o := s.Node.RunPlugin(ctx, program(t, "ipam-vmss"), call)
	if !o.OK() || !strings.Contains(string(o.Stdout), `10.20.17.10/20`) {
		t.Errorf("exit %d: %s", o.Exit, o.Stdout)
	}
}
