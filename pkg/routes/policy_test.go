package routes

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/nstest"
)

func testPolicy() Policy {
	return Policy{
		Hash: "0123456789abcdef", NICs: []PolicyNIC{{Link: "eth0", Primary: nodeAddr}}, PlatformSNAT: nodeAddr,
		Native: []netip.Prefix{
			netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"), netip.MustParsePrefix("192.168.0.0/16"),
			netip.MustParsePrefix("100.64.0.0/10"), subnet,
		},
		Masquerade: true, DenyWireserver: true, DenyIMDS: true,
	}
}

func TestNetnsApplyPolicy_golden(t *testing.T) {
	tests := []struct {
		name   string
		change func(*Policy)
	}{
		{"policy-default", func(*Policy) {}},
		{"policy-open", func(p *Policy) { p.Masquerade, p.DenyWireserver, p.DenyIMDS = false, false, false }},
		{"policy-two-nics", func(p *Policy) {
			p.NICs = append(p.NICs, PolicyNIC{Link: "eth1", Primary: netip.MustParseAddr("10.21.0.4")})
		}},
		{"policy-kernel-chooses", func(p *Policy) { p.NICs = []PolicyNIC{{Link: "eth0"}} }},
		{"policy-whole-space", func(p *Policy) { p.Native = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")} }},
		{"policy-last-address", func(p *Policy) {
			p.Native = []netip.Prefix{netip.MustParsePrefix("224.0.0.0/3"), netip.MustParsePrefix("0.0.0.0/32")}
		}},
		{"policy-nothing-native", func(p *Policy) { p.NICs, p.Native = nil, nil }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			node := nstest.New(t)
			k, p := newKernel(t), testPolicy()
			tt.change(&p)
			for range 2 { // the second one replaces
				must(t, k.ApplyPolicy(t.Context(), p))
				golden(t, tt.name, node.Run("nft list table ip native_vmss"))
			}
		})
	}
}

func TestNetnsApplyPolicy_hash(t *testing.T) {
	node := nstest.New(t)
	k, p := newKernel(t), testPolicy()
	check := func(table, own, other bool) {
		t.Helper()
		for what, want := range map[string]bool{"": table, p.Hash: own, "other": other} {
			has, err := k.PolicyTableExists(t.Context())
			if what != "" {
				has, err = k.HasPolicy(t.Context(), what)
			}
			if err != nil || has != want {
				t.Errorf("%q: %v, %v; want %v", what, has, err, want)
			}
		}
	}
	check(false, false, false)
	node.Run("nft add table ip other")
	must(t, k.ApplyPolicy(t.Context(), p))
	check(true, true, false)
	p2 := p
	p2.Hash = "other"
	must(t, k.ApplyPolicy(t.Context(), p2))
	check(true, false, true)
	must(t, k.DropPolicy(t.Context()))
	must(t, k.DropPolicy(t.Context()))
	check(false, false, false)
	if out := node.Run("nft list ruleset"); strings.TrimSpace(out) != "table ip other {\n}" {
		t.Errorf("left: %s", out)
	}
}

// A batch that the kernel refuses changes nothing.
func TestNetnsApplyPolicy_refused(t *testing.T) {
	node := nstest.New(t)
	k, p := newKernel(t), testPolicy()
	must(t, k.ApplyPolicy(t.Context(), p))
	before := node.Run("nft list ruleset")
	bad := p
	bad.Hash = strings.Repeat("x", 300)
	if err := k.ApplyPolicy(t.Context(), bad); err == nil {
		t.Error("no error")
	}
	bad = p
	bad.PlatformSNAT = netip.Addr{}
	if err := k.ApplyPolicy(t.Context(), bad); err == nil {
		t.Error("no error")
	}
	wantError(t, k.ApplyPolicy(canceled(), p), canceled().Err())
	if after := node.Run("nft list ruleset"); after != before {
		t.Errorf("changed to %s", after)
	}
}

func (l *lab) withPolicy(change func(*Policy)) *lab {
	l.t.Helper()
	p := testPolicy()
	change(&p)
	must(l.t, l.k.ApplySysctls(l.t.Context(), []string{"eth0"}))
	must(l.t, l.k.ApplyPolicy(l.t.Context(), p))
	return l
}

func TestNetnsPolicy_sources(t *testing.T) {
	for _, masquerade := range []bool{true, false} {
		t.Run(fmt.Sprint("masquerade ", masquerade), func(t *testing.T) {
			l := newLab(t).withPolicy(func(p *Policy) { p.Masquerade = masquerade })
			a := l.attach(1, freeAddr)
			l.fabric.Run("ip route add 10.20.0.10/32 via 10.20.0.4")
			for _, addr := range []string{"203.0.113.1:7", "10.20.0.1:7", "168.63.129.16:53"} {
				echo(t, l.fabric, addr)
			}
			outside := nodeAddr.String()
			if !masquerade {
				outside = freeAddr
			}
			wantSource(t, a.NS, "203.0.113.1:7", outside)
			wantSource(t, a.NS, "10.20.0.1:7", freeAddr)
			wantSource(t, a.NS, "168.63.129.16:53", nodeAddr.String()) // DNS of the platform
			wantSource(t, l.node, "203.0.113.1:7", nodeAddr.String())
		})
	}
}

// cloud-init may put secondaries on the NIC's link before the lease comes: the kernel's own choice would be one of them.
func TestNetnsPolicy_squatterFirst(t *testing.T) {
	l := newLab(t).withPolicy(func(*Policy) {})
	l.runAll("ip addr flush dev eth0 ; ip addr add 10.20.0.66/16 dev eth0 ; ip addr add 10.20.0.4/16 dev eth0")
	l.runAll("ip route add default via 10.20.0.1 dev eth0 src 10.20.0.4")
	a := l.attach(1, freeAddr)
	echo(t, l.fabric, "203.0.113.1:7")
	wantSource(t, a.NS, "203.0.113.1:7", nodeAddr.String())
	l.withPolicy(func(p *Policy) { p.NICs[0].Primary = netip.Addr{} })
	l.node.Run("conntrack -F")
	wantSource(t, a.NS, "203.0.113.1:7", "10.20.0.66") // why Primary is there
}

// While the table is replaced no packet leaves with a wrong source, and no spoofed one passes.
func TestNetnsPolicy_replacedUnderTraffic(t *testing.T) {
	l := newLab(t).withPolicy(func(*Policy) {})
	a := l.attach(1, freeAddr)
	sysctl(t, l.node, "ipv4/conf/all/rp_filter", "0")
	sysctl(t, l.node, "ipv4/conf/"+a.pair.Name+"/rp_filter", "0")
	a.Run("ip addr add 10.20.7.7/32 dev lo")
	spoofed := l.countFrom("10.20.7.7")
	echo(t, l.fabric, "203.0.113.1:7")
	wantSource(t, a.NS, "203.0.113.1:7", nodeAddr.String())
	stop, done := make(chan struct{}), make(chan int)
	go func() {
		asked := 0
		for {
			select {
			case <-stop:
				done <- asked
				return
			default:
			}
			if got, err := ask(a.NS, "203.0.113.1:7"); err != nil || got != nodeAddr.String() {
				t.Errorf("source %q, error %v", got, err)
			}
			_ = a.Do(func() error { return sendFrom("10.20.7.7", "203.0.113.1:9") })
			asked++
		}
	}()
	for i := range 20 {
		p := testPolicy()
		p.Hash = fmt.Sprint(i)
		must(t, l.k.ApplyPolicy(t.Context(), p))
	}
	close(stop)
	if asked := <-done; asked < 20 {
		t.Errorf("only %d questions", asked)
	}
	if n := spoofed(); n != 0 {
		t.Errorf("%d spoofed packets passed", n)
	}
}

func TestNetnsPolicy_platform(t *testing.T) {
	for _, deny := range []bool{true, false} {
		t.Run(fmt.Sprint("deny ", deny), func(t *testing.T) {
			l := newLab(t).withPolicy(func(p *Policy) { p.DenyIMDS, p.DenyWireserver = deny, deny })
			a := l.attach(1, freeAddr)
			// A Service with hand-made endpoints is no way around.
			l.node.Run("nft add table ip svc")
			l.node.Run("nft add chain ip svc pre { type nat hook prerouting priority -100 ; }")
			l.node.Run("nft add rule ip svc pre ip daddr 10.96.0.1 tcp dport 80 dnat to 168.63.129.16:32526")
			for _, to := range []string{"168.63.129.16:80", "168.63.129.16:32526", "169.254.169.254:80", "10.96.0.1:80"} {
				// Nobody listens on the fabric: what gets through is refused by a reset.
				if err := dialTCP(a.NS, to); errors.Is(err, unix.ECONNREFUSED) == deny {
					t.Errorf("%s: %v", to, err)
				}
			}
			for _, to := range []string{"168.63.129.16:80", "169.254.169.254:80"} {
				if err := dialTCP(l.node, to); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("node to %s: %v", to, err)
				}
			}
			if err := dialTCP(a.NS, "168.63.129.16:443"); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("other port of the wireserver: %v", err)
			}
		})
	}
}

// Spoofed packets die at the policy table alone (rp_filter off) and at rp_filter alone (no table), at every value of both
// sysctls that isn't 0.
func TestNetnsPolicy_spoof(t *testing.T) {
	for all := range 3 {
		for link := range 3 {
			for _, table := range []bool{true, false} {
				if !table && all+link == 0 {
					continue
				}
				t.Run(fmt.Sprintf("all %d link %d table %v", all, link, table), func(t *testing.T) {
					l := newLab(t).withPolicy(func(*Policy) {})
					a := l.attach(1, freeAddr)
					l.attach(2, "10.20.0.11")
					sysctl(t, l.node, "ipv4/conf/all/rp_filter", fmt.Sprint(all))
					sysctl(t, l.node, "ipv4/conf/"+a.pair.Name+"/rp_filter", fmt.Sprint(link))
					if !table {
						must(t, l.k.DropPolicy(t.Context()))
					}
					l.spoof(a)
				})
			}
		}
	}
}

// The test of the test: without both the spoofed packets do arrive.
func TestNetnsPolicy_spoofControl(t *testing.T) {
	l := newLab(t).withPolicy(func(*Policy) {})
	a := l.attach(1, freeAddr)
	must(t, l.k.DropPolicy(t.Context()))
	sysctl(t, l.node, "ipv4/conf/all/rp_filter", "0")
	sysctl(t, l.node, "ipv4/conf/"+a.pair.Name+"/rp_filter", "0")
	count := l.countFrom("10.99.0.1")
	a.Run("ip addr add 10.99.0.1/32 dev lo")
	must(t, a.Do(func() error { return sendFrom("10.99.0.1", "10.20.0.1:9") }))
	if n := count(); n != 1 {
		t.Errorf("%d packets arrived", n)
	}
}

// spoof sends from sources that aren't a's: another pod's, the node's, a remote pod's, a foreign one and the gateway's.
// They lead to the fabric, to the node and to the other pod.
func (l *lab) spoof(a *testPod) {
	l.t.Helper()
	sources := []string{"10.20.0.11", "10.20.0.4", "10.20.7.7", "192.0.2.9", "169.254.1.1"}
	count := l.countFrom(append(sources, freeAddr)...)
	for _, s := range sources {
		a.Run("ip addr add " + s + "/32 dev lo")
	}
	must(l.t, a.Do(func() error {
		for _, s := range sources {
			for _, to := range []string{"10.20.0.1:9", "10.20.7.8:9", "10.20.0.4:9", "10.20.0.11:9"} {
				if err := sendFrom(s, to); err != nil {
					return err
				}
			}
		}
		return sendFrom(freeAddr, "10.20.0.1:9")
	}))
	if got := count(); got != 1 {
		l.t.Errorf("%d packets passed, want the one from the pod's own address", got)
	}
	if out, _ := l.node.Try("conntrack -L"); strings.Contains(out, "src=10.20.7.7") && len(out) > 0 {
		l.t.Errorf("conntrack entries: %s", out)
	}
}

// countFrom counts datagrams to port 9 from those sources that came past prerouting: forwarded or delivered.
func (l *lab) countFrom(sources ...string) func() int {
	l.t.Helper()
	l.node.Run("nft add table ip probe")
	for _, hook := range []string{"forward", "input"} {
		l.node.Run(fmt.Sprintf("nft add chain ip probe %s { type filter hook %s priority -500 ; }", hook, hook))
		l.node.Run(fmt.Sprintf("nft add rule ip probe %s ip saddr { %s } th dport 9 counter", hook, strings.Join(sources, ",")))
	}
	return func() int {
		l.t.Helper()
		sum := 0
		for line := range strings.SplitSeq(l.node.Run("nft list table ip probe"), "\n") {
			if _, rest, found := strings.Cut(line, "counter packets "); found {
				var n int
				_, _ = fmt.Sscan(rest, &n)
				sum += n
			}
		}
		return sum
	}
}

// The fabric sends back what isn't its own, and 10.20.0.50 is an address of the node's NIC without a pod. The reset belongs to
// no connection.
func TestNetnsPolicy_noTransit(t *testing.T) {
	for _, table := range []bool{true, false} {
		t.Run(fmt.Sprint("table ", table), func(t *testing.T) {
			l := newLab(t).withPolicy(func(*Policy) {})
			must(t, l.k.ApplyRules(t.Context(), testRuleNICs(l), RemotePodsPods))
			if !table {
				must(t, l.k.DropPolicy(t.Context()))
			}
			sysctl(t, l.fabric, "ipv4/ip_forward", "1")
			sysctl(t, l.fabric, "ipv4/conf/port/accept_local", "1")
			sysctl(t, l.fabric, "ipv4/conf/port/rp_filter", "0")
			l.fabric.Run("ip route add 10.20.0.50/32 via 10.20.0.4")
			count := l.countFrom("10.20.0.1")
			seen := 0
			for _, send := range []func() error{
				func() error { return sendFrom("10.20.0.1", "10.20.0.50:9") },
				func() error { return sendReset("10.20.0.50", 9) },
			} {
				must(t, l.fabric.Do(send))
				time.Sleep(50 * time.Millisecond)
				n := count() - seen
				if table && n != 1 || !table && n < 10 {
					t.Errorf("the packet came %d times", n)
				}
				seen += n
			}
		})
	}
}

// What was translated here is no transit: a NodePort whose endpoint is on another node. Nor is what another plugin's bridge sends.
func TestNetnsPolicy_transitThatStays(t *testing.T) {
	l := newLab(t).withPolicy(func(*Policy) {})
	l.node.Run("nft add table ip svc")
	l.node.Run("nft add chain ip svc pre { type nat hook prerouting priority -100 ; }")
	l.node.Run("nft add chain ip svc post { type nat hook postrouting priority 100 ; }")
	l.node.Run("nft add rule ip svc pre ip daddr 10.20.0.4 udp dport 30000 dnat to 10.20.0.1:7")
	l.node.Run("nft add rule ip svc post ip daddr 10.20.0.1 ip saddr 10.20.9.9 masquerade")
	echo(t, l.fabric, "10.20.0.1:7")
	l.fabric.Run("ip addr add 10.20.9.9/32 dev port")
	var got string
	must(t, l.fabric.Do(func() (err error) {
		got, err = askFrom("10.20.9.9", "10.20.0.4:30000")
		return err
	}))
	if got != nodeAddr.String() {
		t.Errorf("source %q", got)
	}
	other := nstest.Beside(t)
	l.runAll("ip link add br0 type bridge ; ip addr add 10.88.0.1/24 dev br0 ; ip link set br0 up")
	l.node.Run("ip link add b0 type veth peer name eth0 netns " + other.Path())
	l.runAll("ip link set b0 master br0 ; ip link set b0 up")
	other.Run("ip addr add 10.88.0.2/24 dev eth0")
	other.Run("ip link set eth0 up")
	other.Run("ip route add default via 10.88.0.1")
	l.fabric.Run("ip route add 10.88.0.0/24 via 10.20.0.4")
	wantSource(t, other, "10.20.0.1:7", "10.88.0.2")
}
