package accounting

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
)

// removals plans what nobody wants any more: objects of addresses that are gone, of classes that are gone, and what others put into
// the table.
func (p *nftPlan) removals(wanted map[netip.Addr]Subject) error {
	keep := p.names(wanted)
	var chains, sets, counters []string
	gone := map[string][]nftables.SetElement{}
	for _, direction := range []string{TX, RX} {
		for _, e := range p.found.sets[direction].elements {
			addr, _ := netip.AddrFromSlice([]byte(e.key))
			if _, ok := wanted[addr]; !ok {
				gone[direction] = append(gone[direction], nftables.SetElement{Key: []byte(e.key), VerdictData: verdictOf(e.verdict)})
			}
		}
	}
	for name := range p.found.chains {
		if !keep[name] && !strings.HasPrefix(name, configPrefix) {
			chains = append(chains, name)
		}
	}
	for name := range p.found.sets {
		if !keep[name] {
			sets = append(sets, name)
		}
	}
	for name := range p.found.counters {
		if !keep[name] {
			counters = append(counters, name)
		}
	}
	if len(gone) > 0 {
		p.add(p.removed("elements", slices.Concat(keysOf(gone[TX]), keysOf(gone[RX]))), false, func(b *nftBatch) {
			b.remove(verdictMap(mapTX), gone[TX])
			b.remove(verdictMap(mapRX), gone[RX])
		})
	}
	// One may jump to another, or a map lead to it: all are emptied and sets go before the first one does.
	for some := range slices.Chunk(chains, nftBatchSize/3) {
		p.add(p.removed("chains", some), !p.renewed && slices.ContainsFunc(some, isForeign), func(b *nftBatch) { b.flushChains(some...) })
	}
	for _, name := range sets {
		p.add(p.removed("set", []string{name}), false, func(b *nftBatch) {
			b.conn.DelSet(&nftables.Set{Table: b.table, Name: name})
			b.size++
		})
	}
	for some := range slices.Chunk(chains, nftBatchSize/3) {
		p.add("", false, func(b *nftBatch) { b.dropChains(some...) })
	}
	if p.renewed { // what a class that goes has counted until now is read once more: the next Apply takes it away
		counters = nil
	}
	for some := range slices.Chunk(counters, nftBatchSize) {
		p.add("", false, func(b *nftBatch) { b.dropCounters(some...) })
	}
	return nil
}

// isForeign tells of a chain in our table that it can't have been ours: it may have counted packets too.
func isForeign(chain string) bool {
	_, ours := subjectOf(chain)
	return !ours
}

func keysOf(elements []nftables.SetElement) []string {
	var keys []string
	for _, e := range elements {
		addr, _ := netip.AddrFromSlice(e.Key)
		keys = append(keys, addr.String())
	}
	return keys
}

func (p *nftPlan) removed(what string, names []string) string {
	slices.Sort(names)
	return p.unlessRenewed(fmt.Sprintf("%s removed: nobody has %s", what, strings.Join(slices.Compact(names), ", ")))
}

// names are those of all chains, sets and counters that are wanted.
func (p *nftPlan) names(wanted map[netip.Addr]Subject) map[string]bool {
	keep := map[string]bool{chainPre: true, chainPost: true, nodeChain(RX): true, nodeChain(TX): true}
	for _, s := range nftSets(p.conf) {
		keep[s.Name] = true
	}
	for _, name := range counterNames(p.conf, nodeName) {
		keep[name] = true
	}
	for addr := range wanted {
		keep[subjectChain(TX, addr)], keep[subjectChain(RX, addr)] = true, true
		for _, name := range counterNames(p.conf, addr.String()) {
			keep[name] = true
		}
	}
	return keep
}
