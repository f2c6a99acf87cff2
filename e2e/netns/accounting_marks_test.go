package netns

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// acctMask is the default markMask. All other bits are others': kube-proxy's 0x4000 and 0x8000, portmap's 0x2000, and what Calico and
// Cilium may be set to beside it.
const acctMask, acctForeign = 0x0fff0000, 0xf000ffff

// Others' bits, all of them set before our hook, are there after it, in both hooks and on the pod's link; inside the mask is the pod's own
// number, whatever was there, which the page and the list tell.
func TestNetnsAccounting_marks(t *testing.T) {
	t.Parallel()
	l := newAcctLab(t, 5, "nftables")
	n := l.nodes[0]
	a, b := l.pod(0, "a"), l.pod(0, "b")
	l.echoes(b.space, netip.AddrPortFrom(b.ip, acctPort))
	l.echoes(l.Hub, netip.AddrPortFrom(lab.CloudHub, acctPort))
	mark := func(p *acctPod) uint64 { return n.scrape().of("pod_mark", "namespace="+p.ns, "pod="+p.name) }
	ma, mb := mark(a), mark(b)
	if ma == 0 || mb == 0 || ma == mb || (ma|mb)&^acctMask != 0 {
		t.Fatalf("marks %#x and %#x", ma, mb)
	}
	for _, p := range []*acctPod{a, b} {
		row := ""
		for line := range strings.Lines(n.mustCtl("ipam", "list")) {
			if strings.HasPrefix(line, p.ip.String()+" ") {
				row = line
			}
		}
		if !strings.Contains(row, fmt.Sprintf("%#x", mark(p))) && !strings.Contains(row, fmt.Sprintf("0x%08x", mark(p))) {
			t.Errorf("the list tells no %#x: %s", mark(p), row)
		}
	}
	before := l.sawAll()
	is := func(who string, bits uint64) string {
		return fmt.Sprintf("%s meta mark & 0x%08x == 0x%08x counter", who, acctForeign, acctForeign) + "\n" +
			fmt.Sprintf("%s meta mark == 0x%08x counter", who, bits|acctForeign)
	}
	fromA, toB := "iifname "+a.added.HostLink, "ip saddr "+a.ip.String()+" oifname "+b.added.HostLink
	n.sh("nft -f - <<'END'\ntable ip acctmarks {\n" +
		"chain before { type filter hook prerouting priority -95; meta mark set 0xffffffff; }\n" +
		"chain routed { type filter hook prerouting priority -50;\n" + is(fromA, ma) + "\n}\n" +
		"chain forward { type filter hook forward priority 0;\n" + is(fromA, ma) + "\n}\n" +
		"chain post { type filter hook postrouting priority 98;\n" + is("ip saddr "+a.ip.String(), ma) + "\n}\n" +
		"chain link { type filter hook postrouting priority 300;\n" + is(toB, mb) + "\n}\n}\nEND")
	for _, to := range []netip.Addr{b.ip, lab.CloudHub} {
		if err := acctSendTCP(a.space, netip.AddrPortFrom(to, acctPort)); err != nil {
			t.Fatal(err)
		}
	}
	after := l.exact("with all bits set")
	tx := after[a].way(before[a], "tx")
	toPod := acctRead(t, a.tally).Of(a.ip, true, func(p netip.Addr) bool { return p == b.ip })
	for chain, want := range map[string]lab.Sum{"routed": tx, "forward": tx, "post": tx, "link": toPod} {
		list := n.sh("nft list chain ip acctmarks " + chain)
		counted := regexp.MustCompile(`packets (\d+) bytes (\d+)`).FindAllStringSubmatch(list, -1)
		if len(counted) != 2 || want.Packets == 0 {
			t.Fatalf("%s: %s", chain, list)
		}
		for _, c := range counted {
			if got, _ := strconv.ParseUint(c[2], 10, 64); got != want.Bytes {
				t.Errorf("%s: %d bytes with the bits, want %d: %s", chain, got, want.Bytes, list)
			}
		}
	}
}

// Where somebody with overlapping bits is on the node, packets carry no marks, the page says so, and the numbers are exact all the same.
func TestNetnsAccounting_marks_of_another_owner(t *testing.T) {
	t.Parallel()
	for name, script := range map[string]string{
		"Calico": "ip link add cali0 type ifb", "Cilium": "ip link add cilium_host type ifb", "Tailscale": "ip link add tailscale0 type ifb",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, n := newAcctSimple(t, 2, "nftables")
			n.sh(script)
			p := l.pod(0, "p")
			n.sh("nft -f - <<'END'\ntable ip acctmarks {\nchain c { type filter hook forward priority 0; meta mark & 0x0fff0000 != 0 counter drop; }\n}\nEND")
			l.says(p)
			l.exact("without marks")
			if page := n.scrape(); page.has("pod_mark") || page.of("accounting_marks_on") != 0 {
				t.Errorf("marks are on: %v", page)
			}
		})
	}
}
