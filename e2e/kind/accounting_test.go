//go:build kind

package kind

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	acctPort = "5201" // iperf3's own
	// acctMost is by how much a page may differ from the links: they count ARP too.
	acctMost = 0.005
	// acctLeast is how many bytes a namespace must have sent before a share of them says anything.
	acctLeast = 10_000_000
	// ethernet is the size of a frame's header: links count it, accounting doesn't.
	ethernet = 14
)

// traffic is what a namespace has got and sent.
type traffic struct{ rx, tx float64 }

func (a traffic) since(b traffic) traffic { return traffic{a.rx - b.rx, a.tx - b.tx} }

// TestKindAccounting: what the page says of a namespace is what its pods' links have carried, whatever kube-proxy did to the packets.
func TestKindAccounting(t *testing.T) {
	spaces := map[string][]pod{}
	for _, ns := range []string{namespace(t, "nvt-acct-a"), namespace(t, "nvt-acct-b")} {
		serve := []string{"iperf3", "-s"}
		spaces[ns] = start(
			t, ns,
			podSpec{name: "server", node: worker, labels: object{"app": "server"}, command: serve},
			podSpec{name: "far", node: controlPlane}, podSpec{name: "near", node: worker},
		)
		apply(t, service(ns, "cluster", "server", object{"ports": []object{{"port": 5201, "targetPort": 5201}}}))
	}
	pageBefore, linksBefore := rest(t, spaces)
	for ns, pods := range spaces {
		server, clients := pods[0], pods[1:]
		cluster := netip.MustParseAddr(kubectl(t, "-n", ns, "get", "service", "cluster", "-o", "jsonpath={.spec.clusterIP}"))
		for _, c := range clients {
			for _, to := range []netip.Addr{server.ip, cluster} {
				c.iperf(t, to)
				c.iperf(t, to, "-R")
			}
			c.iperf(t, server.ip, "-u", "-b", "50M")
			c.exec(t, "curl", "-sS", "--max-time", "10", url(lab.CloudInternet, podPort))
		}
	}
	page, links := rest(t, spaces)
	for ns := range spaces {
		got, want := page[ns].since(pageBefore[ns]), links[ns].since(linksBefore[ns])
		t.Logf("%s: page rx %.0f tx %.0f, links rx %.0f tx %.0f", ns, got.rx, got.tx, want.rx, want.tx)
		for _, way := range []struct {
			name      string
			got, want float64
		}{{"rx", got.rx, want.rx}, {"tx", got.tx, want.tx}} {
			if way.want < acctLeast {
				t.Fatalf("%s %s: %.0f bytes say too little", ns, way.name, way.want)
			}
			if off := math.Abs(way.got-way.want) / way.want; off > acctMost {
				t.Errorf("%s %s: the page has %.0f bytes, the links %.0f: %.2f %% apart", ns, way.name, way.got, way.want, 100*off)
			}
		}
	}
}

func (p pod) iperf(t *testing.T, to netip.Addr, args ...string) {
	t.Helper()
	p.exec(t, append([]string{"iperf3", "-c", to.String(), "-p", acctPort, "-t", "1"}, args...)...)
}

// rest reads the pages and the links when no packet came between two looks at the links.
func rest(t *testing.T, spaces map[string][]pod) (page, links map[string]traffic) {
	t.Helper()
	waitFor(t, "the pods are at rest", time.Minute, func() (bool, string) {
		page, links = map[string]traffic{}, map[string]traffic{}
		before := fmt.Sprint(linksOf(t, spaces))
		for ns := range spaces {
			page[ns] = pageOf(t, ns)
		}
		links = linksOf(t, spaces)
		return fmt.Sprint(links) == before, before
	})
	return page, links
}

// pageOf sums a namespace over classes and nodes.
func pageOf(t *testing.T, ns string) (sum traffic) {
	t.Helper()
	for _, node := range []string{controlPlane, worker} {
		for line := range strings.Lines(onNode(t, node, "vmssctl", "metrics")) {
			if !strings.HasPrefix(line, "native_vmss_namespace_network_bytes_total{") || !strings.Contains(line, `namespace="`+ns+`"`) {
				continue
			}
			v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			if strings.Contains(line, `direction="rx"`) {
				sum.rx += v
			} else {
				sum.tx += v
			}
		}
	}
	return sum
}

// linksOf sums the IP bytes of the pods' links.
func linksOf(t *testing.T, spaces map[string][]pod) map[string]traffic {
	t.Helper()
	sums := map[string]traffic{}
	for ns, pods := range spaces {
		sum := traffic{}
		for _, p := range pods {
			sum.rx += p.ipBytes(t, "rx")
			sum.tx += p.ipBytes(t, "tx")
		}
		sums[ns] = sum
	}
	return sums
}

func (p pod) ipBytes(t *testing.T, way string) float64 {
	t.Helper()
	const statistics = "/sys/class/net/eth0/statistics/"
	var bytes, packets float64
	if _, err := fmt.Sscan(p.exec(t, "cat", statistics+way+"_bytes", statistics+way+"_packets"), &bytes, &packets); err != nil {
		t.Fatal(err)
	}
	return bytes - ethernet*packets
}
