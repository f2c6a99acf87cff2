package fakeazure

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Offsets in an IPv4 header (RFC 791).
const (
	offsetSource      = 12
	offsetDestination = 16
)

// fabricChains are the base chains of the fabric's table:
//
//	table ip fabric {
//	  set platform { 168.63.129.16, 169.254.169.254 }
//	  set primaries { … }                    # what the internet may answer
//	  chain in  { type filter hook prerouting priority -300; iifname "p-node1" jump in_node1 … }
//	  chain out { type filter hook forward priority 0; iifname "p-node1" oifname "p-internet" ip saddr != <primary> drop … }
//	  set own_node1 { … }
//	  chain in_node1 { ip saddr @own_node1 goto ok_node1; counter name spoof_node1 drop }
//	  chain ok_node1 { ip daddr @platform ip saddr != <primary> counter name platform_node1 drop }
//	}
type fabricChains struct {
	in, out   *nftables.Chain
	platform  *nftables.Set
	primaries *nftables.Set
}

// Drops are the packets that the fabric refused at one port.
type Drops struct {
	Spoofed  uint64 // source isn't an address of the NIC
	Platform uint64 // to a platform address, not from the primary address of a primary NIC
	Internet uint64 // to the internet, not from the NIC's primary address
	Inbound  uint64 // from the internet to anything but a primary address
}

func (f *Fabric) openFilter() error {
	conn, err := nftables.New(nftables.WithNetNSFd(f.space.Fd()), nftables.AsLasting())
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	f.nft = conn
	f.table = conn.AddTable(&nftables.Table{Name: "fabric", Family: nftables.TableFamilyIPv4})
	f.chains.in = conn.AddChain(&nftables.Chain{
		Name: "in", Table: f.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw,
	})
	f.chains.out = conn.AddChain(&nftables.Chain{
		Name: "out", Table: f.table, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
	})
	if f.chains.platform, err = f.addSet("platform", WireServerAddr, IMDSAddr); err != nil {
		return err
	}
	if f.chains.primaries, err = f.addSet("primaries"); err != nil {
		return err
	}
	return f.flush("filter")
}

func (f *Fabric) addSet(name string, addrs ...netip.Addr) (*nftables.Set, error) {
	f.sets++ // left to the library, numbers come from one counter without a lock, and two fabrics of a process race for it
	s := &nftables.Set{Table: f.table, Name: name, KeyType: nftables.TypeIPAddr, ID: f.sets}
	if err := f.nft.AddSet(s, elements(addrs...)); err != nil {
		return nil, fmt.Errorf("add set %s: %w", name, err)
	}
	return s, nil
}

func (f *Fabric) flush(what string) error {
	if err := f.nft.Flush(); err != nil {
		return fmt.Errorf("flush %s: %w", what, err)
	}
	return nil
}

// filterPort adds a port's chains; its set starts empty.
func (f *Fabric) filterPort(p *Port) error {
	name := p.cfg.Name
	for _, c := range []string{"spoof_", "platform_", "internet_", "inbound_"} {
		f.nft.AddObj(&nftables.CounterObj{Table: f.table, Name: c + name})
	}
	var err error
	if p.own, err = f.addSet("own_" + name); err != nil {
		return err
	}
	in := f.nft.AddChain(&nftables.Chain{Name: "in_" + name, Table: f.table})
	ok := f.nft.AddChain(&nftables.Chain{Name: "ok_" + name, Table: f.table})
	if p.cfg.Internet {
		f.addRule(in, inSet(offsetDestination, f.chains.primaries), verdict(expr.VerdictAccept, ""))
		f.addRule(in, dropCounted("inbound_"+name))
	} else {
		f.filterSource(p, in, ok)
		f.filterPlatform(p, ok)
		f.addRule(f.chains.out, isLink(expr.MetaKeyIIFNAME, p.link), isLink(expr.MetaKeyOIFNAME, internetLink),
			compare(offsetSource, expr.CmpOpNeq, p.cfg.Primary), dropCounted("internet_"+name))
		if err := f.nft.SetAddElements(f.chains.primaries, elements(p.cfg.Primary)); err != nil {
			return err
		}
	}
	f.addRule(f.chains.in, isLink(expr.MetaKeyIIFNAME, p.link), verdict(expr.VerdictJump, in.Name))
	return f.flush("filter of " + name)
}

func (f *Fabric) filterSource(p *Port, in, ok *nftables.Chain) {
	if p.cfg.Forwarding {
		f.addRule(in, verdict(expr.VerdictGoto, ok.Name))
		return
	}
	f.addRule(in, inSet(offsetSource, p.own), verdict(expr.VerdictGoto, ok.Name))
	for _, prefix := range p.cfg.Prefixes {
		f.addRule(in, inPrefix(offsetSource, prefix), verdict(expr.VerdictGoto, ok.Name))
	}
	f.addRule(in, dropCounted("spoof_"+p.cfg.Name))
}

func (f *Fabric) filterPlatform(p *Port, ok *nftables.Chain) {
	match := inSet(offsetDestination, f.chains.platform)
	if p.cfg.PrimaryNIC {
		match = append(match, compare(offsetSource, expr.CmpOpNeq, p.cfg.Primary)...)
	}
	f.addRule(ok, match, dropCounted("platform_"+p.cfg.Name))
}

// filterAddr makes an address a valid source of the port, or no longer.
func (f *Fabric) filterAddr(p *Port, a netip.Addr, valid bool) error {
	change := f.nft.SetDeleteElements
	if valid {
		change = f.nft.SetAddElements
	}
	if err := change(p.own, elements(a)); err != nil {
		return err
	}
	return f.flush("address " + a.String())
}

// Drops reads the counters of every port.
func (f *Fabric) Drops() (map[string]Drops, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	objs, err := f.nft.GetObjects(f.table)
	if err != nil {
		return nil, fmt.Errorf("read counters: %w", err)
	}
	packets := map[string]uint64{}
	for _, o := range objs {
		if c, ok := o.(*nftables.CounterObj); ok {
			packets[c.Name] = c.Packets
		}
	}
	list := map[string]Drops{}
	for name := range f.ports {
		list[name] = Drops{
			Spoofed: packets["spoof_"+name], Platform: packets["platform_"+name],
			Internet: packets["internet_"+name], Inbound: packets["inbound_"+name],
		}
	}
	return list, nil
}

func (f *Fabric) addRule(c *nftables.Chain, parts ...[]expr.Any) {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	f.nft.AddRule(&nftables.Rule{Table: f.table, Chain: c, Exprs: all})
}

func elements(addrs ...netip.Addr) []nftables.SetElement {
	var list []nftables.SetElement
	for _, a := range addrs {
		list = append(list, nftables.SetElement{Key: a.AsSlice()})
	}
	return list
}

func load(offset uint32) expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: 4}
}

func inSet(offset uint32, s *nftables.Set) []expr.Any {
	return []expr.Any{load(offset), &expr.Lookup{SourceRegister: 1, SetName: s.Name, SetID: s.ID}}
}

func compare(offset uint32, op expr.CmpOp, a netip.Addr) []expr.Any {
	return []expr.Any{load(offset), &expr.Cmp{Op: op, Register: 1, Data: a.AsSlice()}}
}

func inPrefix(offset uint32, p netip.Prefix) []expr.Any {
	mask := net.CIDRMask(p.Bits(), 32)
	return []expr.Any{
		load(offset),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: mask, Xor: binaryutil.BigEndian.PutUint32(0)},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: p.Masked().Addr().AsSlice()},
	}
}

func isLink(key expr.MetaKey, name string) []expr.Any {
	padded := make([]byte, unix.IFNAMSIZ)
	copy(padded, name)
	return []expr.Any{&expr.Meta{Key: key, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: padded}}
}

func verdict(kind expr.VerdictKind, chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: kind, Chain: chain}}
}

func dropCounted(counter string) []expr.Any {
	return []expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: counter}, &expr.Verdict{Kind: expr.VerdictDrop}}
}
