package fakeazure

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
)

// internetLink is the fabric's end of the cable to the internet, whatever the port is called.
const internetLink = "p-internet"

// PortConfig describes a NIC on the fabric.
type PortConfig struct {
	// Name of the port, at most 12 characters; the fabric's end of the cable is "p-" + Name.
	Name string
	// Machine and Link say where the cable's other end appears.
	Machine Space
	Link    string
	MAC     net.HardwareAddr
	// Plugged is an end of a cable that is in the fabric's namespace already (its other end is the machine's Link); "" makes a cable.
	Plugged string
	Subnet  netip.Prefix
	Primary netip.Addr
	// Secondaries are the NIC's further addresses.
	Secondaries []netip.Addr
	// Prefixes are whole ranges that belong to the NIC: a stand-in for many machines.
	Prefixes []netip.Prefix
	// PrimaryNIC says that it is its machine's first one: platform addresses answer no other.
	PrimaryNIC bool
	// Forwarding is Azure's enableIPForwarding: the NIC may send from addresses that it doesn't own.
	Forwarding bool
	// Internet makes this the way out of the virtual networks. What comes in by it reaches primary addresses only.
	Internet bool
}

// Port is a NIC on the fabric.
type Port struct {
	fabric *Fabric
	cfg    PortConfig
	link   string
	index  int
	own    *nftables.Set
	arp    *arpResponder

	mu    sync.Mutex
	addrs map[netip.Addr]bool
}

// AddPort plugs a NIC in. The machine's addresses and routes are the caller's business.
func (f *Fabric) AddPort(cfg PortConfig) (*Port, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := &Port{fabric: f, cfg: cfg, link: "p-" + cfg.Name, addrs: map[netip.Addr]bool{}}
	if cfg.Internet {
		p.link = internetLink
	}
	if err := f.plug(p); err != nil {
		return nil, fmt.Errorf("plug in %s: %w", cfg.Name, err)
	}
	f.ports[cfg.Name] = p
	if cfg.Internet {
		f.internet = p
	}
	return p, nil
}

func (f *Fabric) plug(p *Port) error {
	steps := []func() error{
		p.cable,
		p.neighbour,
		func() error { return f.filterPort(p) },
		p.deliverAll,
		p.followRouteTable,
		p.respond,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// cable makes the veth pair: the fabric's MAC on our end, the NIC's on the machine's. One that is there is taken as it is, but for
// our end's name and MAC.
func (p *Port) cable() error {
	lay := p.layCable
	if p.cfg.Plugged != "" {
		lay = p.takeCable
	}
	if err := lay(); err != nil {
		return err
	}
	return p.bringUp()
}

func (p *Port) layCable() error {
	f := p.fabric
	pair := &netlink.Veth{
		LinkAttrs:        netlink.LinkAttrs{Name: p.link, MTU: f.mtu, HardwareAddr: f.mac},
		PeerName:         p.cfg.Link,
		PeerHardwareAddr: p.cfg.MAC,
		PeerMTU:          uint32(f.mtu),
		PeerNamespace:    netlink.NsFd(p.cfg.Machine.Fd()),
	}
	if err := f.nl.LinkAdd(pair); err != nil {
		return fmt.Errorf("make cable: %w", err)
	}
	return nil
}

func (p *Port) takeCable() error {
	nl := p.fabric.nl
	link, err := nl.LinkByName(p.cfg.Plugged)
	if err != nil {
		return fmt.Errorf("find %s: %w", p.cfg.Plugged, err)
	}
	// A link that is up keeps its name.
	for _, step := range []func() error{
		func() error { return nl.LinkSetDown(link) },
		func() error { return nl.LinkSetName(link, p.link) },
		func() error { return nl.LinkSetHardwareAddr(link, p.fabric.mac) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("take %s: %w", p.cfg.Plugged, err)
		}
	}
	return nil
}

// bringUp sets both ends up; the machine's is known from here on.
func (p *Port) bringUp() error {
	f := p.fabric
	link, err := f.nl.LinkByName(p.link)
	if err != nil {
		return err
	}
	p.index = link.Attrs().Index
	machine, err := p.cfg.Machine.Handle()
	if err != nil {
		return err
	}
	peer, err := machine.LinkByName(p.cfg.Link)
	if err != nil {
		return err
	}
	p.cfg.MAC = peer.Attrs().HardwareAddr
	return errors.Join(
		noIPv6(f.space, p.link), noIPv6(p.cfg.Machine, p.cfg.Link),
		f.nl.LinkSetUp(link), machine.LinkSetUp(peer),
	)
}

// noIPv6 keeps router solicitations and the like out of captures; a kernel without IPv6 is fine.
func noIPv6(s Space, link string) error {
	err := s.Sysctl("net.ipv6.conf."+link+".disable_ipv6", "1")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// neighbour ties the primary address to the machine's MAC: all routes to this port go by it, and the fabric never asks.
func (p *Port) neighbour() error {
	return p.fabric.nl.NeighSet(&netlink.Neigh{
		LinkIndex: p.index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT,
		IP: p.cfg.Primary.AsSlice(), HardwareAddr: p.cfg.MAC,
	})
}

func (p *Port) route(dst netip.Prefix, table int) *netlink.Route {
	return &netlink.Route{
		LinkIndex: p.index, Dst: ipNet(dst), Gw: p.cfg.Primary.AsSlice(), Table: table, Flags: int(netlink.FLAG_ONLINK),
	}
}

func (p *Port) rule(table int) *netlink.Rule {
	r := netlink.NewRule()
	r.Priority, r.Table, r.IifName = ruleRouteTable, table, p.link
	return r
}

// deliverAll routes the NIC's addresses to it. The internet's are behind the default route alone: a longer one would win over
// the route tables of subnets.
func (p *Port) deliverAll() error {
	if p.cfg.Internet {
		p.addrs[p.cfg.Primary] = true
		return p.deliver(netip.MustParsePrefix("0.0.0.0/0"))
	}
	for _, a := range append([]netip.Addr{p.cfg.Primary}, p.cfg.Secondaries...) {
		if err := p.addAddr(a); err != nil {
			return err
		}
	}
	for _, dst := range p.cfg.Prefixes {
		if err := p.deliver(dst); err != nil {
			return err
		}
	}
	return nil
}

func (p *Port) deliver(dst netip.Prefix) error {
	if err := p.fabric.nl.RouteAdd(p.route(dst, 0)); err != nil {
		return fmt.Errorf("route %s: %w", dst, err)
	}
	return nil
}

func (p *Port) followRouteTable() error {
	t, ok := p.fabric.tables[p.cfg.Subnet]
	if !ok || t.via == nil {
		return nil
	}
	return p.fabric.nl.RuleAdd(p.rule(t.number))
}

// AddAddr gives the NIC a further address.
func (p *Port) AddAddr(a netip.Addr) error {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	return p.addAddr(a)
}

// addAddr is AddAddr under the fabric's lock. An address is on one NIC: the route is refused if another has it.
func (p *Port) addAddr(a netip.Addr) error {
	dst := netip.PrefixFrom(a, 32)
	if err := p.fabric.nl.RouteAdd(p.route(dst, 0)); err != nil {
		return fmt.Errorf("give %s to %s: %w", a, p.cfg.Name, err)
	}
	if err := p.fabric.filterAddr(p, a, true); err != nil {
		return errors.Join(err, p.fabric.nl.RouteDel(p.route(dst, 0)))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.addrs[a] = true
	return nil
}

// RemoveAddr takes an address off the NIC: it is no longer delivered, and no longer a valid source.
func (p *Port) RemoveAddr(a netip.Addr) error {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	if err := p.fabric.nl.RouteDel(p.route(netip.PrefixFrom(a, 32), 0)); err != nil {
		return fmt.Errorf("take %s from %s: %w", a, p.cfg.Name, err)
	}
	p.mu.Lock()
	delete(p.addrs, a)
	p.mu.Unlock()
	return p.fabric.filterAddr(p, a, false)
}

// Pull stops the delivery of an address while the NIC keeps it: a fault of the fabric. Restore ends it.
func (p *Port) Pull(a netip.Addr) error {
	if err := p.fabric.nl.RouteDel(p.route(netip.PrefixFrom(a, 32), 0)); err != nil {
		return fmt.Errorf("pull %s from %s: %w", a, p.cfg.Name, err)
	}
	return nil
}

// Restore delivers a pulled address again.
func (p *Port) Restore(a netip.Addr) error {
	if err := p.fabric.nl.RouteAdd(p.route(netip.PrefixFrom(a, 32), 0)); err != nil {
		return fmt.Errorf("restore %s on %s: %w", a, p.cfg.Name, err)
	}
	return nil
}

// Link is the name of the fabric's end of the cable.
func (p *Port) Link() string { return p.link }

// Addrs returns the NIC's addresses in order, the primary among them.
func (p *Port) Addrs() []netip.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := make([]netip.Addr, 0, len(p.addrs))
	for a := range p.addrs {
		list = append(list, a)
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// owns tells whether an address belongs to the NIC.
func (p *Port) owns(a netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.addrs[a] || slices.ContainsFunc(p.cfg.Prefixes, func(x netip.Prefix) bool { return x.Contains(a) })
}
