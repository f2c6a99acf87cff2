package netns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// Services of the tests, and what is behind them.
var (
	acctServiceLocal    = netip.MustParseAddr("10.96.0.10") // b, on the same node
	acctServiceRemote   = netip.MustParseAddr("10.96.0.11") // r, on the other node
	acctServiceSelf     = netip.MustParseAddr("10.96.0.12") // a, who asks for it
	acctServiceInternet = netip.MustParseAddr("10.96.0.13") // a host outside
	acctServiceBoth     = netip.MustParseAddr("10.96.0.14") // b or r
	acctNodeLocalDNS    = netip.MustParseAddr("169.254.20.10")
)

const (
	acctNodePort = 30080
	acctHostPort = 18080
	acctDropped  = 9999 // where filters drop
	acctClosed   = 9998 // where nobody listens
)

// acctWorld are the ends of the paths: pods a, b and h on one node, r on the other; h has a port of the node.
type acctWorld struct {
	*acctLab
	a, b, h, r   *acctPod
	node1, node2 *lab.Namespace
	ip1, ip2     netip.Addr
}

func newAcctWorld(t testing.TB, addresses int, backend string) *acctWorld {
	t.Helper()
	l := newAcctLab(t, addresses, backend)
	w := &acctWorld{
		acctLab: l, node1: l.Nodes[0].Namespace, node2: l.Nodes[1].Namespace,
		ip1: l.Nodes[0].NICs[0].Primary, ip2: l.Nodes[1].NICs[0].Primary,
	}
	w.a, w.b, w.r = l.pod(0, "a"), l.pod(0, "b"), l.pod(1, "r")
	w.h = l.withPorts(0, "h",
		map[string]any{"hostPort": acctHostPort, "containerPort": acctPort, "protocol": "tcp"},
		map[string]any{"hostPort": acctHostPort, "containerPort": acctPort, "protocol": "udp"})
	for _, n := range []*lab.Namespace{w.a.space, w.b.space, w.h.space, w.r.space, w.node1, w.Hub, w.Internet} {
		l.echoes(n, netip.AddrPortFrom(netip.IPv4Unspecified(), acctPort))
	}
	w.services()
	l.classes[acctServiceInternet] = "internet"
	// A link-local address on a link of the node, as NodeLocal DNSCache has it, its packets untracked.
	w.l1().sh(`ip link add nodelocaldns type ifb; ip link set nodelocaldns up; ip addr add ` + acctNodeLocalDNS.String() + `/32 dev nodelocaldns
		for proto in tcp udp; do
			iptables -t raw -A PREROUTING -d ` + acctNodeLocalDNS.String() + ` -p $proto --dport 53 -j NOTRACK
			iptables -t raw -A OUTPUT -s ` + acctNodeLocalDNS.String() + ` -p $proto --sport 53 -j NOTRACK
		done`)
	l.echoes(w.node1, netip.AddrPortFrom(acctNodeLocalDNS, 53))
	return w
}

func (w *acctWorld) l1() *acctNode { return w.nodes[0] }

// services are rules in the form of kube-proxy's iptables mode, with detectLocalMode InterfaceNamePrefix.
func (w *acctWorld) services() {
	w.t.Helper()
	var rules strings.Builder
	rules.WriteString(`*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -m comment --comment "kubernetes service traffic requiring SNAT" -j MASQUERADE --random-fully
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
`)
	endpoint := func(ip netip.Addr) string { return netip.AddrPortFrom(ip, acctPort).String() }
	for i, svc := range []struct {
		ip netip.Addr
		to []string
	}{
		{acctServiceLocal, []string{endpoint(w.b.ip)}},
		{acctServiceRemote, []string{endpoint(w.r.ip)}},
		{acctServiceSelf, []string{endpoint(w.a.ip)}},
		{acctServiceInternet, []string{endpoint(lab.CloudInternet)}},
		{acctServiceBoth, []string{endpoint(w.b.ip), endpoint(w.r.ip)}},
	} {
		for _, proto := range []string{"tcp", "udp"} {
			acctService(&rules, fmt.Sprintf("%s%d", strings.ToUpper(proto), i), svc.ip, proto, svc.to)
		}
	}
	rules.WriteString(`-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
COMMIT
*filter
:KUBE-FORWARD - [0:0]
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding rules" -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m comment --comment "kubernetes forwarding conntrack rule" -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
COMMIT
`)
	w.l1().sh("iptables-restore --noflush <<'END'\n" + rules.String() + "END")
}

// acctService writes the chains of one port of a service. The first one has a NodePort, whose connections are masqueraded.
func acctService(rules *strings.Builder, id string, ip netip.Addr, proto string, to []string) {
	svc := "KUBE-SVC-" + id
	fmt.Fprintf(rules, ":%s - [0:0]\n", svc)
	say := func(chain, format string, args ...any) {
		fmt.Fprintf(rules, "-A %s -m comment --comment \"ns/%s:%s\" %s\n", chain, strings.ToLower(id), proto, fmt.Sprintf(format, args...))
	}
	say("KUBE-SERVICES", "-d %s/32 -p %s -m %s --dport 80 -j %s", ip, proto, proto, svc)
	if ip == acctServiceLocal {
		ext := "KUBE-EXT-" + id
		fmt.Fprintf(rules, ":%s - [0:0]\n", ext)
		say("KUBE-NODEPORTS", "-p %s -m %s --dport %d -j %s", proto, proto, acctNodePort, ext)
		say(ext, "-j KUBE-MARK-MASQ")
		say(ext, "-j %s", svc)
	}
	say(svc, "! -i veth+ -d %s/32 -p %s -m %s --dport 80 -j KUBE-MARK-MASQ", ip, proto, proto)
	for i, end := range to {
		sep := fmt.Sprintf("KUBE-SEP-%s-%d", id, i)
		fmt.Fprintf(rules, ":%s - [0:0]\n", sep)
		say(sep, "-s %s/32 -j KUBE-MARK-MASQ", strings.Split(end, ":")[0])
		say(sep, "-p %s -m %s -j DNAT --to-destination %s", proto, proto, end)
		if left := len(to) - i; left > 1 {
			say(svc, "-m statistic --mode random --probability %.11f -j %s", 1/float64(left), sep)
		} else {
			say(svc, "-j %s", sep)
		}
	}
}

// acctPath is one way for packets. All pods whose links see any are named, and those alone.
type acctPath struct {
	name  string
	from  *lab.Namespace
	to    netip.AddrPort
	kinds []acctKind
	pods  []*acctPod
}

// paths are all ways that packets take, both directions in each.
func (w *acctWorld) paths() []acctPath {
	at := func(ip netip.Addr) netip.AddrPort { return netip.AddrPortFrom(ip, acctPort) }
	svc := func(ip netip.Addr) netip.AddrPort { return netip.AddrPortFrom(ip, 80) }
	port := func(ip netip.Addr, p uint16) netip.AddrPort { return netip.AddrPortFrom(ip, p) }
	is := func(p ...*acctPod) []*acctPod { return p }
	return []acctPath{
		{"pod_to_pod", w.a.space, at(w.b.ip), acctEach, is(w.a, w.b)},
		{"pod_to_remote_pod", w.a.space, at(w.r.ip), acctEach, is(w.a, w.r)},
		{"remote_pod_to_pod", w.r.space, at(w.b.ip), acctEach, is(w.r, w.b)},
		{"pod_to_node", w.a.space, at(w.ip1), acctEach, is(w.a)},
		{"node_to_pod", w.node1, at(w.a.ip), acctEach, is(w.a)},
		{"node_to_remote_pod", w.node2, at(w.a.ip), acctEach, is(w.a)},
		{"pod_to_hub", w.a.space, at(lab.CloudHub), acctEach, is(w.a)},
		{"hub_to_pod", w.Hub, at(w.b.ip), acctEach, is(w.b)},
		{"pod_to_internet", w.a.space, at(lab.CloudInternet), acctEach, is(w.a)},
		{"service_to_local_pod", w.a.space, svc(acctServiceLocal), acctPorts, is(w.a, w.b)},
		{"service_to_remote_pod", w.a.space, svc(acctServiceRemote), acctPorts, is(w.a, w.r)},
		{"service_to_itself", w.a.space, svc(acctServiceSelf), acctPorts, is(w.a)},
		{"service_to_internet", w.a.space, svc(acctServiceInternet), acctPorts, is(w.a)},
		{"service_of_two", w.a.space, svc(acctServiceBoth), acctPorts, is(w.a, w.b, w.r)},
		{"node_to_service_to_local_pod", w.node1, svc(acctServiceLocal), acctPorts, is(w.b)},
		{"node_to_service_to_remote_pod", w.node1, svc(acctServiceRemote), acctPorts, is(w.r)},
		{"nodeport_from_hub", w.Hub, port(w.ip1, acctNodePort), acctPorts, is(w.b)},
		{"nodeport_from_pod", w.a.space, port(w.ip1, acctNodePort), acctPorts, is(w.a, w.b)},
		{"hostport_from_hub", w.Hub, port(w.ip1, acctHostPort), acctPorts, is(w.h)},
		{"hostport_from_pod", w.a.space, port(w.ip1, acctHostPort), acctPorts, is(w.a, w.h)},
		{"hostport_from_remote_pod", w.r.space, port(w.ip1, acctHostPort), acctPorts, is(w.r, w.h)},
		{"hostport_from_itself", w.h.space, port(w.ip1, acctHostPort), acctPorts, is(w.h)},
		{"hostport_from_node", w.node1, port(w.ip1, acctHostPort), acctPorts, is(w.h)},
		{"hostport_from_node_by_localhost", w.node1, port(netip.MustParseAddr("127.0.0.1"), acctHostPort), []acctKind{acctTCP}, is(w.h)},
		{"node_local_dns", w.a.space, port(acctNodeLocalDNS, 53), acctEach, is(w.a)},
	}
}

// travel sends by a path, and wants all numbers to be exact afterwards and the path to have been taken: packets both ways at each of its
// pods, and none at the others. It returns what differs.
func (w *acctWorld) travel(p acctPath) {
	w.t.Helper()
	for _, k := range p.kinds {
		before := w.sawAll()
		if err := k.run(p.from, p.to); err != nil {
			w.t.Errorf("%s by %s: %v", p.name, k.name, err)
		}
		after := w.exact(p.name + " by " + k.name)
		for pod, sums := range after {
			rx, tx := sums.way(before[pod], "rx"), sums.way(before[pod], "tx")
			took := rx.Packets > 0 && tx.Packets > 0
			if named := slices.Contains(p.pods, pod); took != named && len(p.pods) < 3 {
				w.t.Errorf("%s by %s: the link of %s saw %+v in and %+v out", p.name, k.name, pod.name, rx, tx)
			}
		}
	}
}

// Whatever way packets take, what a pod sent and got is what went over its link: to the byte, both ways, for all pods on the way, and
// nothing for others.
func TestNetnsAccounting_paths(t *testing.T) {
	t.Parallel()
	w := newAcctWorld(t, 30, "nftables")
	for _, p := range w.paths() {
		w.run(t, p.name, func(w *acctWorld) { w.travel(p) })
	}
	for _, d := range acctDrops {
		w.run(t, d.name, func(w *acctWorld) { d.do(w, nil) })
	}
}

// The same by the iptables backend, which shows that the test can tell: it differs where its documentation says so, and by as much.
func TestNetnsAccounting_paths_by_iptables(t *testing.T) {
	t.Parallel()
	w := newAcctWorld(t, 30, "iptables")
	for _, p := range w.paths() {
		w.run(t, p.name, func(w *acctWorld) { w.travel(p) })
	}
	var known []acctDiff
	differs := func(pod, direction, class string, packets int64) {
		k := acctKey{direction, class}
		known = append(known, acctDiff{k, pod, "bytes", packets * acctDropSize}, acctDiff{k, pod, "bytes of the namespace", packets * acctDropSize},
			acctDiff{k, pod, "packets of the namespace", packets})
	}
	for _, d := range acctDrops {
		switch d.name {
		case "dropped_in_postrouting": // counted as delivered
			differs("b", "rx", "cluster", acctDropCount)
		case "dropped_in_prerouting":
			differs("a", "tx", "cluster", -acctDropCount)
		case "without_a_route":
			differs("a", "tx", "internet", -acctDropCount)
			if len(known) != 9 {
				t.Fatal("the control has lost its differences")
			}
		}
		w.run(t, d.name, func(w *acctWorld) { d.do(w, acctMerge(known)) })
	}
}

// acctMerge adds up differences of one number.
func acctMerge(all []acctDiff) (out []acctDiff) {
	for _, d := range all {
		i := slices.IndexFunc(out, func(o acctDiff) bool { o.by = d.by; return o == d })
		if i < 0 {
			out = append(out, d)
		} else {
			out[i].by += d.by
		}
	}
	return out
}

// run makes a subtest of the world as it is: a failed one spoils those that come after it.
func (w *acctWorld) run(t *testing.T, name string, f func(*acctWorld)) {
	if t.Failed() {
		return
	}
	t.Run(name, func(t *testing.T) {
		v := *w
		v.acctLab = w.as(t)
		f(&v)
	})
}

const (
	acctDropCount = 20
	acctDropSize  = 128
)

// acctDrops are packets that don't arrive: who sent them has sent them, and nobody has got them. known are differences that are there or
// come.
var acctDrops = []struct {
	name string
	do   func(w *acctWorld, known []acctDiff)
}{
	{"nobody_listens", func(w *acctWorld, known []acctDiff) { // the answers are ICMP errors
		before := w.sawAll()
		w.sends(w.a.space, netip.AddrPortFrom(w.b.ip, acctClosed), 3)
		after := w.exactBut("nobody listens", known...)
		if rx := after[w.a].way(before[w.a], "rx"); rx.Packets == 0 {
			w.t.Error("no ICMP error came")
		}
	}},
	{"under_another_pods_address", func(w *acctWorld, known []acctDiff) {
		before := w.sawAll()
		lie := pathUDP(netip.AddrPortFrom(w.b.ip, 5555), netip.AddrPortFrom(lab.CloudHub, 7777), "lie")
		pathSend(w.t, w.a.space, lie, lie, lie)
		after := w.exactBut("under another pod's address", known...)
		if d := after[w.b].way(before[w.b], "tx"); d.Packets > 0 {
			w.t.Errorf("b has sent %+v", d)
		}
	}},
	{"dropped_in_forward", func(w *acctWorld, known []acctDiff) {
		w.drops("forward priority 0", w.b.ip, known)
	}},
	{"dropped_in_postrouting", func(w *acctWorld, known []acctDiff) {
		w.drops("postrouting priority 95", w.b.ip, known)
	}},
	{"dropped_in_prerouting", func(w *acctWorld, known []acctDiff) {
		w.drops("prerouting priority 0", w.b.ip, known)
	}},
	{"without_a_route", func(w *acctWorld, known []acctDiff) {
		w.l1().sh("ip route add blackhole 192.0.2.0/24")
		w.drops("", netip.MustParseAddr("192.0.2.1"), known)
	}},
}

// drops has a send datagrams that a filter takes away: b gets none of them, a has sent them all.
func (w *acctWorld) drops(hook string, to netip.Addr, known []acctDiff) {
	w.t.Helper()
	if hook != "" {
		w.l1().sh(fmt.Sprintf("nft add table ip acctdrop; nft add chain ip acctdrop c '{ type filter hook %s; }'; "+
			"nft add rule ip acctdrop c udp dport %d counter drop", hook, acctDropped))
		defer w.l1().sh("nft delete table ip acctdrop")
	}
	before := w.sawAll()
	w.sends(w.a.space, netip.AddrPortFrom(to, acctDropped), acctDropCount)
	after := w.exactBut("dropped in "+hook, known...)
	want := lab.Sum{Packets: acctDropCount, Bytes: acctDropCount * acctDropSize}
	if tx := after[w.a].way(before[w.a], "tx"); tx != want {
		w.t.Errorf("a sent %+v, want %+v", tx, want)
	}
	if rx := after[w.b].way(before[w.b], "rx"); rx.Packets > 0 {
		w.t.Errorf("b got %+v", rx)
	}
}
