package accounting

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	// nftBatchSize is how many messages a batch may have before it takes another step: about four addresses. The kernel holds a lock
	// of all tables meanwhile.
	nftBatchSize = 100
	// nftApplyTries is how often Apply starts again when the table changed under it.
	nftApplyTries = 5
)

// nftStep is one thing to put right, all in one transaction.
type nftStep struct {
	lines   []string // what is wrong, in words
	doubted bool
	write   func(*nftBatch)
}

// Apply compares the table with what it should be, and rewrites what differs. A table that is right costs its reading.
func (n *NFT) Apply(ctx context.Context, conf Config, subjects []Subject) (changed, doubted []string, err error) {
	for range nftApplyTries {
		var steps []nftStep
		if steps, err = n.plan(ctx, conf, subjects); err == nil && len(steps) > 0 {
			var done []nftStep
			done, err = n.run(ctx, steps)
			for _, s := range done {
				changed = append(changed, s.lines...)
				if s.doubted {
					doubted = append(doubted, s.lines...)
				}
			}
		}
		if !changedMeanwhile(err) {
			break
		}
	}
	for _, line := range changed {
		n.log.Info("accounting put right", "table", NFTTable, "what", line)
	}
	if err != nil {
		err = fmt.Errorf("set up table ip %s: %w", NFTTable, n.refused(ctx, err))
	}
	return changed, doubted, err
}

// changedMeanwhile knows the errors of a batch that was made for another state of the table.
func changedMeanwhile(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOBUFS)
}

// run writes steps in batches and returns those that are done.
func (n *NFT) run(ctx context.Context, steps []nftStep) (done []nftStep, err error) {
	for len(steps) > 0 {
		taken := 0
		err := n.flush(ctx, func(b *nftBatch) {
			for taken < len(steps) && b.size < nftBatchSize {
				steps[taken].write(b)
				taken++
			}
		})
		if err != nil {
			return done, err
		}
		done, steps = append(done, steps[:taken]...), steps[taken:]
	}
	return done, nil
}

// nftPlan collects steps. Their order: sets before the rules that name them, chains before what jumps to them, and removals after all
// that could still name what goes. The chain that names the configuration comes last: without it nobody takes the table for ready.
type nftPlan struct {
	conf  Config
	found nftFound
	steps []nftStep
	// renewed: the rules were made from another configuration, so that they differ says nothing.
	renewed bool
	// anew: the whole table is made, which one line says.
	anew bool
}

func (n *NFT) plan(ctx context.Context, conf Config, subjects []Subject) ([]nftStep, error) {
	wanted := map[netip.Addr]Subject{}
	for _, s := range subjects {
		if !s.Addr.Is4() {
			return nil, fmt.Errorf("count %s: not an IPv4 address", s.Addr)
		}
		wanted[s.Addr] = s
	}
	found, err := n.find(ctx)
	if err != nil {
		return nil, err
	}
	p := &nftPlan{conf: conf, found: found, renewed: renewed(found, conf)}
	p.table(len(subjects) > 0)
	for _, part := range []func(map[netip.Addr]Subject) error{p.static, p.subjects, p.removals, p.config} {
		if err := part(wanted); err != nil {
			return nil, err
		}
	}
	if p.anew {
		for i := range p.steps[1:] {
			p.steps[i+1].lines = nil
		}
	}
	return p.steps, nil
}

func renewed(f nftFound, conf Config) bool {
	if len(f.chains[configPrefix+conf.Hash]) > 0 {
		return false
	}
	for name := range f.chains {
		if strings.HasPrefix(name, configPrefix) {
			return true
		}
	}
	return false
}

func (p *nftPlan) add(line string, doubted bool, write func(*nftBatch)) {
	s := nftStep{doubted: doubted, write: write}
	if line != "" {
		s.lines = []string{line}
	}
	p.steps = append(p.steps, s)
}

// table makes the table, and makes it anew where one of its sets is of another kind: that can't be changed under the rules that
// name it.
func (p *nftPlan) table(counting bool) {
	addTable := func(b *nftBatch) { b.conn.AddTable(b.table); b.size++ }
	p.anew = !p.found.exists
	if p.anew {
		p.add("table made: it was missing", counting, addTable)
		return
	}
	if p.found.dormant {
		p.add("table woken: somebody had put it to sleep", counting, addTable)
	}
	for _, s := range nftSets(p.conf) {
		if have, ok := p.found.sets[s.Name]; ok && have.kind != setKind(s) {
			p.add(fmt.Sprintf("table made again: set %s was of another kind", s.Name), counting, func(b *nftBatch) {
				b.conn.DelTable(b.table)
				b.conn.AddTable(b.table)
				b.size += 2
			})
			p.found, p.renewed, p.anew = nftFound{}, false, true
			return
		}
	}
}

// static plans sets, the node's chains and the base chains.
func (p *nftPlan) static(map[netip.Addr]Subject) error {
	elements := setElements(p.conf)
	for _, s := range nftSets(p.conf) {
		have, stands := p.found.sets[s.Name]
		if stands && (s.IsMap || slices.Equal(have.elements, wantedElements(elements[s.Name]))) {
			continue
		}
		line := fmt.Sprintf("set %s written again: it had other elements", s.Name)
		if !stands {
			line = fmt.Sprintf("set %s made: it was missing", s.Name)
		}
		p.add(p.unlessRenewed(line), !p.renewed, func(b *nftBatch) { b.set(s, elements[s.Name]) })
	}
	if missing := p.missing(counterNames(p.conf, nodeName)); len(missing) > 0 {
		p.add(p.unlessRenewed("counters of the node made: they were missing"), !p.renewed, func(b *nftBatch) { b.counters(missing...) })
	}
	for _, c := range nodeChains(p.conf) {
		if err := p.chain(c, p.renewed); err != nil {
			return err
		}
	}
	for _, c := range baseChains() {
		if have := p.found.bases[c.name]; have != "" && have != c.base() {
			p.add(fmt.Sprintf("chain %s made again: it was %q", c.name, have), true, func(b *nftBatch) {
				b.dropChains(c.name)
				b.chain(c)
			})
		} else if err := p.chain(c, false); err != nil {
			return err
		}
	}
	return nil
}

// chain plans one chain that differs; where differences are expected it says nothing of them.
func (p *nftPlan) chain(c nftChain, expected bool) error {
	wanted, err := c.texts()
	if err != nil {
		return err
	}
	found := p.found.chains[c.name]
	line, doubted := wrong(c.name, found, wanted)
	if line == "" {
		return nil
	}
	if expected && len(found) > 0 {
		line, doubted = "", false
	}
	p.add(line, doubted, func(b *nftBatch) { b.chain(c) })
	return nil
}

func (p *nftPlan) unlessRenewed(line string) string {
	if p.renewed {
		return ""
	}
	return line
}

func (p *nftPlan) missing(names []string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		_, stands := p.found.counters[name]
		return stands
	})
}

// subjects plans what differs of each address: its chains, counters and elements in one transaction.
func (p *nftPlan) subjects(wanted map[netip.Addr]Subject) error {
	leads := map[string]map[string]string{} // map -> key -> verdict
	for _, direction := range []string{TX, RX} {
		leads[direction] = map[string]string{}
		for _, e := range p.found.sets[direction].elements {
			leads[direction][e.key] = e.verdict
		}
	}
	for _, addr := range slices.SortedFunc(maps.Keys(wanted), netip.Addr.Compare) {
		if err := p.subject(wanted[addr], leads); err != nil {
			return err
		}
	}
	return nil
}

// nothingStands is the number of steps for an address that has nothing: counters, two chains, two elements.
const nothingStands = 5

func (p *nftPlan) subject(s Subject, leads map[string]map[string]string) error {
	sub := &nftPlan{conf: p.conf, found: p.found, renewed: p.renewed}
	if missing := p.missing(counterNames(p.conf, s.Addr.String())); len(missing) > 0 {
		sub.add(p.unlessRenewed(fmt.Sprintf("counters of %s made: they were missing", s.Addr)), !p.renewed,
			func(b *nftBatch) { b.counters(missing...) })
	}
	for _, c := range subjectChains(p.conf, s) {
		if err := sub.chain(c, p.renewed); err != nil {
			return err
		}
	}
	for _, direction := range []string{TX, RX} {
		sub.lead(direction, s.Addr, leads[direction])
	}
	if len(sub.steps) == 0 {
		return nil
	}
	whole := nftStep{write: func(b *nftBatch) {
		for _, s := range sub.steps {
			s.write(b)
		}
	}}
	for _, s := range sub.steps {
		whole.lines, whole.doubted = append(whole.lines, s.lines...), whole.doubted || s.doubted
	}
	if len(sub.steps) == nothingStands { // its pod is being added, or could not be counted until now
		whole.doubted = false
		whole.lines = []string{fmt.Sprintf("chains and counters of %s made: it had none", s.Addr)}
	}
	p.steps = append(p.steps, whole)
	return nil
}

// lead plans the element by which a base chain finds the chain of an address.
func (p *nftPlan) lead(direction string, addr netip.Addr, have map[string]string) {
	element := subjectElement(direction, addr)
	verdict, stands := have[string(element.Key)]
	if stands && verdict == wantedElements([]nftables.SetElement{element})[0].verdict {
		return
	}
	p.add(fmt.Sprintf("map %s: %s added: it was missing or led elsewhere", direction, addr), true, func(b *nftBatch) {
		set := verdictMap(direction)
		if stands {
			b.remove(set, []nftables.SetElement{{Key: element.Key, VerdictData: verdictOf(verdict)}})
		}
		b.add(set, []nftables.SetElement{element})
	})
}

// verdictOf reads a verdictText.
func verdictOf(s string) *expr.Verdict {
	if len(s) < 4 {
		return nil
	}
	return &expr.Verdict{Kind: expr.VerdictKind(int32(number([]byte(s[:4])))), Chain: s[4:]}
}

// config names the configuration, and no other.
func (p *nftPlan) config(map[netip.Addr]Subject) error {
	own := configChain(p.conf)
	var others []string
	for name := range p.found.chains {
		if strings.HasPrefix(name, configPrefix) && name != own.name {
			others = append(others, name)
		}
	}
	wanted, err := own.texts()
	if err != nil {
		return err
	}
	if len(others) == 0 && slices.Equal(p.found.chains[own.name], wanted) {
		return nil
	}
	line := fmt.Sprintf("chain %s written again", own.name)
	if p.renewed {
		line = fmt.Sprintf("set up for configuration %s", p.conf.Hash)
	}
	p.add(line, false, func(b *nftBatch) {
		b.dropChains(others...)
		b.chain(own)
	})
	return nil
}
