package accounting

import (
	"encoding/binary"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/nftset"
)

// NFTTable is the nftables table, of family ip, with everything that the nftables backend makes.
const NFTTable = "native_vmss_acct"

// Names of its parts. Names of an address's own end with the address: t_10.20.0.10, c_10.20.0.10_tx_cluster.
const (
	chainPre  = "pre"
	chainPost = "post"
	setNICs   = "nics"
	mapTX     = "tx"
	mapRX     = "rx"
	// classPrefix keeps a class's set apart from ours and from the words of nft's language.
	classPrefix = "class_"
	// configPrefix begins the name of the chain, without a hook, that says from which configuration the table was made. Its one rule
	// is there to be missed: a flush of the table takes it along.
	configPrefix  = "cfg_"
	configMarker  = "gone when the table was flushed"
	counterPrefix = "c_"
	nodeName      = "node"
)

const (
	// podGroup is the link group of the host ends of pods.
	podGroup = 28278
	// After DNAT (−100) and before routing: all that a pod sends, towards its real peer, whatever becomes of it.
	priorityTX = -90
	// After every filter and before SNAT (100): all that reaches a pod's link.
	priorityRX = 99
	// reg holds what is compared; rules here never need more than one value at a time.
	reg = 1
	// Offsets and size of IPv4 addresses in a header: RFC 791 section 3.1.
	saddrOffset, daddrOffset, addrSize = 12, 16, 4
)

// nftChain is a chain as it should be. One with a hook is a base chain.
type nftChain struct {
	name     string
	hook     *nftables.ChainHook
	priority *nftables.ChainPriority
	rules    [][]expr.Any
	comment  string
}

func nftTable() *nftables.Table {
	return &nftables.Table{Name: NFTTable, Family: nftables.TableFamilyIPv4}
}

// baseChains see each packet that is routed here once each. Rules for pods match their links too, so that the node's packets to an
// address that no pod has never count.
func baseChains() []nftChain {
	return []nftChain{
		{
			name: chainPre, hook: nftables.ChainHookPrerouting, priority: nftables.ChainPriorityRef(priorityTX),
			rules: [][]expr.Any{
				slices.Concat(ofPod(expr.MetaKeyIIFGROUP), address(saddrOffset), vmap(mapTX)),
				slices.Concat(ofNIC(expr.MetaKeyIIFNAME), local(&expr.Fib{Register: reg, FlagDADDR: true, ResultADDRTYPE: true}), jump(nodeChain(RX))),
			},
		},
		{
			name: chainPost, hook: nftables.ChainHookPostrouting, priority: nftables.ChainPriorityRef(priorityRX),
			rules: [][]expr.Any{
				slices.Concat(ofPod(expr.MetaKeyOIFGROUP), address(daddrOffset), vmap(mapRX)),
				slices.Concat(ofNIC(expr.MetaKeyOIFNAME), local(&expr.Fib{Register: reg, FlagSADDR: true, ResultADDRTYPE: true}), jump(nodeChain(TX))),
			},
		},
	}
}

// nodeChains count the node's own traffic.
func nodeChains(conf Config) []nftChain {
	return []nftChain{
		{name: nodeChain(RX), rules: classRules(conf, nodeName, RX)},
		{name: nodeChain(TX), rules: classRules(conf, nodeName, TX)},
	}
}

func nodeChain(direction string) string { return "n_" + direction }

func configChain(conf Config) nftChain {
	return nftChain{name: configPrefix + conf.Hash, rules: [][]expr.Any{back()}, comment: configMarker}
}

// classRules count a packet under the class of its peer, the first that holds it. The last rule returns too: a chain that somebody
// has doubled counts once.
func classRules(conf Config, who, direction string) [][]expr.Any {
	peer := uint32(daddrOffset)
	if direction == RX {
		peer = saddrOffset
	}
	var rules [][]expr.Any
	for _, c := range conf.Classes {
		rules = append(rules, slices.Concat(address(peer), in(classPrefix+c.Name), count(counterName(who, direction, c.Name)), back()))
	}
	return append(rules, slices.Concat(count(counterName(who, direction, Internet)), back()))
}

// classNames are those that are counted, in the order of the rules.
func classNames(conf Config) []string {
	var names []string
	for _, c := range conf.Classes {
		names = append(names, c.Name)
	}
	return append(names, Internet)
}

func counterName(who, direction, class string) string {
	return counterPrefix + who + "_" + direction + "_" + class
}

// nftSets are the static sets, and the two maps without their elements.
func nftSets(conf Config) []*nftables.Set {
	sets := []*nftables.Set{
		{Name: mapTX, IsMap: true, KeyType: nftables.TypeIPAddr, DataType: nftables.TypeVerdict},
		{Name: mapRX, IsMap: true, KeyType: nftables.TypeIPAddr, DataType: nftables.TypeVerdict},
		// The byte order is how nft shows the elements; to the kernel they are bytes.
		{Name: setNICs, KeyType: nftables.TypeIFName, KeyByteOrder: binaryutil.NativeEndian},
	}
	for _, c := range conf.Classes {
		sets = append(sets, &nftables.Set{Name: classPrefix + c.Name, KeyType: nftables.TypeIPAddr, Interval: true})
	}
	for i, s := range sets {
		s.Table, s.ID = nftTable(), uint32(i+1) // the library's own numbers are a race
	}
	return sets
}

// setElements are the elements of each static set.
func setElements(conf Config) map[string][]nftables.SetElement {
	elements := map[string][]nftables.SetElement{setNICs: nftset.Links(conf.NICs...)}
	for _, c := range conf.Classes {
		elements[classPrefix+c.Name] = nftset.Prefixes(c.Prefixes)
	}
	return elements
}

// nftBatch adds to a batch, and counts its messages.
type nftBatch struct {
	conn  *nftables.Conn
	table *nftables.Table
	size  int
	err   error // the first one
}

// counters adds counters that don't stand yet; the others keep their values.
func (b *nftBatch) counters(names ...string) {
	for _, name := range names {
		b.conn.AddObject(&nftables.NamedObj{Table: b.table, Name: name, Type: nftables.ObjTypeCounter, Obj: &expr.Counter{}})
		b.size++
	}
}

func (b *nftBatch) dropCounters(names ...string) {
	for _, name := range names {
		b.conn.DeleteObject(&nftables.NamedObj{Table: b.table, Name: name, Type: nftables.ObjTypeCounter})
		b.size++
	}
}

// chain makes a chain have these rules and no others: whoever does the same at the same time doubles none. A new chain has nothing
// to flush, so this deletes nothing.
func (b *nftBatch) chain(c nftChain) {
	chain := b.conn.AddChain(c.of(b.table))
	b.conn.FlushChain(chain)
	b.size += 2
	for _, r := range c.rules {
		rule := &nftables.Rule{Table: b.table, Chain: chain, Exprs: r}
		if c.comment != "" {
			rule.UserData = userdata.AppendString(nil, userdata.TypeComment, c.comment)
		}
		b.conn.AddRule(rule)
		b.size++
	}
}

// flushChains empties chains. Each is added first, so that one that isn't there is no error.
func (b *nftBatch) flushChains(names ...string) {
	for _, name := range names {
		b.conn.FlushChain(b.conn.AddChain(&nftables.Chain{Name: name, Table: b.table}))
	}
	b.size += 2 * len(names)
}

// dropChains removes chains to which nothing leads.
func (b *nftBatch) dropChains(names ...string) {
	b.flushChains(names...)
	for _, name := range names {
		b.conn.DelChain(&nftables.Chain{Name: name, Table: b.table})
	}
	b.size += len(names)
}

// set makes a set have these elements and no others.
func (b *nftBatch) set(s *nftables.Set, elements []nftables.SetElement) {
	b.keep(b.conn.AddSet(s, nil))
	b.conn.FlushSet(s)
	b.size += 2
	b.add(s, elements)
}

func (b *nftBatch) add(s *nftables.Set, elements []nftables.SetElement) {
	if len(elements) > 0 {
		b.keep(b.conn.SetAddElements(s, elements))
		b.size++
	}
}

func (b *nftBatch) remove(s *nftables.Set, elements []nftables.SetElement) {
	if len(elements) > 0 {
		b.keep(b.conn.SetDeleteElements(s, elements))
		b.size++
	}
}

func (b *nftBatch) keep(err error) {
	if b.err == nil {
		b.err = err
	}
}

func (c nftChain) of(table *nftables.Table) *nftables.Chain {
	chain := &nftables.Chain{Name: c.name, Table: table}
	if c.hook != nil {
		accept := nftables.ChainPolicyAccept
		chain.Type, chain.Hooknum, chain.Priority, chain.Policy = nftables.ChainTypeFilter, c.hook, c.priority, &accept
	}
	return chain
}

func ofPod(group expr.MetaKey) []expr.Any {
	return []expr.Any{&expr.Meta{Key: group, Register: reg}, equal(binaryutil.NativeEndian.PutUint32(podGroup))}
}

func ofNIC(name expr.MetaKey) []expr.Any {
	return append([]expr.Any{&expr.Meta{Key: name, Register: reg}}, in(setNICs)...)
}

func local(address *expr.Fib) []expr.Any {
	return []expr.Any{address, equal(binary.NativeEndian.AppendUint32(nil, unix.RTN_LOCAL))}
}

func address(offset uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: addrSize}}
}

func equal(data []byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: data} }

func in(set string) []expr.Any { return []expr.Any{&expr.Lookup{SourceRegister: reg, SetName: set}} }

// vmap goes on where the map says: the result is a verdict.
func vmap(name string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: reg, SetName: name, DestRegister: unix.NFT_REG_VERDICT, IsDestRegSet: true}}
}

func count(name string) []expr.Any {
	return []expr.Any{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: name}}
}

func jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

func back() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}} }

// mark writes the bits of a mask and leaves the others as they are.
func mark(mask, value uint32) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyMARK, Register: reg},
		&expr.Bitwise{
			SourceRegister: reg, DestRegister: reg, Len: 4,
			Mask: binaryutil.NativeEndian.PutUint32(^mask), Xor: binaryutil.NativeEndian.PutUint32(value),
		},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: reg},
	}
}
