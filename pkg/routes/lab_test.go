package routes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/nstest"
)

const testMTU = 1400

var (
	nodeAddr   = netip.MustParseAddr("10.20.0.4")
	fabricAddr = netip.MustParseAddr("10.20.0.1")
	subnet     = netip.MustParsePrefix("10.20.0.0/16")
)

// lab is a node with one NIC, eth0, on a fabric that routes 203.0.113.1 too.
type lab struct {
	t      *testing.T
	node   *nstest.NS
	fabric *nstest.NS
	k      *Kernel
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, node: nstest.New(t), fabric: nstest.Beside(t)}
	l.node.Run("ip link add eth0 mtu 1400 type veth peer name port mtu 1400 netns " + l.fabric.Path())
	for _, line := range []string{"ip link set lo up", "ip addr add 10.20.0.4/16 dev eth0", "ip link set eth0 up"} {
		l.node.Run(line)
	}
	for _, line := range []string{
		"ip link set lo up", "ip addr add 10.20.0.1/16 dev port", "ip link set port up", "ip addr add 203.0.113.1/32 dev lo",
		"ip addr add 168.63.129.16/32 dev lo", "ip addr add 169.254.169.254/32 dev lo",
	} {
		l.fabric.Run(line)
	}
	l.node.Run("ip route add default via 10.20.0.1 dev eth0 metric 100")
	l.k = newKernel(t)
	return l
}

func newKernel(t *testing.T) *Kernel {
	t.Helper()
	k, err := New(nil)
	must(t, err)
	t.Cleanup(k.Close)
	return k
}

// testPod is a pod that was attached.
type testPod struct {
	*nstest.NS
	pod  *Pod
	pair Pair
	addr netip.Addr
	key  Hash
}

func testPair(n byte) Pair {
	return Pair{
		Name: fmt.Sprintf("veth%011x", n), IfName: "eth0", MTU: testMTU, HostMAC: [6]byte{2, 0, 0, 0, 1, n}, PodMAC: [6]byte{2, 0, 0, 0, 2, n},
	}
}

// attach does what an ADD does to the kernel.
func (l *lab) attach(n byte, addr string) *testPod {
	l.t.Helper()
	p := &testPod{NS: nstest.Beside(l.t), addr: netip.MustParseAddr(addr), key: Hash{0: n}, pair: testPair(n)}
	p.pod = l.open(p.NS)
	ctx := l.t.Context()
	must(l.t, l.k.CreatePair(ctx, p.pod, &p.pair))
	must(l.t, l.k.SetAlias(ctx, p.pair.Index, testAlias(addr, n).String()))
	must(l.t, p.pod.Configure(ctx, p.pair.IfName, p.addr, p.pair.HostMAC))
	must(l.t, l.k.HostEndUp(ctx, p.pair.Name, p.pair.Index))
	must(l.t, l.k.AddPodRoute(ctx, p.addr, p.pair.Index))
	l.waitUp(p)
	return p
}

// waitUp waits until both ends send: of the end that came up first the kernel learns a moment later that it has a carrier.
func (l *lab) waitUp(p *testPod) {
	l.t.Helper()
	for range 400 {
		host, _, err := l.k.rt.linkByName(l.t.Context(), p.pair.Name)
		must(l.t, err)
		pod, _, err := p.pod.rt.linkByName(l.t.Context(), p.pair.IfName)
		must(l.t, err)
		if host.Attrs().OperState == netlink.OperUp && pod.Attrs().OperState == netlink.OperUp {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	l.t.Fatal("the pair doesn't come up")
}

// state is all links by name and all IPv4 routes of the node.
func (l *lab) state() string {
	l.t.Helper()
	links, err := dump(l.t.Context(), l.k.rt, "link-list", (*netlink.Handle).LinkList)
	must(l.t, err)
	var b strings.Builder
	for _, link := range links {
		a := link.Attrs()
		fmt.Fprintf(&b, "%d %s %s %q %s\n", a.Index, a.Name, a.HardwareAddr, a.Alias, a.AltNames)
	}
	return b.String() + l.node.Run("ip -4 route show table all")
}

func (l *lab) open(ns *nstest.NS) *Pod {
	l.t.Helper()
	pod, err := l.k.OpenPod(ns.Path())
	must(l.t, err)
	l.t.Cleanup(pod.Close)
	return pod
}

func (p *testPod) podWant() PodWant {
	return PodWant{
		IfName: "eth0", Addr: p.addr, MTU: testMTU, HostMAC: p.pair.HostMAC, PodMAC: p.pair.PodMAC, HostIndex: p.pair.Index,
	}
}

func (p *testPod) hostWant() HostWant {
	return HostWant{Name: p.pair.Name, Key: p.key, Addr: p.addr, MTU: testMTU, MAC: p.pair.HostMAC, PodMAC: p.pair.PodMAC, NICs: []string{"eth0"}, Forward: []string{"eth0"}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wantError(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

// echo answers every datagram to addr with the source it saw, until the test ends.
func echo(t *testing.T, ns *nstest.NS, addr string) {
	t.Helper()
	var conn net.PacketConn
	must(t, ns.Do(func() (err error) {
		conn, err = net.ListenPacket("udp4", addr)
		return err
	}))
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 2048)
		for {
			_, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(from.String())
			_, _ = conn.WriteTo([]byte(host), from)
		}
	}()
}

// ask sends a datagram from ns and returns the source that the echo saw.
func ask(ns *nstest.NS, to string) (string, error) {
	var reply string
	err := ns.Do(func() error {
		conn, err := net.Dial("udp4", to)
		if err != nil {
			return err
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(400 * time.Millisecond))
		if _, err := conn.Write([]byte("?")); err != nil {
			return err
		}
		buf := make([]byte, 64)
		n, err := conn.Read(buf)
		reply = string(buf[:n])
		return err
	})
	return reply, err
}

func wantSource(t *testing.T, ns *nstest.NS, to, source string) {
	t.Helper()
	got, err := ask(ns, to)
	for try := 0; err != nil && try < 3; try++ { // the first one may wait for a neighbour
		got, err = ask(ns, to)
	}
	if err != nil || got != source {
		t.Errorf("to %s: source %q, error %v; want %q", to, got, err, source)
	}
}

// wantFindings wants one finding for each of the texts, in that order.
func wantFindings(t *testing.T, got []string, want ...string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("findings %q, want %q", got, want)
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("finding %q, want %q", got[i], want[i])
		}
	}
}

func sysctl(t *testing.T, ns *nstest.NS, key, value string) {
	t.Helper()
	must(t, ns.Do(func() error { return os.WriteFile("/proc/sys/net/"+key, []byte(value), 0) }))
}

func read(t *testing.T, ns *nstest.NS, key string) string {
	t.Helper()
	var b []byte
	must(t, ns.Do(func() (err error) {
		b, err = os.ReadFile("/proc/sys/net/" + key)
		return err
	}))
	return strings.TrimSpace(string(b))
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// sendFrom sends one datagram from a source address that the namespace has.
func sendFrom(source, to string) error {
	conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(source)}, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write([]byte("!"))
	return err
}

func askFrom(source, to string) (string, error) {
	conn, err := net.DialUDP("udp4", &net.UDPAddr{IP: net.ParseIP(source)}, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to)))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(400 * time.Millisecond))
	if _, err := conn.Write([]byte("?")); err != nil {
		return "", err
	}
	buf := make([]byte, 64)
	n, err := conn.Read(buf)
	return string(buf[:n]), err
}

// dialTCP tries to connect from ns.
func dialTCP(ns *nstest.NS, to string) error {
	return ns.Do(func() error {
		conn, err := net.DialTimeout("tcp4", to, 400*time.Millisecond)
		if err == nil {
			conn.Close()
		}
		return err
	})
}

func testRuleNICs(l *lab) []RuleNIC {
	l.t.Helper()
	link, found, err := l.k.rt.linkByName(l.t.Context(), "eth0")
	if err != nil || !found {
		l.t.Fatal(found, err)
	}
	return []RuleNIC{{Number: 1, Link: "eth0", Index: link.Attrs().Index, Gateway: fabricAddr, Subnets: []netip.Prefix{subnet}}}
}

// sendReset sends a TCP reset that belongs to no connection.
func sendReset(to string, port uint16) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_TCP)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	h := make([]byte, 20)
	binary.BigEndian.PutUint16(h[0:], 4000)
	binary.BigEndian.PutUint16(h[2:], port)
	h[12], h[13] = 5<<4, 0x04
	return unix.Sendto(fd, h, 0, &unix.SockaddrInet4{Addr: netip.MustParseAddr(to).As4()})
}
