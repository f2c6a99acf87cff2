package netns

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// isolationPair is a node with a pod that means harm and one beside it, and what the node knows of everybody but the bad one.
type isolationPair struct {
	*stage
	bad, other *lab.Namespace
	a, o       *answer
}

func newIsolationPair(t *testing.T) *isolationPair {
	s := &isolationPair{stage: newStage(t, lab.SimpleOptions{})}
	s.bad, s.a = s.pathPod("bad")
	s.other, s.o = s.pathPod("other")
	s.reaches(s.bad, s.a.IP)
	s.reaches(s.other, s.o.IP)
	return s
}

// rest is what the node has of IPv4 for all but the bad pod: neighbours with their MACs, addresses, routes, links.
func (s *isolationPair) rest() string {
	s.t.Helper()
	var kept []string
	has := s.sh("ip -4 neigh show nud all; ip -4 -o addr | sed 's/valid_lft.*//'; ip -4 route show table all; ip rule; ip -o link")
	for line := range strings.Lines(has) {
		f := strings.Fields(line)
		if strings.Contains(line, s.a.HostLink) || len(f) == 0 {
			continue
		}
		if slices.Contains(f, "lladdr") { // its state changes all the time
			f = f[:len(f)-1]
		}
		kept = append(kept, strings.Join(f, " "))
	}
	slices.Sort(kept)
	return strings.Join(slices.Compact(kept), "\n")
}

// isolationARP is an answer that nobody asked for: ip is at mac. To every station, or to one.
func isolationARP(f *lab.Frames, to net.HardwareAddr, op byte, ip netip.Addr, mac net.HardwareAddr) []byte {
	b := slices.Concat([]byte(to), f.MAC(), []byte{0x08, 0x06, 0, 1, 8, 0, 6, 4, 0, op})
	b = slices.Concat(b, []byte(mac), ip.AsSlice(), []byte(to), ip.AsSlice())
	return append(b, make([]byte, 60-len(b))...)
}

var everybody = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// A pod that claims others' addresses by ARP changes nobody's neighbours but those of its own link, even on a node that takes answers
// which nobody asked for; nothing of it reaches other links.
func TestNetnsIsolation_ARP(t *testing.T) {
	t.Parallel()
	s := newIsolationPair(t)
	s.sh("sysctl -qw net.ipv4.conf.all.arp_accept=1 net.ipv4.conf.default.arp_accept=1 net.ipv4.conf.all.proxy_arp=1 " +
		"net.ipv4.conf." + s.a.HostLink + ".arp_accept=1")
	before := s.rest()
	inOther := s.in(s.other, "ip neigh show nud permanent")
	frames, err := s.bad.OpenFrames("eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer frames.Close()
	host, err := net.ParseMAC(s.a.HostMAC)
	if err != nil {
		t.Fatal(err)
	}
	atHost, err := s.Node.Capture(s.a.HostLink)
	if err != nil {
		t.Fatal(err)
	}
	elsewhere, err := s.Node.Capture(s.o.HostLink, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	in, out := s.stream(s.GW, s.o.IP), s.stream(s.other, lab.SimpleGateway)
	nobody := netip.MustParseAddr("10.20.0.77") // that no one else ever speaks of
	claimed := []netip.Addr{lab.SimpleGateway, lab.SimpleNode, s.o.IP, netip.MustParseAddr("169.254.1.1"), nobody}
	sent := 0
	for range 3 {
		for _, ip := range claimed {
			for _, to := range []net.HardwareAddr{everybody, host} {
				for _, op := range []byte{1, 2} {
					if err := frames.Send(isolationARP(frames, to, op, ip, frames.MAC())); err != nil {
						t.Fatal(err)
					}
					sent++
				}
			}
		}
	}
	claims := func(f lab.Flow) bool {
		return f.Kind == lab.KindARP && slices.Contains(claimed, f.Src) && f.Src == f.Dst
	}
	waitFor(t, "the claims at the node", func() bool {
		flows, err := atHost.Seen()
		n := 0
		for f, tally := range flows {
			if claims(f) && !f.Out {
				n += tally.Frames
			}
		}
		return err == nil && n == sent
	})
	if report, err := elsewhere.Stop(); err != nil || report.Dropped > 0 || report.Sum(claims).Frames > 0 {
		t.Errorf("claims on other links: %+v, %v, %d missed", report.Sum(claims), err, report.Dropped)
	}
	if _, err := atHost.Stop(); err != nil {
		t.Error(err)
	}
	if now := s.rest(); now != before {
		t.Errorf("the node has now\n%s\nbefore\n%s", now, before)
	}
	if now := s.in(s.other, "ip neigh show nud permanent"); now != inOther {
		t.Errorf("the other pod has now %s, before %s", now, inOther)
	}
	s.reaches(s.other, s.o.IP)
	s.reaches(s.bad, s.a.IP)
	s.check("other", s.other, s.o).ok()
	in()
	out()

	// The node does listen: of the pod itself it believes what it says.
	lie := net.HardwareAddr{0x02, 0x66, 0x66, 0x66, 0x66, 0x66}
	waitFor(t, "the pod's claim for its own address", func() bool { // within a second of another word the kernel ignores it
		if err := frames.Send(isolationARP(frames, everybody, 2, s.a.IP, lie)); err != nil {
			t.Fatal(err)
		}
		return strings.Contains(s.sh("ip neigh show dev "+s.a.HostLink), lie.String())
	})
}

// isolationRA is a router advertisement (RFC 4861 section 4.2) from a link-local address: default router for 30 minutes, and a prefix to
// make an address from.
func isolationRA(from net.HardwareAddr, src netip.Addr) []byte {
	all := netip.MustParseAddr("ff02::1")
	prefix := netip.MustParseAddr("2001:db8:bad::")
	ra := []byte{134, 0, 0, 0, 64, 0, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0}
	ra = append(ra, 1, 1) // source link-layer address
	ra = append(ra, from...)
	ra = append(ra, 3, 4, 64, 0xc0, 0, 0, 7, 8, 0, 0, 7, 8, 0, 0, 0, 0)
	ra = append(ra, prefix.AsSlice()...)
	sum := uint32(len(ra)) + unix.IPPROTO_ICMPV6
	for _, part := range [][]byte{src.AsSlice(), all.AsSlice(), ra} {
		for i := 0; i < len(part); i += 2 {
			sum += uint32(binary.BigEndian.Uint16(part[i:]))
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(ra[2:], ^uint16(sum))
	b := slices.Concat([]byte{0x33, 0x33, 0, 0, 0, 1}, []byte(from))
	b = append(b, []byte{0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(ra)), unix.IPPROTO_ICMPV6, 255}...)
	return slices.Concat(b, src.AsSlice(), all.AsSlice(), ra)
}

// isolationLinkLocal is the address that a link makes from its MAC.
func isolationLinkLocal(text string) string {
	m, err := net.ParseMAC(text)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("fe80::%02x%02x:%02xff:fe%02x:%02x%02x", m[0]^2, m[1], m[2], m[3], m[4], m[5])
}

// IPv6 is no side door: a pod that turns it on again, on a node that takes router advertisements wherever it can and routes IPv6, changes
// nothing of the node by advertisements, reaches no service that listens on [::], and nothing of it reaches another pod; nor where
// somebody turns it on at every link at once. Where somebody opens the host end's own settings, all of that works. CHECK says so, and
// repair closes it.
func TestNetnsIsolation_IPv6(t *testing.T) {
	t.Parallel()
	s := newIsolationPair(t)
	s.sh("sysctl -qw net.ipv6.conf.all.accept_ra=2 net.ipv6.conf.default.accept_ra=2 net.ipv6.conf.all.forwarding=1; " +
		"for f in /proc/sys/net/ipv6/conf/*/accept_ra; do echo 2 >$f; done")
	var l net.Listener
	err := s.Node.Do(func() (err error) { l, err = net.Listen("tcp6", "[::]:9999"); return err })
	if err != nil {
		t.Fatalf("the node has no IPv6, and nothing can be shown: %v", err)
	}
	defer l.Close()
	on := "sysctl -qw net.ipv6.conf.all.disable_ipv6=0 net.ipv6.conf.eth0.disable_ipv6=0 net.ipv6.conf.eth0.accept_dad=0; "
	s.in(s.bad, on+"ip -6 addr add fe80::99/64 dev eth0 nodad 2>/dev/null || true; "+
		"ip -6 route replace default via "+isolationLinkLocal(s.a.HostMAC)+" dev eth0")
	s.in(s.other, on)
	frames, err := s.bad.OpenFrames("eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer frames.Close()
	routed := func() string {
		return s.sh("L=" + s.a.HostLink + "; ip -6 -o addr show dev $L; " +
			"ip -6 route show table all | grep -v ^multicast | grep -e $L -e 2001:db8:bad -e default || true")
	}
	state := func() string { return routed() + s.sh("ip -6 neigh show dev "+s.a.HostLink) }
	advertise := func() {
		t.Helper()
		atHost, err := s.Node.Capture(s.a.HostLink)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := frames.Send(isolationRA(frames.MAC(), netip.MustParseAddr("fe80::99"))); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, "the advertisements at the node", func() bool {
			flows, err := atHost.Seen()
			return err == nil && slices.ContainsFunc(flowsOf(flows), func(f lab.Flow) bool { return f.Kind == lab.KindIPv6 && !f.Out })
		})
		if _, err := atHost.Stop(); err != nil {
			t.Error(err)
		}
	}
	connects := func(wait time.Duration) bool {
		err := s.bad.Do(func() error {
			c, err := net.DialTimeout("tcp6", "["+isolationLinkLocal(s.a.HostMAC)+"%eth0]:9999", wait)
			if err == nil {
				c.Close()
			}
			return err
		})
		return err == nil
	}
	atOther, err := s.other.Capture("eth0")
	if err != nil {
		t.Fatal(err)
	}
	closed := func(when string) {
		t.Helper()
		advertise()
		if got := state(); got != "" {
			t.Errorf("%s: the node took from the pod: %s", when, got)
		}
		if connects(silence) {
			t.Errorf("%s: the pod reached a service on [::]", when)
		}
	}
	closed("as it is")
	report, err := atOther.Stop()
	into := report.Sum(func(f lab.Flow) bool { return f.Kind == lab.KindIPv6 && !f.Out })
	if err != nil || report.Dropped > 0 || into.Frames > 0 {
		t.Errorf("IPv6 frames into the other pod: %+v, %v, %d missed", into, err, report.Dropped)
	}

	// Somebody turns IPv6 on at every link at once, on a node that is no router of it. Before that repair takes the settings back that were
	// made on every link above.
	s.mustCtl("node", "repair")
	s.sh("sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv6.conf.all.disable_ipv6=0")
	advertise() // a link with IPv6 notes who sent it, and no more
	if got := routed(); got != "" {
		t.Errorf("IPv6 turned on for all: the node took from the pod: %s", got)
	}
	if connects(silence) {
		t.Error("IPv6 turned on for all: the pod reached a service on [::]")
	}
	s.check("bad", s.bad, s.a).fails(103, s.a.HostLink+"/disable_ipv6")
	s.mustCtl("node", "repair")
	s.check("bad", s.bad, s.a).ok()
	s.sh("sysctl -qw net.ipv6.conf.all.forwarding=1")

	conf := "net.ipv6.conf." + s.a.HostLink
	s.sh("sysctl -qw " + conf + ".addr_gen_mode=0 " + conf + ".disable_ipv6=0 " + conf + ".accept_dad=0 " + conf + ".accept_ra=2")
	waitFor(t, "the node to take an advertisement with the guard open", func() bool {
		advertise()
		return strings.Contains(state(), "default") && strings.Contains(state(), "2001:db8:bad")
	})
	if !connects(echoWait) {
		t.Error("the service isn't reached with the guard open: the test proves nothing")
	}
	s.check("bad", s.bad, s.a).fails(103, "disable_ipv6", "addr_gen_mode is 0 instead of 1", "accept_ra is 2 instead of 0")
	s.mustCtl("node", "repair")
	s.check("bad", s.bad, s.a).ok()
	closed("after repair")
}

// A service of the node that listens on 127.0.0.1 isn't there for pods, also where the node routes loopback addresses, as kube-proxy has
// it, and whatever a pod writes as destination.
func TestNetnsIsolation_loopback_of_the_node(t *testing.T) {
	t.Parallel()
	s := newIsolationPair(t)
	s.sh("sysctl -qw net.ipv4.conf.all.route_localnet=1")
	srv, err := s.Node.EchoUDP(netip.MustParseAddrPort("127.0.0.1:7777"))
	if err != nil {
		t.Fatal(err)
	}
	open, err := s.Node.EchoUDP(netip.AddrPortFrom(lab.SimpleNode, 7777))
	if err != nil {
		t.Fatal(err)
	}
	frames, err := s.bad.OpenFrames("eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer frames.Close()
	host, err := net.ParseMAC(s.a.HostMAC)
	if err != nil {
		t.Fatal(err)
	}
	send := func(to netip.AddrPort) {
		t.Helper()
		if err := frames.Send(frames.UDP(host, netip.AddrPortFrom(s.a.IP, 5555), to, []byte("x"))); err != nil {
			t.Fatal(err)
		}
	}
	// attack is over when the node has answered what was sent last, to an address that is open.
	attack := func() int {
		t.Helper()
		before := len(open.Peers())
		send(srv.Addr)
		send(netip.MustParseAddrPort("127.8.8.8:7777"))
		send(open.Addr)
		waitFor(t, "the last datagram", func() bool { return len(open.Peers()) > before })
		return len(srv.Peers())
	}
	if n := attack(); n > 0 {
		t.Errorf("%d datagrams of the pod reached the node's loopback", n)
	}
	s.sh("nft flush chain ip native_vmss prerouting")
	s.check("bad", s.bad, s.a).fails(103, "loopback of the node")
	if attack() == 0 {
		t.Error("the same datagram isn't seen with the guard open: the test proves nothing")
	}
}

// What a pod sends without a source, as a DHCP client does, reaches nobody on the node.
func TestNetnsIsolation_no_source(t *testing.T) {
	t.Parallel()
	s := newIsolationPair(t)
	srv, err := s.Node.EchoUDP(netip.MustParseAddrPort("0.0.0.0:7767"))
	if err != nil {
		t.Fatal(err)
	}
	frames, err := s.bad.OpenFrames("eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer frames.Close()
	nobody := netip.IPv4Unspecified()
	// attack is over when the node has heard what was sent last, under the pod's own address.
	attack := func() (heard int) {
		t.Helper()
		before := len(srv.Peers())
		for _, from := range []netip.Addr{nobody, s.a.IP} {
			for _, to := range []string{"255.255.255.255", "224.0.0.1"} {
				lie := frames.UDP(everybody, netip.AddrPortFrom(from, 68), netip.AddrPortFrom(netip.MustParseAddr(to), 7767), []byte("x"))
				if err := frames.Send(lie); err != nil {
					t.Fatal(err)
				}
			}
		}
		own := func() (n int) {
			heard = 0
			for _, p := range srv.Peers()[before:] {
				if p.Remote.Addr() == nobody {
					heard++
				} else {
					n++
				}
			}
			return n
		}
		waitFor(t, "the last datagram", func() bool { return own() == 2 })
		return heard
	}
	if n := attack(); n > 0 {
		t.Errorf("%d datagrams without a source reached the node's service", n)
	}
	s.sh("nft flush chain ip native_vmss prerouting")
	s.check("bad", s.bad, s.a).fails(103, "no source")
	if attack() == 0 {
		t.Error("the same datagrams aren't seen with the guard open: the test proves nothing")
	}
}
