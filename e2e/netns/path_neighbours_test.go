package netns

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// pathRemote are the remote pods of the neighbour test; each is an address of its own.
const pathRemote = 2000

// pathNeighbours are the NIC's neighbours as ip shows them: all, and those that could not be resolved.
func (s *stage) pathNeighbours() (all, failed int) {
	s.t.Helper()
	for line := range strings.Lines(s.sh("ip -4 neigh show dev eth0 nud all")) {
		switch {
		case strings.Contains(line, "NOARP"):
		case strings.Contains(line, "FAILED"), strings.Contains(line, "INCOMPLETE"):
			failed++
			all++
		default:
			all++
		}
	}
	return all, failed
}

// pathHandshakes finishes one TCP handshake with each remote peer.
func (s *stage) pathHandshakes(from *lab.Namespace, peers []netip.AddrPort) {
	s.t.Helper()
	s.sh("ip neigh flush dev eth0 nud all")
	done, failed := from.Handshakes(context.Background(), peers, 8, 20*time.Second)
	if done != len(peers) {
		s.t.Errorf("%d of %d handshakes finished", done, len(peers))
		for p, err := range failed {
			s.t.Logf("for example %s: %v", p, err)
			break
		}
	}
}

// The neighbour table does not grow with the cluster: the traffic of pods with 2,000 remote pods needs one neighbour.
func TestNetnsPath_neighbours(t *testing.T) {
	t.Parallel()
	c := newPathCloud(t, lab.CloudOptions{Nodes: lab.DefaultNodes(4)[:1]})
	s := c.nodes[0].pathAs(t)
	srv, err := c.Peers.EchoTCP(netip.AddrPortFrom(netip.IPv4Unspecified(), 9000))
	if err != nil {
		t.Fatal(err)
	}
	var peers []netip.AddrPort
	for _, a := range lab.AddrRange(lab.CloudPeers.Addr().Next().Next(), pathRemote) {
		peers = append(peers, netip.AddrPortFrom(a, 9000))
	}
	s.sh("for t in 1 2 3; do f=/proc/sys/net/ipv4/neigh/default/gc_thresh$t; [ ! -w $f ] || echo 4096 >$f; done")
	tests := []struct {
		name, mode string
		fromNode   bool
		one        bool
	}{
		{"pods_of_2000_remote_pods_make_one_neighbour", "pods", false, true},
		{"the_nodes_own_traffic_is_left_alone_by_default", "pods", true, false},
		{"node_too_with_remotePods_node", "node", true, true},
		{"off_makes_one_for_each", "off", false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := s.pathAs(t)
			s.top["remotePods"] = tt.mode
			p, a := s.pathPod("p-" + tt.name[:6])
			from, source := p, a.IP
			if tt.fromNode {
				from, source = s.Node.Namespace, c.Nodes[0].NICs[0].Primary
			}
			asked := peers
			if !tt.one {
				asked = peers[:500] // hundreds are the point
			}
			seen := len(srv.Peers())
			s.pathHandshakes(from, asked)
			all, failed := s.pathNeighbours()
			t.Logf("%d handshakes: %d neighbours, %d failed", len(asked), all, failed)
			if failed > 0 || tt.one && all != 1 || !tt.one && all < 300 {
				t.Errorf("%d neighbours, %d of them failed", all, failed)
			}
			locals := map[netip.Addr]bool{}
			for _, peer := range srv.Peers()[seen:] {
				locals[peer.Local.Addr()] = true
				if peer.Remote.Addr() != source {
					t.Fatalf("a remote pod saw %s, not %s", peer.Remote.Addr(), source)
				}
			}
			if len(locals) != len(asked) {
				t.Errorf("%d distinct remote pods, want %d", len(locals), len(asked))
			}
		})
	}
}
