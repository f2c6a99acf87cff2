package netns

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// A node is no router: what the fabric delivers for an address that no pod holds is refused once and never sent back.
func TestNetnsPath_no_transit(t *testing.T) {
	t.Parallel()
	c := newPathCloud(t, lab.CloudOptions{Nodes: lab.DefaultNodes(4)})
	n1, n2 := c.nodes[0].pathAs(t), c.nodes[1].pathAs(t)
	n1.settle()
	p2, a2 := n2.pathPod("p2")
	free := n1.pool[3]
	port := c.Nodes[0].Ports[0].Link()

	// frames counts what passes node 1's port and names the free address.
	frames := func(t *testing.T, send func()) (in, out lab.Tally) {
		t.Helper()
		capture, err := c.Space.Capture(port)
		if err != nil {
			t.Fatal(err)
		}
		send()
		time.Sleep(100 * time.Millisecond) // a loop would go on meanwhile
		report, err := capture.Stop()
		if err != nil || report.Dropped > 0 {
			t.Fatalf("capture: %v, %d frames missed", err, report.Dropped)
		}
		about := func(out bool) lab.Tally {
			return report.Sum(func(f lab.Flow) bool { return f.Kind == lab.KindIPv4 && f.Dst == free && f.Out == out })
		}
		return about(true), about(false) // "out of" the fabric is into the node
	}
	wantOnce := func(t *testing.T, in, out lab.Tally) {
		t.Helper()
		if in.Frames != 1 || out.Frames != 0 {
			t.Errorf("%d frames came to node 1 for the free address and it sent %d of them on; want 1 and 0", in.Frames, out.Frames)
		}
	}
	for _, from := range []*lab.Namespace{p2, c.Hub, n2.Node.Namespace} {
		t.Run("ping_from_"+from.Name[strings.LastIndex(from.Name, "-")+1:]+"_is_refused_once", func(t *testing.T) {
			in, out := frames(t, func() {
				r, err := from.Ping(context.Background(), free, lab.PingOptions{Count: 1, Timeout: echoWait})
				if err != nil || r.Received != 0 || r.Unreachable != 1 || r.Expired != 0 {
					t.Errorf("ping: %+v %v, want one host-unreachable", r, err)
				}
				if node1 := c.Nodes[0].NICs[0].Primary; !slices.Contains(r.ErrorsFrom, node1) {
					t.Errorf("unreachable was said by %v, want %s", r.ErrorsFrom, node1)
				}
			})
			wantOnce(t, in, out)
		})
	}
	t.Run("connect_is_unreachable_at_once", func(t *testing.T) {
		begin := time.Now()
		v, err := p2.Connect(context.Background(), netip.AddrPortFrom(free, 80), echoWait)
		if err != nil || v != lab.Unreachable || time.Since(begin) > echoWait/2 {
			t.Errorf("connect: %s %v after %s, want unreachable", v, err, time.Since(begin))
		}
	})
	t.Run("a_stray_reset_is_not_bounced", func(t *testing.T) {
		in, out := frames(t, func() {
			pathSend(t, c.Hub, pathRST(netip.AddrPortFrom(lab.CloudHub, 1234), netip.AddrPortFrom(free, 4321)))
		})
		wantOnce(t, in, out)
	})
	t.Run("a_packet_for_an_untracked_protocol_is_not_bounced", func(t *testing.T) {
		n1.sh("nft 'add table ip raw0; add chain ip raw0 pre { type filter hook prerouting priority -301; }; " +
			"add rule ip raw0 pre ip daddr " + free.String() + " notrack'")
		defer n1.sh("nft delete table ip raw0")
		in, out := frames(t, func() {
			pathSend(t, c.Hub, pathPacket{src: lab.CloudHub, dst: free, proto: 253, payload: []byte("x")})
		})
		wantOnce(t, in, out)
	})
	t.Run("an_address_just_deleted_is_refused_too", func(t *testing.T) {
		_, a := n1.pathPod("gone")
		n1.del("gone", nil).ok()
		r, err := p2.Ping(context.Background(), a.IP, lab.PingOptions{Count: 1, Timeout: echoWait})
		if err != nil || r.Unreachable != 1 {
			t.Errorf("ping: %+v %v, want host-unreachable", r, err)
		}
	})
	t.Run("a_nodeport_to_a_remote_pod_passes", func(t *testing.T) {
		pathNodePort(t, c, n1, p2, a2.IP)
	})
	t.Run("both_kinds_of_translation_are_exempt", func(t *testing.T) {
		rules := n1.sh("nft list chain ip native_vmss forward")
		if !strings.Contains(rules, "snat") || !strings.Contains(rules, "dnat") {
			t.Errorf("the rule does not look at both: %s", rules)
		}
	})
}

// pathNodePort has node 1 hand a hub's connection on to a pod on node 2, as kube-proxy does it: DNAT, a mark, masquerade.
func pathNodePort(t *testing.T, c *pathCloud, n1 *stage, pod *lab.Namespace, ip netip.Addr) {
	t.Helper()
	n1.sh(`nft -f - <<'END'
table ip kubeproxy {
  chain pre { type nat hook prerouting priority -100; tcp dport 30080 meta mark set 0x4000 dnat to ` + ip.String() + `:8080; }
  chain post { type nat hook postrouting priority 100; meta mark & 0x4000 == 0x4000 masquerade fully-random; }
}
END`)
	defer n1.sh("nft delete table ip kubeproxy")
	srv, err := pod.EchoTCP(netip.AddrPortFrom(netip.IPv4Unspecified(), 8080))
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	node1 := c.Nodes[0].NICs[0].Primary
	for _, from := range []*lab.Namespace{c.Hub, c.Nodes[1].Namespace} {
		answer, _, err := from.Exchange(context.Background(), netip.AddrPortFrom(node1, 30080), "hello", echoWait)
		if err != nil || answer != "hello" {
			t.Errorf("NodePort from %s: %q %v", from.Name, answer, err)
		}
	}
	if got := srv.Sources(); !slices.Equal(got, []netip.Addr{node1}) {
		t.Errorf("the pod saw %v, want node 1 (%s)", got, node1)
	}
}
