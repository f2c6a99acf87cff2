package netns

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// acctPod is a pod whose link is tallied.
type acctPod struct {
	name  string
	ns    string // its namespace
	space *lab.Namespace
	at    *acctNode
	ip    netip.Addr
	added *answer
	tally *lab.PacketTally
}

// acctNode is a node with its pods.
type acctNode struct {
	*stage
	nic  *lab.PacketTally // of eth0
	pods []*acctPod
	gone map[string]acctSums // what pods that are gone have had, by namespace
	said int                 // how often its pods did
}

func newAcctNode(s *stage, backend string) *acctNode {
	s.top["accounting"] = map[string]any{"backend": backend}
	return &acctNode{stage: s, gone: map[string]acctSums{}}
}

// acctLab is the cloud lab with two nodes, whose pods are tallied from their first packet on.
type acctLab struct {
	*pathCloud
	t     testing.TB
	nodes []*acctNode
	// classes are peers whose class isn't that of their address: behind a Service is somebody else.
	classes map[netip.Addr]string
}

func newAcctLab(t testing.TB, addresses int, backend string) *acctLab {
	t.Helper()
	l := &acctLab{
		pathCloud: newPathCloud(t, lab.CloudOptions{Nodes: lab.DefaultNodes(addresses)}), t: t, classes: map[netip.Addr]string{},
	}
	for _, s := range l.pathCloud.nodes {
		n := newAcctNode(s, backend)
		n.nic = l.tally(s.Node.Namespace, "eth0")
		l.nodes = append(l.nodes, n)
	}
	return l
}

// newAcctSimple is one node and its gateway.
func newAcctSimple(t testing.TB, addresses int, backend string) (*acctLab, *acctNode) {
	t.Helper()
	n := newAcctNode(newStage(t, poolOf(addresses)), backend)
	n.ipam["cooldown"], n.ipam["refresh"] = "1ms", "24h" // an ADD that asks again passes other points than the one that was traced
	return &acctLab{t: t, nodes: []*acctNode{n}, classes: map[netip.Addr]string{}}, n
}

// as is the lab as seen by a subtest.
func (l *acctLab) as(t testing.TB) *acctLab {
	c := *l
	c.t = t
	return &c
}

func (l *acctLab) tally(n *lab.Namespace, link string) *lab.PacketTally {
	l.t.Helper()
	tally, err := n.TallyPackets(link)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { tally.Close() })
	return tally
}

func acctRead(t testing.TB, tally *lab.PacketTally) lab.TallyReport {
	t.Helper()
	r, err := tally.Read()
	if err != nil {
		t.Fatal(err)
	}
	if r.Strange > 0 || r.Pieces > 0 {
		t.Fatalf("%d frames that are neither ARP nor IPv4, %d packets in pieces", r.Strange, r.Pieces)
	}
	return r
}

// pod adds a pod of this name, which is its namespace's too.
func (l *acctLab) pod(node int, name string) *acctPod {
	l.t.Helper()
	return l.podIn(node, name, name)
}

func (l *acctLab) podIn(node int, ns, name string) *acctPod {
	l.t.Helper()
	n := l.nodes[node]
	p := &acctPod{name: name, ns: ns, at: n, space: n.Pod(l.t, name)}
	p.added = n.add(name, p.space, podNamed(ns, name))
	l.adopt(p)
	return p
}

func (l *acctLab) adopt(p *acctPod) {
	l.t.Helper()
	p.ip = p.added.ok().IP
	p.tally = l.tally(p.space, "eth0")
	p.at.pods = append(p.at.pods, p)
}

// more adds pods, some at a time.
func (l *acctLab) more(node, count int) (pods []*acctPod) {
	l.t.Helper()
	n := l.nodes[node]
	for i := range count {
		name := fmt.Sprintf("more%d", i)
		pods = append(pods, &acctPod{name: name, ns: name, at: n, space: n.Pod(l.t, name)})
	}
	var wg sync.WaitGroup
	for part := range slices.Chunk(pods, max(1, (count+3)/4)) {
		wg.Go(func() {
			for _, p := range part {
				p.added = n.add(p.name, p.space, podNamed(p.name, p.name))
			}
		})
	}
	wg.Wait()
	for _, p := range pods {
		l.adopt(p)
	}
	return pods
}

// withPorts adds a pod by a list of native-vmss and portmap, as a runtime does.
func (l *acctLab) withPorts(node int, name string, ports ...map[string]any) *acctPod {
	l.t.Helper()
	n := l.nodes[node]
	c := n.chained(string(n.acctChain()))
	p := &acctPod{name: name, ns: name, at: n, space: n.Pod(l.t, name)}
	res := c.add(lab.Pod{
		ID: name, Netns: p.space.Path, Namespace: name, Name: name, UID: "u1", Capabilities: map[string]any{"portMappings": ports},
	})
	p.ip = addrOf(l.t, res)
	p.tally = l.tally(p.space, "eth0")
	n.pods = append(n.pods, p)
	return p
}

// acctChain is the stage's network with portmap after it.
func (s *stage) acctChain() []byte {
	s.t.Helper()
	return s.conf(func(top map[string]any) {
		plugin := map[string]any{}
		for k, v := range top {
			if k != "name" && k != "cniVersion" {
				plugin[k] = v
			}
			if k != "name" {
				delete(top, k)
			}
		}
		top["cniVersion"] = "1.0.0"
		top["plugins"] = []any{plugin, map[string]any{"type": "portmap", "capabilities": map[string]any{"portMappings": true}}}
	})
}

// acctNative are the peers that are "cluster": the default nativeCIDRs and the platform's addresses.
var acctNative = func() (list []netip.Prefix) {
	for _, p := range []string{"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "169.254.0.0/16", "168.63.129.16/32"} {
		list = append(list, netip.MustParsePrefix(p))
	}
	return list
}()

func (l *acctLab) class(peer netip.Addr) string {
	if c := l.classes[peer]; c != "" {
		return c
	}
	if slices.ContainsFunc(acctNative, func(p netip.Prefix) bool { return p.Contains(peer) }) {
		return "cluster"
	}
	return "internet"
}

// acctKey is one number of a pod.
type acctKey struct{ direction, class string }

var acctKeys = []acctKey{{"rx", "cluster"}, {"rx", "internet"}, {"tx", "cluster"}, {"tx", "internet"}}

// acctSums are a pod's numbers.
type acctSums map[acctKey]lab.Sum

// saw is what went over the pod's link.
func (l *acctLab) saw(p *acctPod) acctSums {
	l.t.Helper()
	r := acctRead(l.t, p.tally)
	sums := acctSums{}
	for _, k := range acctKeys {
		sums[k] = r.Of(p.ip, k.direction == "tx", func(peer netip.Addr) bool { return l.class(peer) == k.class })
	}
	return sums
}

func (l *acctLab) sawAll() map[*acctPod]acctSums {
	l.t.Helper()
	all := map[*acctPod]acctSums{}
	for _, n := range l.nodes {
		for _, p := range n.pods {
			all[p] = l.saw(p)
		}
	}
	return all
}

// acctSettles is how long packets may be under way on a busy machine.
const acctSettles = 10 * time.Second

// acctDiff is a number that isn't what was seen.
type acctDiff struct {
	acctKey
	pod, unit string
	by        int64
}

func (d acctDiff) String() string {
	return fmt.Sprintf("%s %s %s: %+d %s", d.pod, d.direction, d.class, d.by, d.unit)
}

// exact wants each number of each pod on each node to be what went over its link: since its first packet, to the byte.
func (l *acctLab) exact(when string) map[*acctPod]acctSums {
	l.t.Helper()
	return l.exactBut(when)
}

// exactBut is exact but for these numbers, which differ by as much as is said. A packet may be under way when it is asked first; a
// difference that stays is an error, and nothing that comes after it can be judged.
func (l *acctLab) exactBut(when string, known ...acctDiff) map[*acctPod]acctSums {
	l.t.Helper()
	slices.SortFunc(known, acctOrder)
	for end := time.Now().Add(acctSettles); ; {
		late := time.Now().After(end)
		var wrong []acctDiff
		seen := l.sawAll()
		for _, n := range l.nodes {
			if len(n.pods)+len(n.gone) > 0 {
				wrong = append(wrong, n.differences(n.scrape(), seen)...)
			}
		}
		slices.SortFunc(wrong, acctOrder)
		if slices.Equal(wrong, known) {
			return seen
		}
		if late {
			for _, n := range l.nodes {
				l.t.Log(n.state())
			}
			l.t.Fatalf("%s: counted more or less than the links saw: %v, want %v", when, wrong, known)
		}
	}
}

// state is what somebody wants to know who looks for packets that were not counted.
func (n *acctNode) state() string {
	var said strings.Builder
	for _, p := range n.pods {
		if p.added != nil && len(p.added.Stderr) > 0 {
			fmt.Fprintf(&said, "ADD of %s: %s", p.name, p.added.Stderr)
		}
	}
	return n.Node.Name + "\n" + said.String() + n.sh(program(n.t, "vmssctl")+" --conf "+n.ctlConf()+" metrics | grep ^native_vmss_accounting_; "+
		"nft list table "+acctTable+" 2>&1; iptables-save -c -t mangle 2>&1; true")
}

func acctOrder(a, b acctDiff) int { return cmp.Compare(a.String(), b.String()) }

// differences lists each number of a page that isn't what was seen: of pods, and of namespaces with those that are gone.
func (n *acctNode) differences(page acctPage, seen map[*acctPod]acctSums) (wrong []acctDiff) {
	whole := map[string]acctSums{}
	for ns, sums := range n.gone {
		whole[ns] = sums.plus(nil)
	}
	note := func(k acctKey, who, unit string, got, want uint64) {
		if got != want {
			wrong = append(wrong, acctDiff{k, who, unit, int64(got) - int64(want)})
		}
	}
	for _, p := range n.pods {
		whole[p.ns] = seen[p].plus(whole[p.ns])
		for _, k := range acctKeys {
			want := seen[p][k].Bytes
			if p.ns == "" && p.name == "" { // such pods can't be told apart: their namespace alone has them
				want = 0
			}
			note(k, p.name, "bytes", page.of("pod_network_bytes_total", append(k.labels(p.ns), "pod="+p.name)...), want)
		}
	}
	for ns, sums := range whole {
		for _, k := range acctKeys {
			note(k, ns, "bytes of the namespace", page.of("namespace_network_bytes_total", k.labels(ns)...), sums[k].Bytes)
			note(k, ns, "packets of the namespace", page.of("namespace_network_packets_total", k.labels(ns)...), sums[k].Packets)
		}
	}
	return wrong
}

func (k acctKey) labels(ns string) []string {
	return []string{"namespace=" + ns, "direction=" + k.direction, "class=" + k.class}
}

// plus is the sum of both, a new one.
func (s acctSums) plus(o acctSums) acctSums {
	sum := acctSums{}
	for _, k := range acctKeys {
		sum[k] = lab.Sum{Packets: s[k].Packets + o[k].Packets, Bytes: s[k].Bytes + o[k].Bytes}
	}
	return sum
}

// ended takes a pod off the list: its link is gone, and what it had stays its namespace's.
func (l *acctLab) ended(p *acctPod) {
	l.t.Helper()
	p.at.gone[p.ns] = l.saw(p).plus(p.at.gone[p.ns])
	p.at.pods = slices.DeleteFunc(p.at.pods, func(o *acctPod) bool { return o == p })
}

// del deletes a pod.
func (l *acctLab) del(p *acctPod) {
	l.t.Helper()
	p.at.del(p.name, p.space).ok()
	l.ended(p)
	p.space.Close()
}

// since is what was added.
func (s acctSums) since(before acctSums, k acctKey) lab.Sum {
	return lab.Sum{Packets: s[k].Packets - before[k].Packets, Bytes: s[k].Bytes - before[k].Bytes}
}

// way is what went one way, whatever the class.
func (s acctSums) way(before acctSums, direction string) (sum lab.Sum) {
	for _, k := range acctKeys {
		if k.direction == direction {
			d := s.since(before, k)
			sum.Packets, sum.Bytes = sum.Packets+d.Packets, sum.Bytes+d.Bytes
		}
	}
	return sum
}
