package netns

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// The files isolation_*_test.go have what a pod with NET_ADMIN and NET_RAW does to get at others. Sources that aren't the pod's are in
// TestNetnsPath_no_spoofing, Services that lead to the platform in TestNetnsPath_platform_addresses.

// isolationAttack are packets that shouldn't reach the platform.
type isolationAttack struct {
	packets []pathPacket
	// opens is what somebody has to do on the node so that they get there; $LINK is the pod's.
	opens string
}

// isolationSourceRoute is a packet to the node that asks to be sent on to another destination: option 131, RFC 791 section 3.1.
func isolationSourceRoute(p pathPacket, by netip.Addr) pathPacket {
	last := p.dst.As4()
	p.dst, p.options = by, append([]byte{1, 131, 7, 4}, last[:]...)
	return p
}

// isolationFragments cuts a packet so that the ports of TCP and the flags are in different fragments.
func isolationFragments(p pathPacket) []pathPacket {
	first, second := p, p
	first.id, second.id = 4711, 4711
	first.payload, first.frag = p.payload[:8], 0x2000
	second.payload, second.frag = p.payload[8:], 1
	return []pathPacket{first, second}
}

// No packet of a pod reaches wireserver's secrets or the metadata service, however it is made; DNS does.
func TestNetnsIsolation_platform(t *testing.T) {
	t.Parallel()
	c := newPathCloud(t, lab.CloudOptions{Nodes: lab.DefaultNodes(5)[:1]})
	s := c.nodes[0].pathAs(t)
	p, a := s.pathPod("bad")
	_, b := s.pathPod("other")
	node := c.Nodes[0].NICs[0].Primary
	port := func(ip netip.Addr, n uint16) netip.AddrPort { return netip.AddrPortFrom(ip, n) }
	own := port(a.IP, 5555)
	syn := func(from, to netip.AddrPort) pathPacket { return pathTCP(from, to, tcpSYN, make([]byte, 100)...) }
	secret := syn(own, port(lab.WireServer, 80))
	allowed := "nft flush chain ip native_vmss forward"
	unchecked := allowed + "; nft flush chain ip native_vmss prerouting; sysctl -qw net.ipv4.conf.$LINK.rp_filter=0"
	foreign := pathTCP(port(lab.CloudInternet, 80), port(lab.MetadataService, 80), tcpRST, make([]byte, 100)...)
	sourceRoutes := "sysctl -qw net.ipv4.conf.$LINK.accept_source_route=1"
	attacks := map[string]isolationAttack{
		"a_raw_segment_to_wireserver":      {[]pathPacket{secret}, allowed},
		"a_raw_segment_to_its_other_port":  {[]pathPacket{syn(own, port(lab.WireServer, 32526))}, allowed},
		"a_raw_segment_to_metadata":        {[]pathPacket{syn(own, port(lab.MetadataService, 80))}, allowed},
		"a_datagram_to_metadata":           {[]pathPacket{pathUDP(own, port(lab.MetadataService, 80), "x")}, allowed},
		"fragments_with_the_ports_apart":   {isolationFragments(secret), allowed},
		"under_the_nodes_address":          {[]pathPacket{syn(port(node, 5555), port(lab.WireServer, 80))}, unchecked},
		"under_another_pods_address":       {[]pathPacket{syn(port(b.IP, 5555), port(lab.WireServer, 80))}, unchecked},
		"under_the_platforms_own_address":  {[]pathPacket{syn(port(lab.MetadataService, 5555), port(lab.WireServer, 80))}, unchecked},
		"source_routed_by_the_node":        {[]pathPacket{isolationSourceRoute(secret, node)}, sourceRoutes},
		"source_routed_by_another_pod":     {[]pathPacket{isolationSourceRoute(secret, b.IP)}, ""},
		"a_segment_that_opens_nothing":     {[]pathPacket{pathTCP(own, port(lab.WireServer, 80), 0x10, make([]byte, 100)...)}, allowed},
		"a_reset_under_a_foreign_address":  {[]pathPacket{foreign}, unchecked},
		"an_unknown_protocol_to_metadata":  {[]pathPacket{{src: a.IP, dst: lab.MetadataService, proto: 253}}, allowed},
		"a_fragment_alone_to_metadata":     {isolationFragments(syn(own, port(lab.MetadataService, 80)))[1:], ""},
		"a_first_fragment_alone_to_secret": {isolationFragments(secret)[:1], ""},
	}
	// Somebody has let source routes in, and sources that are the node's own.
	s.sh("sysctl -qw net.ipv4.conf.all.accept_source_route=1 net.ipv4.conf.default.accept_source_route=1 net.ipv4.conf.all.accept_local=1")
	// got counts what arrives at the platform's end of the wire; a datagram to the hub that is sent last tells when to count.
	got := func(t *testing.T, attack []pathPacket) int {
		t.Helper()
		link := c.Nodes[0].Ports[0].Link()
		capture, err := c.Space.Capture(link)
		if err != nil {
			t.Fatal(err)
		}
		pathSend(t, p, attack...)
		pathSend(t, p, pathUDP(own, port(lab.CloudHub, 7777), "last"))
		waitFor(t, "the last datagram", func() bool {
			flows, err := capture.Seen()
			return err == nil && slices.ContainsFunc(flowsOf(flows), func(f lab.Flow) bool {
				return !f.Out && f.Src == a.IP && f.Dst == lab.CloudHub
			})
		})
		report, err := capture.Stop()
		if err != nil || report.Dropped > 0 {
			t.Fatalf("capture: %v, %d frames missed", err, report.Dropped)
		}
		n := 0
		for f, tally := range report.Flows {
			platform := !f.Out && f.Kind == lab.KindIPv4 && (f.Dst == lab.WireServer || f.Dst == lab.MetadataService)
			// The node's own are small and have no data: it resets what the platform says to a segment of an open guard.
			if nodes := f.Proto == unix.IPPROTO_TCP && tally.MaxPacket >= 40 && tally.MaxPacket <= 60; platform && !nodes {
				n += tally.Frames
			}
		}
		return n
	}
	for name, attack := range attacks {
		t.Run(name, func(t *testing.T) {
			if n := got(t, attack.packets); n > 0 {
				t.Errorf("%d packets of the pod reached the platform", n)
			}
			if attack.opens == "" {
				return
			}
			s := s.pathAs(t)
			s.sh(strings.ReplaceAll(attack.opens, "$LINK", a.HostLink))
			s.check("bad", p, a).fails(103)
			if n := got(t, attack.packets); n == 0 {
				t.Error("the same packets aren't seen with the guard open: the test proves nothing")
			}
			s.mustCtl("node", "repair")
			s.check("bad", p, a).ok()
			s.sh("conntrack -F 2>/dev/null")
			if n := got(t, attack.packets); n > 0 {
				t.Errorf("after repair %d packets of the pod reached the platform", n)
			}
		})
	}
	if secrets := pathSecrets(s.Node.Namespace); len(secrets) != 3 {
		t.Errorf("the node itself reads %v, want all three", secrets)
	}
}

func flowsOf(flows map[lab.Flow]lab.Tally) []lab.Flow {
	out := make([]lab.Flow, 0, len(flows))
	for f := range flows {
		out = append(out, f)
	}
	return out
}
