package netns

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/fakeazure"
	"github.com/native-vmss/native-vmss/internal/lab"
)

// pathWatch counts, with foreign rules, what of a pod's link got past every guard: packets that reach forward or input from a
// source that isn't the pod's.
func (s *stage) pathWatch(link string, ip netip.Addr) {
	s.t.Helper()
	s.sh(`nft -f - <<'END'
table ip watch {
  counter spoofed { }
  counter honest { }
  chain seen { }
  chain c1 { type filter hook forward priority -400; jump seen; }
  chain c2 { type filter hook input priority -400; jump seen; }
}
add rule ip watch seen iifname ` + link + ` ip saddr != ` + ip.String() + ` counter name spoofed
add rule ip watch seen iifname ` + link + ` ip saddr ` + ip.String() + ` udp dport 7777 counter name honest
END`)
}

// pathCounted reads and clears a counter.
func (s *stage) pathCounted(name string) int {
	s.t.Helper()
	f := strings.Fields(s.sh("nft reset counter ip watch " + name))
	i := slices.Index(f, "packets")
	if i < 0 {
		s.t.Fatalf("counter %s: %v", name, f)
	}
	n, err := strconv.Atoi(f[i+1])
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// No spoofed source leaves a pod, and each of the two guards is enough for that at any all.rp_filter.
func TestNetnsPath_no_spoofing(t *testing.T) {
	t.Parallel()
	c := newPathCloud(t, lab.CloudOptions{Nodes: lab.DefaultNodes(3)})
	n1, n2 := c.nodes[0].pathAs(t), c.nodes[1].pathAs(t)
	bad, a := n1.pathPod("bad")
	other, b := n1.pathPod("other")
	remote, r := n2.pathPod("remote")
	n1.pathWatch(a.HostLink, a.IP)
	node := c.Nodes[0].NICs[0].Primary

	targets := map[string]netip.Addr{"remote": r.IP, "node": node, "local": b.IP}
	servers := map[string]*lab.Server{}
	for name, space := range map[string]*lab.Namespace{"remote": remote, "node": n1.Node.Namespace, "local": other} {
		srv, err := space.EchoUDP(netip.AddrPortFrom(netip.IPv4Unspecified(), 7777))
		if err != nil {
			t.Fatal(err)
		}
		servers[name] = srv
	}
	sources := []netip.Addr{
		b.IP, node, r.IP, n1.pool[2], c.Nodes[1].NICs[0].Primary, lab.CloudHub, lab.CloudInternet,
		netip.MustParseAddr("192.0.2.66"), netip.MustParseAddr("169.254.1.1"),
	}
	seen := func(name string, src netip.Addr) (n int) {
		for _, p := range servers[name].Peers() {
			if p.Remote.Addr() == src {
				n++
			}
		}
		return n
	}
	// attack sends every lie to every target and then the truth, which comes after them.
	attack := func(t *testing.T) (got int) {
		t.Helper()
		n1.pathCounted("spoofed")
		n1.pathCounted("honest")
		for name, dst := range targets {
			honest := seen(name, a.IP)
			to := netip.AddrPortFrom(dst, 7777)
			for _, src := range sources {
				pathSend(t, bad, pathUDP(netip.AddrPortFrom(src, 5555), to, "lie"))
			}
			pathSend(t, bad, pathUDP(netip.AddrPortFrom(a.IP, 5555), to, "truth"))
			if !pathEventually(echoWait, func() bool { return seen(name, a.IP) > honest }) {
				t.Errorf("the pod's own address did not reach the %s target", name)
			}
		}
		if n := n1.pathCounted("honest"); n != len(targets) {
			t.Errorf("%d honest packets counted, want %d: the observer is blind", n, len(targets))
		}
		return n1.pathCounted("spoofed")
	}
	restore := func() {
		n1.sh("sysctl -qw net.ipv4.conf." + a.HostLink + ".rp_filter=1 net.ipv4.conf.all.rp_filter=0")
		n1.mustCtl("node", "repair")
	}
	for _, guard := range []struct{ name, script string }{
		{"both_guards", "true"},
		{"policy_table_alone", "sysctl -qw net.ipv4.conf." + a.HostLink + ".rp_filter=0"},
		{"rp_filter_alone", "nft delete table ip native_vmss"},
		{"loose_rp_filter_alone", "nft delete table ip native_vmss; sysctl -qw net.ipv4.conf." + a.HostLink + ".rp_filter=2"},
	} {
		for _, all := range []int{0, 1, 2} {
			t.Run(fmt.Sprintf("%s_at_all_rp_filter_%d", guard.name, all), func(t *testing.T) {
				defer restore()
				n1.sh(fmt.Sprintf("sysctl -qw net.ipv4.conf.all.rp_filter=%d; %s", all, guard.script))
				if n := attack(t); n > 0 {
					t.Errorf("%d spoofed packets got past the guards", n)
				}
			})
		}
	}
	for name, srv := range servers {
		if got := srv.Sources(); !slices.Equal(got, []netip.Addr{a.IP}) {
			t.Errorf("the %s target saw %v, want the pod's own address alone", name, got)
		}
	}
	if drops, err := c.Fabric.Drops(); err != nil || drops["node1-0"] != (fakeazure.Drops{}) {
		t.Errorf("the fabric had to drop %+v of node 1 (%v)", drops["node1-0"], err)
	}
	t.Run("without_both_the_observers_see_them", func(t *testing.T) {
		defer restore()
		n1.sh("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf." + a.HostLink + ".rp_filter=0; nft delete table ip native_vmss")
		drops := attack(t)
		if d, err := c.Fabric.Drops(); err != nil || drops == 0 || d["node1-0"].Spoofed == 0 || len(servers["local"].Sources()) == 1 {
			t.Errorf("nothing stops them and still: %d at the node, %+v at the fabric, %v at a pod (%v)",
				drops, d["node1-0"], servers["local"].Sources(), err)
		}
	})
}
