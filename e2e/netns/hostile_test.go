package netns

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// The files hostile_*_test.go have what others do to a node with pods: one row an act. TestNetnsPath_repair, TestNetnsStanding_*,
// TestNetnsBreak_* and TestNetnsPath_prepare have more of them, each on a node of its own. Not here: gc_thresh, which only the
// machine's own namespace has.

// hostileCut says whose traffic an act ends, until repair is over if not said otherwise.
type hostileCut int

const (
	cutsNobody    hostileCut = iota
	cutsMeanwhile            // all, while the act itself takes
	cutsLAN                  // all, for as long as the network takes to learn of it, and of its end
	cutsOwn                  // the pod that the act names
	cutsAll
)

// hostileAct is what somebody does on the node: $IP and $LINK are the first pod's, $MAC is the link's.
type hostileAct struct {
	name, act string
	says      []string // of CHECK of the first pod; none: no pod is worse off, and CHECK is content
	cuts      hostileCut
	// resets is true where the node itself answers for the pod meanwhile: the pod's connections end.
	resets bool
	// needs is true where a new pod works only after repair too: ADD doesn't look at it.
	needs bool
	// mends is what repair says that it did.
	mends []string
	// left is what repair says that it can't mend, and undo what the owner of it does then.
	left []string
	undo string
}

// hostileStage is a node with a pod that is meant and one that stands beside it.
type hostileStage struct {
	*stage
	pod, other *lab.Namespace
	a, o       *answer
	echo       *lab.Server
}

func newHostileStage(t *testing.T) *hostileStage {
	s := &hostileStage{stage: newStage(t, poolOf(8))}
	s.ipam["cooldown"] = "1ms"
	s.sh("iptables -P FORWARD ACCEPT; iptables -t nat -P PREROUTING ACCEPT; iptables -t mangle -P FORWARD ACCEPT; " +
		"iptables -t raw -P OUTPUT ACCEPT")
	s.settle()
	s.pod, s.a = s.pathPod("c1")
	s.other, s.o = s.pathPod("c2")
	srv, err := s.GW.EchoTCP(netip.AddrPortFrom(lab.SimpleGateway, 9000))
	if err != nil {
		t.Fatal(err)
	}
	s.echo = srv
	return s
}

// keepsOn starts a TCP stream of a pod; the returned function wants that nothing broke it.
func (s *hostileStage) keepsOn(from *lab.Namespace) (unbroken func()) {
	s.t.Helper()
	st, err := from.StartStream(context.Background(), s.echo.Addr, 5*time.Millisecond)
	if err != nil {
		s.t.Fatal(err)
	}
	return func() {
		s.t.Helper()
		if r := st.Stop(); r.Err != nil || r.Echoed == 0 || r.Echoed != r.Sent {
			s.t.Errorf("%s: the TCP stream ended: %+v", from.Name, r)
		}
	}
}

// bothWays pings a pod's way out and in, every 5 ms.
func (s *hostileStage) bothWays(pod *lab.Namespace, ip netip.Addr) (lossless func()) {
	s.t.Helper()
	in, out := s.stream(s.GW, ip), s.stream(pod, lab.SimpleGateway)
	return func() { s.t.Helper(); in(); out() }
}

// suffers runs one row. CHECK names what the act broke, a new pod works unless only repair looks there, repair puts the node back
// to what it was, and nobody loses a packet beside those that the act cuts off, nor those after repair. No TCP stream ends.
func (s *hostileStage) suffers(c hostileAct) {
	s.t.Helper()
	before, records := s.snapshot(), s.records()
	mine, theirs := s.keepsOn(s.pod), s.keepsOn(s.other)
	var hold func()
	begin := func(after hostileCut) {
		if c.cuts == after || after == cutsNobody && c.cuts == cutsOwn {
			hold = s.bothWays(s.other, s.o.IP)
		}
	}
	begin(cutsNobody)
	s.sh(s.words(c.act))
	begin(cutsMeanwhile)
	if c.says == nil {
		s.check("c1", s.pod, s.a).ok()
	} else {
		bad := s.check("c1", s.pod, s.a).fails(103)
		for _, w := range c.says {
			bad.says(s.words(w))
		}
	}
	if c.cuts >= cutsOwn && s.stage.echo(s.pod, netip.Addr{}, lab.SimpleGateway, silence/4) {
		s.t.Error("the pod is not cut off by this act: the row proves nothing")
	}
	if !c.needs {
		s.newPod("unrepaired")
	}
	s.repaired(c)
	begin(cutsAll)
	if c.cuts == cutsLAN {
		s.reaches(s.other, s.o.IP)
		begin(cutsLAN)
	}
	s.allWork()
	s.newPod("repaired")
	if c.undo != "" && c.left == nil { // what is left is undone already
		s.sh(s.words(c.undo))
		s.mustCtl("node", "repair")
		s.allWork()
	}
	hold()
	if !c.resets {
		mine()
	}
	theirs()
	s.same(before, records)
}

// words fills in what an act, or what is said of it, names.
func (s *hostileStage) words(text string) string {
	return strings.NewReplacer("$IP", s.a.IP.String(), "$LINK", s.a.HostLink, "$MAC", s.a.HostMAC).Replace(text)
}

// repaired runs repair; what it can't mend it has to name.
func (s *hostileStage) repaired(c hostileAct) {
	s.t.Helper()
	if c.left == nil {
		out := s.mustCtl("node", "repair")
		for _, w := range c.mends {
			if !strings.Contains(out, "changed: "+s.words(w)) {
				s.t.Errorf("repair does not say %q: %s", s.words(w), out)
			}
		}
		return
	}
	out, err := s.ctl("node", "repair")
	for _, w := range c.left {
		if err == nil || !strings.Contains(out, s.words(w)) {
			s.t.Errorf("repair ended with %v and does not name %q: %s", err, s.words(w), out)
		}
	}
	s.sh(s.words(c.undo))
}

func (s *hostileStage) allWork() {
	s.t.Helper()
	s.check("c1", s.pod, s.a).ok()
	s.check("c2", s.other, s.o).ok()
	s.reaches(s.pod, s.a.IP)
	s.reaches(s.other, s.o.IP)
}

// newPod adds a pod, wants it to work both ways, and deletes it.
func (s *hostileStage) newPod(id string) {
	s.t.Helper()
	p := s.Pod(s.t, id)
	defer func() {
		if err := p.Close(); err != nil {
			s.t.Error(err)
		}
	}()
	a := s.add(id, p).ok()
	s.reaches(p, a.IP)
	s.check(id, p, a).ok()
	s.del(id, p).ok()
}

// same wants the node as it was, but for connections, for what it has learnt of its neighbours and for tables of others, and the leases
// of before.
func (s *hostileStage) same(before lab.Snapshot, records map[netip.Addr][]byte) {
	s.t.Helper()
	for _, line := range before.Diff(s.snapshot()) {
		kind, what, _ := strings.Cut(line, " ")
		learnt := kind == "neigh" && strings.Contains(what, `"permanent":false`)
		others := kind == "iptables" || kind == "nft" && !strings.Contains(what, "native_vmss")
		if kind != "conntrack" && !learnt && !others {
			s.t.Errorf("the node has changed: %s", line)
		}
	}
	now := s.records()
	for _, a := range []netip.Addr{s.a.IP, s.o.IP} {
		if string(now[a]) != string(records[a]) {
			s.t.Errorf("record of %s changed: %x to %x", a, records[a], now[a])
		}
	}
	if held := s.held(); len(held) != 2 {
		s.t.Errorf("held %v, want two", held)
	}
}

func (s *hostileStage) rows(t *testing.T, acts []hostileAct) {
	for _, c := range acts {
		t.Run(c.name, func(t *testing.T) {
			row := *s
			row.stage = s.pathAs(t)
			row.suffers(c)
		})
	}
}

// againTable is what repair says of a policy table that was changed.
const againTable = "table ip native_vmss written again"

// dhcpRoutes are the NIC's own.
const dhcpRoutes = "ip route replace 10.20.0.0/24 dev eth0 proto kernel scope link src 10.20.0.4; " +
	"ip route replace default via 10.20.0.1 dev eth0 onlink"

// Others flush routes, rules, tables and connections.
func TestNetnsHostile_flushes(t *testing.T) {
	t.Parallel()
	newHostileStage(t).rows(t, []hostileAct{
		{
			name: "all_routes_of_main", act: "ip route flush table main", cuts: cutsAll, undo: dhcpRoutes,
			says: []string{"route $IP/32 dev $LINK is missing"},
		},
		{
			name: "the_routes_of_all_pods", act: "ip route flush proto 217 table main",
			says: []string{"route $IP/32 dev $LINK is missing"}, cuts: cutsAll,
		},
		{
			name: "all_that_has_our_protocol_number", cuts: cutsAll,
			act: "ip route flush proto 217 table all; while ip rule del protocol 217 2>/dev/null; do :; done",
			says: []string{
				"route $IP/32 dev $LINK is missing", `"10.20.0.0/24 via 10.20.0.1 dev eth0 table 28201"`,
				`policy rule "499: iif lo goto 599"`,
			},
		},
		{
			name: "the_table_of_a_NIC", act: "ip route flush table 28201",
			says: []string{`"10.20.0.0/24 via 10.20.0.1 dev eth0 table 28201"`}, needs: true,
		},
		{
			name: "all_rules_those_of_the_kernel_too", act: "ip rule flush", cuts: cutsAll, needs: true,
			says: []string{`"500: to 10.20.0.0/24 lookup main suppress_prefixlength 24"`, "no policy rule looks up table main"},
			left: []string{"no policy rule looks up table main"},
			undo: "ip rule add pref 32766 lookup main; ip rule add pref 32767 lookup default",
		},
		{name: "table_deleted", act: "nft delete table ip native_vmss", says: []string{"table ip native_vmss is missing"}},
		{
			name: "chain_emptied_prerouting", act: "nft flush chain ip native_vmss prerouting",
			says: []string{`chain prerouting lacks a rule "spoofed source"`}, needs: true,
		},
		{
			name: "chain_emptied_forward", act: "nft flush chain ip native_vmss forward",
			says: []string{`chain forward lacks a rule "wireserver"`, `"metadata service"`, `"a node is no router"`}, needs: true,
		},
		{
			name: "chain_emptied_postrouting", act: "nft flush chain ip native_vmss postrouting",
			says: []string{`chain postrouting lacks a rule "platform addresses"`, `"outside nativeCIDRs"`}, needs: true,
		},
		{
			name: "table_put_to_sleep", act: "nft 'add table ip native_vmss { flags dormant; }'",
			says: []string{"table ip native_vmss is dormant"}, mends: []string{againTable}, needs: true,
		},
		{
			name: "set_emptied_native", act: "nft flush set ip native_vmss native",
			says: []string{"set native has not the elements"}, mends: []string{againTable}, needs: true,
		},
		{
			name: "set_emptied_nics", act: "nft flush set ip native_vmss nics",
			says: []string{"set nics has not the elements"}, mends: []string{againTable}, needs: true,
		},
		{
			name: "policy_of_our_chain_drop", act: "nft 'chain ip native_vmss forward { policy drop; }'", cuts: cutsAll, needs: true,
			says: []string{"policy of chain forward is drop instead of accept"}, mends: []string{againTable},
		},
		{name: "iptables_flushed", act: "iptables -F; iptables -X; iptables -t nat -F; iptables -t mangle -F; iptables -t raw -F"},
		{
			name: "iptables_restored_from_an_old_file",
			act: `printf '*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n' | iptables-restore; ` +
				`printf '*nat\n:PREROUTING ACCEPT\n:POSTROUTING ACCEPT\nCOMMIT\n' | iptables-restore`,
		},
		{name: "connections", act: "conntrack -F 2>/dev/null"},
		{name: "neighbours", act: "ip neigh flush all nud all"},
	})
}

// Others change a pod's link on the node.
func TestNetnsHostile_host_link(t *testing.T) {
	t.Parallel()
	newHostileStage(t).rows(t, []hostileAct{
		{name: "renamed", act: "ip link set $LINK name web0", says: []string{"host link $LINK is missing"}},
		{
			name: "renamed_and_down", act: "ip link set $LINK down; ip link set $LINK name web0",
			says: []string{"host link $LINK is missing"}, cuts: cutsOwn,
		},
		{
			name: "another_MAC", act: "ip link set $LINK address 02:11:22:33:44:55",
			says: []string{"host link $LINK has MAC 02:11:22:33:44:55 instead of $MAC"}, cuts: cutsOwn,
		},
		{
			name: "down", act: "ip link set $LINK down",
			says: []string{"host link $LINK is down", "route $IP/32 dev $LINK is missing"}, cuts: cutsOwn,
		},
		{name: "down_and_up", act: "ip link set $LINK down; ip link set $LINK up", says: []string{"route $IP/32 dev $LINK is missing"}},
		{
			name: "an_address", act: "ip addr add 169.254.1.1/32 dev $LINK",
			says: []string{"host link $LINK has the address 169.254.1.1/32 and should have none"},
		},
		{name: "MTU", act: "ip link set $LINK mtu 1280", says: []string{"host link $LINK has MTU 1280 instead of 1500"}},
		{name: "alias", act: "ip link set $LINK alias uplink", says: []string{`host link $LINK has the wrong alias "uplink"`}},
		{
			name: "ARP_off", act: "ip link set $LINK arp off", says: []string{"host link $LINK has ARP off"}, cuts: cutsOwn,
			mends: []string{"ARP of $LINK turned on"},
		},
		{
			name: "a_neighbour_that_is_wrong", act: "ip neigh replace $IP lladdr 02:00:00:00:00:99 dev $LINK nud permanent", cuts: cutsOwn,
			says:  []string{"host link $LINK has a permanent neighbour $IP with MAC 02:00:00:00:00:99"},
			mends: []string{"permanent neighbour $IP (02:00:00:00:00:99) removed from host link $LINK"},
		},
		{name: "group", act: "ip link set $LINK group 7", says: []string{"$LINK", "group 7"}},
		{
			name: "IPv6_on", act: "sysctl -qw net.ipv6.conf.$LINK.disable_ipv6=0",
			says: []string{"sysctl net/ipv6/conf/$LINK/disable_ipv6 is 0"},
		},
		{
			name: "redirects_taken", act: "sysctl -qw net.ipv4.conf.$LINK.accept_redirects=1",
			says: []string{"sysctl net/ipv4/conf/$LINK/accept_redirects is 1"},
		},
	})
}

// Others change the node's settings.
func TestNetnsHostile_settings(t *testing.T) {
	t.Parallel()
	newHostileStage(t).rows(t, []hostileAct{
		{
			name: "ip_forward_off", act: "sysctl -qw net.ipv4.ip_forward=0",
			says: []string{
				"sysctl net/ipv4/ip_forward is 0 instead of 1", "sysctl net/ipv4/conf/eth0/forwarding is 0",
				"sysctl net/ipv4/conf/$LINK/forwarding is 0",
			},
			cuts: cutsAll, needs: true,
		},
		{
			name: "all_forwarding_off", act: "sysctl -qw net.ipv4.conf.all.forwarding=0",
			says: []string{"sysctl net/ipv4/ip_forward is 0 instead of 1"}, cuts: cutsAll, needs: true,
		},
		{
			name: "default_forwarding_off", act: "sysctl -qw net.ipv4.conf.default.forwarding=0",
			undo: "sysctl -qw net.ipv4.conf.default.forwarding=1",
		},
		{
			name: "arp_ignore_2",
			act:  "sysctl -qw net.ipv4.conf.all.arp_ignore=2 net.ipv4.conf.default.arp_ignore=2; ip neigh flush all nud all",
			undo: "sysctl -qw net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.default.arp_ignore=0",
		},
		{
			name: "arp_announce_2",
			act:  "sysctl -qw net.ipv4.conf.all.arp_announce=2 net.ipv4.conf.$LINK.arp_announce=2; ip neigh flush all nud all",
			undo: "sysctl -qw net.ipv4.conf.all.arp_announce=0 net.ipv4.conf.$LINK.arp_announce=0",
		},
		{
			name: "arp_filter", act: "sysctl -qw net.ipv4.conf.all.arp_filter=1; ip neigh flush all nud all",
			undo: "sysctl -qw net.ipv4.conf.all.arp_filter=0",
		},
		{
			name: "proxy_arp",
			act:  "sysctl -qw net.ipv4.conf.all.proxy_arp=1 net.ipv4.conf.eth0.proxy_arp=1 net.ipv4.conf.$LINK.proxy_arp=1",
			undo: "sysctl -qw net.ipv4.conf.all.proxy_arp=0 net.ipv4.conf.eth0.proxy_arp=0 net.ipv4.conf.$LINK.proxy_arp=0",
		},
		{
			name: "rp_filter_strict", act: "sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.eth0.rp_filter=1",
			undo: "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.eth0.rp_filter=0",
		},
		{
			name: "rp_filter_loose", act: "sysctl -qw net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.$LINK.rp_filter=2",
			undo: "sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.$LINK.rp_filter=1",
		},
		{
			name: "FORWARD_policy_DROP_and_pods_accepted",
			act:  "iptables -A FORWARD -s 10.20.0.0/24 -j ACCEPT; iptables -P FORWARD DROP",
			undo: "iptables -P FORWARD ACCEPT; iptables -F FORWARD",
		},
		{
			name: "FORWARD_policy_DROP", act: "iptables -P FORWARD DROP", says: []string{"FORWARD", "drop", "firewall.conflist"},
			cuts: cutsAll, needs: true, left: []string{"FORWARD", "drop", "firewall.conflist"}, undo: "iptables -P FORWARD ACCEPT",
		},
		{
			name: "FORWARD_policy_DROP_of_iptables_legacy", act: "iptables-legacy -P FORWARD DROP",
			says: []string{"iptables-legacy: chain FORWARD of table filter drops"}, cuts: cutsAll, needs: true,
			left: []string{"iptables-legacy: chain FORWARD of table filter drops"}, undo: "iptables-legacy -P FORWARD ACCEPT",
		},
		{
			name: "FORWARD_policy_DROP_of_iptables_legacy_and_pods_accepted",
			act:  "iptables-legacy -A FORWARD -s 10.20.0.0/24 -j ACCEPT; iptables-legacy -P FORWARD DROP",
			undo: "iptables-legacy -P FORWARD ACCEPT; iptables-legacy -F FORWARD",
		},
		{ // as in an nftables.conf; iptables accepts all, which doesn't help
			name: "inet_forward_policy_drop",
			act:  "nft 'add table inet filter; add chain inet filter forward { type filter hook forward priority 0; policy drop; }'",
			says: []string{"table inet filter", "chain forward drops", "no rule of another chain helps"}, cuts: cutsAll, needs: true,
			left: []string{"table inet filter", "chain forward drops"}, undo: "nft delete table inet filter",
		},
	})
}

// Others change the NIC.
func TestNetnsHostile_NIC(t *testing.T) {
	t.Parallel()
	newHostileStage(t).rows(t, []hostileAct{
		{name: "renamed", act: "ip link set eth0 name ens5", says: []string{"(eth0)", "renamed"}, undo: "ip link set ens5 name eth0"},
		{
			name: "down_and_up", act: "ip link set eth0 down; ip link set eth0 up; " + dhcpRoutes,
			says: []string{`"10.20.0.0/24 via 10.20.0.1 dev eth0 table 28201"`}, cuts: cutsMeanwhile, needs: true,
		},
		{
			name: "another_MAC", act: "ip link set eth0 address 02:11:22:33:44:55",
			says: []string{"02:11:22:33:44:55", lab.SimpleMAC}, cuts: cutsLAN, needs: true, left: []string{"02:11:22:33:44:55", lab.SimpleMAC},
			undo: "ip link set eth0 address " + lab.SimpleMAC,
		},
		{
			name: "a_pods_address", act: "ip addr add $IP/24 dev eth0",
			says: []string{"on-host-link: $IP is an address of eth0: run 'vmssctl node prepare --force'"}, cuts: cutsOwn,
			resets: true, left: []string{"on-host-link", "vmssctl node prepare --force"}, undo: "ip addr del $IP/24 dev eth0",
		},
	})
}
