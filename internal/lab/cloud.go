package lab

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"

	"github.com/native-vmss/native-vmss/internal/fakeazure"
)

// Places of the cloud lab.
var (
	CloudNetwork   = netip.MustParsePrefix("10.20.0.0/16") // of the nodes; also the subnet of their first NIC
	CloudPeered    = netip.MustParsePrefix("10.30.0.0/16") // peered with it
	CloudHub       = netip.MustParseAddr("10.30.0.4")
	CloudFirewall  = netip.MustParseAddr("10.30.255.4")
	CloudInternet  = netip.MustParseAddr("203.0.113.10")
	CloudPeers     = netip.MustParsePrefix("10.20.64.0/19") // addresses of thousands of machines that one namespace plays
	cloudPeersHost = netip.MustParseAddr("10.20.64.1")
	cloudInetNet   = netip.MustParsePrefix("203.0.113.0/24")
	anywhere       = netip.MustParsePrefix("0.0.0.0/0")
)

// CloudOptions describe a cloud lab.
type CloudOptions struct {
	// ID of the lab; empty draws one.
	ID string
	// Nodes of the scale set; nil: two, with 30 addresses each (DefaultNodes).
	Nodes []CloudNodeOptions
	// MTU of every link; 0: 1500.
	MTU int
	Log *slog.Logger // nil: discard
}

// CloudNodeOptions describe one machine of the scale set.
type CloudNodeOptions struct {
	Name string
	NICs []CloudNIC // the first is the primary one
}

// CloudNIC is one NIC of a machine: link eth0, eth1 … in order.
type CloudNIC struct {
	MAC         net.HardwareAddr // nil: 02:00:5e and the last three bytes of the primary address
	Subnet      netip.Prefix     // zero: CloudNetwork
	Primary     netip.Addr
	Secondaries []netip.Addr
}

// Cloud is a virtual network with machines, a peered network, a firewall and an internet.
type Cloud struct {
	*Lab
	Fabric *fakeazure.Fabric
	// Space is the fabric's namespace: services of the platform listen there on fakeazure.IMDSAddr and WireServerAddr.
	Space *Namespace
	Nodes []*CloudNode
	// Hub is a host in the peered network.
	Hub *Namespace
	// Firewall forwards to the internet under its own address; a subnet's traffic passes it after UseFirewall.
	Firewall *Namespace
	// Internet is a host outside.
	Internet *Namespace
	// Peers answers for every address of CloudPeers.
	Peers *Namespace

	atFirewall, atInternet *Capture
}

// CloudNode is a machine of the scale set.
type CloudNode struct {
	*Node
	Name string
	NICs []CloudNIC
	// Ports are the fabric's ends, one per NIC.
	Ports []*fakeazure.Port
}

// DefaultNodes are two machines, 10.20.0.4 and 10.20.0.5, with count secondaries each from 10.20.1.10 and 10.20.2.10 on.
func DefaultNodes(count int) []CloudNodeOptions {
	var list []CloudNodeOptions
	for i := range byte(2) {
		list = append(list, CloudNodeOptions{
			Name: fmt.Sprintf("node%d", i+1),
			NICs: []CloudNIC{{
				Primary:     netip.AddrFrom4([4]byte{10, 20, 0, 4 + i}),
				Secondaries: AddrRange(netip.AddrFrom4([4]byte{10, 20, 1 + i, 10}), count),
			}},
		})
	}
	return list
}

// NewCloud builds the cloud lab; Close ends it. It has no platform services yet.
func NewCloud(o CloudOptions) (*Cloud, error) {
	l, err := New(Options{ID: o.ID, Log: o.Log})
	if err != nil {
		return nil, err
	}
	c := &Cloud{Lab: l}
	if o.Nodes == nil {
		o.Nodes = DefaultNodes(30)
	}
	if err := c.build(o); err != nil {
		return nil, errors.Join(fmt.Errorf("build cloud lab: %w", err), l.Close())
	}
	return c, nil
}

// CloudForTest is NewCloud for a test, which ends it.
func CloudForTest(t TB, o CloudOptions) *Cloud {
	t.Helper()
	c, err := NewCloud(o)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Logf("close lab %s: %v", c.ID, err)
		}
	})
	return c
}

func (c *Cloud) build(o CloudOptions) (err error) {
	if c.Space, err = c.Namespace("fabric"); err != nil {
		return err
	}
	c.Fabric, err = fakeazure.NewFabric(c.Space, fakeazure.FabricConfig{
		MTU: o.MTU, Networks: []netip.Prefix{CloudNetwork, CloudPeered}, Log: o.Log,
	})
	if err != nil {
		return err
	}
	c.Defer(c.Fabric.Close)
	for _, n := range o.Nodes {
		if err := c.addNode(n); err != nil {
			return fmt.Errorf("add %s: %w", n.Name, err)
		}
	}
	hosts := []struct {
		space **Namespace
		host  cloudHost
	}{
		{&c.Hub, cloudHost{name: "hub", addr: CloudHub, subnet: CloudPeered}},
		{&c.Internet, cloudHost{name: "internet", addr: CloudInternet, subnet: cloudInetNet, port: fakeazure.PortConfig{Internet: true}}},
		{&c.Firewall, cloudHost{name: "firewall", addr: CloudFirewall, subnet: CloudPeered, port: fakeazure.PortConfig{Forwarding: true}}},
		{&c.Peers, cloudHost{name: "peers", addr: cloudPeersHost, subnet: CloudNetwork, port: fakeazure.PortConfig{Prefixes: []netip.Prefix{CloudPeers}}}},
	}
	for _, h := range hosts {
		if *h.space, err = c.addHost(h.host); err != nil {
			return fmt.Errorf("add %s: %w", h.host.name, err)
		}
	}
	if err := c.Peers.AnyIP(CloudPeers); err != nil {
		return err
	}
	if err := c.openFirewall(); err != nil {
		return err
	}
	return c.watchOutside()
}

func (c *Cloud) addNode(o CloudNodeOptions) error {
	node, err := c.Node(o.Name)
	if err != nil {
		return err
	}
	n := &CloudNode{Node: node, Name: o.Name}
	for i, nic := range o.NICs {
		if err := c.addNIC(n, i, nic); err != nil {
			return err
		}
	}
	c.Nodes = append(c.Nodes, n)
	return nil
}

// Plug gives a running machine one more NIC; its link is ethN, with N counted from 0 over all that it ever had. Unplug is to
// delete that link.
func (c *Cloud) Plug(n *CloudNode, nic CloudNIC) error {
	if err := c.addNIC(n, len(n.NICs), nic); err != nil {
		return fmt.Errorf("plug into %s: %w", n.Name, err)
	}
	return nil
}

func (c *Cloud) addNIC(n *CloudNode, i int, nic CloudNIC) error {
	if !nic.Subnet.IsValid() {
		nic.Subnet = CloudNetwork
	}
	if nic.MAC == nil {
		a := nic.Primary.As4()
		nic.MAC = net.HardwareAddr{0x02, 0x00, 0x5e, a[1], a[2], a[3]}
	}
	link := fmt.Sprintf("eth%d", i)
	p, err := c.Fabric.AddPort(fakeazure.PortConfig{
		Name: fmt.Sprintf("%s-%d", n.Name, i), Machine: n.Namespace, Link: link, MAC: nic.MAC,
		Subnet: nic.Subnet, Primary: nic.Primary, Secondaries: nic.Secondaries, PrimaryNIC: i == 0,
	})
	if err != nil {
		return err
	}
	n.NICs, n.Ports = append(n.NICs, nic), append(n.Ports, p)
	if err := n.AddDynamicAddr(link, netip.PrefixFrom(nic.Primary, nic.Subnet.Bits())); err != nil {
		return err
	}
	if i > 0 {
		return nil // DHCP gives a second NIC no default route that would win
	}
	return n.AddRoute(anywhere, firstHost(nic.Subnet), link)
}

// firstHost is a subnet's gateway in Azure.
func firstHost(p netip.Prefix) netip.Addr { return p.Masked().Addr().Next() }

type cloudHost struct {
	name   string
	addr   netip.Addr
	subnet netip.Prefix
	port   fakeazure.PortConfig
}

func (c *Cloud) addHost(h cloudHost) (*Namespace, error) {
	space, err := c.Namespace(h.name)
	if err != nil {
		return nil, err
	}
	cfg := h.port
	cfg.Name, cfg.Machine, cfg.Link, cfg.Subnet, cfg.Primary, cfg.PrimaryNIC = h.name, space, "eth0", h.subnet, h.addr, true
	if _, err := c.Fabric.AddPort(cfg); err != nil {
		return nil, err
	}
	if err := space.AddAddr("eth0", netip.PrefixFrom(h.addr, h.subnet.Bits())); err != nil {
		return nil, err
	}
	return space, space.AddRoute(anywhere, firstHost(h.subnet), "eth0")
}

// UseFirewall sends what leaves the nodes' subnet by the firewall, or by Azure's own way again.
func (c *Cloud) UseFirewall(use bool) error {
	if !use {
		return c.Fabric.SetRouteTable(CloudNetwork, nil)
	}
	return c.Fabric.SetRouteTable(CloudNetwork, c.Fabric.Port("firewall"))
}

// Pod makes the namespace of a pod.
func (c *Cloud) Pod(name string) (*Namespace, error) { return c.Namespace(name) }
