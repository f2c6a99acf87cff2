package accounting

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// generation rises with each batch of the namespace.
func (l *nftLab) generation() uint64 {
	l.t.Helper()
	gen, err := l.n.generation(l.t.Context())
	nftMust(l.t, err)
	return gen
}

// save writes the ruleset as nft says it to a file.
func (l *nftLab) save() string {
	l.t.Helper()
	file := filepath.Join(l.t.(*testing.T).TempDir(), "ruleset")
	nftMust(l.t, os.WriteFile(file, []byte(l.node.Run("nft list ruleset")), 0o600))
	return file
}

// Each thing that others change is found, said and put right; what is right isn't touched, and counters keep their values.
func TestNetnsNFT_Apply_repairs(t *testing.T) {
	const a, table = nftPodA, "ip " + NFTTable
	tests := []struct {
		name string
		do   []string
		want []string
	}{
		{"nothing", nil, nil},
		{"base chain flushed", []string{"flush chain " + table + " pre"}, []string{"!chain pre made again"}},
		{"base rule doubled", []string{"add rule " + table + " post oifgroup 28278 ip daddr vmap @rx"}, []string{"!chain post written again: it had 3 rules"}},
		{"base chain elsewhere", []string{
			"flush chain " + table + " pre", "delete chain " + table + " pre",
			"add chain " + table + " pre { type filter hook prerouting priority -200 ; }",
			"add rule " + table + " pre iifgroup 28278 ip saddr vmap @tx",
		}, []string{`!chain pre made again: it was "filter hook 0 priority -200 policy 1"`}},
		{"base chain gone", []string{"flush chain " + table + " post", "delete chain " + table + " post"}, []string{"!chain post made again"}},
		{"policy drop", []string{"add chain " + table + " post { type filter hook postrouting priority 99 ; policy drop ; }"}, []string{"!chain post made again: it was"}},
		{"all chains flushed", []string{"flush table " + table}, []string{
			"!chain n_rx made again", "!chain n_tx made again", "!chain pre", "!chain post",
			"!chain t_" + a, "!chain r_" + a, "!chain t_" + nftPodB, "!chain r_" + nftPodB, "chain cfg_0123456789abcdef written again",
		}},
		{"foreign rule", []string{"insert rule " + table + " t_" + a + " return"}, []string{"!chain t_" + a + " written again: it had 4 rules in place of 3"}},
		{"count twice", []string{"add rule " + table + " r_" + a + " counter name c_" + a + "_rx_cluster"}, []string{"!chain r_" + a}},
		{"other mark", []string{
			"flush chain " + table + " t_" + a, "add rule " + table + " t_" + a + " meta mark set 5",
			"add rule " + table + " t_" + a + " ip daddr @class_cluster counter name c_" + a + "_tx_cluster return",
			"add rule " + table + " t_" + a + " counter name c_" + a + "_tx_internet return",
		}, []string{"chain t_" + a + " written again: its rules did something else"}},
		{"peer by its source", []string{
			"flush chain " + table + " t_" + a, "add rule " + table + " t_" + a + " meta mark set mark and 0xf000ffff or 0x00010000",
			"add rule " + table + " t_" + a + " ip saddr @class_cluster counter name c_" + a + "_tx_cluster return",
			"add rule " + table + " t_" + a + " counter name c_" + a + "_tx_internet return",
		}, []string{"!chain t_" + a + " written again: its rules did something else"}},
		{"elements gone", []string{"flush map " + table + " tx"}, []string{"!map tx: " + a, "!map tx: " + nftPodB}},
		{"element elsewhere", []string{
			"delete element " + table + " tx { " + a + " }", "add element " + table + " tx { " + a + " : jump t_" + nftPodB + " }",
		}, []string{"!map tx: " + a + " added: it was missing or led elsewhere"}},
		{"element to goto", []string{
			"delete element " + table + " rx { " + a + " }", "add element " + table + " rx { " + a + " : goto r_" + a + " }",
		}, []string{"!map rx: " + a}},
		{"foreign objects", []string{
			"add chain " + table + " x", "add chain " + table + " y { type filter hook forward priority 0 ; }", "add counter " + table + " z",
			"add rule " + table + " y jump x", "add rule " + table + " x counter name z", "add set " + table + " s { type ipv4_addr ; }",
			"add rule " + table + " x ip saddr @s drop", "add rule " + table + " x ip saddr { 1.2.3.4 } drop",
			"add element " + table + " tx { 1.2.3.4 : drop }",
		}, []string{"elements removed: nobody has 1.2.3.4", "!chains removed: nobody has x, y", "set removed: nobody has s"}},
		{"class", []string{"delete element " + table + " class_cluster { 10.0.0.0/8 }"}, []string{"!set class_cluster written again"}},
		{"class in pieces", []string{"flush set " + table + " class_cluster", "add element " + table + " class_cluster { 10.0.0.0/9, 10.128.0.0/9, 168.63.129.16 }"}, []string{"!set class_cluster written again"}},
		{"nics", []string{"add element " + table + " nics { eth1 }"}, []string{"!set nics written again"}},
		{"asleep", []string{"add table " + table + " { flags dormant ; }"}, []string{"!table woken"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newNFTLab(t)
			l.apply("!table made")
			right := l.node.Run("nft list table " + table)
			l.send(l.a, nftPodA, l.fabric, nftRemote, 3)
			for _, line := range tt.do {
				l.node.Run("nft " + line)
			}
			l.apply(tt.want...)
			l.want(map[string]string{nftPodA + " tx cluster": "384 3"})
			if got := nftSorted(strings.NewReplacer("packets 3 bytes 384", "packets 0 bytes 0").Replace(l.node.Run("nft list table " + table))); got != nftSorted(right) {
				t.Errorf("table:\n%s", got)
			}
			before := l.generation()
			l.apply()
			if after := l.generation(); after != before {
				t.Errorf("a table that is right was written: %d, %d", before, after)
			}
			l.send(l.b, nftPodB, l.a, nftPodA, 2)
			l.want(map[string]string{nftPodA + " tx cluster": "384 3", nftPodB + " tx cluster": "256 2", nftPodA + " rx cluster": "256 2"})
		})
	}
}

// nftSorted is a listing without its order: nft lists objects in the order in which they were made.
func nftSorted(listing string) string {
	listing = strings.TrimSuffix(strings.TrimPrefix(listing, "table ip "+NFTTable+" {\n"), "}\n")
	parts := strings.Split(strings.TrimSpace(listing), "\n\n")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	slices.Sort(parts)
	return strings.Join(parts, "\n")
}

// nft -f of a saved ruleset adds every rule once more. The interval is doubted, the counters stay.
func TestNetnsNFT_Apply_doubled(t *testing.T) {
	l := newNFTLab(t)
	l.apply("!table made")
	l.send(l.a, nftPodA, l.fabric, nftRemote, 3)
	l.node.Run("nft -f " + l.save())
	l.send(l.a, nftPodA, l.fabric, nftRemote, 1)
	l.want(map[string]string{nftPodA + " tx cluster": "640 5"}) // the fault that is to be found
	l.apply("!chain n_rx written again: it had 4 rules in place of 2", "!chain n_tx", "!chain pre written again: it had 4 rules in place of 2",
		"!chain post", "!chain t_"+nftPodA+" written again: it had 6 rules in place of 3", "!chain r_"+nftPodA,
		"!chain t_"+nftPodB, "!chain r_"+nftPodB, "chain cfg_0123456789abcdef written again")
	l.send(l.a, nftPodA, l.fabric, nftRemote, 1)
	l.want(map[string]string{nftPodA + " tx cluster": "768 6"})
	l.apply()
}

// A ruleset that was flushed and loaded again is as it was when it was saved, down to the last expression.
func TestNetnsNFT_Apply_restored(t *testing.T) {
	l := newNFTLab(t)
	l.apply("!table made")
	l.send(l.a, nftPodA, l.fabric, nftRemote, 3)
	file := l.save()
	l.send(l.a, nftPodA, l.fabric, nftRemote, 3)
	l.node.Run("nft flush ruleset")
	l.node.Run("nft -f " + file)
	l.want(map[string]string{nftPodA + " tx cluster": "384 3"})
	l.apply()
	l.send(l.a, nftPodA, l.fabric, nftRemote, 1)
	l.want(map[string]string{nftPodA + " tx cluster": "512 4"})
	l.node.Run("nft flush ruleset")
	if _, err := l.n.Start(t.Context(), l.conf, l.subjects[0]); !errors.Is(err, ErrNotApplied) {
		t.Errorf("start: %v", err)
	}
	l.apply("!table made")
	l.apply()
}

// A set of another kind can't be changed under the rules that name it.
func TestNetnsNFT_Apply_otherKind(t *testing.T) {
	l := newNFTLab(t)
	l.node.Run("nft add table ip " + NFTTable)
	l.node.Run("nft add set ip " + NFTTable + " class_cluster { type ipv4_addr ; }")
	l.apply("!table made again: set class_cluster was of another kind")
	l.apply()
	l.send(l.a, nftPodA, l.fabric, nftRemote, 3)
	l.want(map[string]string{nftPodA + " tx cluster": "384 3"})
}

func TestNetnsNFT_Apply_classes(t *testing.T) {
	l := newNFTLab(t)
	l.conf.Classes = append([]Class{{Name: "old", Prefixes: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}}, l.conf.Classes...)
	l.apply("!table made")
	l.send(l.a, nftPodA, l.fabric, nftRemote, 3)
	l.send(l.a, nftPodA, l.fabric, nftWorld, 2)
	l.conf.Hash = "new"
	l.conf.NICs = append(l.conf.NICs, "eth1")
	l.conf.Classes[0] = Class{Name: "world", Prefixes: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}}
	l.apply("set up for configuration new")
	l.apply()
	l.send(l.a, nftPodA, l.fabric, nftWorld, 1)
	l.want(map[string]string{nftPodA + " tx cluster": "384 3", nftPodA + " tx internet": "256 2", nftPodA + " tx world": "128 1"})
	if out := l.node.Run("nft list table ip " + NFTTable); strings.Contains(out, "old") || strings.Contains(out, "cfg_0123456789abcdef") {
		t.Errorf("left of the old configuration: %s", out)
	}
	// A base chain that is doubled stays a doubt when the configuration changes too.
	l.conf.Hash = "newer"
	l.node.Run("nft add rule ip " + NFTTable + " pre iifgroup 28278 ip saddr vmap @tx")
	l.apply("!chain pre written again: it had 3 rules", "set up for configuration newer")
}

// Addresses that left the node leave nothing, however many they are.
func TestNetnsNFT_Apply_withdrawn(t *testing.T) {
	l := newNFTLab(t)
	few := l.subjects
	l.subjects = append(nftSubjects(250), few...)
	l.apply("!table made")
	l.send(l.a, nftPodA, l.fabric, nftRemote, 3)
	l.subjects = few
	changed, doubted, err := l.n.Apply(t.Context(), l.conf, l.subjects)
	if err != nil || len(changed) == 0 || len(doubted) != 0 {
		t.Errorf("changed %q, doubted %q, error %v", changed, doubted, err)
	}
	l.apply()
	if out := l.node.Run("nft list table ip " + NFTTable); strings.Contains(out, "10.30.") {
		t.Errorf("left: %s", out)
	}
	l.want(map[string]string{nftPodA + " tx cluster": "384 3"})
}

func nftSubjects(n int) []Subject {
	var subjects []Subject
	for i := range n {
		subjects = append(subjects, nftSubject(fmt.Sprintf("10.30.%d.%d", i/250, i%250+1), uint16(i+10)))
	}
	return subjects
}

// Apply and Start of many at once, each with sockets of its own as processes have, end in one right table; nothing is doubled.
func TestNetnsNFT_concurrent(t *testing.T) {
	l := newNFTLab(t)
	l.subjects = append(nftSubjects(8), l.subjects...)
	for round := range 5 {
		if round > 0 {
			nftMust(t, l.n.Drop(t.Context()))
		}
		var wg sync.WaitGroup
		for range 3 {
			n := newNFT(t)
			wg.Go(func() {
				if _, _, err := n.Apply(context.Background(), l.conf, l.subjects); err != nil {
					t.Errorf("apply: %v", err)
				}
			})
		}
		for _, s := range l.subjects[:5] {
			for range 2 {
				n := newNFT(t)
				wg.Go(func() {
					if got, err := n.Start(context.Background(), l.conf, s); err != nil && !errors.Is(err, ErrNotApplied) || err == nil && len(got) != 4 {
						t.Errorf("start: %v, %v", got, err)
					}
				})
			}
		}
		wg.Wait()
		l.apply()
		l.send(l.a, nftPodA, l.fabric, nftRemote, 3)
		l.want(map[string]string{nftPodA + " tx cluster": "384 3"})
	}
}

func TestNetnsNFT_context(t *testing.T) {
	l := newNFTLab(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, apply := l.n.Apply(ctx, l.conf, l.subjects)
	_, start := l.n.Start(ctx, l.conf, l.subjects[0])
	_, stop := l.n.Stop(ctx, l.subjects[0])
	_, read := l.n.Read(ctx)
	for name, err := range map[string]error{"apply": apply, "start": start, "stop": stop, "read": read, "drop": l.n.Drop(ctx)} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if out := l.node.Run("nft list ruleset"); out != "" {
		t.Errorf("made: %s", out)
	}
	// A batch that the kernel refuses leaves the socket usable.
	l.apply("!table made")
	bad := l.conf
	bad.Hash = strings.Repeat("x", 300)
	if _, _, err := l.n.Apply(t.Context(), bad, l.subjects); err == nil {
		t.Error("no error")
	}
	l.subjects = append(l.subjects, nftSubjects(3)...)
	l.apply("chains and counters of 10.30.0.1 made", "chains and counters of 10.30.0.2 made", "chains and counters of 10.30.0.3 made")
	l.apply()
}
