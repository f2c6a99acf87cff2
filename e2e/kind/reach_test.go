//go:build kind

package kind

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const hostPort = 18080

// reach is a server and a client on each node, a server that has the node's own network, and Services before the servers.
type reach struct {
	ns                            string
	servers, clients, hostServers []pod
	clusterIP                     netip.Addr
	nodePort                      int
}

func newReach(t *testing.T) *reach {
	r := &reach{ns: namespace(t, "nvt-reach")}
	app := object{"app": "server"}
	hosted := []object{{"containerPort": podPort, "hostPort": hostPort}}
	pods := start(
		t, r.ns,
		podSpec{name: "server-0", node: controlPlane, labels: app, ports: hosted},
		podSpec{name: "server-1", node: worker, labels: app, ports: hosted},
		podSpec{name: "client-0", node: controlPlane},
		podSpec{name: "client-1", node: worker},
		podSpec{name: "host-0", node: controlPlane, host: true, command: []string{"probe", "serve", ":18081"}},
		podSpec{name: "host-1", node: worker, host: true, command: []string{"probe", "serve", ":18081"}},
	)
	r.servers, r.clients, r.hostServers = pods[0:2], pods[2:4], pods[4:6]
	apply(
		t,
		service(r.ns, "cluster", "server", nil),
		service(r.ns, "headless", "server", object{"clusterIP": "None"}),
		service(r.ns, "node", "server", object{"type": "NodePort", "externalTrafficPolicy": "Cluster"}),
	)
	r.clusterIP = netip.MustParseAddr(kubectl(t, "-n", r.ns, "get", "service", "cluster", "-o", "jsonpath={.spec.clusterIP}"))
	port, err := strconv.Atoi(kubectl(t, "-n", r.ns, "get", "service", "node", "-o", "jsonpath={.spec.ports[0].nodePort}"))
	if err != nil {
		t.Fatal(err)
	}
	r.nodePort = port
	return r
}

// TestKindReach: everybody reaches everybody, and who is asked sees the address that it ought to.
func TestKindReach(t *testing.T) {
	r := newReach(t)
	t.Run("pods have addresses of their own node", r.addresses)
	for i, c := range r.clients {
		other := r.servers[1-i]
		t.Run("from "+c.node, func(t *testing.T) {
			t.Run("pod of the same node", func(t *testing.T) { c.saw(t, r.servers[i].url(), c.ip) })
			t.Run("pod of the other node", func(t *testing.T) { c.saw(t, other.url(), c.ip) })
			t.Run("own node", func(t *testing.T) { c.saw(t, url(r.hostServers[i].ip, 18081), c.ip) })
			t.Run("other node", func(t *testing.T) { c.saw(t, url(r.hostServers[1-i].ip, 18081), c.ip) })
			t.Run("ClusterIP", func(t *testing.T) { r.everyServer(t, c, url(r.clusterIP, 80)) })
			t.Run("name of the Service", func(t *testing.T) { c.saw(t, "http://cluster/", c.ip) })
			t.Run("headless DNS", func(t *testing.T) { r.headless(t, c) })
			t.Run("NodePort of the other node", func(t *testing.T) { r.answers(t, c, url(other.hostIP(t), r.nodePort)) })
			t.Run("hostPort of the other node", func(t *testing.T) { c.saw(t, url(other.hostIP(t), hostPort), c.ip) })
			t.Run("hostPort of the own node", func(t *testing.T) { r.answers(t, c, url(c.hostIP(t), hostPort)) })
			t.Run("hub", func(t *testing.T) { c.saw(t, url(lab.CloudHub, podPort), c.ip) })
			t.Run("hub by its name", func(t *testing.T) { c.saw(t, "http://hub.example:8080/", c.ip) })
			t.Run("internet", func(t *testing.T) { c.saw(t, url(lab.CloudInternet, podPort), c.hostIP(t)) })
		})
	}
	t.Run("hub to a pod", func(t *testing.T) { fromHub(t, r.servers[1].url(), lab.CloudHub) })
	t.Run("hub to a hostPort", func(t *testing.T) { fromHub(t, url(r.servers[1].hostIP(t), hostPort), lab.CloudHub) })
	t.Run("hub to a NodePort", func(t *testing.T) { r.hubNodePort(t) })
	t.Run("node to its pod", func(t *testing.T) { fromNode(t, worker, r.servers[1]) })
	t.Run("node to a pod of the other node", func(t *testing.T) { fromNode(t, controlPlane, r.servers[1]) })
}

// hostIP is the address of the pod's node.
func (p pod) hostIP(t *testing.T) netip.Addr { return nodeAddr(t, p.node) }

func (r *reach) addresses(t *testing.T) {
	pools := map[string]netip.Prefix{
		controlPlane: netip.MustParsePrefix("10.20.1.0/24"), worker: netip.MustParsePrefix("10.20.2.0/24"),
	}
	for _, p := range slices.Concat(r.servers, r.clients) {
		if !pools[p.node].Contains(p.ip) {
			t.Errorf("%s on %s has %s, want one of %s", p.name, p.node, p.ip, pools[p.node])
		}
	}
}

// everyServer asks until both servers, each on another node, were the one behind a Service; both must see the client.
func (r *reach) everyServer(t *testing.T, c pod, url string) {
	before := r.connections(t)
	for range 20 {
		c.saw(t, url, c.ip)
		if t.Failed() {
			return
		}
		now := r.connections(t)
		if now[0] > before[0] && now[1] > before[1] {
			return
		}
	}
	t.Errorf("20 connections by the Service all came to the same server")
}

// connections counts the servers' finished TCP connections by their own kernels.
func (r *reach) connections(t *testing.T) [2]int {
	t.Helper()
	var counts [2]int
	for i, s := range r.servers {
		lines := strings.Split(s.exec(t, "cat", "/proc/net/snmp"), "\n")
		for _, line := range lines {
			fields := strings.Fields(line)
			if len(fields) > 6 && fields[0] == "Tcp:" && fields[6] != "PassiveOpens" {
				if _, err := fmt.Sscan(fields[6], &counts[i]); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return counts
}

func (r *reach) headless(t *testing.T, c pod) {
	want := []string{r.servers[0].ip.String(), r.servers[1].ip.String()}
	slices.Sort(want)
	got := strings.Fields(c.exec(t, "probe", "resolve", "headless."+r.ns+".svc.cluster.local"))
	if !slices.Equal(got, want) {
		t.Errorf("headless has %v, want %v", got, want)
	}
}

// answers asks where translation of the source is the proxy's or portmap's right.
func (r *reach) answers(t *testing.T, c pod, url string) {
	if out, err := c.try(t.Context(), "probe", "get", url); err != nil {
		t.Error(err)
	} else if _, err := netip.ParseAddr(out); err != nil {
		t.Errorf("%s answered %q", url, out)
	}
}

// hubNodePort asks each node until both servers, the node's own and the other's, were the one that answered.
func (r *reach) hubNodePort(t *testing.T) {
	for _, node := range []string{controlPlane, worker} {
		before, now := r.connections(t), [2]int{}
		for range 20 {
			must(t, "ip", "netns", "exec", "nvt-kind-hub", probeBin, "get", url(nodeAddr(t, node), r.nodePort))
			if now = r.connections(t); now[0] > before[0] && now[1] > before[1] {
				break
			}
		}
		if now[0] == before[0] || now[1] == before[1] {
			t.Errorf("20 connections by the NodePort of %s all came to the same server", node)
		}
	}
}

func fromHub(t *testing.T, url string, want netip.Addr) {
	t.Helper()
	seen(t, url, want, func() (string, error) {
		return try(t.Context(), "", "ip", "netns", "exec", "nvt-kind-hub", probeBin, "get", url)
	})
}

func fromNode(t *testing.T, node string, p pod) {
	t.Helper()
	seen(t, p.url(), nodeAddr(t, node), func() (string, error) {
		return try(t.Context(), "", "docker", "exec", node, "curl", "-sS", "--max-time", "5", p.url())
	})
}
