package netns

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const chainMAC = "02:11:22:33:44:55"

// chainCase is what one shipped conflist has to show.
type chainCase struct {
	capabilities map[string]any
	second       bool // as a pod's second interface
	closed       bool // for connections from outside
	before       func(c *chain)
	works        func(c *chain, pod *lab.Namespace, res *current.Result, ip netip.Addr)
}

// shippedCases has a case for each file of cni-conf.
func shippedCases(t testing.TB) map[string]chainCase {
	t.Helper()
	cases := map[string]chainCase{
		"10-native-vmss.conflist": {works: func(*chain, *lab.Namespace, *current.Result, netip.Addr) {}},
		"every-key.conflist":      {works: func(*chain, *lab.Namespace, *current.Result, netip.Addr) {}},
		"portmap.conflist": {
			capabilities: shippedPorts(),
			works:        portmapWorks,
		},
		"bandwidth.conflist": {
			capabilities: map[string]any{"bandwidth": map[string]any{
				"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000,
			}},
			works: bandwidthWorks,
		},
		"portmap-bandwidth.conflist": {
			capabilities: map[string]any{
				"portMappings": shippedPorts()["portMappings"],
				"bandwidth":    map[string]any{"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 8_000_000, "egressBurst": 800_000},
			},
			works: func(c *chain, pod *lab.Namespace, res *current.Result, ip netip.Addr) {
				portmapWorks(c, pod, res, ip)
				bandwidthWorks(c, pod, res, ip)
			},
		},
		"tuning.conflist":   {capabilities: map[string]any{"mac": chainMAC}, works: tuningWorks},
		"firewall.conflist": {closed: true, before: func(c *chain) { c.sh("iptables -P FORWARD DROP") }, works: firewallWorks},
		"sbr.conflist":      {second: true, works: sbrWorks},
	}
	files, err := os.ReadDir(filepath.Join("..", "..", "cni-conf"))
	if err != nil || len(files) != len(cases) {
		t.Errorf("%d files in cni-conf, %d cases %v", len(files), len(cases), err)
	}
	for _, f := range files {
		if _, has := cases[f.Name()]; !has {
			t.Errorf("nobody runs %s", f.Name())
		}
	}
	return cases
}

// Every conflist that we ship, through libcni: ADD, CHECK directly after it as CRI-O does, what the chained plugin is for,
// DEL, DEL again, and the node is what it was.
func TestNetnsChain_shipped_conflists(t *testing.T) {
	t.Parallel()
	for name, tt := range shippedCases(t) {
		t.Run(strings.TrimSuffix(name, ".conflist"), func(t *testing.T) {
			t.Parallel()
			tt.run(newStage(t, lab.SimpleOptions{}), name, (*stage).shipped)
		})
	}
}

// run takes the list by its name; with is how a list of cni-conf is driven.
func (tt chainCase) run(s *stage, name string, with func(*stage, string) *chain) {
	c := with(s, name)
	if tt.before != nil {
		tt.before(c)
	}
	c.settle(tt.capabilities)
	space := c.Pod(c.t, "pod")
	p := lab.Pod{ID: "c1", Netns: space.Path, Namespace: "team-a", Name: "web-0", Capabilities: tt.capabilities}
	before := c.snapshot()
	if tt.second {
		first := with(s, "10-native-vmss.conflist")
		ip := addrOf(c.t, first.add(p))
		defer func() {
			c.reaches(space, ip)
			first.del(p)
			c.noLeak(before)
		}()
		further := p
		further.IfName = "eth1"
		tt.addDel(c, space, further)
		return
	}
	tt.addDel(c, space, p)
	c.noLeak(before)
	c.podEmpty(space, "after DEL")
}

func (tt chainCase) addDel(c *chain, space *lab.Namespace, p lab.Pod) {
	res := c.add(p)
	ip := addrOf(c.t, res)
	c.wayOut(space, ip)
	if !tt.closed {
		c.reaches(space, ip)
	}
	tt.works(c, space, res, ip)
	c.check(p)
	c.del(p)
	c.delAgain(p)
}

// shippedPorts are what portmapWorks connects to.
func shippedPorts() map[string]any {
	return map[string]any{"portMappings": []map[string]any{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}
}

// portmapWorks connects from outside to a port of the node.
func portmapWorks(c *chain, pod *lab.Namespace, _ *current.Result, _ netip.Addr) {
	if _, err := pod.EchoTCP(netip.MustParseAddrPort("0.0.0.0:80")); err != nil {
		c.t.Fatal(err)
	}
	to := netip.AddrPortFrom(lab.SimpleNode, 8080)
	if got, _, err := c.GW.Exchange(chainContext(c.t), to, "hello", echoWait); err != nil || got != "hello" {
		c.t.Errorf("hostPort from outside: %q %v", got, err)
	}
	if got, _, err := c.Node.Exchange(chainContext(c.t), to, "hello", echoWait); err != nil || got != "hello" {
		c.t.Errorf("hostPort from the node: %q %v", got, err)
	}
}

// bandwidthWorks wants both directions near 1 MB/s; without a limit they are at hundreds.
func bandwidthWorks(c *chain, pod *lab.Namespace, _ *current.Result, ip netip.Addr) {
	const limit, span = 1e6, time.Second
	for name, way := range map[string]struct {
		from, to *lab.Namespace
		addr     netip.Addr
	}{
		"ingress": {c.GW, pod, ip},
		"egress":  {pod, c.GW, lab.SimpleGateway},
	} {
		sink, err := way.to.SinkTCP(netip.AddrPortFrom(way.addr, 9000))
		if err != nil {
			c.t.Fatal(err)
		}
		rate, err := way.from.Throughput(chainContext(c.t), sink, sink.Addr, span)
		if err != nil || rate > 3*limit || rate < limit/10 {
			c.t.Errorf("%s: %.0f bytes/s, want about %.0f %v", name, rate, limit, err)
		}
	}
}

func tuningWorks(c *chain, pod *lab.Namespace, res *current.Result, ip netip.Addr) {
	link := c.in(pod, "ip -o link show dev eth0; cat /proc/sys/net/core/somaxconn")
	for _, want := range []string{"mtu 1400", chainMAC, "\n1024"} {
		if !strings.Contains(link, want) {
			c.t.Errorf("%q lacks %q", link, want)
		}
	}
	if got := res.Interfaces[1].Mac; got != chainMAC {
		c.t.Errorf("the result tells MAC %s", got)
	}
	// The MAC's change took the pod's permanent neighbour away; it asks, and has the answer at once.
	c.in(pod, "ip neigh flush dev eth0 || true")
	c.wayOut(pod, ip)
	host := res.Interfaces[0].Name
	if delay := c.sh("cat /proc/sys/net/ipv4/neigh/" + host + "/proxy_delay"); delay != "0" {
		c.t.Errorf("an answer may take %s ticks", delay)
	}
	c.sh("ip neigh del proxy 169.254.1.1 dev " + host)
	if err := c.rt.Check(chainContext(c.t), lab.Pod{ID: "c1", Netns: pod.Path, Capabilities: map[string]any{"mac": chainMAC}}); err == nil || !strings.Contains(err.Error(), "proxy neighbour 169.254.1.1") {
		c.t.Errorf("CHECK without the proxy neighbour: %v", err)
	}
	c.sh("ip neigh add proxy 169.254.1.1 dev " + host)
	// The host answers for the gateway and for nothing else.
	c.in(pod, "ip route add 169.254.1.2 dev eth0 && ! ping -c1 -W1 169.254.1.2 >/dev/null; ip route del 169.254.1.2 dev eth0")
	if out := c.in(pod, "ip neigh show 169.254.1.2"); strings.Contains(out, "lladdr") {
		c.t.Errorf("the host answered for another address: %s", out)
	}
}

// wayOut wants the pod to reach the gateway. A pod whose MAC was changed has to resolve its next hop, and the kernel has one
// neighbour table for all namespaces: while another test fills it nobody can, so this is tried again.
func (c *chain) wayOut(pod *lab.Namespace, ip netip.Addr) {
	c.t.Helper()
	if !pathEventually(20*time.Second, func() bool { return c.echo(pod, ip, lab.SimpleGateway, silence) }) {
		c.t.Errorf("%s does not reach the gateway: %s", pod.Name, c.in(pod, "ip neigh; ip rule; ip route show table all"))
	}
}

// firewallWorks: the node's forward policy is drop, so what passes is what the chained plugin let through.
func firewallWorks(c *chain, _ *lab.Namespace, _ *current.Result, ip netip.Addr) {
	if rules := c.sh("iptables -S CNI-FORWARD"); !strings.Contains(rules, ip.String()) {
		c.t.Errorf("no rule for the pod:\n%s", rules)
	}
	if policy := c.sh("iptables -S FORWARD"); !strings.Contains(policy, "-P FORWARD DROP") {
		c.t.Errorf("the policy isn't drop: %s", policy)
	}
}

// sbrWorks: the second interface's routes are in a table of their own, and its address goes out by it.
func sbrWorks(c *chain, pod *lab.Namespace, _ *current.Result, ip netip.Addr) {
	if out := c.in(pod, "ip route show dev eth1"); strings.TrimSpace(out) != "" {
		c.t.Errorf("routes of eth1 are still in main: %s", out)
	}
	c.wayOut(pod, ip)
}
