package netns

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// Faults that a hostile tester found at e837ee8. Each test fails there, and says what is expected instead.

// sysctl net.ipv6.conf.all.disable_ipv6=0 (sysctl --system with such a line) turns IPv6 on at every link. A pod, with IPv6 off on its own
// side and NET_RAW alone, then gives the node a default route.
func TestNetnsBreaker_RA_after_IPv6_was_turned_on_for_all(t *testing.T) {
	t.Parallel()
	s := newIsolationPair(t)
	s.sh("sysctl -qw net.ipv6.conf.all.forwarding=0 net.ipv6.conf.all.disable_ipv6=0")
	frames, err := s.bad.OpenFrames("eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer frames.Close()
	for range 20 {
		if err := frames.Send(isolationRA(frames.MAC(), netip.MustParseAddr("fe80::99"))); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	if got := s.sh("ip -6 route show table all | grep -e 2001:db8:bad -e default || true"); got != "" {
		t.Errorf("the node took from the pod: %s", got)
	}
}

// What kills a pod's traffic, or opens its guards, is named by CHECK and undone by one repair.
func TestNetnsBreaker_CHECK_is_blind(t *testing.T) {
	t.Parallel()
	type row struct {
		act    string
		repair bool // ours to put back
	}
	each(t, map[string]row{
		"policy_table_dormant":        {"nft 'add table ip native_vmss { flags dormant; }'", true},
		"set_native_flushed":          {"nft flush set ip native_vmss native", true},
		"set_nics_flushed":            {"nft flush set ip native_vmss nics", true},
		"policy_of_our_chain_drop":    {"nft 'chain ip native_vmss forward { policy drop; }'", true},
		"host_end_without_ARP":        {"ip link set $L arp off", true},
		"host_end_with_a_wrong_neigh": {"ip neigh replace $IP lladdr 02:00:00:00:00:99 dev $L nud permanent", true},
		"iptables_legacy_FORWARD":     {"iptables-legacy -P FORWARD DROP", false},
	}, func(t *testing.T, c row) {
		s := newStage(t, poolOf(2))
		p, a := s.pathPod("c1")
		s.sh(strings.NewReplacer("$L", a.HostLink, "$IP", a.IP.String()).Replace(c.act))
		s.check("c1", p, a).fails(103)
		s.ctl("node", "repair")
		if c.repair {
			s.check("c1", p, a).ok()
			s.reaches(p, a.IP)
		}
	})
}

// The broadcast of a DHCP client has no source that could be looked up; nobody on the node should hear it.
func TestNetnsBreaker_source_0(t *testing.T) {
	t.Parallel()
	s := newIsolationPair(t)
	srv, err := s.Node.EchoUDP(netip.MustParseAddrPort("0.0.0.0:67"))
	if err != nil {
		t.Fatal(err)
	}
	frames, err := s.bad.OpenFrames("eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer frames.Close()
	for _, dst := range []string{"255.255.255.255:67", "224.0.0.1:67"} {
		if err := frames.Send(frames.UDP(everybody, netip.MustParseAddrPort("0.0.0.0:68"), netip.MustParseAddrPort(dst), []byte("x"))); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(200 * time.Millisecond)
	if got := srv.Peers(); len(got) > 0 {
		b, _ := json.Marshal(got)
		t.Errorf("from a source that isn't the pod's the node's service got %s", b)
	}
}
