package accounting

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/nstest"
)

// What a restore brings back of an address's earlier pod is nobody's, and that the rules of the pod that has it now are gone is said.
func TestNetnsIPTables_restoredForAnother(t *testing.T) {
	forFlavours(t, func(t *testing.T, flavour string) {
		l := newLab(t)
		b := newIPTables(t)
		conf := testConf()
		old := l.subjects[0]
		apply(t, b, conf, old)
		ping(l.pods[0], "10.1.0.2")
		saved := l.node.Run("iptables-" + flavour + "-save -c -t mangle")
		if _, err := b.Stop(t.Context(), old); err != nil {
			t.Fatal(err)
		}
		next := old
		next.Pod, next.Counted = "next", true
		start(t, b, conf, next)
		restore(t, flavour, saved, "-c")
		if got := read(t, b); got.Of(next) != nil || total(got.Of(old), TX) != pings*pingBytes {
			t.Errorf("of the pod %v, of the one before %v", got.Of(next), got.Of(old))
		}
		if last, err := b.Stop(t.Context(), next); last != nil || err != nil {
			t.Errorf("last values %v %v", last, err)
		}
		restore(t, flavour, saved, "-c")
		if _, doubted := apply(t, b, conf, next); len(doubted) != 1 {
			t.Errorf("doubted %q", doubted)
		}
		if got := read(t, b).Of(next); got == nil || total(got, TX) != 0 {
			t.Errorf("put right, it has %v", got)
		}
	})
}

// One Apply is enough where a rule of ours stands twice and one of others between the two.
func TestNetnsIPTables_doubledAndOvershadowed(t *testing.T) {
	forFlavours(t, func(t *testing.T, flavour string) {
		l := newLab(t)
		b := newIPTables(t)
		conf := testConf()
		apply(t, b, conf, l.subjects[:]...)
		ipt := "iptables-" + flavour + " -t mangle -A FORWARD "
		l.node.Run(ipt + "-p icmp -j ACCEPT")
		l.node.Run(ipt + "-m devgroup --src-group 0x6e76 -j " + chainTX)
		l.node.Run(ipt + "-j ACCEPT")
		if _, doubted := apply(t, b, conf, l.subjects[:]...); len(doubted) != 1 {
			t.Errorf("doubted %q", doubted)
		}
		ping(l.pods[0], "10.1.0.2")
		wantBytes(t, "after one Apply", read(t, b).Pods[l.subjects[0].Addr], TX, Cluster, pings*pingBytes)
		if changed, _ := apply(t, b, conf, l.subjects[:]...); len(changed) != 0 {
			t.Errorf("changed again: %q", changed)
		}
	})
}

// Rules that only look like ours, or like none of anybody's.
func TestNetnsIPTables_oddRules(t *testing.T) {
	forFlavours(t, func(t *testing.T, flavour string) {
		ns := nstest.New(t)
		b := newIPTables(t)
		conf := testConf()
		apply(t, b, conf, pod(1, "a"))
		ipt := "iptables-" + flavour + " -t mangle "
		ns.Run(ipt + "-N OTHERS")
		restore(t, flavour, "*mangle\n-A OTHERS -m comment --comment \"a\\n[1\" -j RETURN\nCOMMIT\n", "--noflush")
		if out, err := exec.Command("iptables-"+flavour, "-t", "mangle", "-A", "OTHERS", "-m", "comment", "--comment", "a\n[1:b", "-j", "RETURN").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		ns.Run(ipt + "-R FORWARD 1 -m devgroup ! --src-group 0x6e76 -j " + chainTX)
		if _, doubted := apply(t, b, conf, pod(1, "a")); len(doubted) != 2 { // one is gone, the other one counts what isn't ours
			t.Errorf("doubted %q", doubted)
		}
		if got := rules(t, ns, flavour); countOf(got, "! --src-group") != 0 || countOf(got, "-A FORWARD -m devgroup --src-group 0x6e76") != 1 {
			t.Errorf("rules:\n%s", strings.Join(got, "\n"))
		}
	})
}

// A table that the nft flavour can't show is not an empty one: nothing of it is believed, and nothing left behind unsaid.
func TestNetnsIPTables_incompatible(t *testing.T) {
	usePath(t, "nft")
	ns := nstest.New(t)
	b := newIPTables(t)
	conf := testConf()
	apply(t, b, conf, pod(1, "a"))
	ns.Run("nft add rule ip mangle FORWARD ct state new counter")
	_, err := b.Read(t.Context())
	_, err2 := b.Start(t.Context(), conf, pod(2, "b"))
	_, err3 := b.Stop(t.Context(), pod(1, "a"))
	_, _, err4 := b.Apply(t.Context(), conf, nil)
	for i, err := range []error{err, err2, err3, err4, b.Halt(t.Context()), b.Drop(t.Context())} {
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("%d: %v", i, err)
		}
	}
	ns.Run("nft flush chain ip mangle FORWARD")
	if err := b.Drop(t.Context()); err != nil {
		t.Error(err)
	}
}

// The name of what stands is another one once others have restored it; the legacy flavour has no names.
func TestNetnsIPTables_Standing(t *testing.T) {
	forFlavours(t, func(t *testing.T, flavour string) {
		ns := nstest.New(t)
		b := newIPTables(t)
		name := func() string {
			t.Helper()
			s, err := b.Standing(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		before := name()
		apply(t, b, testConf(), pod(1, "a"))
		made := name()
		start(t, b, testConf(), pod(2, "b"))
		if before != "" || name() != made || (made != "") != (flavour == "nft") {
			t.Errorf("%q before, %q made, %q after a pod", before, made, name())
		}
		restore(t, flavour, ns.Run("iptables-"+flavour+"-save -c"), "-c")
		if now := name(); (now != made) != (flavour == "nft") {
			t.Errorf("%q made, %q restored", made, now)
		}
	})
}

// Halt ends the counting and leaves the values to be read once more.
func TestNetnsHalt(t *testing.T) {
	test := func(t *testing.T, newBackend func() Backend) {
		l := newLab(t)
		b := newBackend()
		conf := testConf()
		if err := b.Halt(t.Context()); err != nil {
			t.Errorf("nothing to halt: %v", err)
		}
		apply(t, b, conf, l.subjects[:]...)
		ping(l.pods[0], "10.1.0.2")
		if err := b.Halt(t.Context()); err != nil {
			t.Fatal(err)
		}
		ping(l.pods[0], "10.1.0.2")
		for _, direction := range []string{RX, TX} {
			wantBytes(t, "halted", read(t, b).Pods[l.subjects[0].Addr], direction, Cluster, pings*pingBytes)
		}
		if err := b.Drop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	forFlavours(t, func(t *testing.T, _ string) { test(t, func() Backend { return newIPTables(t) }) })
	t.Run("nftables", func(t *testing.T) {
		test(t, func() Backend {
			b, err := NewNFTables(nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(b.Close)
			return b
		})
	})
}
