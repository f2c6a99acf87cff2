package routes

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/nstest"
)

// ruleState is all rules that aren't the kernel's three, and table 28201.
func ruleState(ns *nstest.NS) string {
	var b strings.Builder
	for line := range strings.SplitSeq(ns.Run("ip rule show"), "\n") {
		switch prio, _, _ := strings.Cut(line, ":"); prio {
		case "0", "32766", "32767", "":
		default:
			b.WriteString(line + "\n")
		}
	}
	table, _ := ns.Try("ip route show table 28201") // fails when there is no such table
	return b.String() + "table 28201:\n" + table
}

func TestNetnsApplyRules_golden(t *testing.T) {
	modes := []RemotePods{RemotePodsPods, RemotePodsNode, RemotePodsOff}
	for _, before := range append(modes, "") {
		for _, mode := range modes {
			t.Run(string(before+"-"+mode), func(t *testing.T) {
				l := newLab(t)
				if before != "" {
					must(t, l.k.ApplyRules(t.Context(), testRuleNICs(l), before))
				}
				for range 2 {
					must(t, l.k.ApplyRules(t.Context(), testRuleNICs(l), mode))
					golden(t, "rules-"+string(mode), ruleState(l.node))
				}
			})
		}
	}
}

// Two NICs, from each mode to each, and back to one.
func TestNetnsApplyRules_golden_two_NICs(t *testing.T) {
	l := newLab(t)
	one := testRuleNICs(l)
	l.runAll("ip link add eth1 type veth peer name port1 ; ip link set eth1 up ; ip link set port1 up ; ip addr add 10.21.0.4/16 dev eth1")
	link, found, err := l.k.rt.linkByName(t.Context(), "eth1")
	if err != nil || !found {
		t.Fatalf("eth1: %v %v", found, err)
	}
	two := slices.Clone(one)
	two[0].Primary, two[0].Default = nodeAddr, true
	two = append(two, RuleNIC{
		Number: 2, Link: "eth1", Index: link.Attrs().Index, Gateway: netip.MustParseAddr("10.21.0.1"),
		Primary: netip.MustParseAddr("10.21.0.4"), Subnets: []netip.Prefix{netip.MustParsePrefix("10.21.0.0/16")},
	})
	modes := []RemotePods{RemotePodsPods, RemotePodsNode, RemotePodsOff}
	state := func() string {
		out, _ := l.node.Try("ip route show table 28202")
		return ruleState(l.node) + "table 28202:\n" + out
	}
	for _, mode := range slices.Concat(modes, modes[:1]) {
		must(t, l.k.ApplyRules(t.Context(), two, mode))
		golden(t, "rules-two-nics-"+string(mode), state())
	}
	must(t, l.k.ApplyRules(t.Context(), one, RemotePodsPods))
	golden(t, "rules-pods", ruleState(l.node))
}

func TestNetnsApplyRules_repairs(t *testing.T) {
	tests := []struct{ name, break1 string }{
		{"rules flushed", "ip rule flush protocol 217"},
		{"one rule gone", "ip rule del prio 499"},
		{"wrong rule of ours", "ip rule add prio 505 to 10.30.0.0/16 lookup 28201 protocol 217"},
		{"wrong selector", "ip rule add prio 510 from 10.20.0.0/16 to 10.20.0.0/16 lookup 28201 protocol 217"},
		{"inverted", "ip rule del prio 510 ; ip rule add not prio 510 to 10.20.0.0/16 lookup 28201 protocol 217"},
		{"twins of a wrong rule", "ip rule add prio 510 to 10.20.0.0/16 iif lo lookup 28201 protocol 217 ; ip rule add prio 510 to 10.20.0.0/16 fwmark 9 lookup 28201 protocol 217"},
		{"no priority of ours", "ip rule add prio 100 to 10.20.0.0/16 lookup main protocol 217"},
		{"table flushed", "ip route flush table 28201"},
		{"other gateway", "ip route replace 10.20.0.0/16 via 10.20.0.9 dev eth0 onlink proto 217 table 28201"},
		{"another metric", "ip route add 10.20.0.0/16 via 10.20.0.9 dev eth0 onlink proto 217 table 28201 metric 5"},
		{"route of ours that nobody wants", "ip route add 10.30.0.0/16 via 10.20.0.1 dev eth0 onlink proto 217 table 28201"},
		{"other table of ours", "ip route add 10.30.0.0/16 via 10.20.0.1 dev eth0 onlink proto 217 table 28205"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			must(t, l.k.ApplyRules(t.Context(), testRuleNICs(l), RemotePodsPods))
			l.runAll(tt.break1)
			must(t, l.k.ApplyRules(t.Context(), testRuleNICs(l), RemotePodsPods))
			golden(t, "rules-pods", ruleState(l.node))
			if out, _ := l.node.Try("ip route show table 28205"); strings.Contains(out, "10.30") {
				t.Errorf("left: %s", out)
			}
		})
	}
}

// Rules and routes of others stay, whatever they look like.
func TestNetnsApplyRules_foreign(t *testing.T) {
	l := newLab(t)
	l.runAll("ip rule add from 10.20.0.10 lookup 77 ; ip rule add prio 500 to 10.20.0.0/16 lookup 78")
	l.runAll("ip route add 10.30.0.0/16 via 10.20.0.1 dev eth0 table 28201 ; ip route add 10.30.0.0/16 dev eth0 proto 217")
	before := l.node.Run("ip rule") + l.node.Run("ip -4 route show table all")
	must(t, l.k.ApplyRules(t.Context(), testRuleNICs(l), RemotePodsPods))
	must(t, l.k.ApplyRules(t.Context(), nil, RemotePodsPods))
	if after := l.node.Run("ip rule") + l.node.Run("ip -4 route show table all"); after != before {
		t.Errorf("changed from\n%s\nto\n%s", before, after)
	}
}

func TestNetnsApplyRules_refuses(t *testing.T) {
	l := newLab(t)
	nics := testRuleNICs(l)
	if err := l.k.ApplyRules(t.Context(), nics, "all"); err == nil {
		t.Error("unknown mode: no error")
	}
	nics[0].Gateway = netip.Addr{}
	if err := l.k.ApplyRules(t.Context(), nics, RemotePodsPods); err == nil {
		t.Error("no gateway: no error")
	}
	nics = testRuleNICs(l)
	nics[0].Number = 99
	if err := l.k.ApplyRules(t.Context(), nics, RemotePodsPods); err == nil {
		t.Error("number 99: no error")
	}
	if got := ruleState(l.node); got != "table 28201:\n" {
		t.Errorf("state %s", got)
	}
}

// Pods' packets to remote pods go by the gateway, those to local pods and the node don't; the node's own take the way of the mode.
func TestNetnsApplyRules_neighbours(t *testing.T) {
	tests := []struct {
		mode      RemotePods
		pod, node bool // resolves the remote pod as a neighbour
	}{{RemotePodsPods, false, true}, {RemotePodsNode, false, false}, {RemotePodsOff, true, true}}
	for _, tt := range tests {
		t.Run(string(tt.mode), func(t *testing.T) {
			l := newLab(t)
			must(t, l.k.ApplySysctls(t.Context(), []string{"eth0"}))
			must(t, l.k.ApplyRules(t.Context(), testRuleNICs(l), tt.mode))
			a, b := l.attach(1, "10.20.0.10"), l.attach(2, "10.20.0.11")
			l.fabric.Run("ip route add 10.20.0.10/32 via 10.20.0.4")
			sysctl(t, l.fabric, "ipv4/conf/port/proxy_arp", "1")
			for _, remote := range []string{"10.20.9.9", "10.20.9.8"} {
				l.fabric.Run("ip addr add " + remote + "/32 dev lo")
				echo(t, l.fabric, remote+":7")
			}
			echo(t, b.NS, "10.20.0.11:7")
			echo(t, l.node, "10.20.0.4:7")
			wantSource(t, a.NS, "10.20.9.9:7", "10.20.0.10")
			wantSource(t, l.node, "10.20.9.8:7", "10.20.0.4")
			wantSource(t, a.NS, "10.20.0.11:7", "10.20.0.10")
			wantSource(t, a.NS, "10.20.0.4:7", "10.20.0.10")
			wantSource(t, l.node, "10.20.0.11:7", "10.20.0.4")
			neigh := l.node.Run("ip neigh")
			if got := strings.Contains(neigh, "10.20.9.9 "); got != tt.pod {
				t.Errorf("pod's remote as a neighbour: %v\n%s", got, neigh)
			}
			if got := strings.Contains(neigh, "10.20.9.8 "); got != tt.node {
				t.Errorf("node's remote as a neighbour: %v\n%s", got, neigh)
			}
			use, err := l.k.Who(t.Context(), netip.MustParseAddr("10.20.0.77"), "eth0")
			if err != nil || use.Kind != Nobody {
				t.Errorf("free address: %s, %v", use, err)
			}
		})
	}
}
