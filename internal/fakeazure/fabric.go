package fakeazure

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// FabricMAC is the hardware address behind every address of a virtual network, as machines in Azure see it.
const FabricMAC = "12:34:56:78:9a:bc"

// DefaultFabricMTU is what Azure's interfaces have unless told otherwise.
const DefaultFabricMTU = 1500

// Platform addresses: they answer only the primary address of a machine's primary NIC.
var (
	WireServerAddr = netip.MustParseAddr("168.63.129.16")
	IMDSAddr       = netip.MustParseAddr("169.254.169.254")
)

// Rules of the fabric's own namespace.
const (
	rulePrivate    = 100 // every route but the default one
	ruleRouteTable = 200 // the route table of the sender's subnet
	firstTable     = 1000
)

// Space is a network namespace that the fabric, or a machine on it, lives in.
type Space interface {
	// Do runs a function on a thread inside the namespace.
	Do(func() error) error
	// Handle is a netlink handle inside the namespace.
	Handle() (*netlink.Handle, error)
	// Fd is an open descriptor of the namespace.
	Fd() int
	// Sysctl writes a setting; the parts of the name are separated by dots.
	Sysctl(name, value string) error
}

// FabricConfig describes a fabric without machines.
type FabricConfig struct {
	// MTU of all links; 0: DefaultFabricMTU.
	MTU int
	// Networks are the virtual networks and their peers: what nobody owns in them is swallowed, never sent to the internet.
	Networks []netip.Prefix
	Log      *slog.Logger // nil: discard
}

// Fabric is a namespace that routes as Azure's software-defined network does:
//
//   - every ARP request is answered with one MAC, except for the asker's own addresses;
//   - an address is delivered to the one NIC that owns it, whether or not anything there uses it;
//   - a packet whose source isn't an address of the NIC that sends it is dropped;
//   - platform addresses answer only the primary address of a primary NIC, the internet only the primary of the leaving NIC;
//   - a subnet's route table may send what leaves the virtual networks to an appliance.
type Fabric struct {
	space Space
	nl    *netlink.Handle
	mtu   int
	mac   net.HardwareAddr
	log   *slog.Logger

	mu       sync.Mutex
	nft      *nftables.Conn
	table    *nftables.Table
	chains   fabricChains
	sets     uint32 // the number of the last one
	ports    map[string]*Port
	internet *Port
	tables   map[netip.Prefix]routeTable
}

type routeTable struct {
	number int
	via    *Port
}

// NewFabric turns an empty namespace into a fabric.
func NewFabric(space Space, cfg FabricConfig) (*Fabric, error) {
	nl, err := space.Handle()
	if err != nil {
		return nil, err
	}
	mac, err := net.ParseMAC(FabricMAC)
	if err != nil {
		return nil, err
	}
	f := &Fabric{space: space, nl: nl, mtu: cfg.MTU, mac: mac, log: cfg.Log, ports: map[string]*Port{}, tables: map[netip.Prefix]routeTable{}}
	if f.mtu == 0 {
		f.mtu = DefaultFabricMTU
	}
	if f.log == nil {
		f.log = slog.New(slog.DiscardHandler)
	}
	for _, step := range []func() error{f.setSysctls, f.addPlatform, func() error { return f.addRoutes(cfg.Networks) }, f.openFilter} {
		if err := step(); err != nil {
			return nil, fmt.Errorf("make fabric: %w", err)
		}
	}
	return f, nil
}

// setSysctls: the kernel's own opinions on ARP, reverse paths and redirects would show through the fabric.
func (f *Fabric) setSysctls() error {
	for _, s := range [][2]string{
		{"net.ipv4.ip_forward", "1"}, // first: it resets the others
		{"net.ipv4.conf.all.rp_filter", "0"},
		{"net.ipv4.conf.default.rp_filter", "0"},
		{"net.ipv4.conf.all.send_redirects", "0"},
		{"net.ipv4.conf.default.send_redirects", "0"},
		{"net.ipv4.conf.all.arp_ignore", "8"}, // answered by the responder alone
	} {
		if err := f.space.Sysctl(s[0], s[1]); err != nil {
			return fmt.Errorf("set %s: %w", s[0], err)
		}
	}
	return nil
}

// addPlatform puts the platform addresses on the fabric itself, so that services can listen on them there.
func (f *Fabric) addPlatform() error {
	lo, err := f.nl.LinkByName("lo")
	if err != nil {
		return err
	}
	for _, a := range []netip.Addr{WireServerAddr, IMDSAddr} {
		if err := f.nl.AddrAdd(lo, &netlink.Addr{IPNet: ipNet(netip.PrefixFrom(a, 32))}); err != nil {
			return fmt.Errorf("add %s: %w", a, err)
		}
	}
	return nil
}

// addRoutes swallows what has no owner. The default's black hole is in the table that is looked up last: in main it would end
// the look-up before a subnet's route table is asked.
func (f *Fabric) addRoutes(networks []netip.Prefix) error {
	hole := func(dst netip.Prefix, table int) error {
		return f.nl.RouteAdd(&netlink.Route{Dst: ipNet(dst), Table: table, Type: unix.RTN_BLACKHOLE})
	}
	for _, p := range networks {
		if err := hole(p, unix.RT_TABLE_MAIN); err != nil {
			return fmt.Errorf("add network %s: %w", p, err)
		}
	}
	if err := hole(netip.MustParsePrefix("0.0.0.0/0"), unix.RT_TABLE_DEFAULT); err != nil {
		return fmt.Errorf("add default: %w", err)
	}
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.SuppressPrefixlen = rulePrivate, unix.RT_TABLE_MAIN, 0
	if err := f.nl.RuleAdd(rule); err != nil {
		return fmt.Errorf("add rule: %w", err)
	}
	return nil
}

// SetRouteTable gives a subnet a route table with 0.0.0.0/0 by an appliance's port; nil takes it away. Traffic inside the
// virtual networks and to the platform addresses is not affected.
func (f *Fabric) SetRouteTable(subnet netip.Prefix, via *Port) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, known := f.tables[subnet]
	if !known {
		t.number = firstTable + len(f.tables)
	}
	if known && t.via != nil {
		if err := f.eachPort(subnet, f.nl.RuleDel, t.number); err != nil {
			return err
		}
	}
	t.via = via
	f.tables[subnet] = t
	if via == nil {
		return nil
	}
	dst := netip.MustParsePrefix("0.0.0.0/0")
	if err := f.nl.RouteReplace(via.route(dst, t.number)); err != nil {
		return fmt.Errorf("route table of %s: %w", subnet, err)
	}
	return f.eachPort(subnet, f.nl.RuleAdd, t.number)
}

func (f *Fabric) eachPort(subnet netip.Prefix, do func(*netlink.Rule) error, table int) error {
	for _, p := range f.ports {
		if p.cfg.Subnet != subnet {
			continue
		}
		if err := do(p.rule(table)); err != nil {
			return fmt.Errorf("route table of %s for %s: %w", subnet, p.cfg.Name, err)
		}
	}
	return nil
}

// Port returns a port by its name, nil without one.
func (f *Fabric) Port(name string) *Port {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ports[name]
}

// Close ends the responders; the namespace and its links are the caller's.
func (f *Fabric) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var errs []error
	for _, p := range f.ports {
		errs = append(errs, p.arp.close())
	}
	f.ports = map[string]*Port{}
	return errors.Join(append(errs, f.nft.CloseLasting())...)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
