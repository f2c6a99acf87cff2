package routes

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

var netipEqual = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

func TestNetnsNICs(t *testing.T) {
	l := newLab(t)
	l.attach(1, freeAddr)
	l.runAll("ip link set eth0 address 00:0d:3a:00:00:01 ; ip addr add 10.20.0.5/16 dev eth0")
	l.runAll("ip addr add 10.30.0.4/24 dev eth0 valid_lft 3600 preferred_lft 3600")
	l.runAll("ip route add default via 10.20.0.2 dev eth0 metric 200 src 10.20.0.4")
	// The twin of accelerated networking: same MAC, enslaved. Then something that stands on the NIC.
	l.runAll("ip link add bond0 type bridge ; ip link add twin type veth peer name other ; ip link set twin address 00:0d:3a:00:00:01 master bond0")
	l.runAll("ip link add link eth0 mv0 type macvlan")
	nics, err := l.k.NICs(t.Context())
	must(t, err)
	names := []string{}
	for _, n := range nics {
		names = append(names, n.Name)
	}
	if want := []string{"eth0", "bond0", "other", "mv0"}; !sameNames(names, want) {
		t.Errorf("links %v, want %v", names, want)
	}
	got := nics[slices.IndexFunc(nics, func(n NIC) bool { return n.Name == "eth0" })]
	want := NIC{
		Name: "eth0", MAC: [6]byte{0, 0x0d, 0x3a, 0, 0, 1}, MTU: 1400, Up: true, Kind: "veth",
		Addrs: []NICAddr{
			{Prefix: netip.MustParsePrefix("10.20.0.4/16")},
			{Prefix: netip.MustParsePrefix("10.30.0.4/24"), Dynamic: true},
			{Prefix: netip.MustParsePrefix("10.20.0.5/16"), Secondary: true},
		},
		Defaults: []DefaultRoute{
			{Gateway: netip.MustParseAddr("10.20.0.1"), Metric: 100},
			{Gateway: netip.MustParseAddr("10.20.0.2"), Metric: 200, PrefSrc: nodeAddr},
		},
	}
	if diff := cmp.Diff(want, got, netipEqual, cmpopts.IgnoreFields(NIC{}, "Index", "Parent")); diff != "" {
		t.Errorf("eth0 (-want +got):\n%s", diff)
	}
	mv := nics[slices.IndexFunc(nics, func(n NIC) bool { return n.Name == "mv0" })]
	if mv.Parent != got.Index || mv.Kind != "macvlan" {
		t.Errorf("macvlan %+v", mv)
	}
	host, err := l.k.HostAddrs(t.Context())
	must(t, err)
	if host[netip.MustParseAddr("10.20.0.5")] != "eth0" || host[netip.MustParseAddr("127.0.0.1")] != "lo" {
		t.Errorf("addresses of the node: %v", host)
	}
}

func sameNames(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

func TestNetnsRemoveAddress(t *testing.T) {
	tests := []struct {
		name, addrs, promote, remove string
		want                         error
		left                         string
	}{
		{"secondary", "10.20.0.5/16", "0", "10.20.0.5", nil, "10.20.0.4/16"},
		{"not there", "10.20.0.5/16", "0", "10.20.0.6", nil, "10.20.0.4/16 10.20.0.5/16"},
		{"first of the subnet", "10.20.0.5/16", "0", "10.20.0.4", ErrTakesOthers, "10.20.0.4/16 10.20.0.5/16"},
		{"first, others are promoted", "10.20.0.5/16", "1", "10.20.0.4", nil, "10.20.0.5/16"},
		{"of another subnet", "10.30.0.5/32", "0", "10.30.0.5", nil, "10.20.0.4/16"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			sysctl(t, l.node, "ipv4/conf/eth0/promote_secondaries", tt.promote)
			sysctl(t, l.node, "ipv4/conf/all/promote_secondaries", "0")
			l.runAll("ip addr add " + tt.addrs + " dev eth0")
			err := l.k.RemoveAddress(t.Context(), "eth0", netip.MustParseAddr(tt.remove))
			wantError(t, err, tt.want)
			f := strings.Fields(l.node.Run("ip -4 -br addr show dev eth0"))
			if got := strings.Join(f[2:], " "); got != tt.left {
				t.Errorf("left %s, want %s", got, tt.left)
			}
		})
	}
}

func TestNetnsApplySysctls(t *testing.T) {
	l := newLab(t)
	l.runAll("ip link add off type veth peer name x")
	for _, key := range []string{"ipv4/ip_forward", "ipv4/conf/eth0/forwarding"} {
		sysctl(t, l.node, key, "0")
	}
	must(t, l.k.ApplySysctls(t.Context(), []string{"eth0"}))
	sysctl(t, l.node, "ipv4/conf/off/forwarding", "0") // somebody's setting, which a second write of ip_forward would undo
	sysctl(t, l.node, "ipv4/conf/eth0/forwarding", "0")
	must(t, l.k.ApplySysctls(t.Context(), []string{"eth0"}))
	for key, want := range map[string]string{"ipv4/ip_forward": "1", "ipv4/conf/eth0/forwarding": "1", "ipv4/conf/off/forwarding": "0"} {
		if got := read(t, l.node, key); got != want {
			t.Errorf("%s = %s, want %s", key, got, want)
		}
	}
	if err := l.k.ApplySysctls(t.Context(), []string{"nonic"}); err == nil {
		t.Error("missing NIC: no error")
	}
}

// Sysctls are those of the namespace in which New was called, whatever thread asks.
func TestNetnsSysctl_otherThread(t *testing.T) {
	l := newLab(t)
	sysctl(t, l.node, "ipv4/ip_forward", "0")
	done := make(chan error)
	go func() { done <- l.k.ApplySysctls(t.Context(), []string{"eth0"}) }()
	must(t, <-done)
	if got := read(t, l.node, "ipv4/ip_forward"); got != "1" {
		t.Errorf("ip_forward = %s", got)
	}
}

// The agent has CAP_NET_ADMIN and no other capability.
func TestNetnsKernel_netAdminOnly(t *testing.T) {
	l := newLab(t)
	restore := onlyNetAdmin(t)
	defer restore()
	k, err := New(nil)
	must(t, err)
	defer k.Close()
	must(t, k.ApplySysctls(t.Context(), []string{"eth0"}))
	must(t, k.ApplyRules(t.Context(), testRuleNICs(l), RemotePodsPods))
	must(t, k.ApplyPolicy(t.Context(), testPolicy()))
	has, err := k.HasPolicy(t.Context(), testPolicy().Hash)
	if err != nil || !has {
		t.Errorf("policy %v, %v", has, err)
	}
	must(t, k.FlushConntrack(t.Context(), nodeAddr))
	if _, err := k.Links(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := k.NICs(t.Context()); err != nil {
		t.Error(err)
	}
}

// onlyNetAdmin lowers the capabilities of the calling thread.
func onlyNetAdmin(t *testing.T) (restore func()) {
	t.Helper()
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var before, low [2]unix.CapUserData
	must(t, unix.Capget(&header, &before[0]))
	low = before
	low[0].Effective, low[1].Effective = 1<<unix.CAP_NET_ADMIN, 0
	must(t, unix.Capset(&header, &low[0]))
	return func() {
		if err := unix.Capset(&header, &before[0]); err != nil {
			t.Error(err)
		}
	}
}

func TestNetnsFlushConntrack(t *testing.T) {
	l := newLab(t).withPolicy(func(*Policy) {})
	a, b := l.attach(1, "10.20.0.10"), l.attach(2, "10.20.0.11")
	l.fabric.Run("ip route add 10.20.0.0/24 via 10.20.0.4")
	l.node.Run("nft add table ip svc")
	l.node.Run("nft add chain ip svc pre { type nat hook prerouting priority -100 ; }")
	l.node.Run("nft add rule ip svc pre ip daddr 10.96.0.1 udp dport 53 dnat to 10.20.0.10:7")
	for _, p := range []*testPod{a, b} {
		echo(t, p.NS, p.addr.String()+":7")
	}
	echo(t, l.fabric, "203.0.113.1:7")
	echo(t, l.fabric, "10.20.0.1:7")
	wantSource(t, a.NS, "10.20.0.1:7", "10.20.0.10")     // client
	wantSource(t, a.NS, "203.0.113.1:7", "10.20.0.4")    // masqueraded client
	wantSource(t, l.fabric, "10.20.0.10:7", "10.20.0.1") // server
	wantSource(t, b.NS, "10.96.0.1:53", "10.20.0.11")    // server behind a Service
	wantSource(t, b.NS, "203.0.113.1:7", "10.20.0.4")    // three of others
	wantSource(t, b.NS, "10.20.0.1:7", "10.20.0.11")
	wantSource(t, l.node, "10.20.0.11:7", "10.20.0.4")
	before, err := l.k.ConntrackCount(t.Context())
	if err != nil || before != 7 {
		t.Fatalf("%d entries, error %v:\n%s", before, err, l.node.Run("conntrack -L"))
	}
	must(t, l.k.FlushConntrack(t.Context(), a.addr))
	must(t, l.k.FlushConntrack(t.Context(), netip.MustParseAddr("10.20.77.77")))
	left := l.node.Run("conntrack -L -o extended")
	if n, err := l.k.ConntrackCount(t.Context()); err != nil || n != 3 || strings.Contains(left, "=10.20.0.10 ") {
		t.Errorf("%d entries left, error %v:\n%s", n, err, left)
	}
}

// What an older kernel would make of our message: the tuple alone, without the filter, is refused.
func TestNetnsFlushConntrack_olderKernel(t *testing.T) {
	l := newLab(t)
	for i := range 3 {
		l.node.Run(fmt.Sprintf("conntrack -I -s 10.20.0.1%d -d 10.20.0.1 -p udp --sport 9 --dport 9 -t 60", i))
	}
	req := netfilterRequest(unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, familyCounts)
	sourcesOf(netip.MustParseAddr(freeAddr))[0].filter(req)
	req.Data = req.Data[:len(req.Data)-1]
	if _, err := l.k.netfilter(t.Context(), "test", req); err == nil {
		t.Error("no error")
	}
	if n, err := l.k.ConntrackCount(t.Context()); err != nil || n != 3 {
		t.Errorf("%d entries left, error %v", n, err)
	}
}
