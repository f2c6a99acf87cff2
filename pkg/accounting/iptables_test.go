package accounting

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/nstest"
)

// Each path is counted once per pod and direction, under the class of its peer, by the byte.
func TestNetnsIPTables_exact(t *testing.T) {
	forFlavours(t, func(t *testing.T, _ string) {
		l := newLab(t)
		b := newIPTables(t)
		conf := testConf()
		apply(t, b, conf, l.subjects[:]...)
		l.node.Run("nft add table ip marks")
		l.node.Run("nft add chain ip marks f { type filter hook forward priority 0 ; }")
		l.node.Run("nft add rule ip marks f meta mark 0x00020000 ip saddr 10.0.0.3 counter")

		first, second := l.pods[0], l.pods[1]
		ping(first, "10.9.0.2")     // storage
		ping(first, "10.1.0.2")     // cluster
		ping(first, "203.0.113.2")  // internet
		ping(first, "10.0.0.3")     // the other pod
		ping(first, "10.1.0.1")     // the node
		ping(l.outside, "10.0.0.3") // from outside
		ping(l.node, "10.0.0.3")    // from the node
		ping(l.node, "203.0.113.2") // the node's own
		ping(second, "203.0.113.2") //
		const one = pings * pingBytes

		r := read(t, b)
		for _, direction := range []string{RX, TX} {
			web0, web1 := r.Pods[l.subjects[0].Addr], r.Pods[l.subjects[1].Addr]
			wantBytes(t, "web-0", web0, direction, "storage", one)
			wantBytes(t, "web-0", web0, direction, Cluster, 3*one)
			wantBytes(t, "web-0", web0, direction, Internet, one)
			wantBytes(t, "web-1", web1, direction, "storage", 0)
			wantBytes(t, "web-1", web1, direction, Cluster, 3*one)
			wantBytes(t, "web-1", web1, direction, Internet, one)
			wantBytes(t, "node", r.Node, direction, Internet, one)
			wantBytes(t, "node", r.Node, direction, Cluster, 0)
		}
		for i, p := range l.pods {
			rx, tx := seen(t, p)
			got := r.Pods[l.subjects[i].Addr]
			if total(got, RX) != rx || total(got, TX) != tx {
				t.Errorf("pod %d: counted rx %d tx %d, it saw %d and %d", i, total(got, RX), total(got, TX), rx, tx)
			}
		}
		if out := l.node.Run("nft list chain ip marks f"); !strings.Contains(out, fmt.Sprintf("packets %d ", 3*pings)) {
			t.Errorf("packets of the second pod that carry its mark, want %d: %s", 3*pings, out)
		}
	})
}

// The same pod keeps its values, another one begins at zero, and a pod that has ended can be read until its address is another's.
func TestNetnsIPTables_Start_values(t *testing.T) {
	forFlavours(t, func(t *testing.T, flavour string) {
		l := newLab(t)
		b := newIPTables(t)
		conf := testConf()
		s := l.subjects[0]
		if _, err := b.Start(t.Context(), conf, s); !errors.Is(err, ErrNotApplied) {
			t.Fatalf("without the static part: %v", err)
		}
		if _, err := b.Read(t.Context()); !errors.Is(err, ErrNotApplied) {
			t.Fatalf("read without the static part: %v", err)
		}
		apply(t, b, conf)
		other := conf
		other.Hash = "two"
		if _, err := b.Start(t.Context(), other, s); !errors.Is(err, ErrNotApplied) {
			t.Fatalf("another configuration's static part: %v", err)
		}
		if got := start(t, b, conf, s); total(got, TX) != 0 || len(got) != 6 {
			t.Fatalf("a new pod: %v", got)
		}
		ping(l.pods[0], "10.1.0.2")
		stands := start(t, b, conf, s)
		wantBytes(t, "started again", stands, TX, Cluster, pings*pingBytes)

		for range 2 { // who dies in between finds the values again
			last, err := b.Stop(t.Context(), s)
			if err != nil || !sameSamples(last, stands) {
				t.Fatalf("stopped: %v, %v, want %v", last, err, stands)
			}
		}
		if n := countOf(rules(t, l.node, flavour), s.Addr.String()+"/32"); n != 0 {
			t.Errorf("%d rules still look at packets of a pod that has ended", n)
		}
		if last, err := b.Stop(t.Context(), l.subjects[1]); last != nil || err != nil {
			t.Errorf("a pod without rules: %v, %v", last, err)
		}
		next := s
		next.Pod = "web-other"
		if got := start(t, b, conf, next); total(got, TX) != 0 || total(got, RX) != 0 {
			t.Errorf("the next pod begins with %v", got)
		}
		if _, err := b.Stop(t.Context(), next); err != nil {
			t.Fatal(err)
		}
		apply(t, b, conf, Subject{Addr: s.Addr, Slot: s.Slot}) // between two pods: readable, out of the packets' way
		if n := countOf(rules(t, l.node, flavour), s.Addr.String()+"/32"); n != 0 || read(t, b).Pods[s.Addr] == nil {
			t.Errorf("an address between two pods: %d rules, %v", n, read(t, b).Pods[s.Addr])
		}
		apply(t, b, conf)
		if n := countOf(rules(t, l.node, flavour), hexAddr(s.Addr)); n != 0 {
			t.Errorf("%d rules of an address that is no subject", n)
		}
	})
}

// BR-46: names that are too long are cut so that they stay apart, and stop nobody.
func TestNetnsIPTables_longNames(t *testing.T) {
	forFlavours(t, func(t *testing.T, flavour string) {
		ns := nstest.New(t)
		b := newIPTables(t)
		conf := testConf()
		conf.Classes = append(conf.Classes, Class{Name: strings.Repeat("c", maxClass), Prefixes: prefixes("100.100.100.100/32")})
		apply(t, b, conf)
		namespace, long := strings.Repeat("n", 63), strings.Repeat("p", 240)
		subjects := []Subject{pod(1, long+"-one"), pod(2, long+"-two"), pod(3, "short")}
		comments := map[string]bool{}
		for i := range subjects {
			subjects[i].Namespace = namespace
			start(t, b, conf, subjects[i])
		}
		var labels int
		for _, r := range rules(t, ns, flavour) {
			c := option(r, "--comment")
			l, ok := parseLabel(c)
			if !ok || l.pod == noName {
				continue
			}
			labels++
			comments[c] = true
			if len(c) > maxComment || len(l.net) < 9 {
				t.Errorf("%d bytes: %s", len(c), c)
			}
		}
		if labels != 3*2*5 || len(comments) != labels {
			t.Errorf("%d rules with %d comments", labels, len(comments))
		}
		if changed, doubted := apply(t, b, conf, subjects...); len(changed)+len(doubted) != 0 {
			t.Errorf("the kernel kept other rules than were written: %v %v", changed, doubted)
		}
		if _, err := b.Stop(t.Context(), subjects[0]); err != nil {
			t.Fatal(err)
		}
		apply(t, b, conf, subjects[1:]...)
		left := rules(t, ns, flavour)
		if countOf(left, hexAddr(subjects[0].Addr)) != 0 || countOf(left, hexAddr(subjects[1].Addr)) == 0 || countOf(left, "pod=short") == 0 {
			t.Errorf("after the first has ended: %v", left)
		}
	})
}

// Whatever a name holds, the text has the lines that it has with another name.
func TestNetnsIPTables_hostileNames(t *testing.T) {
	forFlavours(t, func(t *testing.T, flavour string) {
		ns := nstest.New(t)
		b := newIPTables(t)
		conf := testConf()
		apply(t, b, conf)
		for i, name := range []string{
			"a\nCOMMIT\n*filter\n-A INPUT -j DROP", `a" -j DROP -m comment --comment "b`, `a\`, "`reboot`", "$(reboot)", "é\x00\xff", " ", "-", "",
			"a class=internet direction=rx", "A", "a", "-j DROP", strings.Repeat("\"", 300),
		} {
			s := pod(i+1, name)
			s.Namespace = name
			start(t, b, conf, s)
			if got := countOf(rules(t, ns, flavour), "-A "+chainOf(TX, s.Addr)+" "); got != 4 {
				t.Errorf("%q: %d rules", name, got)
			}
		}
		all := rules(t, ns, flavour)
		if countOf(all, "DROP") != 0 || countOf(all, "-A INPUT") != 2 {
			t.Errorf("rules from names: %v", all)
		}
		pods := map[string]bool{}
		for _, r := range all {
			if l, ok := parseLabel(option(r, "--comment")); ok && l.class == Internet && l.direction == TX {
				pods[l.pod] = true
			}
		}
		if len(pods) != 14 { // the node and the pod without a name have the same
			t.Errorf("%d names: %v", len(pods), pods)
		}
		bad := conf
		bad.Classes = []Class{{Name: "a\n-A INPUT -j DROP"}}
		if _, _, err := b.Apply(t.Context(), bad, nil); err == nil {
			t.Error("a class name with a line end was taken")
		}
		bad = conf
		bad.NICs = []string{"eth0 -j DROP"}
		if _, _, err := b.Apply(t.Context(), bad, nil); err == nil {
			t.Error("a link name with a space was taken")
		}
	})
}

// BR-48: values stay through whatever rewrites rules.
func TestNetnsIPTables_rewritten(t *testing.T) {
	forFlavours(t, func(t *testing.T, flavour string) {
		l := newLab(t)
		b := newIPTables(t)
		conf := testConf()
		apply(t, b, conf, l.subjects[:]...)
		ping(l.pods[0], "10.1.0.2")
		ping(l.node, "203.0.113.2")
		before := read(t, b)
		web0 := l.subjects[0].Addr
		same := func(what string) {
			t.Helper()
			now := read(t, b)
			if !sameSamples(now.Pods[web0], before.Pods[web0]) || !sameSamples(now.Node, before.Node) {
				t.Errorf("%s: %v and %v, want %v and %v", what, now.Pods[web0], now.Node, before.Pods[web0], before.Node)
			}
		}
		for i := range 10 {
			start(t, b, conf, pod(i+20, "other"))
			if _, err := b.Stop(t.Context(), pod(i+20, "other")); err != nil {
				t.Fatal(err)
			}
		}
		same("ten other pods")
		apply(t, newIPTables(t), conf, l.subjects[:]...)
		same("applied again")

		restore(t, flavour, l.node.Run("iptables-"+flavour+"-save -c -t mangle"), "-c")
		if changed, doubted := apply(t, b, conf, l.subjects[:]...); len(changed)+len(doubted) != 0 {
			t.Errorf("saved and restored: %v %v", changed, doubted)
		}
		same("saved and restored")

		other := conf
		other.Hash, other.MarkMask, other.NICs = "two", 0, []string{"eth0", "eth1"}
		other.Classes = append([]Class{{Name: "new", Prefixes: prefixes("10.200.0.0/16")}}, conf.Classes...)
		if changed, doubted := apply(t, b, other, l.subjects[:]...); len(changed) == 0 || len(doubted) != 0 {
			t.Errorf("another configuration: %v %v", changed, doubted)
		}
		apply(t, b, conf, l.subjects[:]...)
		same("another configuration and back")

		l.node.Run("iptables-" + flavour + " -t mangle -F " + chainOf(RX, web0))
		if _, doubted := apply(t, b, conf, l.subjects[:]...); len(doubted) != 1 {
			t.Errorf("a flushed chain: doubted %v", doubted)
		}
		now := read(t, b).Pods[web0]
		wantBytes(t, "a flushed chain", now, RX, Cluster, 0)
		wantBytes(t, "beside a flushed chain", now, TX, Cluster, pings*pingBytes)
		ping(l.pods[0], "10.1.0.2")
		wantBytes(t, "after a flushed chain", read(t, b).Pods[web0], RX, Cluster, pings*pingBytes)
	})
}

// BR-50: what stands twice is counted once where it can be, and said where it can't.
func TestNetnsIPTables_doubled(t *testing.T) {
	forFlavours(t, func(t *testing.T, flavour string) {
		l := newLab(t)
		b := newIPTables(t)
		conf := testConf()
		web0 := l.subjects[0].Addr
		apply(t, b, conf, l.subjects[:]...)
		ipt := "iptables-" + flavour + " -t mangle "
		wanted := rules(t, l.node, flavour)

		// A second rule that leads to the pod's chain, and a second rule of a class, count nothing twice.
		tx, lead := dispatch(TX, web0)
		l.node.Run(ipt + "-A " + tx + " " + lead)
		l.node.Run(ipt + "-I " + chainOf(TX, web0) + " 1 -d 10.0.0.0/8 -j RETURN -m comment --comment x")
		l.node.Run(ipt + "-D " + chainOf(TX, web0) + " 1")
		double := fmt.Sprintf("*mangle\n-A %s %s\nCOMMIT\n", chainOf(TX, web0), ruleTexts(conf, "default", "web-0", TX)[1])
		restore(t, flavour, double, "--noflush")
		ping(l.pods[0], "10.1.0.2")
		wantBytes(t, "doubled in our chains", read(t, b).Pods[web0], TX, Cluster, pings*pingBytes)
		if changed, _ := apply(t, b, conf, l.subjects[:]...); len(changed) != 1 {
			t.Errorf("doubled in our chains: %v", changed)
		}
		wantBytes(t, "put right", read(t, b).Pods[web0], TX, Cluster, pings*pingBytes)

		// A second rule that leads to all of us does.
		for _, hand := range []string{
			"FORWARD -m devgroup --src-group 28278 -j " + chainTX,
			"FORWARD -j " + chainTX,
			"POSTROUTING -j " + chainOf(RX, web0),
		} {
			l.node.Run(ipt + "-A " + hand)
			if _, doubted := apply(t, b, conf, l.subjects[:]...); len(doubted) != 1 {
				t.Errorf("%s: doubted %v", hand, doubted)
			}
			if got := rules(t, l.node, flavour); len(got) != len(wanted) {
				t.Errorf("%s: %d rules, want %d:\n%s", hand, len(got), len(wanted), strings.Join(got, "\n"))
			}
		}
		l.node.Run(ipt + "-D FORWARD -m devgroup --src-group 28278 -j " + chainTX)
		if _, doubted := apply(t, b, conf, l.subjects[:]...); len(doubted) != 1 {
			t.Errorf("a missing rule: doubted %v", doubted)
		}
		if changed, doubted := apply(t, b, conf, l.subjects[:]...); len(changed)+len(doubted) != 0 {
			t.Errorf("nothing to do: %v %v", changed, doubted)
		}

		// Without the chain that leads to pods a reading has what it has, and the next pod says that we aren't set up.
		l.node.Run(ipt + "-F FORWARD")
		l.node.Run(ipt + "-F INPUT")
		l.node.Run(ipt + "-F " + chainTX)
		l.node.Run(ipt + "-X " + chainTX)
		wantBytes(t, "without the top chain", read(t, b).Pods[web0], TX, Cluster, pings*pingBytes)
		if _, err := b.Start(t.Context(), conf, pod(9, "new")); !errors.Is(err, ErrNotApplied) {
			t.Errorf("start without the top chain: %v", err)
		}
		apply(t, b, conf, l.subjects[:]...)
		wantBytes(t, "top chain made again", read(t, b).Pods[web0], TX, Cluster, pings*pingBytes)
		if got := rules(t, l.node, flavour); len(got) != len(wanted) {
			t.Errorf("%d rules, want %d", len(got), len(wanted))
		}
	})
}

// What a rule of others before ours takes goes uncounted: it is said, and from then on counted. What doesn't end the chain is left in front.
func TestNetnsIPTables_overshadowed(t *testing.T) {
	forFlavours(t, func(t *testing.T, flavour string) {
		l := newLab(t)
		b := newIPTables(t)
		conf := testConf()
		web0 := l.subjects[0].Addr
		apply(t, b, conf, l.subjects[:]...)
		ipt := "iptables-" + flavour + " -t mangle "
		l.node.Run(ipt + "-N OTHERS")
		for i, r := range []struct {
			rule      string
			uncounted bool
		}{
			{"-j OTHERS", false},
			{"-p icmp -j MARK --set-xmark 0x1/0x1", false},
			{"-i lo -j ACCEPT", false},
			{"-i eth0 -j ACCEPT", false},
			{"-j ACCEPT", true},
			{"-p icmp -j RETURN", true},
			{"-s " + web0.String() + " -g OTHERS", true},
		} {
			l.node.Run(ipt + "-I FORWARD " + r.rule)
			before := bytesOf(read(t, b).Pods[web0], TX, Cluster)
			ping(l.pods[0], "10.1.0.2")
			lost := bytesOf(read(t, b).Pods[web0], TX, Cluster) == before
			changed, doubted := apply(t, b, conf, l.subjects[:]...)
			if lost != r.uncounted || lost != (len(doubted) > 0) || lost != (len(changed) > 0) {
				t.Errorf("%s: lost %v, want %v; changed %q, doubted %q", r.rule, lost, r.uncounted, changed, doubted)
			}
			if lost && !strings.Contains(doubted[0], strings.Fields(r.rule)[len(strings.Fields(r.rule))-1]) {
				t.Errorf("%s is not named: %q", r.rule, doubted)
			}
			before = bytesOf(read(t, b).Pods[web0], TX, Cluster)
			ping(l.pods[0], "10.1.0.2")
			wantBytes(t, "after "+r.rule, read(t, b).Pods[web0], TX, Cluster, before+pings*pingBytes)
			if changed, _ := apply(t, b, conf, l.subjects[:]...); len(changed) != 0 {
				t.Errorf("%s: changed again: %q", r.rule, changed)
			}
			if n := countOf(rules(t, l.node, flavour), "-A FORWARD"); n != i+2 {
				t.Errorf("%s: %d rules in FORWARD, want %d", r.rule, n, i+2)
			}
		}
	})
}

// Rules of others stay as they are, their values too, and detection makes no table.
func TestNetnsIPTables_foreignRules(t *testing.T) {
	forFlavours(t, func(t *testing.T, flavour string) {
		ns := nstest.New(t)
		b := newIPTables(t)
		_, err := b.Read(t.Context())
		if err2 := b.Drop(t.Context()); !errors.Is(err, ErrNotApplied) || err2 != nil {
			t.Fatal(err, err2)
		}
		if tables := ns.Run("nft list tables"); tables != "" || hasLegacyTable() {
			t.Fatalf("looking made tables: %q, legacy %v", tables, hasLegacyTable())
		}
		foreign := "*mangle\n:KUBE-X - [0:0]\n[7:700] -A FORWARD -s 10.0.0.4/32 -m comment --comment \"a b\" -j KUBE-X\n" +
			"[5:50] -A KUBE-X -j MARK --set-xmark 0x4000/0x4000\n[3:30] -A POSTROUTING -j RETURN\nCOMMIT\n"
		restore(t, flavour, foreign, "-c", "--noflush")
		conf := testConf()
		apply(t, b, conf, pod(1, "a"))
		apply(t, b, conf)
		if err := b.Drop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.Drop(t.Context()); err != nil {
			t.Fatalf("nothing to drop: %v", err)
		}
		left := ns.Run("iptables-" + flavour + "-save -c -t mangle")
		for _, line := range strings.Split(foreign, "\n") {
			if !strings.Contains(left, line) {
				t.Errorf("gone: %s\n%s", line, left)
			}
		}
		if strings.Contains(left, chainPrefix) {
			t.Errorf("left of ours: %s", left)
		}
	})
}

// A cancelled context ends it before anything starts.
func TestNetnsIPTables_context(t *testing.T) {
	nstest.New(t)
	b := newIPTables(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := b.Apply(ctx, testConf(), nil); !errors.Is(err, context.Canceled) {
		t.Errorf("apply: %v", err)
	}
}
