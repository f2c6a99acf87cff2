package netns

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// nicsClient is somebody who talks to node1 from the network.
type nicsClient struct {
	name string
	from *lab.Namespace
	addr netip.Addr
}

func (c *pathCloud) nicsClients() []nicsClient {
	return []nicsClient{
		{"hub", c.Hub, lab.CloudHub},
		{"host_in_the_subnet_of_NIC_1", c.Nodes[1].Namespace, c.Nodes[1].NICs[0].Primary},
		{"host_in_the_subnet_of_NIC_2", c.Nodes[2].Namespace, c.Nodes[2].NICs[0].Primary},
	}
}

// nicsWire watches the fabric's ends of node1's NICs.
type nicsWire struct {
	t       testing.TB
	cloud   *pathCloud
	ports   []string
	capture *lab.Capture
	spoofed []uint64
}

func (c *pathCloud) nicsWatch(t testing.TB) *nicsWire {
	t.Helper()
	w := &nicsWire{t: t, cloud: c}
	for _, p := range c.Nodes[0].Ports {
		w.ports = append(w.ports, p.Link())
	}
	w.spoofed = w.refused()
	var err error
	if w.capture, err = c.Space.Capture(w.ports...); err != nil {
		t.Fatal(err)
	}
	return w
}

// refused is what the fabric dropped because the NIC that it came from doesn't own its source.
func (w *nicsWire) refused() (n []uint64) {
	w.t.Helper()
	drops, err := w.cloud.Fabric.Drops()
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range w.ports {
		n = append(n, drops[fmt.Sprintf("node1-%d", i)].Spoofed)
	}
	return n
}

// stop wants no frame that a NIC sent under an address that isn't its own, and returns what was seen.
func (w *nicsWire) stop() lab.Report {
	w.t.Helper()
	report, err := w.capture.Stop()
	if err != nil || report.Dropped > 0 {
		w.t.Fatalf("capture: %v, %d frames missed", err, report.Dropped)
	}
	for _, line := range report.Violations(func(f lab.Flow, _ lab.Tally) string {
		i := slices.Index(w.ports, f.Link)
		nic := w.cloud.Nodes[0].NICs[i]
		if f.Out || f.Kind != lab.KindIPv4 || f.Src == nic.Primary || slices.Contains(nic.Secondaries, f.Src) {
			return ""
		}
		return fmt.Sprintf("NIC %d sends under an address that isn't its own", i+1)
	}) {
		w.t.Error(line)
	}
	if now := w.refused(); !slices.Equal(now, w.spoofed) {
		w.t.Errorf("the fabric refused sources of node1's NICs: %v before, %v now", w.spoofed, now)
	}
	return report
}

// sent counts what node1 sent to somebody under an address, by NIC.
func (w *nicsWire) sent(r lab.Report, src, dst netip.Addr) (frames []int) {
	for _, port := range w.ports {
		frames = append(frames, r.Sum(func(f lab.Flow) bool {
			return f.Link == port && !f.Out && f.Kind == lab.KindIPv4 && f.Src == src && f.Dst == dst
		}).Frames)
	}
	return frames
}

// An answer leaves by the NIC whose address it carries: the node's own by the NIC that was asked, a pod's by the one that owns the
// pod's address. Azure drops it on any other.
func TestNetnsNICs_answers_leave_by_the_NIC_of_their_address(t *testing.T) {
	t.Parallel()
	c := nicsCloud(t)
	n1 := c.nodes[0].pathAs(t)
	p1, a1 := n1.podAt("p1", "10.20.1.10")
	p2, a2 := n1.podAt("p2", "10.20.17.10")
	targets := []struct {
		name string
		addr netip.Addr
		nic  int
	}{
		{"node_under_NIC_1", nicsPrimary1, 0},
		{"node_under_NIC_2", nicsPrimary2, 1},
		{"pod_of_NIC_1", a1.IP, 0},
		{"pod_of_NIC_2", a2.IP, 1},
	}
	for _, space := range []*lab.Namespace{n1.Node.Namespace, p1, p2} {
		if _, err := space.EchoTCP(netip.AddrPortFrom(netip.IPv4Unspecified(), 9000)); err != nil {
			t.Fatal(err)
		}
	}
	for _, rp := range []string{"0", "1", "2"} {
		n1.rpFilter(rp, "eth0", "eth1")
		for _, target := range targets {
			for _, client := range c.nicsClients() {
				t.Run("rp_filter_"+rp+"/"+target.name+"/to_"+client.name, func(t *testing.T) {
					s := n1.pathAs(t)
					wire := c.nicsWatch(t)
					if !s.answers(client.from, target.addr) {
						t.Error("no answer to a ping")
					}
					answer, _, err := client.from.Exchange(context.Background(), netip.AddrPortFrom(target.addr, 9000), "hello", echoWait)
					if err != nil || answer != "hello" {
						t.Errorf("TCP: %q %v", answer, err)
					}
					sent := wire.sent(wire.stop(), target.addr, client.addr)
					if sent[target.nic] < 3 || sent[1-target.nic] != 0 { // the echo, SYN ACK, data
						t.Errorf("answers by NIC: %v, want all by NIC %d\n%s", sent, target.nic+1, s.sh("ip rule; ip route show table all"))
					}
				})
			}
		}
	}
}

// nicsForward has node1 hand on what comes for one of its addresses, as a hostPort or a NodePort does.
func (s *stage) nicsForward(at, to netip.Addr, masquerade bool) (undo func()) {
	s.t.Helper()
	mark := ""
	if masquerade {
		mark = "meta mark set 0x4000 "
	}
	s.sh(fmt.Sprintf(`nft -f - <<'END'
table ip kubeproxy {
  chain pre { type nat hook prerouting priority -100; ip daddr %s tcp dport 8080 %sdnat to %s:9000; }
  chain post { type nat hook postrouting priority 100; meta mark & 0x4000 == 0x4000 masquerade fully-random; }
}
END`, at, mark, to))
	return func() { s.sh("nft delete table ip kubeproxy") }
}

// A port on one NIC's address that leads to the other NIC's network can't be answered: the answer would leave by the NIC of who
// gives it, under the address of the NIC that was asked. It fails, and nothing with a wrong source leaves a NIC.
func TestNetnsNICs_port_of_one_NIC_for_a_pod_of_another(t *testing.T) {
	t.Parallel()
	c := nicsCloud(t)
	n1 := c.nodes[0].pathAs(t)
	p1, a1 := n1.podAt("p1", "10.20.1.10")
	p2, a2 := n1.podAt("p2", "10.20.17.10")
	r1, b1 := c.nodes[1].pathAs(t).podAt("r1", "10.20.2.10")
	r2, b2 := c.nodes[2].pathAs(t).podAt("r2", "10.20.19.10")
	for _, pod := range []*lab.Namespace{p1, p2, r1, r2, c.Hub} {
		if _, err := pod.EchoTCP(netip.AddrPortFrom(netip.IPv4Unspecified(), 9000)); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name       string
		at, to     netip.Addr
		masquerade bool
		works      bool
		either     bool // which depends on the client
	}{
		{"hostPort_of_NIC_1_for_its_pod_works", nicsPrimary1, a1.IP, false, true, false},
		{"hostPort_of_NIC_2_for_its_pod_works", nicsPrimary2, a2.IP, false, true, false},
		{"NodePort_of_NIC_2_for_a_remote_pod_of_its_subnet_works", nicsPrimary2, b2.IP, true, true, false},
		{"hostPort_of_NIC_2_for_a_pod_of_NIC_1", nicsPrimary2, a1.IP, false, false, false},
		{"hostPort_of_NIC_1_for_a_pod_of_NIC_2", nicsPrimary1, a2.IP, false, false, false},
		{"NodePort_of_NIC_2_for_a_pod_of_NIC_1", nicsPrimary2, a1.IP, true, false, false},
		{"NodePort_of_NIC_1_for_a_pod_of_NIC_2", nicsPrimary1, a2.IP, true, false, false},
		{"NodePort_of_NIC_2_for_a_remote_pod_of_NIC_1s_subnet", nicsPrimary2, b1.IP, true, false, false},
		{"NodePort_of_NIC_2_for_a_host_elsewhere", nicsPrimary2, lab.CloudHub, true, false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := n1.pathAs(t)
			defer s.nicsForward(tt.at, tt.to, tt.masquerade)()
			for _, rp := range []string{"0", "1", "2"} {
				s.rpFilter(rp, "eth0", "eth1")
				for _, client := range c.nicsClients() {
					if client.addr == tt.to {
						continue
					}
					wire := c.nicsWatch(t)
					wait := echoWait
					if !tt.works {
						wait = silence
					}
					v, err := client.from.Connect(context.Background(), netip.AddrPortFrom(tt.at, 8080), wait)
					if err != nil || (v == lab.Connected) != tt.works && !tt.either {
						t.Errorf("rp_filter %s, from %s: %s %v, works must be %v", rp, client.name, v, err, tt.works)
					}
					wire.stop()
				}
			}
		})
	}
}
