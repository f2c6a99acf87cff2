//go:build kind

package kind

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const burst = 60 // pods at once on one node

// TestKindBurst: many pods at once on a node all get an address of their own and an answer from another node; when they are gone,
// so is all that was theirs.
func TestKindBurst(t *testing.T) {
	ns := namespace(t, "nvt-burst")
	observer := start(t, ns, podSpec{name: "observer", node: controlPlane})[0]
	// What belongs to the node and not to a pod is made by the first ADD.
	start(t, ns, podSpec{name: "first", node: worker})
	kubectl(t, "-n", ns, "delete", "pod", "first", "--wait", "--timeout="+ready.String())
	waitFor(t, "the first pod has no lease", time.Minute, func() (bool, string) {
		addrs := leased(t, worker)
		return len(addrs) == len(onNodePods(t, worker)), fmt.Sprint(addrs)
	})
	before := stateOf(t, worker)
	for round := range rounds(t) {
		t.Run(fmt.Sprintf("round %d", round+1), func(t *testing.T) {
			pods := startBurst(t, ns)
			distinct(t, pods, observer)
			reached(t, observer, pods)
			kubectl(t, "-n", ns, "delete", "pod", "-l", "app=burst", "--wait", "--timeout="+ready.String())
			nothingLeft(t, before)
		})
		if t.Failed() {
			return
		}
	}
}

// onNodePods are the addresses of all pods of a node that have one of their own.
func onNodePods(t *testing.T, node string) []netip.Addr {
	t.Helper()
	own := nodeAddr(t, node)
	out := kubectl(t, "get", "pods", "-A", "--field-selector", "spec.nodeName="+node, "-o", "jsonpath={.items[*].status.podIP}")
	var addrs []netip.Addr
	for ip := range strings.FieldsSeq(out) {
		if a, err := netip.ParseAddr(ip); err == nil && a != own {
			addrs = append(addrs, a)
		}
	}
	return addrs
}

func startBurst(t *testing.T, ns string) []pod {
	t.Helper()
	var specs []podSpec
	for i := range burst {
		specs = append(specs, podSpec{name: fmt.Sprintf("burst-%02d", i), node: worker, labels: object{"app": "burst"}})
	}
	begin := time.Now()
	pods := start(t, ns, specs...)
	t.Logf("%d pods ready after %s", burst, time.Since(begin).Round(time.Second))
	return pods
}

func distinct(t *testing.T, pods []pod, others ...pod) {
	t.Helper()
	holder := map[netip.Addr]string{}
	for _, p := range slices.Concat(pods, others) {
		if holder[p.ip] != "" {
			t.Errorf("%s is both %s's and %s's", p.ip, holder[p.ip], p.name)
		}
		holder[p.ip] = p.name
	}
}

// reached asks all pods from the other node; all must see the observer's own address.
func reached(t *testing.T, observer pod, pods []pod) {
	t.Helper()
	args := []string{"probe", "get"}
	for _, p := range pods {
		args = append(args, p.url())
	}
	answers := strings.Fields(observer.exec(t, args...))
	if len(answers) != len(pods) {
		t.Errorf("%d answers from %d pods", len(answers), len(pods))
	}
	for i, a := range answers {
		if a != observer.ip.String() {
			t.Errorf("%s saw %s, want %s", pods[i].name, a, observer.ip)
		}
	}
}

// nodeState is what of a node's pods other programs see. Addresses that rest after a pod are no pod's.
type nodeState struct {
	Links, Routes, Leased, Conntrack, Netns []string
}

func stateOf(t *testing.T, node string) nodeState {
	t.Helper()
	return nodeState{
		Links:     ipList(t, node, "ifname", "link", "show", "type", "veth"),
		Routes:    ipList(t, node, "dst", "route", "show", "table", "all", "proto", "217"),
		Leased:    leased(t, node),
		Conntrack: podConntrack(t, node),
		Netns:     strings.Fields(onNode(t, node, "sh", "-c", "ls /run/netns 2>/dev/null; true")),
	}
}

func ipList(t *testing.T, node, field string, args ...string) []string {
	t.Helper()
	var list []map[string]any
	if err := json.Unmarshal([]byte(onNode(t, node, append([]string{"ip", "-j"}, args...)...)), &list); err != nil {
		t.Fatal(err)
	}
	var values []string
	for _, entry := range list {
		values = append(values, fmt.Sprint(entry[field]))
	}
	slices.Sort(values)
	return values
}

// leased are the addresses that the store gives to a pod or takes back from one.
func leased(t *testing.T, node string) []string {
	t.Helper()
	var addrs []string
	for line := range strings.Lines(onNode(t, node, "vmssctl", "ipam", "list")) {
		fields := strings.Fields(line)
		if _, err := netip.ParseAddr(fields[0]); err == nil && slices.ContainsFunc(fields, func(f string) bool { return f == "leased" || f == "releasing" }) {
			addrs = append(addrs, fields[0])
		}
	}
	return addrs
}

// podConntrack are pods of this node with tracked connections.
func podConntrack(t *testing.T, node string) []string {
	t.Helper()
	var addrs []string
	for word := range strings.FieldsSeq(onNode(t, node, "conntrack", "-L")) {
		key, value, _ := strings.Cut(word, "=")
		if a, err := netip.ParseAddr(value); err == nil && key == "src" && netip.MustParsePrefix("10.20.2.0/24").Contains(a) {
			addrs = append(addrs, value)
		}
	}
	slices.Sort(addrs)
	return slices.Compact(addrs)
}

// nothingLeft: kubelet says that a pod is gone a moment before the runtime has removed its sandbox.
func nothingLeft(t *testing.T, before nodeState) {
	t.Helper()
	waitFor(t, "nothing of the pods is left", time.Minute, func() (bool, string) {
		diff := cmp.Diff(before, stateOf(t, worker))
		return diff == "", "(-before +now)\n" + diff
	})
}
