package netns

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// fpLive are two pods that live while the node is damaged around them.
type fpLive struct {
	pods map[string]*lab.Namespace
	adds map[string]*answer
}

// Everything node-wide is damaged, and of live pods the route, the link and its mark; a link that an ADD left is there too.
func TestNetnsFailpoint_repair(t *testing.T) {
	c := &fpCase{
		name: "of everything", ways: []fpWay{fpRepair}, tolerated: fpTolerated(map[string]string{"routes.proxy-list": fpWording}),
		before: (*fpNode).ruin,
		run:    func(n *fpNode, env ...string) fpEnd { return n.repairing(env) },
		last:   (*fpNode).repaired,
	}
	(&fpSuite{verb: "repair", cases: []*fpCase{c}, fromNode: true, settle: (*fpNode).live}).run(t)
}

// live makes the two pods; what is said to or by them is none of the snapshot's.
func (n *fpNode) live() {
	n.t.Helper()
	n.lives = &fpLive{pods: map[string]*lab.Namespace{fpPod: n.pod, "y": n.other}, adds: map[string]*answer{}}
	for id, p := range n.lives.pods {
		a := n.add(id, p).ok()
		n.lives.adds[id] = a
		n.reaches(p, a.IP)
		n.pool = slices.DeleteFunc(slices.Clone(n.pool), func(p netip.Addr) bool { return p == a.IP })
	}
}

// ruin damages what a repair mends.
func (n *fpNode) ruin() {
	n.t.Helper()
	x, y := n.lives.adds[fpPod], n.lives.adds["y"]
	gateway := lab.SimpleGateway.String()
	n.sh(strings.NewReplacer(
		"$X", x.HostLink, "$Y", y.HostLink, "$A", y.IP.String(), "$P", pathProtocol, "$G", pathGroup, "$W", gateway,
		"$U", linkOf("unfinished", "eth0"),
	).Replace(`nft flush ruleset
		sysctl -qw net.ipv4.ip_forward=0
		ip -batch - <<END
			route flush table 28201
			rule del pref 499
			rule del pref 500
			rule del pref 510
			rule del pref 599
			rule add pref 505 to 192.0.2.0/24 lookup 28205 proto $P
			route add 192.0.2.0/24 via $W dev eth0 table 28205 proto $P
			link set $X down
			link set $X address 02:11:22:33:44:55
			link set $X group 0
			link set $X arp off
			link set $X mtu 1400
			addr add 192.0.2.9/32 dev $X
			link set $X name lost0
			link add br9 type bridge
			link set $Y alias ''
			link set $Y master br9
			neigh replace $A lladdr 02:00:00:00:00:99 dev $Y nud permanent
			route del $A
			link add $U group $G type veth peer name x1
END`))
}

// repaired wants the pods to have all that they had; what the node has is compared as ever.
func (n *fpNode) repaired() {
	n.t.Helper()
	for id, p := range n.lives.pods {
		ip := n.lives.adds[id].IP
		// A link that was down sends from the kernel's link watch on, which comes a little later.
		if !pathEventually(patience, func() bool { return n.answers(p, lab.SimpleGateway) && n.answers(n.GW, ip) }) {
			n.t.Errorf("%s and the gateway do not reach each other", p.Name)
		}
	}
	n.sh("ip link del br9")
}
