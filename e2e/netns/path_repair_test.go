package netns

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// What others flush or change is put back by one vmssctl node repair, and nothing of a live pod is touched beyond it.
func TestNetnsPath_repair(t *testing.T) {
	t.Parallel()
	type damages struct {
		damage string
		harms  bool // the pod is cut off by it
	}
	each(t, map[string]damages{
		"route_of_a_pod_deleted":          {"ip route del $IP", true},
		"ruleset_flushed":                 {"nft flush ruleset", false},
		"policy_chain_emptied":            {"nft flush chain ip native_vmss forward; nft flush chain ip native_vmss postrouting", false},
		"rules_flushed":                   {"ip rule flush; ip rule add pref 32766 lookup main; ip rule add pref 32767 lookup default", false},
		"rules_and_table_flushed":         {"for p in 499 500 510 599; do ip rule del pref $p; done; ip route flush table 28201", false},
		"one_rule_deleted":                {"ip rule del pref 510", false},
		"MAC_of_the_host_end_changed":     {"ip link set $LINK address 02:11:22:33:44:55", true},
		"host_end_down":                   {"ip link set $LINK down", true},
		"forwarding_off_on_the_pods_link": {"sysctl -qw net.ipv4.conf.$LINK.forwarding=0", true},
		"forwarding_off_on_the_NIC":       {"sysctl -qw net.ipv4.conf.eth0.forwarding=0", true},
		"forwarding_off_everywhere":       {"sysctl -qw net.ipv4.ip_forward=0", true},
		"rp_filter_of_the_link_off":       {"sysctl -qw net.ipv4.conf.$LINK.rp_filter=0", false},
		"stale_route_in_the_way":          {"ip route replace $IP dev eth0", true},
		"blackhole_in_the_way":            {"ip route replace blackhole $IP", true},
		"all_at_once": {"ip route del $IP; nft flush ruleset; ip link set $LINK down; ip link set $LINK address 02:11:22:33:44:55; " +
			"sysctl -qw net.ipv4.ip_forward=0", true},
	}, func(t *testing.T, c damages) {
		s := newStage(t, lab.SimpleOptions{})
		p, a := s.pathPod("c1")
		other, o := s.pathPod("c2")
		records := s.records()
		s.reaches(p, a.IP)
		s.reaches(other, o.IP)
		s.sh("conntrack -F 2>/dev/null")
		before := s.snapshot()
		s.sh("IP=" + a.IP.String() + " LINK=" + a.HostLink + "; " + c.damage)
		if len(before.Diff(s.snapshot())) == 0 {
			t.Fatal("the damage is not seen by the observer")
		}
		s.check("c1", p, a).fails(103)
		if c.harms && s.echo(p, netip.Addr{}, lab.SimpleGateway, silence/4) {
			t.Error("the pod is not cut off by this damage: the subtest proves nothing")
		}
		s.mends()
		s.check("c1", p, a).ok()
		s.check("c2", other, o).ok()
		s.reaches(p, a.IP)
		s.reaches(other, o.IP)
		s.sh("conntrack -F 2>/dev/null")
		if d := before.Diff(s.snapshot()); len(d) > 0 {
			t.Errorf("after repair:\n%s", strings.Join(d, "\n"))
		}
		s.sameRecords(records)
	})
}

// Links of our group that no lease stands for go; everybody else's stay.
func TestNetnsPath_repair_removes_dead_links(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	s.settle()
	p, a := s.pathPod("alive")
	before := s.snapshot()
	// An ADD that died before it could mark its link.
	unfinished := linkOf("unfinished", "eth0")
	s.sh("ip link add " + unfinished + " group " + pathGroup + " type veth peer name x1")
	// One that was marked, of a key without a lease: the live one's alias with another key.
	alias := pathJSON[[]struct{ IfAlias string }](t, s.sh("ip -j link show dev "+a.HostLink))[0].IfAlias
	f := strings.Fields(alias)
	f[1], f[4] = s.pool[4].String(), strings.Repeat("ab", 16)
	unowned := "vethababababab1"
	unowned = unowned[:len("veth")] + strings.Repeat("ab", 6)[:11]
	s.sh("ip link add " + unowned + " group " + pathGroup + " type veth peer name x2; ip link set " + unowned + " alias '" +
		strings.Join(f, " ") + "'; ip link set " + unowned + " up; ip route add " + s.pool[4].String() + " dev " + unowned + " proto " + pathProtocol)
	foreign := "veth01234567890"
	s.sh("ip link add " + foreign + " type veth peer name x3")
	out, err := s.ctl("node", "repair")
	if err == nil || !strings.Contains(out, unowned) || !strings.Contains(out, s.pool[4].String()) {
		t.Errorf("repair ended with %v and doesn't name a link that the store doesn't know: %s", err, out)
	}
	if s.hasLink(unfinished) {
		t.Errorf("%s is left", unfinished)
	}
	// It may be a live pod's whose store is another one: repair with a wrong --state-dir must cut nobody off.
	for _, kept := range []string{unowned, foreign} {
		if !s.hasLink(kept) {
			t.Errorf("%s was removed", kept)
		}
	}
	s.sh("ip link del " + foreign + "; ip link del " + unowned)
	s.unchanged(before)
	s.check("alive", p, a).ok()
	s.reaches(p, a.IP)
}

// A lease whose link is gone is collected after two observations 60 s apart, not after one, and not when the link came back.
func TestNetnsPath_sweep(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	at := func(offset string) string {
		t.Helper()
		out, err := s.ctlEnv("failpoint/vmssctl", []string{"NVT_CLOCK_OFFSET=" + offset}, "node", "repair")
		if err != nil {
			t.Fatalf("repair: %v: %s", err, out)
		}
		return out
	}
	_, dead := s.pathPod("dead")
	live, l := s.pathPod("live")
	s.sh("ip link del " + dead.HostLink)
	want := func(when string, addrs ...netip.Addr) {
		t.Helper()
		slices.SortFunc(addrs, netip.Addr.Compare)
		if got := s.held(); !slices.Equal(got, addrs) {
			t.Errorf("%s: held %v, want %v", when, got, addrs)
		}
	}
	if out := at("0s"); !strings.Contains(out, "waiting: "+dead.IP.String()+" of ") || !strings.Contains(out, "collected if still so in 1m0s\n") {
		t.Errorf("the first repair says %q", out)
	}
	want("first observation", dead.IP, l.IP)
	at("59s")
	want("59 s later", dead.IP, l.IP)
	if out := at("61s"); !strings.Contains(out, "collected: "+dead.IP.String()) {
		t.Errorf("sweep says %q", out)
	}
	want("61 s later", l.IP)
	s.del("dead", nil, withNetns("")).ok()
	want("after the late DEL", l.IP)
	s.check("live", live, l).ok()
	// Seen missing once, then made again: not collected, whatever the time.
	p, a := s.pathPod("back")
	s.sh("ip link del " + a.HostLink)
	at("200s")
	want("missing once", l.IP, a.IP)
	b := s.add("back", p).ok()
	if b.IP != a.IP {
		t.Errorf("ADD of the same key gave %s, had %s", b.IP, a.IP)
	}
	at("300s")
	want("back again", l.IP, a.IP)
	s.sh("ip link del " + b.HostLink)
	at("400s") // a new first observation
	want("missing anew", l.IP, a.IP)
	at("461s")
	want("missing for 61 s", l.IP)
}
