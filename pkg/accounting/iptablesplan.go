package accounting

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
)

// plan is one transaction for iptables-restore.
type plan struct {
	have    table    // what stood when the plan was made
	carried table    // what the other flavour has counted
	applied bool     // what stands was made from the same configuration, so a difference is another's doing
	static  bool     // lines change what is not one address's
	notPods []string // links that are no pod's
	lines   []string
	changed []string
	doubted []string
}

func newPlan(have, carried table) *plan { return &plan{have: have, carried: carried} }

func (p *plan) add(format string, args ...any) {
	p.lines = append(p.lines, fmt.Sprintf(format, args...))
}

func (p *plan) text() string { return "*mangle\n" + strings.Join(p.lines, "\n") + "\nCOMMIT\n" }

func (p *plan) note(format string, args ...any) {
	p.changed = append(p.changed, fmt.Sprintf(format, args...))
}

// doubt notes a change whose reason may have made counters wrong.
func (p *plan) doubt(format string, args ...any) {
	p.note(format, args...)
	p.doubted = append(p.doubted, p.changed[len(p.changed)-1])
}

// noteIf is doubt where what stood was complete once, else note.
func (p *plan) noteIf(doubt bool, format string, args ...any) {
	if doubt {
		p.doubt(format, args...)
		return
	}
	p.note(format, args...)
}

// planAll makes everything as it should be.
func planAll(have, carried table, conf Config, subjects []Subject) *plan {
	p := newPlan(have, carried)
	p.applied, p.notPods = have.applied(conf), append(slices.Clone(conf.NICs), "lo")
	for _, chain := range []string{chainConf, chainTX, chainRX, chainMark, chainNodeTX, chainNodeRX} {
		if _, ok := have[chain]; !ok {
			p.static = true
			p.add("-N %s", chain)
			p.note("chain %s made", chain)
		}
	}
	p.hooks(hooks(conf))
	p.node(conf, chainNodeRX, RX)
	p.node(conf, chainNodeTX, TX)
	p.subjects(conf, subjects)
	if p.static || !p.applied || len(have[chainConf]) != 1 {
		p.removeAll(chainConf, func(rule) bool { return true })
		p.add("-A %s %s", chainConf, confRule(conf, fmt.Sprintf("%016x", rand.Uint64())))
	}
	return p
}

// planDrop removes what is ours, and rules of others that lead to it.
func planDrop(have table) *plan {
	p := newPlan(have, nil)
	p.hooks(nil)
	var own []string
	for _, chain := range slices.Sorted(maps.Keys(have)) {
		if strings.HasPrefix(chain, chainPrefix) {
			own = append(own, chain)
		}
	}
	for _, chain := range own {
		p.add("-F %s", chain)
	}
	for _, chain := range own {
		p.add("-X %s", chain)
	}
	return p
}

// hooks puts one rule of each kind into the chains of others, in front when it is made. It is left where it stands then: whoever
// also wants to be first would move us away for ever. What else leads to our chains counts packets twice, whoever made it.
func (p *plan) hooks(wanted []hook) {
	for _, chain := range slices.Sorted(maps.Keys(p.have)) {
		if strings.HasPrefix(chain, chainPrefix) {
			continue
		}
		for _, r := range p.have[chain] {
			known := slices.ContainsFunc(wanted, func(h hook) bool { return h.chain == chain && r.is(h.spec) })
			if known || !strings.HasPrefix(target(r.spec), chainPrefix) {
				continue
			}
			p.static = true
			p.add("-D %s %s", chain, r.spec)
			doubt := p.applied || target(r.spec) == chainTX || target(r.spec) == chainRX
			p.noteIf(doubt && target(r.spec) != chainMark, "rule removed: %s %s", chain, r.spec)
		}
	}
	for _, h := range wanted {
		p.hook(h)
	}
}

// hook has one of these rules stand once. Twice, or behind a rule that takes away what it is for, it is made anew, in front.
func (p *plan) hook(h hook) {
	copies, before := 0, ""
	for _, r := range p.have[h.chain] {
		if r.is(h.spec) {
			copies++
		} else if copies == 0 && before == "" && endsChain(r) && !p.apart(r, h) {
			before = r.spec
		}
	}
	if copies == 1 && before == "" {
		return
	}
	p.static = true
	counts := target(h.spec) != chainMark
	for _, r := range p.have[h.chain] {
		if r.is(h.spec) { // each names the first one that is left
			p.add("-D %s %s", h.chain, r.spec)
		}
	}
	p.add("-I %s 1 %s", h.chain, h.spec)
	switch {
	case copies > 1:
		p.noteIf(counts, "rule stood %d times: %s %s", copies, h.chain, h.spec)
	case copies == 1:
		p.noteIf(counts, "rule stood behind one that ends the chain (%s): %s %s", before, h.chain, h.spec)
	default:
		p.noteIf(p.applied && counts, "rule added: %s %s", h.chain, h.spec)
	}
}

// endsChain reports whether a packet that a rule takes leaves the chain alive there: from where a goto leads it doesn't come back. One
// that is dropped is no traffic, and what a chain that is jumped to does with a packet is not looked at.
func endsChain(r rule) bool {
	if option(r.spec, "-g") != "" {
		return true
	}
	switch target(r.spec) {
	case "ACCEPT", "RETURN", "QUEUE", "NFQUEUE":
		return true
	}
	return false
}

// apart reports whether a rule is for packets of another link than ours.
func (p *plan) apart(r rule, h hook) bool {
	for side, group := range map[string]string{"-i": "--src-group", "-o": "--dst-group"} {
		link := positive(r.spec, side)
		if link == "" || strings.HasSuffix(link, "+") {
			continue
		}
		if own := positive(h.spec, side); own != "" && own != link {
			return true
		}
		if positive(h.spec, group) != "" && slices.Contains(p.notPods, link) {
			return true
		}
	}
	return false
}

// node writes the rules that count the node's own traffic.
func (p *plan) node(conf Config, chain, direction string) {
	wanted := nodeRules(conf, direction)
	if sameRules(p.have[chain], wanted) {
		return
	}
	p.static = true
	if have, ok := p.have[chain]; ok {
		p.add("-F %s", chain)
		p.noteIf(p.applied && len(have) > 0, "rules of %s written", chain)
	}
	p.fill(chain, wanted, p.values(chain, noName, noName))
}

// subjects removes what isn't for these addresses, and then writes their rules: a chain that is led to can't be made anew.
func (p *plan) subjects(conf Config, subjects []Subject) {
	var counted []Subject
	var marks []string
	kept := map[netip.Addr]bool{}
	for _, s := range subjects {
		kept[s.Addr] = true
		// An address between two pods has values, and no packets come to them.
		if !s.Used && !p.attached(s.Addr) {
			continue
		}
		counted = append(counted, s)
		if spec, ok := markRule(conf, s); ok {
			marks = append(marks, spec)
		}
	}
	p.others(kept)
	p.marks(marks)
	for _, s := range counted {
		p.write(conf, s)
	}
}

// write makes the rules of one address as they should be.
func (p *plan) write(conf Config, s Subject) {
	had, hadPod := chainNames(p.have[chainOf(TX, s.Addr)])
	namespace, pod := clean(s.Namespace, maxName), clean(s.Pod, maxPod)
	if !s.Used {
		namespace, pod = had, hadPod
	}
	before := len(p.lines)
	p.address(conf, s.Addr, RX, namespace, pod)
	p.address(conf, s.Addr, TX, namespace, pod)
	if len(p.lines) > before {
		p.noteIf(p.applied && (s.Counted || had == namespace && hadPod == pod), "rules of %s written", s.Addr)
	}
}

// others removes what our chains hold for addresses that are none of these, and what isn't ours in them.
func (p *plan) others(kept map[netip.Addr]bool) {
	for _, chain := range []string{chainTX, chainRX} {
		p.removeAll(chain, func(r rule) bool {
			direction, a, ofAddr := addrOf(target(r.spec))
			if ofAddr && kept[a] {
				if list, spec := dispatch(direction, a); list == chain && r.is(spec) {
					return false
				}
			}
			p.static = true
			// One that leads to an address which nobody has any more is left from a killed DEL; any other one is another's doing.
			p.noteIf(p.applied && (!ofAddr || kept[a]), "rule removed: %s %s", chain, r.spec)
			return true
		})
	}
	for _, chain := range slices.Sorted(maps.Keys(p.have)) {
		if _, a, ok := addrOf(chain); ok && !kept[a] {
			p.add("-F %s", chain)
			p.add("-X %s", chain)
			p.note("chain %s removed", chain)
		}
	}
}

// marks makes the rules that write marks exactly these.
func (p *plan) marks(wanted []string) {
	left := map[string]string{} // normal -> as it is written
	for _, spec := range wanted {
		left[normal(spec)] = spec
	}
	p.removeAll(chainMark, func(r rule) bool {
		if _, ok := left[r.sorted]; ok {
			delete(left, r.sorted)
			return false
		}
		p.static = true
		p.note("rule removed: %s %s", chainMark, r.spec)
		return true
	})
	for _, spec := range wanted {
		if _, ok := left[normal(spec)]; ok {
			delete(left, normal(spec))
			p.static = true
			p.add("-A %s %s", chainMark, spec)
		}
	}
}

// subject makes the rules of one address and returns the values that stand afterwards.
func (p *plan) subject(conf Config, s Subject) []Sample {
	namespace, pod := clean(s.Namespace, maxName), clean(s.Pod, maxPod)
	after := append(p.address(conf, s.Addr, RX, namespace, pod), p.address(conf, s.Addr, TX, namespace, pod)...)
	spec, ok := markRule(conf, s)
	stands := false
	p.removeAll(chainMark, func(r rule) bool {
		if !ofSource(r, s.Addr) {
			return false
		}
		again := stands || !ok || !r.is(spec)
		stands = stands || !again
		return again
	})
	if ok && !stands {
		p.add("-A %s %s", chainMark, spec)
	}
	return after
}

// address writes one direction of one address unless it is as it should be, and returns the values that stand afterwards: those
// of the same pod are kept, those of another are not. It begins with -N where there is no chain and with -X, which fails where
// somebody leads to the chain, where there is one: of two processes that found the same fault one fails.
func (p *plan) address(conf Config, a netip.Addr, direction, namespace, pod string) []Sample {
	chain := chainOf(direction, a)
	wanted := ruleTexts(conf, namespace, pod, direction)
	list, spec := dispatch(direction, a)
	leads := countSame(p.have[list], spec)
	if sameRules(p.have[chain], wanted) && leads == 1 {
		return p.have.chainSamples(chain)
	}
	for range leads {
		p.add("-D %s %s", list, spec)
	}
	if _, ok := p.have[chain]; ok {
		p.add("-F %s", chain)
		p.add("-X %s", chain)
	}
	p.add("-N %s", chain)
	written := p.fill(chain, wanted, p.values(chain, namespace, pod))
	p.add("-A %s %s", list, spec)
	return written
}

// detach takes an address out of the packets' way.
func (p *plan) detach(a netip.Addr) {
	for _, direction := range []string{RX, TX} {
		list, spec := dispatch(direction, a)
		sorted := normal(spec)
		p.removeAll(list, func(r rule) bool { return r.sorted == sorted })
	}
	p.removeAll(chainMark, func(r rule) bool { return ofSource(r, a) })
}

// fill appends rules; the first of each class has the value of the class. It returns the values as they stand then.
func (p *plan) fill(chain string, specs []string, values map[string]Sample) []Sample {
	now := table{}
	for _, spec := range specs {
		r := rule{spec: spec}
		if l, ok := r.label(); ok {
			r.bytes, r.packets = values[l.class].Bytes, values[l.class].Packets
			delete(values, l.class)
		}
		now[chain] = append(now[chain], r)
		p.add("[%d:%d] -A %s %s", r.packets, r.bytes, chain, spec)
	}
	return now.chainSamples(chain)
}

// values are those that a chain's rules have counted for the same pod, here or, where the chain isn't, in the other flavour.
func (p *plan) values(chain, namespace, pod string) map[string]Sample {
	from := p.have
	if _, ok := from[chain]; !ok {
		from = p.carried
	}
	values := map[string]Sample{}
	if hadNamespace, hadPod := chainNames(from[chain]); hadNamespace == namespace && hadPod == pod {
		for _, s := range from.chainSamples(chain) {
			values[s.Class] = s
		}
	}
	return values
}

// chainNames are those of the pod that rules were made for.
func chainNames(rules []rule) (namespace, pod string) {
	for _, r := range rules {
		if l, ok := r.label(); ok {
			return l.namespace, l.pod
		}
	}
	return "", ""
}

// attached reports whether packets of an address come to its rules.
func (p *plan) attached(a netip.Addr) bool {
	tx, toTX := dispatch(TX, a)
	rx, toRX := dispatch(RX, a)
	return countSame(p.have[tx], toTX)+countSame(p.have[rx], toRX) > 0
}

// removeAll deletes the rules of a chain that are wrong.
func (p *plan) removeAll(chain string, wrong func(rule) bool) {
	for _, r := range p.have[chain] {
		if wrong(r) {
			p.add("-D %s %s", chain, r.spec)
		}
	}
}

func ofSource(r rule, a netip.Addr) bool {
	return strings.TrimSuffix(option(r.spec, "-s"), "/32") == a.String()
}

func countSame(rules []rule, spec string) int {
	n, sorted := 0, normal(spec)
	for _, r := range rules {
		if r.sorted == sorted {
			n++
		}
	}
	return n
}

func sameRules(rules []rule, specs []string) bool {
	return slices.EqualFunc(rules, specs, func(r rule, spec string) bool { return r.is(spec) })
}
