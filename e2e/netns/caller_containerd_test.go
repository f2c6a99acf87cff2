package netns

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// criPool is how many pods a node may have.
const criPool = 8

// Two releases of containerd run real pods, each on a node of one cloud: the distribution's, which knows nothing of STATUS, and
// one that asks for it. The steps build on each other; in each both nodes work at the same time.
func TestNetnsCaller_containerd(t *testing.T) {
	t.Parallel()
	cloud := newPathCloud(t, lab.CloudOptions{Nodes: lab.DefaultNodes(criPool)})
	archive := criArchive(t, criImage)
	steps := &criSteps{cloud: cloud, archive: archive, nodes: []*criNode{
		{name: "packaged", cri: newCRI(cloud.nodes[0].pathAs(t), packagedContainerd(t))},
		{name: "module", cri: newCRI(cloud.nodes[1].pathAs(t), filepath.Dir(peerOf(t, "containerd", "containerd")))},
	}}
	for host, server := range map[*lab.Namespace]**lab.Server{cloud.Hub: &steps.hub, cloud.Internet: &steps.internet} {
		var err error
		if *server, err = host.EchoTCP(netip.MustParseAddrPort("0.0.0.0:80")); err != nil {
			t.Fatal(err)
		}
	}
	steps.each(t, "network_is_ready_once_the_conflist_is_there_and_STATUS_says_so", (*criSteps).ready)
	steps.each(t, "pods_started_at_once_have_addresses_and_names_of_their_own", (*criSteps).burst)
	steps.each(t, "a_full_node_says_so_in_the_error_of_CRI_and_keeps_nothing", (*criSteps).full)
	steps.each(t, "pods_of_both_releases_reach_each_other_the_hub_and_the_internet", (*criSteps).traffic)
	steps.each(t, "a_restart_of_containerd_costs_no_packet", (*criSteps).restart)
	steps.each(t, "DEL_without_a_namespace_leaves_nothing", (*criSteps).lostNamespace)
	steps.each(t, "pods_that_are_stopped_again_and_again_leave_nothing", (*criSteps).removal)
	steps.each(t, "an_ADD_whose_containerd_was_killed_leaves_nothing", (*criSteps).killedInADD)
	steps.each(t, "a_DEL_whose_containerd_was_killed_is_finished_by_the_next", (*criSteps).killedInDEL)
	steps.each(t, "an_ADD_that_kubelet_gave_up_leaves_nothing", (*criSteps).kubeletGivesUp)
	steps.each(t, "a_conflist_that_is_replaced_is_noticed_and_hostPort_works", (*criSteps).hostPort)
	steps.each(t, "an_ADD_that_was_done_when_containerd_was_killed_is_collected", (*criSteps).killedAfterADD)
	steps.each(t, "pods_of_before_a_reboot_are_removable_and_hold_no_address", (*criSteps).reboot)
}

// criSteps is what the steps share.
type criSteps struct {
	cloud   *pathCloud
	archive string
	nodes   []*criNode
	// hub and internet answer pods and remember whom they saw.
	hub, internet *lab.Server
}

// criNode is one node and its pods.
type criNode struct {
	*cri
	name   string
	before lab.Snapshot // without pods
	pods   []*criPod
}

// asksStatus: from 2.0.1 on.
func (n *criNode) asksStatus() bool { return !strings.HasPrefix(n.version(), "1.") }

// each runs a step on all nodes at once and waits for them.
func (s *criSteps) each(t *testing.T, name string, step func(s *criSteps, n *criNode)) {
	t.Helper()
	if t.Failed() {
		return
	}
	t.Run(name, func(t *testing.T) {
		for _, n := range s.nodes {
			t.Run(n.name, func(t *testing.T) {
				t.Parallel()
				whole := n.cri
				n.cri = whole.as(t)
				defer func() { n.cri = whole }()
				step(s, n)
			})
		}
	})
}

// await polls the status of CRI.
func (n *criNode) await(what string, ok func(criStatus) bool) {
	n.t.Helper()
	var last criStatus
	if !pathEventually(criStart, func() bool { last = n.status(); return ok(last) }) {
		n.t.Fatalf("%s: never seen, the status is %+v", what, last)
	}
}

// conflist installs a shipped conflist as the only one.
func (n *criNode) conflist(name string) {
	n.t.Helper()
	n.put(criConfs+"/10-native-vmss.conflist", 0o644, shippedConf(n.t, name))
}

func (s *criSteps) ready(n *criNode) {
	n.start()
	n.load(s.archive)
	if st := n.status().NetworkReady; st.Status {
		n.t.Errorf("without a conflist the network is ready: %+v", st)
	}
	// While metadata can't be asked, a new node knows no address.
	n.sh("ip route add unreachable 169.254.169.254")
	n.conflist("10-native-vmss.conflist")
	if n.asksStatus() {
		n.await("why STATUS fails", func(st criStatus) bool {
			return !st.NetworkReady.Status && strings.Contains(st.NetworkReady.Message, "no pod address known: metadata")
		})
	}
	n.sh("ip route del unreachable 169.254.169.254")
	n.await("a network that is ready", func(st criStatus) bool { return st.NetworkReady.Status })
	if asked := n.called("STATUS", "") > 0; asked != n.asksStatus() {
		n.t.Errorf("STATUS was asked for: %t, want %t", asked, n.asksStatus())
	}
}

// refused wants RunPodSandbox to fail with our words and to leave nothing of the pod with containerd.
func (n *criNode) refused(name string, words ...string) {
	n.t.Helper()
	sandboxes, namespaces := n.sandboxes(), n.namespaces()
	err := n.runSandbox(n.configured(name))
	if err == nil {
		n.t.Fatalf("pod %s was started", name)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			n.t.Errorf("error %q does not name %q", err, w)
		}
	}
	if got := n.sandboxes(); got != sandboxes {
		n.t.Errorf("%d sandboxes, %d before", got, sandboxes)
	}
	if got := n.namespaces(); got != namespaces {
		n.t.Errorf("%d namespaces, %d before", got, namespaces)
	}
}

func (s *criSteps) burst(n *criNode) {
	first := n.configured("first")
	if err := n.runSandbox(first); err != nil {
		n.t.Fatal(err)
	}
	n.remove(first)
	time.Sleep(1200 * time.Millisecond) // its address rests
	n.before = n.snapshot()
	errs := make([]error, criPool)
	var wg sync.WaitGroup
	for i := range criPool {
		p := n.configured(fmt.Sprintf("web-%d", i))
		n.pods = append(n.pods, p)
		wg.Go(func() { errs[i] = n.runSandbox(p) })
	}
	wg.Wait()
	leased := map[string]criRow{}
	for _, r := range pathJSON[[]criRow](n.t, n.mustCtl("ipam", "list", "-o", "json")) {
		leased[r.Address] = r
	}
	for i, p := range n.pods {
		if errs[i] != nil {
			n.t.Fatalf("%s: %v", p.name, errs[i])
		}
		want := criRow{
			Address: p.ip.String(), State: "leased", Namespace: "team-a", Pod: p.name, ContainerID: p.id, IfName: "eth0",
			Network: "native-vmss",
		}
		if got := leased[p.ip.String()]; got != want {
			n.t.Errorf("%s has %s: the list says %+v, want %+v", p.name, p.ip, got, want)
		}
	}
	if held := n.held(); len(held) != criPool {
		n.t.Errorf("leased: %v, want %d", held, criPool)
	}
}

// criRow is a lease as vmssctl lists it.
type criRow struct {
	Address, State, Network, Namespace, Pod, ContainerID, IfName string
}

func (s *criSteps) full(n *criNode) {
	before, records := n.snapshot(), n.records()
	n.refused("one-more", "8 leased")
	n.unchanged(before)
	n.sameRecords(records)
}

func (s *criSteps) traffic(n *criNode) {
	for _, p := range n.pods[:2] {
		n.serve(p)
	}
	from, local := n.pods[0], n.pods[1]
	for _, to := range []netip.Addr{local.ip, lab.CloudHub} {
		if got := n.dials(from, netip.AddrPortFrom(to, 80)); got != from.ip {
			n.t.Errorf("%s to %s: connected from %s, its address is %s", from.name, to, got, from.ip)
		}
	}
	n.dials(from, netip.AddrPortFrom(lab.CloudInternet, 80))
	if saw := s.hub.Sources(); !slices.Contains(saw, from.ip) {
		n.t.Errorf("the hub saw %v, not the pod's %s", saw, from.ip)
	}
	if saw := s.internet.Sources(); !slices.Contains(saw, s.primaryOf(n)) || slices.Contains(saw, from.ip) {
		n.t.Errorf("the internet saw %v, want the node's %s", saw, s.primaryOf(n))
	}
	if !n.answers(s.cloud.Hub, from.ip) {
		n.t.Errorf("the hub does not reach %s", from.ip)
	}
	// The other node's pod may not be there yet: both are started in this step.
	for _, other := range s.nodes {
		if other == n {
			continue
		}
		to := other.pods[0]
		up := func() bool {
			v, err := n.Node.Connect(chainContext(n.t), netip.AddrPortFrom(to.ip, 80), time.Second)
			return err == nil && v == lab.Connected
		}
		if !pathEventually(criStart, up) {
			n.t.Fatalf("nobody listens on %s", to.ip)
		}
		if got := n.dials(from, netip.AddrPortFrom(to.ip, 80)); got != from.ip {
			n.t.Errorf("%s to the other node's %s: connected from %s", from.name, to.ip, got)
		}
	}
}

func (s *criSteps) lostNamespace(n *criNode) {
	p := n.pods[2]
	n.sh("ip netns del " + filepath.Base(p.netns))
	for range 2 {
		n.mustCrictl("stopp", p.id)
	}
	for _, call := range n.calls() {
		if call.verb == "DEL" && call.id == p.id && call.netns != "" {
			n.t.Errorf("this DEL has a namespace: %+v", call)
		}
	}
	if n.called("DEL", p.id) < 2 {
		n.t.Errorf("no two DEL of %s: %v", p.id, n.calls())
	}
	if held := n.held(); slices.Contains(held, p.ip) || len(held) != criPool-1 {
		n.t.Errorf("leased: %v, without %s want %d", held, p.ip, criPool-1)
	}
	if left := n.podLinks(); len(left) != criPool-1 {
		n.t.Errorf("links %v, want %d", left, criPool-1)
	}
	n.mustCrictl("rmp", p.id)
}

// remove stops pods twice, as kubelet does, and removes them, which stops them once more. Each time there is a DEL.
func (n *criNode) remove(pods ...*criPod) {
	n.t.Helper()
	var wg sync.WaitGroup
	for _, p := range pods {
		wg.Go(func() {
			for _, verb := range []string{"stopp", "stopp", "rmp"} {
				if _, err := n.crictl(verb, p.id); err != nil {
					n.t.Errorf("%s %s: %v", verb, p.name, err)
				}
			}
			if calls := n.called("DEL", p.id); calls < 2 {
				n.t.Errorf("%s: %d DEL, want two or more", p.name, calls)
			}
		})
	}
	wg.Wait()
}

// forgotten wants containerd to know nothing any more.
func (n *criNode) forgotten(when string) {
	n.t.Helper()
	gone := func() bool { return n.sandboxes()+n.namespaces() == 0 }
	if !pathEventually(criStart, gone) {
		n.t.Errorf("%s containerd has %d sandboxes and %d namespaces", when, n.sandboxes(), n.namespaces())
	}
}

func (s *criSteps) removal(n *criNode) {
	n.remove(slices.Concat(n.pods[:2], n.pods[3:])...)
	n.noLeak(n.before)
	n.forgotten("after the last pod")
}

func (s *criSteps) hostPort(n *criNode) {
	kept := n.configured("kept")
	if err := n.runSandbox(kept); err != nil {
		n.t.Fatal(err)
	}
	n.conflist("portmap.conflist")
	n.await("the new list", func(st criStatus) bool { return slices.Equal(st.Plugins, []string{"native-vmss", "portmap"}) })
	p := n.configured("mapped", 8080)
	if err := n.runSandbox(p); err != nil {
		n.t.Fatal(err)
	}
	n.serve(p)
	to := netip.AddrPortFrom(s.primaryOf(n), 8080)
	reached := func() bool {
		got, _, err := s.cloud.Hub.Exchange(chainContext(n.t), to, "hello", echoWait)
		return err == nil && got == "hello"
	}
	if !pathEventually(criStart, reached) {
		n.t.Errorf("the hub does not reach %s", to)
	}
	n.remove(kept, p)
	n.clean("after the new list")
	if rules := n.sh("iptables-save -t nat | grep -F " + p.ip.String() + " || true"); rules != "" {
		n.t.Errorf("the pod's rules are left:\n%s", rules)
	}
}

func (s *criSteps) primaryOf(n *criNode) netip.Addr {
	i := slices.Index(s.nodes, n)
	return s.cloud.Nodes[i].NICs[0].Primary
}
