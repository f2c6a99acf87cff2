package netns

import (
	"path/filepath"
	"strings"
	"testing"
)

// A DEL that can't read the last values loses them, and says so: they are never the next pod's, whose ADD is killed at any step of its
// counting and made again while somebody reads.
func TestNetnsAccounting_last_values_unread(t *testing.T) {
	t.Parallel()
	for backend, read := range map[string]string{"nftables": "accounting.nft-read#1", "iptables": "accounting.iptables#1"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			l, n := newAcctSimple(t, 1, backend)
			l.del(l.pod(0, "zero"))
			space := n.Pod(t, "trace")
			points := acctPoints(n.hits(n.call("ADD", "trace", space)))
			n.del("trace", space).ok()
			acctWantPoints(t, points, "accounting.")
			for i, point := range points {
				before := n.scrape().of("accounting_resets_total")
				a := l.podIn(0, "team-a", "a"+strings.NewReplacer(".", "-", "#", "-").Replace(point))
				l.says(a)
				n.runOf(pathFailing, n.call("DEL", a.name, a.space, at(read, "error"))).ok()
				n.pods = nil
				a.space.Close()
				if resets := n.scrape().of("accounting_resets_total"); resets != before+1 {
					t.Errorf("%d resets after a DEL that could not read, %d before", resets, before)
				}
				name := "b" + strings.NewReplacer(".", "-", "#", "-").Replace(point)
				dead := n.Pod(t, name+"-dead")
				l.kills(n.call("ADD", name, dead, podNamed(name, name)), point)
				dead.Close()
				if i%2 == 0 {
					n.scrape()
				}
				b := &acctPod{name: name, ns: name, at: n, space: n.Pod(t, name)}
				b.added = n.add(name, b.space, podNamed(name, name))
				l.adopt(b)
				l.exact("after ADD, at first killed at " + point)
				l.says(b)
				l.exact("with packets, ADD at first killed at " + point)
				l.del(b)
				delete(n.gone, name) // exact until here; the pods that come have other namespaces
			}
		})
	}
}

// Pods of podman or cnitool have no names, and are counted and repaired like others.
func TestNetnsAccounting_pod_without_names(t *testing.T) {
	t.Parallel()
	for backend, do := range map[string]string{
		"nftables": "nft delete table " + acctTable, "iptables": "iptables -t mangle -F; iptables -t mangle -X",
	} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			l, n := newAcctSimple(t, 2, backend)
			p := &acctPod{name: "", at: n, space: n.Pod(t, "p")}
			p.added = n.add("p", p.space, withArgs("IgnoreUnknown=1"))
			l.adopt(p)
			l.says(p)
			l.exact("before")
			n.sh(do)
			n.mustCtl("node", "repair")
			known := n.differences(n.scrape(), l.sawAll())
			l.says(p)
			l.exactBut("after the repair", known...)
		})
	}
}

// Another IPAM plugin gives an address again whose pod went without a DEL: what that pod had since the last fold is lost, and is reported.
func TestNetnsAccounting_foreign_IPAM_gives_again(t *testing.T) {
	t.Parallel()
	l, n := newAcctSimple(t, 5, "nftables")
	n.path += ":" + filepath.Dir(peer(t, "host-local"))
	n.top["ipam"] = map[string]any{
		"type": "host-local", "dataDir": hostLocalDir, "routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
		"ranges": []any{[]any{map[string]any{"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.11", "rangeEnd": "10.20.0.11"}}},
	}
	a := l.pod(0, "a")
	l.says(a)
	n.pods = nil
	a.tally.Close() // it holds the namespace
	a.space.Close()
	waitFor(t, "the link is gone", func() bool { return !strings.Contains(n.sh("ip -o link"), a.added.HostLink) })
	n.sh("find " + hostLocalDir + " -name '10.20.*' -delete")
	b := l.pod(0, "b")
	l.says(b)
	l.exact("the second pod")
	if resets := n.scrape().of("accounting_resets_total", "reason=counters"); resets != 1 {
		t.Errorf("%d resets", resets)
	}
}
