package netns

import (
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// Ways to recover. All of them end where nothing of fpPod is left.
var (
	fpAgain = fpWay{"ADD again, DEL", (*fpNode).addAgain}
	fpDel   = fpWay{"DEL", func(n *fpNode) { n.del(fpPod, n.pod).ok() }}
	fpGC    = fpWay{"GC", func(n *fpNode) { n.gc(fpNeighbour).ok() }}
	fpSweep = fpWay{"sweep", (*fpNode).sweep}
	// fpRepair is a second repair; the pods that it looks after are taken down by the case.
	fpRepair = fpWay{"repair again", func(n *fpNode) { n.mustCtl("node", "repair") }}
)

// addAgain is the runtime's second try with the same id. Where the pod got its interface, the container has a new namespace by then,
// for in the old one a second ADD is refused: a live pod would look the same.
func (n *fpNode) addAgain() {
	n.t.Helper()
	p := n.pod
	if len(n.podLinksOf(p)) > 0 {
		n.add(fpPod, p).fails(4, "eth0")
		p = n.other
	}
	a := n.add(fpPod, p).ok()
	n.check(fpPod, p, a).ok()
	n.reaches(p, a.IP)
	n.del(fpPod, p).ok()
}

// end is what is left of the pod in the kernel once its namespaces are gone.
func (n *fpNode) end() {
	n.t.Helper()
	for _, p := range []*lab.Namespace{n.pod, n.other} {
		n.in(p, "for l in eth0 eth1; do ip link del $l 2>/dev/null || true; done")
	}
}

// sweep is for a pod whose namespace ended without DEL: two repairs, 60 s apart. An ADD's link without its mark goes at once, and with
// a namespace that goes on.
func (n *fpNode) sweep() {
	n.t.Helper()
	link := n.sh("ip link show dev " + linkOf(fpPod, "eth0") + " 2>/dev/null || true")
	if link == "" || strings.Contains(link, "alias") {
		n.end()
	}
	n.notes()
	if end := n.repairing([]string{"NVT_CLOCK_OFFSET=61s"}); end.failed {
		n.t.Errorf("sweep: %s", end.text)
	}
}

// notes is the first of the two repairs.
func (n *fpNode) notes() { n.mustCtl("node", "repair") }

// fpVerb runs a verb of the plugin for fpPod.
func fpVerb(command string, edits ...edit) func(*fpNode, ...string) fpEnd {
	return func(n *fpNode, env ...string) fpEnd { return n.plugin(n.call(command, fpPod, n.pod, edits...), env) }
}

// fpAdds is an ADD that succeeds.
func fpAdds(n *fpNode) { n.add(fpPod, n.pod).ok() }

// fpCollects runs a GC that keeps the neighbour, or one that names nobody.
func fpCollects(list bool) func(*fpNode, ...string) fpEnd {
	return func(n *fpNode, env ...string) fpEnd {
		stdin := n.conf(func(top map[string]any) {
			if list {
				top["cni.dev/valid-attachments"] = attachments(fpNeighbour)
			}
		})
		leaveOut := without("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS")
		return n.plugin(n.call("GC", "", nil, withStdin(stdin), leaveOut), env)
	}
}

// fpFlushLater is why a release succeeds at the flush of connections.
var fpFlushLater = map[string]string{
	"routes.conntrack-count": "the record says that the flush is due, and the ADD that hands the address out makes it",
	"routes.conntrack-flush": "likewise",
}

// fpWording is why a repair goes on when it can't tell what is wrong.
const fpWording = "a repair looks in order to say what was wrong; it puts it right all the same"

// fpTolerated are the points whose failure is no verb's, and some more.
func fpTolerated(more map[string]string) map[string]string {
	all := map[string]string{
		"metadata.request": "a request that fails is made again",
		"node.write":       "the time of a question to metadata spares others a wait, no more",
	}
	for k, v := range more {
		all[k] = v
	}
	return all
}

func fpAddCases() []*fpCase {
	tolerated := fpTolerated(map[string]string{
		"routes.conntrack-flush": "the second flush of an address, after that of DEL, is a precaution; that it failed is logged",
	})
	ways := []fpWay{fpAgain, fpDel, fpGC, fpSweep}
	second := withIfName("eth1")
	plain := &fpCase{name: "plain", run: fpVerb("ADD"), ways: ways, undone: true, success: fpDel.do, tolerated: tolerated}
	return []*fpCase{
		plain,
		{
			// Its lease is older than this ADD, which takes back no more than its own.
			name: "over the link of a killed ADD", run: fpVerb("ADD"), ways: ways, success: fpDel.do, tolerated: tolerated,
			before: func(n *fpNode) { // the container has a new namespace
				n.plugin(n.call("ADD", fpPod, n.other), []string{"NVT_FAILPOINT=routes.route-add=kill"})
			},
			known: []*fpCase{plain},
		},
		{
			name: "of a second interface", run: fpVerb("ADD", second), undone: true, tolerated: tolerated, before: fpAdds,
			ways: []fpWay{
				{"DEL", func(n *fpNode) { n.del(fpPod, n.pod, second).ok() }}, fpGC, fpSweep,
			},
			success: func(n *fpNode) { n.del(fpPod, n.pod, second).ok() },
			last:    func(n *fpNode) { n.del(fpPod, n.pod).ok() },
			known:   []*fpCase{plain},
		},
	}
}

func TestNetnsFailpoint_add(t *testing.T) { (&fpSuite{verb: "add", cases: fpAddCases()}).run(t) }

// On a node where no ADD ran: no state directory, no policy table, no rules. The neighbour's link and route are all that is known
// of it, and the store is made from them.
func TestNetnsFailpoint_add_on_a_new_node(t *testing.T) {
	c := *fpAddCases()[0]
	c.known = fpAddCases()[:1]
	c.name, c.before = "on a new node", (*fpNode).forget
	c.last = func(n *fpNode) { // what every ADD makes sure of
		n.add("settle", n.pod).ok()
		n.del("settle", n.pod).ok()
	}
	(&fpSuite{verb: "add", cases: []*fpCase{&c}, fromNode: true, rebuilt: true}).run(t)
}

// forget makes the node one where nothing ran before, but for the neighbour.
func (n *fpNode) forget() {
	n.t.Helper()
	n.sh("rm -rf " + stateDir + "; nft flush ruleset; ip route flush table 28201; for p in 499 500 510 599; do " +
		"while ip rule del pref $p 2>/dev/null; do :; done; done; sysctl -qw net.ipv4.ip_forward=0")
}

func TestNetnsFailpoint_del(t *testing.T) {
	ways := []fpWay{fpDel, fpGC, fpSweep}
	plain := &fpCase{name: "plain", before: fpAdds, run: fpVerb("DEL"), ways: ways, tolerated: fpTolerated(fpFlushLater)}
	one := func(name string, before func(n *fpNode, a *answer)) *fpCase {
		c := *plain
		c.name, c.known = name, []*fpCase{plain}
		c.before = func(n *fpNode) { before(n, n.add(fpPod, n.pod).ok()) }
		return &c
	}
	damaged := one("after the store was damaged", func(n *fpNode, _ *answer) {
		n.sh("dd if=/dev/zero of=" + stateDir + "/ipam.db bs=4096 seek=1 count=1 conv=notrunc status=none")
	})
	damaged.last = func(n *fpNode) { n.sh("rm -f " + stateDir + "/ipam.db.damaged-*") } // kept by design
	(&fpSuite{verb: "del", cases: []*fpCase{
		plain,
		one("of a link that went by itself", func(n *fpNode, _ *answer) { n.end() }),
		one("of a renamed link", func(n *fpNode, a *answer) {
			n.sh("ip link set " + a.HostLink + " down; ip link set " + a.HostLink + " name foo0")
		}),
		one("after the store was lost", func(n *fpNode, _ *answer) { n.sh("rm " + stateDir + "/ipam.db") }),
		damaged,
	}, rebuilt: true}).run(t)
}

func TestNetnsFailpoint_gc(t *testing.T) {
	unfinished := "ip link add " + linkOf("unfinished", "eth0") + " group " + pathGroup + " type veth peer name x1"
	withList := &fpCase{
		name: "with a list", run: fpCollects(true), tolerated: fpTolerated(fpFlushLater),
		before: func(n *fpNode) {
			n.add(fpPod, n.pod).ok()
			n.add("y", n.other).ok()
			n.sh(unfinished)
		},
		ways: []fpWay{
			fpGC,
			{"DELs", func(n *fpNode) {
				for _, id := range []string{fpPod, "y", "unfinished"} {
					n.del(id, nil).ok()
				}
			}},
			fpSweep,
		},
	}
	without := &fpCase{
		name: "without a list", run: fpCollects(false), tolerated: fpTolerated(fpFlushLater), known: []*fpCase{withList},
		before: func(n *fpNode) {
			fpAdds(n)
			n.end()
		},
		ways: []fpWay{{"GC again", func(n *fpNode) { n.gcWith(nil).ok() }}, fpDel, fpSweep},
	}
	(&fpSuite{verb: "gc", cases: []*fpCase{withList, without}}).run(t)
}

// A sweep is the second half of a repair. The first one notes a lease without a link, one that comes 60 s later collects it.
func TestNetnsFailpoint_sweep(t *testing.T) {
	ways := []fpWay{fpSweep, fpDel, fpGC}
	tolerated := fpTolerated(fpFlushLater)
	tolerated["routes.proxy-list"] = fpWording
	notes := &fpCase{
		name: "that notes", ways: ways, success: (*fpNode).sweep, tolerated: tolerated,
		before: func(n *fpNode) { fpAdds(n); n.end() },
		run:    func(n *fpNode, env ...string) fpEnd { return n.repairing(env) },
	}
	collects := &fpCase{
		name: "that collects", ways: ways, tolerated: tolerated, known: []*fpCase{notes},
		before: func(n *fpNode) { fpAdds(n); n.end(); n.notes() },
		run: func(n *fpNode, env ...string) fpEnd {
			return n.repairing(append([]string{"NVT_CLOCK_OFFSET=61s"}, env...))
		},
	}
	(&fpSuite{verb: "sweep", cases: []*fpCase{notes, collects}}).run(t)
}
