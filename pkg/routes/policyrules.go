package routes

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/nftset"
)

const (
	// reg holds what is compared; rules here never need more than one value at a time.
	reg = 1
	// translated is IPS_SRC_NAT | IPS_DST_NAT (include/uapi/linux/netfilter/nf_conntrack_common.h).
	translated = 1<<4 | 1<<5
	// unconnected are the states of packets that belong to no connection: invalid, or not tracked at all.
	unconnected = expr.CtStateBitINVALID | expr.CtStateBitUNTRACKED
	// Offsets and sizes of header fields: RFC 791 section 3.1, RFC 793 section 3.1.
	saddrOffset, daddrOffset, addrSize = 12, 16, 4
	dportOffset, portSize              = 2, 2
)

// Codes of ICMP type 3, RFC 792 and RFC 1122 section 3.2.2.1.
const (
	icmpHostUnreachable = 1
	icmpAdminProhibited = 13
)

// builder adds sets, chains and rules of one table to a batch; without conn it only lists the rules.
type builder struct {
	conn  *nftables.Conn
	table *nftables.Table
	err   error // the first one
	// What was written so far: rules, chains with a hook, and the elements of sets that have a name.
	written  []policyRule
	hooked   []string
	elements map[string][]nftables.SetElement
}

func newBuilder(conn *nftables.Conn, table *nftables.Table) *builder {
	return &builder{conn: conn, table: table, elements: map[string][]nftables.SetElement{}}
}

// policy adds all of the table.
func (b *builder) policy(p Policy) error {
	b.config(p.Hash)
	nics := b.set("nics", nftables.TypeIFName, false, nicElements(p.NICs))
	native := b.set("native", nftables.TypeIPAddr, true, nftset.Prefixes(p.Native))
	b.prerouting()
	b.forward(p, nics)
	b.postrouting(p, nics, native)
	if len(p.NICs) > 1 {
		b.egress(p.NICs)
	}
	return b.err
}

// config names the configuration that the table was built from.
func (b *builder) config(hash string) {
	c := b.add(&nftables.Chain{Name: configChain(hash), Table: b.table})
	b.rule(c, configMarker, []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}})
}

// prerouting drops, before conntrack sees it, what a pod sends from an address that isn't routed to its link. It stands beside
// the link's rp_filter, which others may change. And what a pod sends to the node's loopback: with route_localnet, which kube-proxy
// sets, the kernel would hand it to services that listen on 127.0.0.1 because nobody else should reach them. And what has no source yet,
// as a DHCP client's broadcast: neither the look-up nor rp_filter judges it on its way to 255.255.255.255 or 224.0.0.0/24. That rule looks
// at the source first, so that other packets leave it after one comparison.
func (b *builder) prerouting() {
	c := b.chain("prerouting", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, nftables.ChainPriorityRaw)
	b.rule(c, "spoofed source", fromPod(), unrouted(), drop())
	b.rule(c, "loopback of the node", fromPod(), toLoopback(), drop())
	b.rule(c, "no source", noSource(), fromPod(), drop())
}

// forward comes after DNAT, so a Service whose endpoint is a platform address opens no way around it.
func (b *builder) forward(p Policy, nics *nftables.Set) {
	c := b.chain("forward", nftables.ChainTypeFilter, nftables.ChainHookForward, nftables.ChainPriorityFilter)
	// Azure delivers an address to its NIC whether or not a pod has it. Without this rule the node sends the packet back to the
	// gateway, which sends it here again, until its TTL ends. What was translated here, a NodePort for one, is on its way.
	// The second rule is for packets without a connection, a reset that comes late for one: the first doesn't match them.
	transit := append(ifName(expr.MetaKeyIIFNAME, nics), ifName(expr.MetaKeyOIFNAME, nics)...)
	b.rule(c, "a node is no router", transit, ctBits(expr.CtKeySTATUS, translated, expr.CmpOpEq), reject(icmpHostUnreachable))
	b.rule(c, "a node is no router", transit, ctBits(expr.CtKeySTATE, unconnected, expr.CmpOpNeq), reject(icmpHostUnreachable))
	if p.DenyWireserver {
		b.rule(c, "wireserver", fromPod(), daddr(), []expr.Any{equal(wireserver.AsSlice())}, b.tcpPorts(wireserverPorts), drop())
	}
	if p.DenyIMDS {
		b.rule(c, "metadata service", fromPod(), daddr(), []expr.Any{equal(imds.AsSlice())}, reject(icmpAdminProhibited))
	}
}

// afterSNAT is behind every translation of a source (NF_IP_PRI_NAT_SRC is 100), that of an answer to a port of ours included.
const afterSNAT = 150

// egress is the guarantee behind the routing rules: nothing leaves a NIC under another NIC's address. Such a packet answers one that
// came in by that other NIC and was translated here (a hostPort) for somebody whose answers leave by this one. An ICMP error in its
// place would be translated too, and be no better.
func (b *builder) egress(nics []PolicyNIC) {
	c := b.chain("egress", nftables.ChainTypeFilter, nftables.ChainHookPostrouting, nftables.ChainPriorityRef(afterSNAT))
	for i, out := range nics {
		for j, other := range nics {
			if i != j && other.Primary.Is4() {
				b.rule(c, "address of another NIC", oneIfName(expr.MetaKeyOIFNAME, out.Link), saddr(), []expr.Any{equal(other.Primary.AsSlice())}, drop())
			}
		}
	}
}

// postrouting gives packets a source that Azure takes: platform addresses answer only the primary address of the primary NIC,
// whatever else is configured, and the internet is reached only from the primary address of the NIC that a packet leaves by.
func (b *builder) postrouting(p Policy, nics, native *nftables.Set) {
	c := b.chain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, nftables.ChainPriorityNATSource)
	platform := b.anonymous(nftables.TypeIPAddr, [][]byte{wireserver.AsSlice(), imds.AsSlice()})
	b.rule(c, "platform addresses", fromPod(), daddr(), []expr.Any{in(platform)}, snat(p.PlatformSNAT, false))
	if !p.Masquerade {
		return
	}
	outside := []expr.Any{&expr.Lookup{SourceRegister: reg, SetName: native.Name, SetID: native.ID, Invert: true}}
	for _, nic := range p.NICs {
		if nic.Primary.Is4() {
			by := oneIfName(expr.MetaKeyOIFNAME, nic.Link)
			b.rule(c, "outside nativeCIDRs", fromPod(), by, daddr(), outside, snat(nic.Primary, true))
		}
	}
	b.rule(c, "outside nativeCIDRs", fromPod(), ifName(expr.MetaKeyOIFNAME, nics), daddr(), outside,
		[]expr.Any{&expr.Masq{FullyRandom: true}})
}

func (b *builder) chain(
	name string, kind nftables.ChainType, hook *nftables.ChainHook, prio *nftables.ChainPriority,
) *nftables.Chain {
	b.hooked = append(b.hooked, name)
	accept := nftables.ChainPolicyAccept
	return b.add(&nftables.Chain{Name: name, Table: b.table, Type: kind, Hooknum: hook, Priority: prio, Policy: &accept})
}

func (b *builder) add(c *nftables.Chain) *nftables.Chain {
	if b.conn == nil {
		return c
	}
	return b.conn.AddChain(c)
}

func (b *builder) rule(c *nftables.Chain, comment string, parts ...[]expr.Any) {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	b.written = append(b.written, policyRule{c.Name, comment})
	if b.conn == nil {
		return
	}
	b.conn.AddRule(&nftables.Rule{
		Table: b.table, Chain: c, Exprs: all, UserData: userdata.AppendString(nil, userdata.TypeComment, comment),
	})
}

func (b *builder) set(name string, key nftables.SetDatatype, interval bool, elements []nftables.SetElement) *nftables.Set {
	s := &nftables.Set{Table: b.table, Name: name, KeyType: key, Interval: interval}
	if key == nftables.TypeIFName {
		s.KeyByteOrder = binaryutil.NativeEndian // how nft shows the elements; to the kernel they are bytes
	}
	b.elements[name] = elements
	b.addSet(s, elements)
	return s
}

func (b *builder) anonymous(key nftables.SetDatatype, keys [][]byte) *nftables.Set {
	s := &nftables.Set{Table: b.table, Anonymous: true, Constant: true, KeyType: key}
	elements := make([]nftables.SetElement, len(keys))
	for i := range keys {
		elements[i].Key = keys[i]
	}
	b.addSet(s, elements)
	return s
}

func (b *builder) addSet(s *nftables.Set, elements []nftables.SetElement) {
	if b.conn == nil {
		return
	}
	if err := b.conn.AddSet(s, elements); err != nil && b.err == nil {
		b.err = err
	}
}

func nicElements(nics []PolicyNIC) []nftables.SetElement {
	var names []string
	for _, nic := range nics {
		names = append(names, nic.Link)
	}
	return nftset.Links(names...)
}

func fromPod() []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyIIFGROUP, Register: reg}, equal(binaryutil.NativeEndian.PutUint32(Group))}
}

func ifName(key expr.MetaKey, set *nftables.Set) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: reg}, in(set)}
}

func oneIfName(key expr.MetaKey, link string) []expr.Any {
	return []expr.Any{&expr.Meta{Key: key, Register: reg}, equal(nftset.LinkName(link))}
}

func daddr() []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: daddrOffset, Len: addrSize}}
}

// toLoopback matches 127.0.0.0/8 by its first byte.
func toLoopback() []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: daddrOffset, Len: 1}, equal([]byte{127}),
	}
}

func noSource() []expr.Any { return append(saddr(), equal(netip.IPv4Unspecified().AsSlice())) }

func saddr() []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: saddrOffset, Len: addrSize}}
}

func (b *builder) tcpPorts(ports []uint16) []expr.Any {
	var keys [][]byte
	for _, p := range ports {
		keys = append(keys, binary.BigEndian.AppendUint16(nil, p))
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}, equal([]byte{unix.IPPROTO_TCP}),
		&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: dportOffset, Len: portSize},
		in(b.anonymous(nftables.TypeInetService, keys)),
	}
}

// ctBits compares the chosen bits of a connection's state or status with none of them. A packet without a connection has no
// status, so a rule that asks for it doesn't match, whatever the comparison.
func ctBits(key expr.CtKey, bits uint32, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Ct{Key: key, Register: reg},
		&expr.Bitwise{
			SourceRegister: reg, DestRegister: reg, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: binaryutil.NativeEndian.PutUint32(0),
		},
		&expr.Cmp{Op: op, Register: reg, Data: binaryutil.NativeEndian.PutUint32(0)},
	}
}

func equal(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data} }

func in(set *nftables.Set) expr.Any {
	return &expr.Lookup{SourceRegister: reg, SetName: set.Name, SetID: set.ID}
}

// unrouted matches a source that isn't routed to the link the packet came in by: the look-up finds no link.
func unrouted() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: reg, FlagSADDR: true, FlagIIF: true, ResultOIF: true},
		equal(binaryutil.NativeEndian.PutUint32(0)),
	}
}

func drop() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }

func reject(code uint8) []expr.Any {
	return []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}}
}

func snat(addr netip.Addr, random bool) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: reg, Data: addr.AsSlice()},
		&expr.NAT{Type: expr.NATTypeSourceNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: reg, FullyRandom: random},
	}
}
