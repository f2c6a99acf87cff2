package fakeazure_test

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/fakeazure"
	"github.com/native-vmss/native-vmss/internal/lab"
)

// The fabric is judged by frames that the test makes itself on a machine's link: no plugin, no routing of the machine.

var (
	fabricMAC, _ = net.ParseMAC(fakeazure.FabricMAC)
	soon         = 2 * time.Second        // a frame that must arrive
	never        = 100 * time.Millisecond // one that must not
)

type wire struct {
	*lab.Cloud
	t          *testing.T
	one, two   *lab.Frames
	pod1, pod2 netip.Addr // secondaries of node 1 and 2
	free       netip.Addr // owned by nobody
}

func newWire(t *testing.T) *wire {
	c := lab.CloudForTest(t, lab.CloudOptions{})
	w := &wire{Cloud: c, t: t, pod1: c.Nodes[0].NICs[0].Secondaries[0], pod2: c.Nodes[1].NICs[0].Secondaries[0], free: netip.MustParseAddr("10.20.9.9")}
	w.one, w.two = w.frames(c.Nodes[0].Namespace), w.frames(c.Nodes[1].Namespace)
	return w
}

func (w *wire) frames(n *lab.Namespace) *lab.Frames {
	w.t.Helper()
	f, err := n.OpenFrames("eth0")
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { f.Close() })
	return f
}

var marker byte

// send lets a machine emit a datagram and tells whether exactly that one arrives at another, and how it is addressed there.
func (w *wire) send(t *testing.T, from, to *lab.Frames, src, dst netip.Addr, wait time.Duration) (frame []byte, ok bool) {
	t.Helper()
	marker++
	data := []byte{'m', 'a', 'r', 'k', marker}
	sp, dp := netip.AddrPortFrom(src, 4000), netip.AddrPortFrom(dst, 4001)
	if err := from.Send(from.UDP(fabricMAC, sp, dp, data)); err != nil {
		t.Fatal(err)
	}
	frame = to.Await(wait, func(f []byte) bool {
		_, _, got, ok := lab.UDPIn(f)
		return ok && bytes.Equal(got, data)
	})
	return frame, frame != nil
}

func (w *wire) drops(t *testing.T, port string) fakeazure.Drops {
	t.Helper()
	all, err := w.Fabric.Drops()
	if err != nil {
		t.Fatal(err)
	}
	return all[port]
}

func TestNetnsFabric_delivers_an_address_to_its_owner(t *testing.T) {
	w := newWire(t)
	frame, ok := w.send(t, w.one, w.two, w.pod1, w.pod2, soon)
	if !ok {
		t.Fatal("not delivered")
	}
	src, dst, _, _ := lab.UDPIn(frame)
	if src.Addr() != w.pod1 || dst.Addr() != w.pod2 {
		t.Errorf("%s > %s on the wire", src, dst)
	}
	if !bytes.Equal(frame[:6], w.two.MAC()) || !bytes.Equal(frame[6:12], fabricMAC) {
		t.Errorf("hardware addresses %x", frame[:12])
	}
	if _, ok := w.send(t, w.one, w.two, w.pod1, w.free, never); ok {
		t.Error("an address without an owner was delivered")
	}
	hub := w.frames(w.Hub)
	if _, ok := w.send(t, w.one, hub, w.pod1, lab.CloudHub, soon); !ok {
		t.Error("peered network not reached")
	}
	if _, ok := w.send(t, hub, w.one, lab.CloudHub, w.pod1, soon); !ok {
		t.Error("not reached from the peered network")
	}
	// A NIC gets its own addresses back as well: machines hairpin through the fabric.
	if _, ok := w.send(t, w.one, w.one, w.pod1, w.Nodes[0].NICs[0].Secondaries[1], soon); !ok {
		t.Error("own address not delivered back")
	}
}

func TestNetnsFabric_drops_foreign_sources(t *testing.T) {
	w := newWire(t)
	for _, src := range []netip.Addr{w.pod2, w.Nodes[1].NICs[0].Primary, w.free, lab.CloudHub, netip.MustParseAddr("192.0.2.1")} {
		before := w.drops(t, "node1-0").Spoofed
		if _, ok := w.send(t, w.one, w.two, src, w.Nodes[1].NICs[0].Secondaries[5], never); ok {
			t.Errorf("source %s passed", src)
		}
		if got := w.drops(t, "node1-0").Spoofed; got != before+1 {
			t.Errorf("source %s: counter went from %d to %d", src, before, got)
		}
	}
}

func TestNetnsFabric_answers_ARP_with_one_MAC(t *testing.T) {
	w := newWire(t)
	primary := w.Nodes[0].NICs[0].Primary
	ask := func(target netip.Addr, wait time.Duration) []byte {
		t.Helper()
		if err := w.one.Send(w.one.ARPRequest(primary, target)); err != nil {
			t.Fatal(err)
		}
		return w.one.Await(wait, func(f []byte) bool {
			return f[12] == 8 && f[13] == 6 && f[21] == 2 && bytes.Equal(f[28:32], target.AsSlice())
		})
	}
	for _, target := range []netip.Addr{
		netip.MustParseAddr("10.20.0.1"), w.Nodes[1].NICs[0].Primary, w.pod2, w.free,
		fakeazure.IMDSAddr, lab.CloudHub, netip.MustParseAddr("198.51.100.7"),
	} {
		reply := ask(target, soon)
		if reply == nil {
			t.Errorf("%s: no answer", target)
			continue
		}
		if !bytes.Equal(reply[22:28], fabricMAC) || !bytes.Equal(reply[:6], w.one.MAC()) {
			t.Errorf("%s: answer %x", target, reply)
		}
	}
	for _, target := range []netip.Addr{primary, w.pod1} {
		if ask(target, never) != nil {
			t.Errorf("%s: the asker's own address was answered", target)
		}
	}
}

func TestNetnsFabric_platform_answers_primaries_only(t *testing.T) {
	w := newWire(t)
	for _, platform := range []netip.Addr{fakeazure.IMDSAddr, fakeazure.WireServerAddr} {
		if _, err := w.Space.EchoUDP(netip.AddrPortFrom(platform, 4001)); err != nil {
			t.Fatal(err)
		}
		primary := w.Nodes[0].NICs[0].Primary
		if _, ok := w.send(t, w.one, w.one, primary, platform, soon); !ok {
			t.Errorf("%s doesn't answer the primary address", platform)
		}
		before := w.drops(t, "node1-0").Platform
		if _, ok := w.send(t, w.one, w.one, w.pod1, platform, never); ok {
			t.Errorf("%s answers a secondary address", platform)
		}
		if got := w.drops(t, "node1-0").Platform; got != before+1 {
			t.Errorf("counter went from %d to %d", before, got)
		}
	}
}

func TestNetnsFabric_platform_answers_no_second_NIC(t *testing.T) {
	nodes := lab.DefaultNodes(2)
	net2 := netip.MustParsePrefix("10.20.200.0/24")
	second := lab.CloudNIC{Subnet: net2, Primary: netip.MustParseAddr("10.20.200.4"), Secondaries: []netip.Addr{netip.MustParseAddr("10.20.200.10")}}
	nodes[0].NICs = append(nodes[0].NICs, second)
	c := lab.CloudForTest(t, lab.CloudOptions{Nodes: nodes})
	w := &wire{Cloud: c, t: t}
	if _, err := c.Space.EchoUDP(netip.AddrPortFrom(fakeazure.IMDSAddr, 4001)); err != nil {
		t.Fatal(err)
	}
	nic2, err := c.Nodes[0].OpenFrames("eth1")
	if err != nil {
		t.Fatal(err)
	}
	defer nic2.Close()
	if _, ok := w.send(t, nic2, nic2, second.Primary, fakeazure.IMDSAddr, never); ok {
		t.Error("metadata answers the primary address of a second NIC")
	}
	two := w.frames(c.Nodes[1].Namespace)
	if _, ok := w.send(t, nic2, two, second.Secondaries[0], nodes[1].NICs[0].Secondaries[0], soon); !ok {
		t.Error("second NIC's address not delivered")
	}
	if _, ok := w.send(t, nic2, two, nodes[0].NICs[0].Secondaries[0], nodes[1].NICs[0].Secondaries[0], never); ok {
		t.Error("second NIC sent with the first one's address")
	}
}

func TestNetnsFabric_internet_answers_primaries_only(t *testing.T) {
	w := newWire(t)
	inet := w.frames(w.Internet)
	primary := w.Nodes[0].NICs[0].Primary
	if _, ok := w.send(t, w.one, inet, primary, lab.CloudInternet, soon); !ok {
		t.Error("not reached from the primary address")
	}
	if _, ok := w.send(t, w.one, inet, w.pod1, lab.CloudInternet, never); ok {
		t.Error("reached from a secondary address")
	}
	if _, ok := w.send(t, inet, w.one, lab.CloudInternet, primary, soon); !ok {
		t.Error("primary address not reached from the internet")
	}
	if _, ok := w.send(t, inet, w.one, lab.CloudInternet, w.pod1, never); ok {
		t.Error("secondary address reached from the internet")
	}
	if d, in := w.drops(t, "node1-0"), w.drops(t, "internet"); d.Internet != 1 || in.Inbound != 1 {
		t.Errorf("counters %+v, %+v", d, in)
	}
}

func TestNetnsFabric_route_table_leads_to_the_firewall(t *testing.T) {
	w := newWire(t)
	if err := w.UseFirewall(true); err != nil {
		t.Fatal(err)
	}
	fw, inet := w.frames(w.Firewall), w.frames(w.Internet)
	frame, ok := w.send(t, w.one, fw, w.pod1, lab.CloudInternet, soon)
	if !ok {
		t.Fatal("firewall not reached")
	}
	if src, _, _, _ := lab.UDPIn(frame); src.Addr() != w.pod1 {
		t.Errorf("firewall saw %s", src)
	}
	frame, ok = w.send(t, w.one, inet, w.pod1, lab.CloudInternet, soon)
	if !ok {
		t.Fatal("internet not reached by the firewall")
	}
	src, dst, _, _ := lab.UDPIn(frame)
	if src.Addr() != lab.CloudFirewall {
		t.Errorf("internet saw %s", src)
	}
	answer := []byte("answer")
	if err := inet.Send(inet.UDP(fabricMAC, dst, src, answer)); err != nil {
		t.Fatal(err)
	}
	if w.one.Await(soon, func(f []byte) bool {
		s, d, got, ok := lab.UDPIn(f)
		return ok && bytes.Equal(got, answer) && s.Addr() == lab.CloudInternet && d.Addr() == w.pod1
	}) == nil {
		t.Error("answer did not come back")
	}
	if _, ok := w.send(t, w.one, w.two, w.pod1, w.pod2, soon); !ok {
		t.Error("the route table took traffic inside the network")
	}
	if got := w.FirewallSaw(); !slices.Equal(got, []netip.Addr{w.pod1}) {
		t.Errorf("firewall saw %v", got)
	}
	if got := w.InternetSaw(); !slices.Equal(got, []netip.Addr{lab.CloudFirewall}) {
		t.Errorf("internet saw %v", got)
	}
	if err := w.UseFirewall(false); err != nil {
		t.Fatal(err)
	}
	if _, ok := w.send(t, w.one, fw, w.pod1, lab.CloudInternet, never); ok {
		t.Error("firewall reached without a route table")
	}
}

func TestNetnsFabric_addresses_change_at_run_time(t *testing.T) {
	w := newWire(t)
	port, other := w.Nodes[1].Ports[0], w.Nodes[1].NICs[0].Secondaries[1]
	if err := port.Pull(w.pod2); err != nil {
		t.Fatal(err)
	}
	if _, ok := w.send(t, w.one, w.two, w.pod1, w.pod2, never); ok {
		t.Error("pulled address delivered")
	}
	if _, ok := w.send(t, w.one, w.two, w.pod1, other, soon); !ok {
		t.Error("another address went with the pulled one")
	}
	if err := port.Restore(w.pod2); err != nil {
		t.Fatal(err)
	}
	if _, ok := w.send(t, w.one, w.two, w.pod1, w.pod2, soon); !ok {
		t.Error("restored address not delivered")
	}
	if err := port.RemoveAddr(w.pod2); err != nil {
		t.Fatal(err)
	}
	if _, ok := w.send(t, w.two, w.one, w.pod2, w.pod1, never); ok {
		t.Error("removed address is still a valid source")
	}
	if err := w.Nodes[0].Ports[0].AddAddr(w.pod2); err != nil {
		t.Fatal(err)
	}
	if _, ok := w.send(t, w.two, w.one, other, w.pod2, soon); !ok {
		t.Error("address that moved is not delivered")
	}
	if err := port.AddAddr(w.pod2); err == nil {
		t.Error("one address on two NICs")
	}
	if slices.Contains(port.Addrs(), w.pod2) || !slices.Contains(w.Nodes[0].Ports[0].Addrs(), w.pod2) {
		t.Error("books are wrong")
	}
}

func TestNetnsFabric_peers_answer(t *testing.T) {
	w := newWire(t)
	ctx := context.Background()
	if _, err := w.Peers.EchoTCP(netip.MustParseAddrPort("0.0.0.0:700")); err != nil {
		t.Fatal(err)
	}
	var peers []netip.AddrPort
	for _, a := range lab.AddrRange(netip.MustParseAddr("10.20.64.10"), 300) {
		peers = append(peers, netip.AddrPortFrom(a, 700))
	}
	done, failed := w.Nodes[0].Handshakes(ctx, peers, 8, 2*time.Second)
	if done != len(peers) {
		t.Errorf("%d of %d: %v", done, len(peers), failed)
	}
	// The machine's own traffic resolves every peer: what a pod's traffic does with remotePods: off.
	if n, err := w.Nodes[0].Neighbours("eth0"); err != nil || n < 300 {
		t.Errorf("%d neighbours, %v", n, err)
	}
	if v, err := w.Nodes[0].Connect(ctx, netip.AddrPortFrom(lab.CloudInternet, 1), time.Second); v != lab.Refused {
		t.Errorf("internet: %s, %v", v, err)
	}
}

func TestNetnsFabric_MTU(t *testing.T) {
	c := lab.CloudForTest(t, lab.CloudOptions{MTU: 3900})
	o := lab.PingOptions{Count: 1, Size: 3872, DontFragment: true}
	r, err := c.Nodes[0].Ping(context.Background(), c.Nodes[1].NICs[0].Primary, o)
	if err != nil || r.Received != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A machine that somebody else has cabled, and that keeps its link, its addresses and its hardware address.
func TestNetnsFabric_takes_a_cable_that_is_there(t *testing.T) {
	w := newWire(t)
	machine, err := w.Namespace("taken")
	if err != nil {
		t.Fatal(err)
	}
	mac := net.HardwareAddr{0x02, 0x42, 0x0a, 0x14, 0x00, 0x09}
	if err := lab.Cable(lab.End{Space: w.Space, Name: "veth1234567"}, lab.End{Space: machine, Name: "eth0", MAC: mac}, 0); err != nil {
		t.Fatal(err)
	}
	primary, pod := netip.MustParseAddr("10.20.0.9"), netip.MustParseAddr("10.20.3.10")
	outsider, err := w.OpenForeign(machine.Path)
	if err != nil {
		t.Fatal(err)
	}
	port, err := w.Fabric.AddPort(fakeazure.PortConfig{
		Name: "taken", Machine: outsider, Link: "eth0", MAC: mac, Plugged: "veth1234567", Subnet: lab.CloudNetwork,
		Primary: primary, Secondaries: []netip.Addr{pod}, PrimaryNIC: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := machine.MAC("eth0"); err != nil || got.String() != mac.String() || port.Link() != "p-taken" {
		t.Errorf("%s has %s, %v; the fabric's end is %s", machine.Name, got, err, port.Link())
	}
	three := w.frames(machine)
	if _, ok := w.send(t, w.one, three, w.pod1, pod, soon); !ok {
		t.Error("not delivered")
	}
	if _, ok := w.send(t, three, w.one, pod, w.pod1, soon); !ok {
		t.Error("not taken from it")
	}
	if _, ok := w.send(t, three, w.one, w.pod2, w.pod1, never); ok {
		t.Error("another's source was let through")
	}
	if _, err := w.Fabric.AddPort(fakeazure.PortConfig{Name: "x", Machine: outsider, Plugged: "nowhere", Primary: primary}); err == nil {
		t.Error("a cable that isn't there was taken")
	}
}
