//go:build kind

package kind

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// TestKindFabric: the pods' traffic between nodes passes the fabric, all of it, with the pods' own addresses. When the fabric no
// longer delivers one pod's address, that pod and no other is out of reach from the other node.
func TestKindFabric(t *testing.T) {
	ns := namespace(t, "nvt-fabric")
	pods := start(t, ns, podSpec{name: "client", node: controlPlane}, podSpec{name: "one", node: worker}, podSpec{name: "two", node: worker})
	client, one, two := pods[0], pods[1], pods[2]

	t.Run("its route decides", func(t *testing.T) {
		via := strings.Fields(must(t, "ip", "-n", "nvt-kind-fabric", "route", "show", one.ip.String()))
		must(t, "ip", "-n", "nvt-kind-fabric", "route", "del", one.ip.String())
		restore := append([]string{"-n", "nvt-kind-fabric", "route", "replace"}, via...)
		t.Cleanup(func() { mustUndo(t, "ip", restore...) })
		if out, err := client.try(t.Context(), "curl", "-sS", "--max-time", "3", one.url()); err == nil {
			t.Errorf("%s answered %q without a route", one.name, out)
		}
		client.saw(t, two.url(), client.ip)
		two.saw(t, one.url(), two.ip)
		must(t, "ip", restore...)
		client.saw(t, one.url(), client.ip)
	})

	t.Run("it carries every packet", func(t *testing.T) {
		const count = 50
		fabric := countPings(t, "forward", "", client.ip, two.ip, "ip", "netns", "exec", "nvt-kind-fabric")
		arrived := countPings(t, "forward", fromFabric, client.ip, two.ip, "docker", "exec", "-i", worker)
		client.exec(t, "ping", "-q", "-c", "50", "-i", "0.02", two.ip.String())
		if f, a := fabric(), arrived(); f != count || a != count {
			t.Errorf("%d pings: the fabric forwarded %d, the node got %d", count, f, a)
		}
	})

	t.Run("nothing leaves the machine", func(t *testing.T) {
		nobody, own := netip.MustParseAddr("198.51.100.1"), nodeAddr(t, worker)
		machine := countPings(t, "prerouting", "", own, nobody, "env")
		internet := countPings(t, "prerouting", "", own, nobody, "ip", "netns", "exec", "nvt-kind-internet")
		ping(t, worker, "-c", "3", nobody.String())
		if m, i := machine(), internet(); m != 0 || i != 3 {
			t.Errorf("of 3 pings to the internet the machine saw %d, the internet's namespace %d", m, i)
		}
	})

	t.Run("it drops what a node sends as another", func(t *testing.T) {
		foreign, own := netip.MustParseAddr("10.20.1.150"), nodeAddr(t, worker) // a free address of the control plane
		onNode(t, worker, "ip", "addr", "add", foreign.String()+"/32", "dev", "lo")
		t.Cleanup(func() {
			mustUndo(t, "docker", "exec", worker, "ip", "addr", "del", foreign.String()+"/32", "dev", "lo")
		})
		for _, source := range []struct {
			addr netip.Addr
			want int
		}{{own, 3}, {foreign, 0}} {
			t.Run(source.addr.String(), func(t *testing.T) {
				hub := countPings(t, "prerouting", "", source.addr, lab.CloudHub, "ip", "netns", "exec", "nvt-kind-hub")
				ping(t, worker, "-c", "3", "-I", source.addr.String(), lab.CloudHub.String())
				if got := hub(); got != source.want {
					t.Errorf("of 3 pings from %s the hub got %d, want %d", source.addr, got, source.want)
				}
			})
		}
	})
}

// ping sends from a node; who gets the packets is counted elsewhere, so that nobody answers is no error.
func ping(t *testing.T, node string, args ...string) {
	t.Helper()
	onNode(t, node, append([]string{"sh", "-c", `ping -q -W 1 "$@"; true`, "ping"}, args...)...)
}
