package accounting

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// nftFound is the table as the kernel has it.
type nftFound struct {
	exists, dormant bool
	chains          map[string][]string    // chain -> texts of its rules; a chain without rules isn't there
	bases           map[string]string      // base chain -> where it hooks
	sets            map[string]nftFoundSet // without anonymous ones
	counters        map[string]Sample
}

type nftFoundSet struct {
	kind     string
	elements []nftElement // sorted
}

// nftElement is an element in comparable words.
type nftElement struct {
	key     string
	end     bool
	verdict string
}

// find reads the whole table, again until nothing changed in between; in the end it takes what it has, since writing is safe then too.
func (n *NFT) find(ctx context.Context) (f nftFound, err error) {
	for range nftDumpTries {
		before, err := n.generation(ctx)
		if err != nil {
			return f, err
		}
		if f, err = n.findOnce(ctx); err != nil {
			return f, err
		}
		if after, err := n.generation(ctx); err != nil || after == before {
			return f, err
		}
	}
	return f, nil
}

func (n *NFT) generation(ctx context.Context) (uint64, error) {
	answer, err := n.get(ctx, unix.NFT_MSG_GETGEN)
	return number(attribute(answer, unix.NFTA_GEN_ID)), err
}

func (n *NFT) findOnce(ctx context.Context) (f nftFound, err error) {
	table, err := n.get(ctx, unix.NFT_MSG_GETTABLE, nftName(unix.NFTA_TABLE_NAME, NFTTable))
	if err != nil || table == nil {
		return f, err
	}
	f.exists, f.dormant = true, number(attribute(table, unix.NFTA_TABLE_FLAGS)) != 0
	if f.counters, err = n.counters(ctx); err != nil {
		return f, err
	}
	rules, err := n.dump(ctx, unix.NFT_MSG_GETRULE, nftName(unix.NFTA_RULE_TABLE, NFTTable))
	if err != nil {
		return f, err
	}
	f.chains = map[string][]string{}
	for _, r := range rules {
		chain := text(attribute(r, unix.NFTA_RULE_CHAIN))
		f.chains[chain] = append(f.chains[chain], ruleText(attribute(r, unix.NFTA_RULE_EXPRESSIONS)))
	}
	f.bases = map[string]string{}
	for _, c := range baseChains() {
		if f.bases[c.name], err = n.findBase(ctx, c.name); err != nil {
			return f, err
		}
	}
	f.sets, err = n.findSets(ctx)
	return f, err
}

// findBase is empty where there is no such chain.
func (n *NFT) findBase(ctx context.Context, name string) (string, error) {
	answer, err := n.get(ctx, unix.NFT_MSG_GETCHAIN, nftName(unix.NFTA_CHAIN_TABLE, NFTTable), nftName(unix.NFTA_CHAIN_NAME, name))
	if err != nil || answer == nil {
		return "", err
	}
	hook := attribute(answer, unix.NFTA_CHAIN_HOOK)
	return baseText(text(attribute(answer, unix.NFTA_CHAIN_TYPE)), number(attribute(hook, unix.NFTA_HOOK_HOOKNUM)),
		int32(number(attribute(hook, unix.NFTA_HOOK_PRIORITY))), number(attribute(answer, unix.NFTA_CHAIN_POLICY))), nil
}

func baseText(kind string, hook uint64, priority int32, policy uint64) string {
	return fmt.Sprintf("%s hook %d priority %d policy %d", kind, hook, priority, policy)
}

func (c nftChain) base() string {
	return baseText(string(nftables.ChainTypeFilter), uint64(*c.hook), int32(*c.priority), uint64(nftables.ChainPolicyAccept))
}

func (n *NFT) findSets(ctx context.Context) (map[string]nftFoundSet, error) {
	answers, err := n.dump(ctx, unix.NFT_MSG_GETSET, nftName(unix.NFTA_SET_TABLE, NFTTable))
	if err != nil {
		return nil, err
	}
	sets := map[string]nftFoundSet{}
	for _, a := range answers {
		flags := number(attribute(a, unix.NFTA_SET_FLAGS))
		if flags&unix.NFT_SET_ANONYMOUS != 0 {
			continue
		}
		name := text(attribute(a, unix.NFTA_SET_NAME))
		s := nftFoundSet{kind: setText(flags, number(attribute(a, unix.NFTA_SET_KEY_LEN)))}
		if s.elements, err = n.findElements(ctx, name, flags); err != nil {
			return nil, err
		}
		sets[name] = s
	}
	return sets, nil
}

func setText(flags, keyLen uint64) string { return fmt.Sprintf("flags %d key %d", flags, keyLen) }

func setKind(s *nftables.Set) string {
	var flags uint64
	if s.IsMap {
		flags |= unix.NFT_SET_MAP
	}
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	return setText(flags, uint64(s.KeyType.Bytes))
}

func (n *NFT) findElements(ctx context.Context, set string, flags uint64) ([]nftElement, error) {
	answers, err := n.dump(ctx, unix.NFT_MSG_GETSETELEM,
		nftName(unix.NFTA_SET_ELEM_LIST_TABLE, NFTTable), nftName(unix.NFTA_SET_ELEM_LIST_SET, set))
	if err != nil {
		return nil, err
	}
	var found []nftElement
	for _, a := range answers {
		for _, e := range attributes(attribute(a, unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
			found = append(found, nftElement{
				key:     string(attribute(e, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)),
				end:     number(attribute(e, unix.NFTA_SET_ELEM_FLAGS))&unix.NFT_SET_ELEM_INTERVAL_END != 0,
				verdict: verdictText(attribute(e, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT)),
			})
		}
	}
	sortElements(found)
	if flags&unix.NFT_SET_INTERVAL != 0 {
		found = withoutGaps(found)
	}
	return found, nil
}

// withoutGaps leaves out ends that no interval has: nft begins a set with the end of the gap before the first one.
func withoutGaps(sorted []nftElement) []nftElement {
	open := false
	return slices.DeleteFunc(sorted, func(e nftElement) bool {
		surplus := e.end && !open
		open = !e.end
		return surplus
	})
}

func wantedElements(elements []nftables.SetElement) []nftElement {
	var wanted []nftElement
	for _, e := range elements {
		w := nftElement{key: string(e.Key), end: e.IntervalEnd}
		if e.VerdictData != nil {
			w.verdict = string(binary.BigEndian.AppendUint32(nil, uint32(e.VerdictData.Kind))) + e.VerdictData.Chain
		}
		wanted = append(wanted, w)
	}
	sortElements(wanted)
	return wanted
}

func sortElements(elements []nftElement) {
	slices.SortFunc(elements, func(a, b nftElement) int {
		if c := cmp.Compare(a.key, b.key); c != 0 || a.end == b.end {
			return c
		}
		if a.end {
			return -1 // one interval ends where the next one begins
		}
		return 1
	})
}

// texts are the rules of a chain as ruleText says them.
func (c nftChain) texts() ([]string, error) {
	var texts []string
	for _, r := range c.rules {
		t, err := exprsText(r)
		if err != nil {
			return nil, err
		}
		texts = append(texts, t)
	}
	return texts, nil
}

// wrong says what is wrong with a chain's rules, in words, and whether packets may have been counted wrongly for it: all but a mark.
func wrong(name string, found, wanted []string) (line string, doubted bool) {
	switch {
	case slices.Equal(found, wanted):
		return "", false
	case len(found) == 0:
		return fmt.Sprintf("chain %s made again: it was missing or empty", name), true
	case len(found) != len(wanted):
		return fmt.Sprintf("chain %s written again: it had %d rules in place of %d", name, len(found), len(wanted)), true
	}
	doubted = !slices.Equal(withoutMarks(found), withoutMarks(wanted))
	return fmt.Sprintf("chain %s written again: its rules did something else", name), doubted
}

// withoutMarks leaves out rules that only write to a packet: they neither count nor lead away.
func withoutMarks(rules []string) []string {
	return slices.DeleteFunc(slices.Clone(rules), func(r string) bool {
		for e := range strings.Lines(r) {
			name, _, _ := strings.Cut(strings.TrimSpace(e), " ")
			if name != "meta" && name != "bitwise" && name != "immediate" || strings.Contains(e, "verdict") {
				return false
			}
		}
		return true
	})
}
