package netns

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// A class that leaves the configuration keeps what it has counted, though nobody has read it since: its counters are folded before they go,
// and that they went is no reset.
func TestNetnsAccounting_class_that_goes(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"nftables", "iptables"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			l, n := newAcctSimple(t, 3, backend)
			n.top["accounting"] = map[string]any{
				"backend": backend, "classes": []any{map[string]any{"name": "gate", "cidrs": []string{lab.SimpleGateway.String() + "/32"}}},
			}
			p := l.pod(0, "p")
			n.top["accounting"] = map[string]any{"backend": backend}
			if said := n.mustCtl("node", "repair"); !strings.Contains(said, "pending: accounting.classes is []") {
				t.Errorf("a repair before the change says %q", said)
			}
			l.says(p)
			before := l.saw(p) // the gateway is in a native range: all of its packets
			n.add("q", n.Pod(t, "q"), podNamed("q", "q")).ok()
			if said := n.mustCtl("node", "repair"); strings.Contains(said, "pending") {
				t.Errorf("a repair after the change says %q", said)
			}
			l.says(p)
			after, page := l.saw(p), n.scrape()
			for _, direction := range []string{"rx", "tx"} {
				k := acctKey{direction, "cluster"}
				for class, want := range map[string]uint64{"gate": before[k].Bytes, "cluster": after.since(before, k).Bytes} {
					got := page.of("namespace_network_bytes_total", "namespace=p", "direction="+direction, "class="+class)
					if got != want || want == 0 {
						t.Errorf("%s %s: %d bytes, the link saw %d", direction, class, got, want)
					}
				}
			}
			// Rules of iptables are written anew: what came between the reading and the writing is in doubt.
			if resets := page.of("accounting_resets_total"); resets != map[string]uint64{"nftables": 0, "iptables": 1}[backend] {
				t.Errorf("%d resets", resets)
			}
		})
	}
}

// acctLeft is what a backend has in the kernel.
func (n *acctNode) acctLeft() string {
	n.t.Helper()
	return n.sh("nft list ruleset | grep native_vmss_acct || true; iptables-save -c -t mangle | grep NATIVE-VMSS- || true")
}

// From one backend to the other, to none and back, which the next ADD does: what the old one had is gone, no total falls, nothing is a
// reset, and all is exact. The seconds without are unknown.
func TestNetnsAccounting_backend_changes(t *testing.T) {
	t.Parallel()
	l, n := newAcctSimple(t, 8, "nftables")
	p := l.pod(0, "p")
	l.says(p)
	traces := map[string]string{"nftables": "table ip native_vmss_acct", "iptables": "NATIVE-VMSS-"}
	was := "nftables"
	for i, backend := range []string{"iptables", "nftables", "iptables", "none", "nftables", "none", "iptables"} {
		if was != "none" { // what it says then is nobody's
			l.exact("before " + backend)
			l.says(p)
		}
		was = backend
		unknown := n.scrape().of("accounting_unknown_seconds_total", "namespace=p")
		seen := l.saw(p)
		n.top["accounting"] = map[string]any{"backend": backend}
		name := fmt.Sprintf("q%d", i)
		space := n.Pod(t, name)
		n.add(name, space, podNamed("q", name)).ok()
		n.del(name, space).ok()
		left := n.acctLeft()
		for other, trace := range traces {
			if strings.Contains(left, trace) != (other == backend) {
				t.Errorf("with %s, what %s has: %s", backend, other, left)
			}
		}
		if backend != "none" {
			continue
		}
		page := n.scrape()
		if page.of("accounting_on") != 0 || page.has("pod_network_bytes_total", "pod=p") {
			t.Errorf("with none the page is %v", page)
		}
		for _, k := range acctKeys {
			if got := page.of("namespace_network_bytes_total", k.labels("p")...); got != seen[k].Bytes {
				t.Errorf("with none %s %s is %d, the link saw %d", k.direction, k.class, got, seen[k].Bytes)
			}
		}
		waitFor(t, "unknown seconds go on", func() bool {
			return n.scrape().of("accounting_unknown_seconds_total", "namespace=p") >= unknown+2
		})
	}
	l.exact("in the end")
	if resets := n.scrape().of("accounting_resets_total"); resets != 0 {
		t.Errorf("%d resets, but nobody else touched the counters", resets)
	}
}

// A pod under another IPAM plugin that went without a DEL leaves the page with the next repair, and all it had stays its namespace's.
func TestNetnsAccounting_foreign_IPAM_pod_that_is_gone(t *testing.T) {
	t.Parallel()
	l, n := newAcctSimple(t, 5, "nftables")
	n.path += ":" + filepath.Dir(peer(t, "host-local"))
	n.top["ipam"] = map[string]any{
		"type": "host-local", "dataDir": hostLocalDir, "routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
		"ranges": []any{[]any{map[string]any{"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.11", "rangeEnd": "10.20.0.12"}}},
	}
	stays, goes := l.pod(0, "stays"), l.pod(0, "goes")
	for _, p := range []*acctPod{stays, goes} {
		l.says(p)
	}
	l.exact("with both")
	l.says(goes)
	l.ended(goes)
	goes.tally.Close() // it holds the namespace
	goes.space.Close()
	waitFor(t, "the link is gone", func() bool { return !strings.Contains(n.sh("ip -o link"), goes.added.HostLink) })
	n.mustCtl("node", "repair")
	l.exact("without the one that went")
	if page := n.scrape(); page.has("pod_network_bytes_total", "pod=goes") || !page.has("pod_network_bytes_total", "pod=stays") {
		t.Errorf("pods: %v", page)
	}
	l.says(stays)
	l.exact("with packets after it")
}

// What counts is removed by others: from the next reading on the page says so, and the time counts as unknown, until a repair.
func TestNetnsAccounting_removed_by_others(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ backend, do string }{
		"table":   {"nftables", "nft delete table " + acctTable},
		"ruleset": {"nftables", "nft flush ruleset"},
		"mangle":  {"iptables", "iptables -t mangle -F"},
		"all":     {"iptables", "iptables -t mangle -F; iptables -t mangle -X"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, n := newAcctSimple(t, 3, c.backend)
			p := l.pod(0, "p")
			l.says(p)
			counted := l.exact("before")[p]
			n.sh(c.do)
			l.says(p)
			page := n.scrape()
			if page.of("accounting_on") != 0 || page.has("pod_network_bytes_total", "pod=p") || page.has("pod_mark", "pod=p") {
				t.Errorf("the page says that the pod is counted: %v", page)
			}
			waitFor(t, "unknown seconds go on", func() bool { return n.scrape().of("accounting_unknown_seconds_total", "namespace=p") >= 2 })
			n.mustCtl("node", "repair")
			page = n.scrape()
			unknown := page.of("accounting_unknown_seconds_total", "namespace=p")
			if page.of("accounting_on") != 1 || page.of("accounting_resets_total", "reason=rules") != 1 {
				t.Errorf("after the repair: %v", page)
			}
			before := l.saw(p)
			l.says(p)
			after, page := l.saw(p), n.scrape()
			for _, k := range acctKeys {
				got, want := page.of("pod_network_bytes_total", append(k.labels("p"), "pod=p")...), counted[k].Bytes+after.since(before, k).Bytes
				if got != want {
					t.Errorf("%s %s: %d bytes, want %d", k.direction, k.class, got, want)
				}
			}
			if now := page.of("accounting_unknown_seconds_total", "namespace=p"); now != unknown {
				t.Errorf("unknown seconds went on: %d, %d", unknown, now)
			}
		})
	}
}

// Where counting can't begin, a pod has its network in time, the page says that it isn't counted and for how long, and with the next repair
// after that it is counted.
func TestNetnsAccounting_off_and_on_again(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		backend string
		hinder  func(*acctNode) (end func())
	}{
		"lock_of_iptables_held": {"iptables", func(n *acctNode) func() {
			n.alternative("iptables-legacy-save", "iptables-legacy-restore")
			return n.holds("flock", "/run/xtables.lock", "sleep", "600")
		}},
		"no_iptables": {"iptables", func(n *acctNode) func() {
			n.sh("for f in nft legacy; do mount --bind /dev/null /usr/sbin/xtables-$f-multi; done")
			return func() { n.sh("umount /usr/sbin/xtables-nft-multi /usr/sbin/xtables-legacy-multi") }
		}},
		"table_of_another_owner": {"nftables", func(n *acctNode) func() {
			end := n.holds("sh", "-c", "(echo 'add table "+acctTable+" { flags owner; }'; exec sleep 600) | nft -i")
			waitFor(n.t, "the table is there", func() bool { return strings.Contains(n.sh("nft list tables"), acctTable) })
			return end
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, n := newAcctSimple(t, 3, c.backend)
			end := c.hinder(n)
			space := n.Pod(t, "p")
			p := &acctPod{name: "p", ns: "p", at: n, space: space, added: n.add("p", space, podNamed("p", "p"))}
			l.adopt(p)
			l.says(p)
			page := n.scrape()
			if page.of("accounting_on") != 0 || page.has("pod_network_bytes_total", "pod=p") {
				t.Errorf("the page says that the pod is counted: %v", page)
			}
			waitFor(t, "unknown seconds go on", func() bool { return n.scrape().of("accounting_unknown_seconds_total", "namespace=p") >= 2 })
			end()
			if said := n.mustCtl("node", "repair"); !strings.Contains(said, "counted again") {
				t.Errorf("repair said %q", said)
			}
			unknown := n.scrape().of("accounting_unknown_seconds_total", "namespace=p")
			if n.scrape().of("accounting_on") != 1 {
				t.Error("it is not on")
			}
			before := l.saw(p)
			l.says(p)
			after, page := l.saw(p), n.scrape()
			for _, k := range acctKeys {
				got, want := page.of("pod_network_bytes_total", append(k.labels("p"), "pod=p")...), after.since(before, k).Bytes
				if got != want || want == 0 {
					t.Errorf("%s %s: %d bytes, the link saw %d", k.direction, k.class, got, want)
				}
			}
			if now := page.of("accounting_unknown_seconds_total", "namespace=p"); now != unknown {
				t.Errorf("unknown seconds went on: %d, %d", unknown, now)
			}
		})
	}
}

// A repair that can't look, of counters that stand, ends nothing: pods stay on the page, no second is unknown and no byte is lost.
func TestNetnsAccounting_look_that_fails(t *testing.T) {
	t.Parallel()
	l, n := newAcctSimple(t, 3, "iptables")
	n.alternative("iptables-legacy-save", "iptables-legacy-restore")
	p := l.pod(0, "p")
	l.says(p)
	l.exact("before")
	for name, hinder := range map[string]func() (end func()){
		"lock held": func() func() { return n.holds("flock", "/run/xtables.lock", "sleep", "600") },
		"no iptables": func() func() {
			n.sh("for f in nft legacy; do mount --bind /dev/null /usr/sbin/xtables-$f-multi; done")
			return func() { n.sh("umount /usr/sbin/xtables-nft-multi /usr/sbin/xtables-legacy-multi") }
		},
	} {
		end := hinder()
		if out, err := n.ctl("node", "repair"); err == nil || !strings.Contains(out, "accounting was not looked at") {
			t.Errorf("%s: repair says %v %q", name, err, out)
		}
		l.says(p)
		page := n.scrape()
		if page.of("accounting_on") != 1 || page.of("accounting_stale") != 1 || !page.has("pod_network_bytes_total", "pod=p") {
			t.Errorf("%s: the page is %v", name, page)
		}
		end()
		n.mustCtl("node", "repair")
		l.exact("after " + name)
		if page := n.scrape(); page.of("accounting_resets_total") != 0 || page.of("accounting_unknown_seconds_total") != 0 {
			t.Errorf("%s: in doubt or unknown: %v", name, page)
		}
	}
}

// Where links come and go the kernel lets a list of links wait: that takes nothing from the time in which accounting is looked at.
func TestNetnsAccounting_links_listed_slowly(t *testing.T) {
	t.Parallel()
	l, n := newAcctSimple(t, 3, "nftables")
	l.pod(0, "p")
	n.starts(nil, "node", "repair")()
	lists := slices.DeleteFunc(n.traced(n.acctTrace()), func(point string) bool { return !strings.HasPrefix(point, "routes.link-list#") })
	if len(lists) < 3 {
		t.Fatalf("a repair lists links at %v", lists)
	}
	for _, point := range lists {
		name, nth, _ := strings.Cut(point, "#")
		n.sh("nft delete table " + acctTable)
		n.starts([]string{"NVT_FAILPOINT=" + name + "=4s#" + nth}, "node", "repair")()
		if page := n.scrape(); page.of("accounting_on") != 1 || page.of("accounting_stale") != 0 {
			t.Errorf("after a repair whose list took 4 s at %s: %v", point, page)
		}
	}
}

// What was counted since the last fold and is gone when the backend changes is a reset.
func TestNetnsAccounting_gone_before_a_change(t *testing.T) {
	t.Parallel()
	l, n := newAcctSimple(t, 3, "nftables")
	p := l.pod(0, "p")
	l.says(p)
	l.exact("before")
	l.says(p)
	n.sh("nft delete table " + acctTable)
	n.top["accounting"] = map[string]any{"backend": "iptables"}
	n.add("q", n.Pod(t, "q"), podNamed("q", "q")).ok()
	if page := n.scrape(); page.of("accounting_resets_total", "reason=rules") != 1 || page.of("accounting_on") != 1 {
		t.Errorf("after the change: %v", page)
	}
}

// alternative has iptables-save and iptables-restore be these programs on the node.
func (n *acctNode) alternative(save, restore string) {
	n.t.Helper()
	n.sh("cp -a /etc/alternatives /run/alternatives; ln -sf /usr/sbin/" + save + " /run/alternatives/iptables-save; " +
		"ln -sf /usr/sbin/" + restore + " /run/alternatives/iptables-restore; mount --bind /run/alternatives /etc/alternatives")
}

// holds runs a command on the node until end.
func (n *acctNode) holds(name string, args ...string) (end func()) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := n.Node.Command(ctx, name, args...)
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // its children hold what it took
		cancel()
		_ = cmd.Wait()
	})
	n.t.Cleanup(end)
	return end
}
