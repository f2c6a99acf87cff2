package accounting

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// errTruncated says that iptables-save ended in the middle.
var errTruncated = errors.New("the dump has no end")

// table is the mangle table: chain -> its rules, in order.
type table map[string][]rule

// rule is a rule as the tool prints it.
type rule struct {
	spec           string // without counters and chain
	sorted         string // the same, normal
	packets, bytes uint64
}

// parseTable reads what iptables-save -c -t mangle prints:
//
//	*mangle
//	:FORWARD ACCEPT [0:0]
//	:NATIVE-VMSS-TX - [0:0]
//	[3:252] -A FORWARD -m devgroup --src-group 0x6e76 -j NATIVE-VMSS-TX
//	COMMIT
func parseTable(dump []byte) (table, error) {
	t := table{}
	lines := bufio.NewScanner(bytes.NewReader(dump))
	lines.Buffer(nil, 1<<20)
	open := false
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "*"):
			open = true
		case line == "COMMIT":
			open = false
		case strings.HasPrefix(line, ":"):
			name, _, _ := strings.Cut(line[1:], " ")
			t[name] = t[name][:0:0]
		case strings.HasPrefix(line, "["):
			chain, r, err := parseRule(line)
			if err != nil && !strings.Contains(line, chainPrefix) {
				continue // of others: a comment may have line ends
			}
			if err != nil {
				return nil, err
			}
			t[chain] = append(t[chain], r)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if open {
		return nil, errTruncated
	}
	return t, nil
}

func parseRule(line string) (chain string, r rule, err error) {
	counters, rest, ok := strings.Cut(line[1:], "] -A ")
	packets, count, ok2 := strings.Cut(counters, ":")
	chain, r.spec, _ = strings.Cut(rest, " ")
	var errs [2]error
	r.packets, errs[0] = strconv.ParseUint(packets, 10, 64)
	r.bytes, errs[1] = strconv.ParseUint(count, 10, 64)
	if !ok || !ok2 || errs[0] != nil || errs[1] != nil {
		return "", rule{}, fmt.Errorf("rule of another form: %q", line)
	}
	r.sorted = normal(r.spec)
	return chain, r, nil
}

// words splits a rule at spaces outside of quotes, which it drops.
func words(spec string) []string {
	var out []string
	var word strings.Builder
	quoted, escaped, any := false, false, false
	for _, c := range []byte(spec) {
		switch {
		case escaped:
			word.WriteByte(c)
			escaped = false
		case c == '\\':
			escaped = true
		case c == '"':
			quoted, any = !quoted, true
		case c == ' ' && !quoted:
			if word.Len() > 0 || any {
				out = append(out, word.String())
			}
			word.Reset()
			any = false
		default:
			word.WriteByte(c)
		}
	}
	if word.Len() > 0 || any {
		out = append(out, word.String())
	}
	return out
}

// is compares with a rule of ours.
func (r rule) is(spec string) bool { return r.spec == spec || r.sorted == normal(spec) }

// normal is one text for a rule, whatever the order and the spelling in which a version of the tool prints it.
func normal(spec string) string {
	w := words(spec)
	var options []string
	for i := 0; i < len(w); {
		end := i + 1
		for end < len(w) && (!strings.HasPrefix(w[end], "-") || w[end-1] == "!") && w[end] != "!" {
			end++
		}
		for j := i + 1; j < end; j++ {
			w[j] = strings.TrimSuffix(w[j], "/32")
			if n, err := strconv.ParseUint(w[j], 0, 32); err == nil {
				w[j] = strconv.FormatUint(n, 10)
			}
		}
		options = append(options, strings.Join(w[i:end], " "))
		i = end
	}
	slices.Sort(options)
	return strings.Join(options, "\n")
}

// option is the value behind one of these words of a rule.
func option(spec string, names ...string) string {
	w := words(spec)
	for i := range len(w) - 1 {
		if slices.Contains(names, w[i]) {
			return w[i+1]
		}
	}
	return ""
}

// positive is the value behind a word of a rule that isn't negated.
func positive(spec, name string) string {
	w := words(spec)
	for i := range len(w) - 1 {
		if w[i] == name && (i == 0 || w[i-1] != "!") {
			return w[i+1]
		}
	}
	return ""
}

func target(spec string) string     { return option(spec, "-j", "-g") }
func (r rule) label() (label, bool) { return parseLabel(option(r.spec, "--comment")) }

// ours reports whether anything of ours stands.
func (t table) ours() bool {
	for chain := range t {
		if strings.HasPrefix(chain, chainPrefix) {
			return true
		}
	}
	return false
}

// applied reports whether the static part stands and is of this configuration. Hooks are Apply's to see.
func (t table) applied(conf Config) bool {
	for _, chain := range []string{chainTX, chainRX, chainMark} {
		if _, ok := t[chain]; !ok {
			return false
		}
	}
	return slices.ContainsFunc(t[chainConf], func(r rule) bool {
		return strings.HasPrefix(option(r.spec, "--comment"), confComment(conf))
	})
}

// samples are the values of an address; nil where it has no rules.
func (t table) samples(a netip.Addr) []Sample {
	return append(t.chainSamples(chainOf(RX, a)), t.chainSamples(chainOf(TX, a))...)
}

// samplesOf are the values of an address whose rules were made for this pod.
func (t table) samplesOf(s Subject) (out []Sample) {
	for _, direction := range []string{RX, TX} {
		chain := chainOf(direction, s.Addr)
		if namespace, pod := chainNames(t[chain]); namespace == clean(s.Namespace, maxName) && pod == clean(s.Pod, maxPod) {
			out = append(out, t.chainSamples(chain)...)
		}
	}
	return out
}

// chainSamples are the values of a chain by class, equal ones summed up.
func (t table) chainSamples(chain string) []Sample {
	sums := map[string]*Sample{}
	for _, r := range t[chain] {
		l, ok := r.label()
		if !ok {
			continue
		}
		if sums[l.class] == nil {
			sums[l.class] = &Sample{Direction: l.direction, Class: l.class}
		}
		sums[l.class].Bytes += r.bytes
		sums[l.class].Packets += r.packets
	}
	var out []Sample
	for _, s := range sums {
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b Sample) int { return cmp.Compare(a.Class, b.Class) })
	return out
}

func (t table) reading() Reading {
	out := Reading{Pods: map[netip.Addr][]Sample{}, of: t.samplesOf}
	for chain := range t {
		if _, a, ok := addrOf(chain); ok && out.Pods[a] == nil {
			if s := t.samples(a); s != nil {
				out.Pods[a] = s
			}
		}
	}
	out.Node = append(t.chainSamples(chainNodeRX), t.chainSamples(chainNodeTX)...)
	return out
}
