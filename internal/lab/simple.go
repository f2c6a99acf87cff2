package lab

import (
	"net"
	"net/netip"
	"strings"
)

// Addresses of the simple fixture.
var (
	SimpleSubnet    = netip.MustParsePrefix("10.20.0.0/24")
	SimpleNode      = netip.MustParseAddr("10.20.0.4")
	SimpleGateway   = netip.MustParseAddr("10.20.0.1")
	SimpleSubnet2   = netip.MustParsePrefix("10.20.1.0/24")
	SimpleNode2     = netip.MustParseAddr("10.20.1.4")
	SimpleGateway2  = netip.MustParseAddr("10.20.1.1")
	SimpleInternet  = netip.MustParseAddr("203.0.113.10")
	MetadataService = netip.MustParseAddr("169.254.169.254")
	WireServer      = netip.MustParseAddr("168.63.129.16")
)

// Hardware addresses of the simple fixture's node.
const (
	SimpleMAC  = "02:00:5e:10:00:04"
	SimpleMAC2 = "02:00:5e:10:00:05"
)

// SimpleOptions change the simple fixture; the zero value is the fixture of the field cases.
type SimpleOptions struct {
	// Subnet is that of eth0; zero: 10.20.0.0/24.
	Subnet netip.Prefix
	// Pool are the secondary addresses of eth0; nil: 10.20.0.10–14.
	Pool []netip.Addr
	// Pool2 are those of a second NIC eth1, 10.20.1.4/24; nil: no such NIC.
	Pool2 []netip.Addr
	// MTU of the links; 0: 1500.
	MTU int
}

// Simple is one node and one gateway: enough for all that is judged on one node.
//
//	node: eth0 10.20.0.4/24 (dynamic), default via 10.20.0.1, the metadata stub on 169.254.169.254
//	gw:   10.20.0.1/24 and 203.0.113.10/32 ("internet"); routes to each address of the pool by 10.20.0.4
type Simple struct {
	*Lab
	Node *Node
	GW   *Namespace
	MD   *MetadataStub
	// NICs is what the stub serves at the start; change a copy and call MD.Serving(NetworkDocument(…)).
	NICs []MetadataNIC
}

// NewSimple builds the fixture; it ends with the test.
func NewSimple(t TB, o SimpleOptions) *Simple {
	t.Helper()
	s := &Simple{Lab: ForTest(t), MD: &MetadataStub{}}
	if !o.Subnet.IsValid() {
		o.Subnet = SimpleSubnet
	}
	if o.Pool == nil {
		o.Pool = AddrRange(netip.MustParseAddr("10.20.0.10"), 5)
	}
	if err := s.build(o); err != nil {
		t.Fatalf("build simple lab: %v", err)
	}
	return s
}

// AddrRange returns n addresses in a row.
func AddrRange(first netip.Addr, n int) []netip.Addr {
	list := make([]netip.Addr, 0, n)
	for a := first; len(list) < n; a = a.Next() {
		list = append(list, a)
	}
	return list
}

func (s *Simple) build(o SimpleOptions) (err error) {
	if s.Node, err = s.Lab.Node("node"); err != nil {
		return err
	}
	if s.GW, err = s.Namespace("gw"); err != nil {
		return err
	}
	if err := s.GW.Sysctl("net.ipv4.ip_forward", "1"); err != nil {
		return err
	}
	if err := s.GW.AddAddr("lo", netip.PrefixFrom(SimpleInternet, 32)); err != nil {
		return err
	}
	if err := s.nic("eth0", SimpleMAC, SimpleNode, SimpleGateway, o.Subnet, o.Pool, o.MTU); err != nil {
		return err
	}
	if err := s.Node.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), SimpleGateway, "eth0"); err != nil {
		return err
	}
	if o.Pool2 != nil {
		if err := s.nic("eth1", SimpleMAC2, SimpleNode2, SimpleGateway2, SimpleSubnet2, o.Pool2, o.MTU); err != nil {
			return err
		}
	}
	return s.serveMetadata()
}

// nic joins node and gateway by a cable. The pool's addresses are on-link for gw, which would resolve them by ARP; Azure
// sends them to the NIC that owns them instead, and so do the /32 routes.
func (s *Simple) nic(link, mac string, addr, gateway netip.Addr, subnet netip.Prefix, pool []netip.Addr, mtu int) error {
	hw, err := net.ParseMAC(mac)
	if err != nil {
		return err
	}
	peer := "to-" + link
	if err := Cable(End{Space: s.Node.Namespace, Name: link, MAC: hw}, End{Space: s.GW, Name: peer}, mtu); err != nil {
		return err
	}
	if err := s.Node.AddDynamicAddr(link, netip.PrefixFrom(addr, subnet.Bits())); err != nil {
		return err
	}
	if err := s.GW.AddAddr(peer, netip.PrefixFrom(gateway, subnet.Bits())); err != nil {
		return err
	}
	for _, a := range pool {
		if err := s.GW.AddRoute(netip.PrefixFrom(a, 32), addr, peer); err != nil {
			return err
		}
	}
	s.NICs = append(s.NICs, MetadataNIC{
		MAC:    strings.ToUpper(strings.ReplaceAll(mac, ":", "")),
		Addrs:  append([]netip.Addr{addr}, pool...),
		Subnet: subnet,
	})
	return nil
}

// serveMetadata puts the stub on the node itself, not on loopback: Go's HTTP client never uses a proxy for loopback, which
// would hide a proxy fault.
func (s *Simple) serveMetadata() error {
	if err := s.Node.AddAddr("lo", netip.PrefixFrom(MetadataService, 32)); err != nil {
		return err
	}
	s.MD.Serving(NetworkDocument(s.NICs...))
	return s.Node.ServeHTTP(netip.AddrPortFrom(MetadataService, 80), s.MD)
}

// Pod makes the namespace of a pod.
func (s *Simple) Pod(t TB, name string) *Namespace {
	t.Helper()
	n, err := s.Namespace(name)
	if err != nil {
		t.Fatalf("make pod namespace: %v", err)
	}
	return n
}
