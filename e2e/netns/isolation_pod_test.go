package netns

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// Whatever a pod with NET_ADMIN does to its own addresses, routes, neighbours, MAC and link, it hurts itself alone: the pod beside it
// and the node lose no packet and no stream, nothing under others' addresses leaves the node, and the node's state is as it was but for
// the pod's own link.
func TestNetnsIsolation_a_pod_hurts_itself_alone(t *testing.T) {
	t.Parallel()
	s := newIsolationPair(t)
	before := s.rest()
	srv, err := s.GW.EchoTCP(netip.AddrPortFrom(lab.SimpleGateway, 9000))
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.other.StartStream(context.Background(), srv.Addr, 5*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	ends := []func(){
		s.stream(s.GW, s.o.IP), s.stream(s.other, lab.SimpleGateway), s.stream(s.Node.Namespace, s.o.IP), s.stream(s.other, lab.SimpleNode),
	}
	capture, err := s.Node.Capture("eth0", s.o.HostLink)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.NewReplacer("$OTHER", s.o.IP.String(), "$MAC2", s.o.PodMAC, "$MAC1", s.a.HostMAC, "$NODE", lab.SimpleNode.String(),
		"$GW", lab.SimpleGateway.String())
	claims := []netip.Addr{s.o.IP, lab.SimpleNode, lab.SimpleGateway, lab.SimpleInternet}
	s.claims(s.a.IP) // an honest one
	for _, act := range []string{
		"ip addr add $OTHER/32 dev eth0",
		"ip addr add $NODE/24 dev eth0",
		"ip addr add $GW/24 dev eth0; ip addr add 203.0.113.10/32 dev eth0",
		"sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.proxy_arp=1 net.ipv4.conf.eth0.proxy_arp=1",
		"ip neigh replace $OTHER lladdr $MAC1 dev eth0 nud permanent",
		"ip route replace blackhole default; ip route replace 10.20.0.0/24 dev eth0",
		"ip link set eth0 mtu 9000",
		"ip link set eth0 address 02:66:66:66:66:66",
		"ip link set eth0 address $MAC2",
		"ip link set eth0 address $MAC1",
		"ip link set eth0 down; ip link set eth0 up",
		"ip rule flush; ip route flush table main; ip addr flush dev eth0",
		"ip link set eth0 name vethaaaaaaaaaaa; ip link set vethaaaaaaaaaaa alias 'nvm1 lie' group 28278",
		"ip link del vethaaaaaaaaaaa",
	} {
		s.in(s.bad, words.Replace(act))
		for _, from := range claims {
			s.claims(from)
		}
		s.check("other", s.other, s.o).ok()
	}
	for _, end := range ends {
		end()
	}
	if r := st.Stop(); r.Err != nil || r.Echoed != r.Sent || r.Sent == 0 {
		t.Errorf("the other pod's TCP stream: %+v", r)
	}
	report, err := capture.Stop()
	if err != nil || report.Dropped > 0 {
		t.Fatalf("capture: %v, %d frames missed", err, report.Dropped)
	}
	// The other pod's and the node's own packets are echoes and TCP; a claim is a datagram.
	lies := report.Sum(func(f lab.Flow) bool {
		return f.Kind == lab.KindIPv4 && f.Proto == 17 && slices.Contains(claims, f.Src)
	})
	if lies.Frames > 0 {
		t.Errorf("%d datagrams under others' addresses got past the node", lies.Frames)
	}
	if seen := report.Sum(func(f lab.Flow) bool { return f.Proto == 17 && f.Src == s.a.IP && f.Out }); seen.Frames != 2 {
		t.Errorf("%d honest datagrams were seen, want 2: the capture is blind", seen.Frames)
	}
	if now := s.rest(); now != before {
		t.Errorf("the node has now\n%s\nbefore\n%s", now, before)
	}
	s.reaches(s.other, s.o.IP)
	s.del("bad", s.bad).ok()
	s.check("other", s.other, s.o).ok()
}

// claims has the bad pod send datagrams under an address, past its own stack, to the gateway and to the pod beside, while it has a link.
func (s *isolationPair) claims(from netip.Addr) {
	s.t.Helper()
	link := s.in(s.bad, "ip -o link show up type veth | cut -d: -f2 | cut -d@ -f1")
	if link == "" {
		return
	}
	frames, err := s.bad.OpenFrames(link)
	if err != nil {
		s.t.Fatal(err)
	}
	defer frames.Close()
	host, err := net.ParseMAC(s.a.HostMAC)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, to := range []netip.Addr{lab.SimpleGateway, s.o.IP} {
		lie := frames.UDP(host, netip.AddrPortFrom(from, 5555), netip.AddrPortFrom(to, 7777), []byte("lie"))
		if err := frames.Send(lie); err != nil {
			s.t.Fatal(err)
		}
	}
}
