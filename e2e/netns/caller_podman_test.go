package netns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// Real containers on the shipped conflist: each has the address of a lease that carries its name, they reach each other and all
// that a pod reaches, and the last one takes everything along.
func TestNetnsPodman_containers(t *testing.T) {
	t.Parallel()
	p := newPodman(newStage(t, poolOf(5)), "10-native-vmss.conflist")
	before := p.snapshot()
	a, b := p.run("a"), p.run("b")
	want := map[string]string{a.id: a.ip.String() + " a", b.id: b.ip.String() + " b"}
	if got := p.leases(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("leases %v, want %v", got, want)
	}
	if got := p.env("ADD", "CNI_ARGS"); got != "IgnoreUnknown=1;K8S_POD_NAME=b" {
		t.Errorf("CNI_ARGS %q", got)
	}
	inside, err := p.GW.EchoTCP(netip.AddrPortFrom(lab.SimpleGateway, 7000))
	if err != nil {
		t.Fatal(err)
	}
	outside, err := p.GW.EchoTCP(netip.AddrPortFrom(lab.SimpleInternet, 7000))
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []netip.AddrPort{netip.AddrPortFrom(b.ip, 80), inside.Addr, outside.Addr} {
		if from := p.dial("a", to); from != a.ip {
			t.Errorf("a reached %s from %s, its address is %s", to, from, a.ip)
		}
	}
	if from := p.dial("b", netip.AddrPortFrom(a.ip, 80)); from != b.ip {
		t.Errorf("b reached a from %s, its address is %s", from, b.ip)
	}
	if got := inside.Sources(); !slices.Equal(got, []netip.Addr{a.ip}) {
		t.Errorf("the gateway saw %v, want the container's own address %s", got, a.ip)
	}
	if got := outside.Sources(); !slices.Equal(got, []netip.Addr{lab.SimpleNode}) {
		t.Errorf("the internet saw %v, want the NIC's primary address", got)
	}
	p.serves(a, "beside b")
	p.rm("a")
	p.serves(b, "after a has gone")
	p.rm("b")
	p.gone(before)
}

// A node without a free address says so, and what runs goes on.
func TestNetnsPodman_full(t *testing.T) {
	t.Parallel()
	p := newPodman(newStage(t, poolOf(2)), "10-native-vmss.conflist")
	a := p.run("a")
	var before lab.Snapshot
	var refused error
	for i := 0; i < 2 && refused == nil; i++ { // on a slow machine the other address has rested by now, and one more can run
		before = p.snapshot()
		_, refused = p.try(p.started(fmt.Sprint("b", i))...)
	}
	if refused == nil || !strings.Contains(refused.Error(), "no assignable address: 2 total") {
		t.Errorf("on a full node: %v", refused)
	}
	p.unchanged(before)
	p.serves(a, "on a full node")
	p.rm("--all")
	p.clean("after all")
}

// --ip: exactly this address, or an error that says why not and leaves nothing.
func TestNetnsPodman_asked_address(t *testing.T) {
	t.Parallel()
	p := newPodman(newStage(t, poolOf(5)), "10-native-vmss.conflist")
	before := p.snapshot()
	a := p.run("a", "--ip", "10.20.0.13")
	if a.ip != netip.MustParseAddr("10.20.0.13") {
		t.Errorf("address %s", a.ip)
	}
	p.serves(a, "asked for")
	with := p.snapshot()
	p.refuses(p.started("taken", "--ip", "10.20.0.13"), "10.20.0.13 is leased")
	p.refuses(p.started("strange", "--ip", "10.20.0.99"), "10.20.0.99 is not an address of this node's NICs")
	p.refuses(p.started("primary", "--ip", lab.SimpleNode.String()), "10.20.0.4 is not an address of this node's NICs")
	p.network += ":ip=10.20.0.12,ip=10.20.0.14" // two reach the plugin by runtimeConfig, one by CNI_ARGS
	p.refuses(p.started("two"), "runtimeConfig.ips: 10.20.0.12 and 10.20.0.14, but a pod has one address")
	p.network = podmanNetwork
	p.unchanged(with)
	p.serves(a, "after others asked")
	p.rm("--all")
	p.gone(before)
}

// --mac-address comes by CNI_ARGS alone.
func TestNetnsPodman_asked_MAC(t *testing.T) {
	t.Parallel()
	p := newPodman(newStage(t, poolOf(5)), "10-native-vmss.conflist")
	before := p.snapshot()
	a := p.run("a", "--mac-address", chainMAC)
	if link := p.sh("nsenter --net=" + a.sandbox + " ip -o link show eth0"); a.mac != chainMAC || !strings.Contains(link, chainMAC) {
		t.Errorf("%s was asked for, podman was told %s, and the link is %s", chainMAC, a.mac, link)
	}
	p.serves(a, "with its own MAC")
	p.refuses(p.started("b", "--mac-address", "01:00:5e:00:00:01"), "MAC=01:00:5e:00:00:01", "not a unicast MAC")
	p.rm("--all")
	p.gone(before)
}

// stop ends the sandbox: DEL with a namespace that is still there. start makes another one for the same container.
func TestNetnsPodman_stop_start(t *testing.T) {
	t.Parallel()
	p := newPodman(newStage(t, poolOf(5)), "10-native-vmss.conflist")
	before := p.snapshot()
	first := p.run("a")
	p.do("stop", "a")
	for name, want := range map[string]string{
		"CNI_CONTAINERID": first.id, "CNI_NETNS": first.sandbox, "CNI_IFNAME": "eth0", "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAME=a",
	} {
		if got := p.env("DEL", name); got != want {
			t.Errorf("DEL with %s %q, want %q", name, got, want)
		}
	}
	if stdin := p.calls.stdin("DEL"); !strings.Contains(stdin, `"prevResult"`) || !strings.Contains(stdin, first.ip.String()) {
		t.Errorf("DEL without the result of ADD: %s", stdin)
	}
	p.clean("after stop")
	p.do("start", "a")
	second := p.ready("a")
	if second.id != first.id || second.sandbox == first.sandbox || second.ip == first.ip {
		t.Errorf("started again: %+v, before %+v; want another sandbox and an address that has rested", second, first)
	}
	p.serves(second, "started again")
	p.rm("a")
	p.gone(before)
}

// A container that has a fixed address gets it back at once, cool-down or not: what is on its way to this address is meant for
// it. Other containers wait. podman asks for the old address by itself when it sets up a container's network again.
func TestNetnsPodman_same_address_again(t *testing.T) {
	t.Parallel()
	p := newPodman(newStage(t, poolOf(5)), "10-native-vmss.conflist") // 30 s of cool-down
	before := p.snapshot()
	fixed, free := p.run("fixed", "--ip", "10.20.0.13"), p.run("free")
	p.do("stop", "fixed")
	p.refuses(p.started("other", "--ip", "10.20.0.13"), "10.20.0.13 is cooling, ready in")
	p.do("start", "fixed")
	p.same("started again", fixed)
	p.do("restart", "fixed")
	p.same("restarted", fixed)
	p.do("network", "reload", "fixed", "free")
	p.same("network reloaded", fixed)
	p.same("network reloaded", free)
	p.rm("--all")
	p.gone(before)
}

// same wants a container to have its address and MAC still.
func (p *podman) same(when string, was container) {
	p.t.Helper()
	now := p.ready(was.name)
	if now.ip != was.ip || now.mac != was.mac {
		p.t.Errorf("%s: %+v, it was %+v", when, now, was)
	}
	p.serves(now, when)
	if got := p.leases()[now.id]; got != now.ip.String()+" "+was.name {
		p.t.Errorf("%s: lease %q", when, got)
	}
}

// -p with the chained portmap of the distribution, which knows no version after 1.0.0.
func TestNetnsPodman_published_port(t *testing.T) {
	t.Parallel()
	p := newPodman(newStage(t, poolOf(5)), "portmap.conflist")
	p.settle("--publish", "8081:80") // portmap's chains stay
	before := p.snapshot()
	a := p.run("a", "--publish", "8080:80")
	for name, from := range map[string]*lab.Namespace{"outside": p.GW, "the node": p.Node.Namespace} {
		got, _, err := from.Exchange(chainContext(t), netip.AddrPortFrom(lab.SimpleNode, 8080), "hello", echoWait)
		if err != nil || got != "hello" {
			t.Errorf("from %s: %q %v", name, got, err)
		}
	}
	// podman listens on the port too, to keep it; what counts is that the connection came through.
	if flows := p.sh("conntrack -L -p tcp --dport 8080 2>/dev/null"); !strings.Contains(flows, "src="+a.ip.String()+" ") {
		t.Errorf("nothing was translated to %s: %s", a.ip, flows)
	}
	p.do("stop", "a")
	p.unchanged(before)
	p.do("start", "a")
	p.ready("a")
	got, _, err := p.GW.Exchange(chainContext(t), netip.AddrPortFrom(lab.SimpleNode, 8080), "hello", echoWait)
	if err != nil || got != "hello" {
		t.Errorf("started again: %q %v", got, err)
	}
	p.rm("a")
	p.gone(before)
}
