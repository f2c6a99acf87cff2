package accounting

import (
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// subjectChain is the chain of an address for one direction.
func subjectChain(direction string, addr netip.Addr) string {
	if direction == TX {
		return "t_" + addr.String()
	}
	return "r_" + addr.String()
}

// subjectOf reads the address in the name of a chain or counter of an address.
func subjectOf(name string) (netip.Addr, bool) {
	kind, rest, _ := strings.Cut(name, "_")
	switch kind {
	case "c":
		rest, _, _ = strings.Cut(rest, "_")
	case "t", "r":
	default:
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(rest)
	return addr, err == nil && addr.Is4() && addr.String() == rest
}

// subjectChains are the two chains of an address: the mark, then the counters.
func subjectChains(conf Config, s Subject) []nftChain {
	var chains []nftChain
	for _, direction := range []string{TX, RX} {
		c := nftChain{name: subjectChain(direction, s.Addr)}
		if m := Mark(conf.MarkMask, s.Slot); m != 0 {
			c.rules = append(c.rules, mark(conf.MarkMask, m))
		}
		c.rules = append(c.rules, classRules(conf, s.Addr.String(), direction)...)
		chains = append(chains, c)
	}
	return chains
}

// counterNames are all counters of an address or of the node.
func counterNames(conf Config, who string) []string {
	var names []string
	for _, direction := range []string{RX, TX} {
		for _, class := range classNames(conf) {
			names = append(names, counterName(who, direction, class))
		}
	}
	return names
}

// parseCounter takes a counter's name apart.
func parseCounter(name string) (who, direction, class string, ok bool) {
	parts := strings.SplitN(name, "_", 4)
	if len(parts) != 4 || parts[0]+"_" != counterPrefix || (parts[2] != RX && parts[2] != TX) {
		return "", "", "", false
	}
	return parts[1], parts[2], parts[3], true
}

// verdictMap names one of the two maps in a batch.
func verdictMap(name string) *nftables.Set {
	return &nftables.Set{
		Table: nftTable(), Name: name, IsMap: true, KeyType: nftables.TypeIPAddr, DataType: nftables.TypeVerdict,
	}
}

func subjectElement(direction string, addr netip.Addr) nftables.SetElement {
	return nftables.SetElement{
		Key: addr.AsSlice(), VerdictData: &expr.Verdict{Kind: expr.VerdictJump, Chain: subjectChain(direction, addr)},
	}
}

// subject adds all of an address. What stands of the counters keeps its values; chains are written anew; elements that stand are
// no error as long as they lead to these chains.
func (b *nftBatch) subject(conf Config, s Subject) {
	b.counters(counterNames(conf, s.Addr.String())...)
	for _, c := range subjectChains(conf, s) {
		b.chain(c)
	}
	for _, direction := range []string{TX, RX} {
		b.add(verdictMap(direction), []nftables.SetElement{subjectElement(direction, s.Addr)})
	}
}
