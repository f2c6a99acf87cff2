//go:build kind && kindbench

package kind

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	benchTable = repo + "/_artifacts/kind-bench.md"
	benchTime  = 2 // seconds per run
	iperfPort  = 5201
)

// path is one way from an iperf3 client to a server; its server's ends are made when all pods run.
type path struct {
	name           string
	client, server pod
	gbits          []float64 // one per round
}

// TestBenchKind measures iperf3 between pods on all paths, alternately, and writes the medians and their ratios to host to host. The
// pods on bridge + VXLAN run in the same cluster at the same time: the runtime's conflist was another one while they started.
func TestBenchKind(t *testing.T) {
	count := benchRounds(t)
	t.Cleanup(func() { removeOverlay(t) }) // after the pods
	ns := namespace(t, "nvt-bench")
	iperf := func(name, node string, host bool) podSpec {
		return podSpec{name: name, node: node, host: host, command: []string{"iperf3", "-s", "-p", fmt.Sprint(iperfPort)}}
	}
	native := start(t, ns, iperf("host-0", controlPlane, true), iperf("host-1", worker, true),
		iperf("native-0", controlPlane, false), iperf("native-1", worker, false), iperf("native-2", worker, false))
	useOverlay(t)
	overlay := start(t, ns, iperf("overlay-0", controlPlane, false), iperf("overlay-1", worker, false), iperf("overlay-2", worker, false))
	for _, p := range overlay {
		if !overlayNet.Contains(p.ip) {
			t.Fatalf("%s has %s, want one of %s", p.name, p.ip, overlayNet)
		}
	}
	paths := []*path{
		{name: "host to host", client: native[0], server: native[1]},
		{name: "native-vmss, pod to pod, other node", client: native[2], server: native[3]},
		{name: "bridge + VXLAN, pod to pod, other node", client: overlay[0], server: overlay[1]},
		{name: "native-vmss, pod to pod, same node", client: native[4], server: native[3]},
		{name: "bridge + VXLAN, pod to pod, same node", client: overlay[2], server: overlay[1]},
	}
	for range count {
		for _, p := range paths {
			p.gbits = append(p.gbits, p.run(t))
		}
	}
	table := report(t, paths, count)
	t.Log("\n" + table)
	if err := os.WriteFile(benchTable, []byte(table), 0o644); err != nil {
		t.Fatal(err)
	}
}

// benchRounds are ten unless ROUNDS says otherwise.
func benchRounds(t *testing.T) int {
	if os.Getenv("ROUNDS") == "" {
		return 10
	}
	return rounds(t)
}

// run returns what the server received, in Gbit/s.
func (p *path) run(t *testing.T) float64 {
	t.Helper()
	out := p.client.exec(t, "iperf3", "-J", "-c", p.server.ip.String(), "-p", fmt.Sprint(iperfPort), "-t", fmt.Sprint(benchTime))
	var result struct {
		End struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil || result.End.Received.Rate == 0 {
		t.Fatalf("%s: %v in %s", p.name, err, out)
	}
	return result.End.Received.Rate / 1e9
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

func report(t *testing.T, paths []*path, count int) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "iperf3 between pods of a kind cluster, %d rounds of %d s, alternately, %d cores for both nodes, %s\n\n",
		count, benchTime, runtime.NumCPU(), time.Now().UTC().Format(time.DateOnly))
	fmt.Fprintf(&b, "| path | Gbit/s, median | min to max | to host to host |\n|---|---|---|---|\n")
	host := median(paths[0].gbits)
	for _, p := range paths {
		fmt.Fprintf(&b, "| %s | %.1f | %.1f to %.1f | %.2f |\n", p.name, median(p.gbits), slices.Min(p.gbits), slices.Max(p.gbits), median(p.gbits)/host)
	}
	fmt.Fprintf(&b, "\nOther node, native-vmss to bridge + VXLAN: %.2f. Same node: %.2f.\n",
		median(paths[1].gbits)/median(paths[2].gbits), median(paths[3].gbits)/median(paths[4].gbits))
	return b.String()
}

// overlayNet is split among the nodes, a /24 each.
var overlayNet = netip.MustParsePrefix("10.244.0.0/16")

// overlayNode is the shape of an ordinary overlay: a bridge with a range of its own per node, and one VXLAN link that knows the other
// node beforehand. %[1]d is the node's number, %[2]d the other's, %[3]s its own and %[4]s the other's address.
const overlayNode = `
ip link del nvt-vxlan 2>/dev/null || true
ip link add nvt-vxlan address 02:00:0a:f4:0%[1]d:00 type vxlan id 1 dev eth0 local %[3]s dstport 8472 nolearning
ip addr add 10.244.%[1]d.0/32 dev nvt-vxlan
ip link set nvt-vxlan up
ip neigh replace 10.244.%[2]d.0 lladdr 02:00:0a:f4:0%[2]d:00 dev nvt-vxlan nud permanent
bridge fdb append 02:00:0a:f4:0%[2]d:00 dev nvt-vxlan dst %[4]s
ip route replace 10.244.%[2]d.0/24 via 10.244.%[2]d.0 dev nvt-vxlan onlink
mtu=$(cat /sys/class/net/nvt-vxlan/mtu)
cat >/etc/cni/net.d/00-overlay.conflist <<EOF
{"cniVersion": "1.0.0", "name": "overlay", "plugins": [
  {"type": "bridge", "bridge": "nvt-cbr", "mtu": $mtu, "isDefaultGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.%[1]d.0/24"}]]}}]}
EOF
`

// useOverlay has both nodes attach new pods to bridge + VXLAN, until removeOverlay.
func useOverlay(t *testing.T) {
	nodes := []string{controlPlane, worker}
	for i, node := range nodes {
		for _, plugin := range []string{"bridge", "host-local"} {
			must(t, "docker", "cp", "-q", "-L", repo+"/bin/peers/plugins/"+plugin, node+":/opt/cni/bin/"+plugin)
		}
		own, other := nodeAddr(t, node), nodeAddr(t, nodes[1-i])
		onNode(t, node, "sh", "-ec", fmt.Sprintf(overlayNode, i, 1-i, own, other))
	}
	time.Sleep(5 * time.Second) // the runtime has seen the new file
}

func removeOverlay(t *testing.T) {
	for _, node := range []string{controlPlane, worker} {
		mustUndo(t, "docker", "exec", node, "sh", "-c",
			"rm -f /etc/cni/net.d/00-overlay.conflist; for l in nvt-vxlan nvt-cbr; do ! ip link show $l >/dev/null 2>&1 || ip link del $l; done")
	}
}
