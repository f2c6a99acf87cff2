package routes

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/nstest"
)

func TestNetnsAttach_traffic(t *testing.T) {
	l := newLab(t)
	must(t, l.k.ApplySysctls(t.Context(), []string{"eth0"}))
	a, b := l.attach(1, "10.20.0.10"), l.attach(2, "10.20.0.11")
	// Azure's side of it: the address is delivered to the NIC.
	l.fabric.Run("ip route add 10.20.0.10/32 via 10.20.0.4")
	echo(t, b.NS, "10.20.0.11:7")
	echo(t, l.node, "10.20.0.4:7")
	echo(t, l.fabric, "203.0.113.1:7")
	echo(t, a.NS, "10.20.0.10:7")
	wantSource(t, a.NS, "10.20.0.11:7", "10.20.0.10")
	wantSource(t, a.NS, "10.20.0.4:7", "10.20.0.10")
	wantSource(t, a.NS, "203.0.113.1:7", "10.20.0.10")
	wantSource(t, l.node, "10.20.0.10:7", "10.20.0.4")
	wantSource(t, l.fabric, "10.20.0.10:7", "10.20.0.1")
	echo(t, a.NS, "127.0.0.1:7")
	wantSource(t, a.NS, "127.0.0.1:7", "127.0.0.1")
}

func TestNetnsCreatePair(t *testing.T) {
	l := newLab(t)
	ns := nstest.Beside(t)
	p := testPair(9)
	must(t, l.k.CreatePair(t.Context(), l.open(ns), &p))
	link, found, err := l.k.Link(t.Context(), p.Name)
	if err != nil || !found {
		t.Fatalf("link %v, error %v", found, err)
	}
	want := PodLink{Name: p.Name, Index: p.Index, MAC: p.HostMAC, MTU: testMTU, Group: Group}
	if link != want {
		t.Errorf("link %+v, want %+v", link, want)
	}
	for _, want := range []string{"mtu 1400", "02:00:00:00:02:09", "state DOWN"} {
		if out := ns.Run("ip link show eth0"); !strings.Contains(out, want) {
			t.Errorf("pod end without %q: %s", want, out)
		}
	}
}

func TestNetnsCreatePair_exists(t *testing.T) {
	l := newLab(t)
	a := l.attach(1, "10.20.0.10")
	same := testPair(2)
	wantError(t, l.k.CreatePair(t.Context(), a.pod, &same), ErrLinkExists) // eth0 is in the pod
	other := nstest.Beside(t)
	same = testPair(1)
	wantError(t, l.k.CreatePair(t.Context(), l.open(other), &same), ErrLinkExists) // the host link is on the node
	if out := other.Run("ip -o link"); strings.Count(out, "\n") != 1 {
		t.Errorf("left in the pod: %s", out)
	}
	has, err := a.pod.HasLink("eth0")
	if err != nil || !has {
		t.Errorf("HasLink %v, %v", has, err)
	}
	if has, err := a.pod.HasLink("eth1"); err != nil || has {
		t.Errorf("HasLink %v, %v", has, err)
	}
}

func TestNetnsOpenPod_refuses(t *testing.T) {
	l := newLab(t)
	dir := t.TempDir()
	file, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "fifo")
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, unix.Mkfifo(fifo, 0o600))
	tests := []struct {
		name, path string
		want       error
	}{
		{"file", file, ErrNotNetns},
		{"fifo", fifo, ErrNotNetns},
		{"directory", dir, ErrNotNetns},
		{"other kind of namespace", "/proc/self/ns/uts", ErrNotNetns},
		{"missing", filepath.Join(dir, "no"), fs.ErrNotExist},
		{"own", l.node.Path(), ErrOwnNetns},
		{"own by another path", "/proc/thread-self/ns/net", ErrOwnNetns},
	}
	for _, tt := range tests {
		if _, err := l.k.OpenPod(tt.path); err == nil {
			t.Errorf("%s: no error", tt.name)
		} else {
			wantError(t, err, tt.want)
		}
	}
}

func TestNetnsConfigure_state(t *testing.T) {
	l := newLab(t)
	ns := nstest.Beside(t)
	sysctl(t, ns, "ipv4/conf/all/arp_ignore", "8")
	sysctl(t, ns, "ipv4/conf/default/arp_ignore", "2")
	pod, p := l.open(ns), testPair(1)
	must(t, l.k.CreatePair(t.Context(), pod, &p))
	must(t, pod.Configure(t.Context(), "eth0", nodeAddr, p.HostMAC))
	must(t, l.k.HostEndUp(t.Context(), p.Name, p.Index))
	must(t, pod.AwaitRunning(t.Context(), "eth0"))
	for key, want := range map[string]string{
		"ipv4/conf/all/arp_ignore": "0", "ipv4/conf/eth0/arp_ignore": "0", "ipv6/conf/eth0/disable_ipv6": "1", "ipv6/conf/lo/disable_ipv6": "0",
	} {
		if got := read(t, ns, key); got != want {
			t.Errorf("pod %s = %s, want %s", key, got, want)
		}
	}
	for key, want := range map[string]string{
		"ipv4/conf/%/forwarding": "1", "ipv4/conf/%/rp_filter": "1", "ipv6/conf/%/disable_ipv6": "1",
		"ipv6/conf/%/accept_ra": "0", "ipv6/conf/%/addr_gen_mode": "1",
	} {
		key = strings.Replace(key, "%", p.Name, 1)
		if got := read(t, l.node, key); got != want {
			t.Errorf("node %s = %s, want %s", key, got, want)
		}
	}
	golden(t, "pod", ns.Run("ip -br addr"), ns.Run("ip route"), ns.Run("ip neigh"))
	if out := l.node.Run("ip addr show dev " + p.Name); strings.Contains(out, "inet") {
		t.Errorf("host end has an address: %s", out)
	}
}

func TestNetnsRepairHostEnd(t *testing.T) {
	l := newLab(t)
	must(t, l.k.ApplySysctls(t.Context(), []string{"eth0"}))
	p := l.attach(1, freeAddr)
	l.node.Run("ip link set " + p.pair.Name + " address 02:aa:bb:cc:dd:ee")
	l.node.Run("ip link set " + p.pair.Name + " down")
	sysctl(t, l.node, "ipv4/conf/"+p.pair.Name+"/forwarding", "0")
	link, _, err := l.k.Link(t.Context(), p.pair.Name)
	must(t, err)
	must(t, l.k.RepairHostEnd(t.Context(), link, p.pair.HostMAC))
	must(t, l.k.AddPodRoute(t.Context(), p.addr, link.Index)) // went with the link
	wantFindings(t, p.pod.Check(t.Context(), p.podWant()))
	wantFindings(t, l.k.CheckHost(t.Context(), p.hostWant()))
	echo(t, p.NS, freeAddr+":7")
	wantSource(t, l.node, freeAddr+":7", nodeAddr.String())
}

// A sysctl of a pod is set on a thread that dies: no other goroutine may ever find itself in the pod.
func TestNetnsNamespace_threadsStayClean(t *testing.T) {
	l := newLab(t)
	pod := l.open(nstest.Beside(t))
	for range 20 {
		must(t, pod.space.do(func() error { return nil }))
	}
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			var st unix.Stat_t
			if err := unix.Stat(ownNetns, &st); err != nil || st.Ino == pod.Inode() {
				t.Errorf("in the pod's namespace, error %v", err)
			}
		})
	}
	wg.Wait()
}

func TestNetnsPodCheck(t *testing.T) {
	tests := []struct {
		name, break1 string
		want         []string
	}{
		{"healthy", "true", nil},
		{"down", "ip link set eth0 down", []string{"is down", "route to 169.254.1.1", "default route", "permanent neighbour"}},
		{"gone", "ip link del eth0", []string{"eth0 is missing"}},
		{"address", "ip addr del 10.20.0.10/32 dev eth0", []string{"address 10.20.0.10/32 is missing", "route to 169.254.1.1", "default route", "permanent neighbour"}},
		{"default", "ip route del default", []string{"default route via 169.254.1.1 dev eth0 is missing"}},
		{"neighbour", "ip neigh del 169.254.1.1 dev eth0", []string{"permanent neighbour 169.254.1.1"}},
		{"neighbour's MAC", "ip neigh replace 169.254.1.1 dev eth0 lladdr 02:aa:bb:cc:dd:ee", []string{"has MAC 02:aa:bb:cc:dd:ee, but the host end has 02:00:00:00:01:01"}},
		{"MTU", "ip link set eth0 mtu 1450", []string{"MTU 1450, more than 1400"}},
		{"a smaller MTU", "ip link set eth0 mtu 1300", nil},
		{"routes moved by sbr", "ip route add default via 169.254.1.1 dev eth0 table 100; ip route add 169.254.1.1 dev eth0 table 100; ip route flush table main", nil},
		{"MAC", "ip link set eth0 address 02:aa:bb:cc:dd:ee", []string{"MAC 02:aa:bb:cc:dd:ee", "permanent neighbour"}},
		{"more than ours", "ip addr add 192.168.9.9/24 dev eth0", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newLab(t).attach(1, "10.20.0.10")
			for line := range strings.SplitSeq(tt.break1, "; ") {
				p.Run(line)
			}
			wantFindings(t, p.pod.Check(t.Context(), p.podWant()), tt.want...)
		})
	}
}

func TestNetnsCheckHost(t *testing.T) {
	tests := []struct {
		name, break1 string
		want         []string
	}{
		{"healthy", "true", nil},
		{"gone", "ip link del veth00000000001", []string{"host link veth00000000001 is missing"}},
		{"down", "ip link set veth00000000001 down", []string{"is down", "route 10.20.0.10/32 dev veth00000000001 is missing"}},
		{"group", "ip link set veth00000000001 group 0", []string{"somebody else"}},
		{"alias", "ip link set veth00000000001 alias x", []string{"wrong alias"}},
		{"MAC", "ip link set veth00000000001 address 02:aa:bb:cc:dd:ee", []string{"MAC 02:aa:bb:cc:dd:ee instead of 02:00:00:00:01:01"}},
		{"no route", "ip route del 10.20.0.10/32", []string{"route 10.20.0.10/32 dev veth00000000001 is missing"}},
		{"other route", "ip route replace 10.20.0.10/32 dev eth0", []string{"leads to stale (route to a NIC, dev eth0)"}},
		{"address on the host end", "ip addr add 169.254.1.1/32 dev veth00000000001", []string{"169.254.1.1/32 and should have none"}},
		{"address on a NIC", "ip addr add 10.20.0.10/16 dev eth0", []string{"on-host-link: 10.20.0.10 is an address of eth0"}},
		{"ip_forward", "sysctl -qw net.ipv4.ip_forward=0", []string{"ip_forward is 0", "eth0/forwarding", "veth00000000001/forwarding"}},
		{"forwarding on the NIC", "sysctl -qw net.ipv4.conf.eth0.forwarding=0", []string{"net/ipv4/conf/eth0/forwarding is 0"}},
		{"rp_filter", "sysctl -qw net.ipv4.conf.veth00000000001.rp_filter=0", []string{"rp_filter is 0"}},
		{"ARP", "ip link set veth00000000001 arp off", []string{"has ARP off"}},
		{
			"neighbour", "ip neigh replace 10.20.0.10 lladdr 02:00:00:00:00:99 dev veth00000000001 nud permanent",
			[]string{"permanent neighbour 10.20.0.10 with MAC 02:00:00:00:00:99 instead of 02:00:00:00:02:01"},
		},
		{"neighbour that is right", "ip neigh replace 10.20.0.10 lladdr 02:00:00:00:02:01 dev veth00000000001 nud permanent", nil},
		{"IPv6 off, as earlier versions made it", "sysctl -qw net.ipv6.conf.veth00000000001.accept_ra=1 net.ipv6.conf.veth00000000001.addr_gen_mode=0", nil},
		{
			"IPv6", "sysctl -qw net.ipv6.conf.veth00000000001.disable_ipv6=0 net.ipv6.conf.veth00000000001.accept_ra=2",
			[]string{"disable_ipv6 is 0 instead of 1", "accept_ra is 2 instead of 0"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			must(t, l.k.ApplySysctls(t.Context(), []string{"eth0"}))
			p := l.attach(1, "10.20.0.10")
			sysctl(t, l.node, "ipv4/conf/all/rp_filter", "0")
			l.node.Run(tt.break1)
			wantFindings(t, l.k.CheckHost(t.Context(), p.hostWant()), tt.want...)
		})
	}
}

func TestNetnsCheckHost_policy(t *testing.T) {
	l := newLab(t)
	must(t, l.k.ApplySysctls(t.Context(), []string{"eth0"}))
	want := l.attach(1, "10.20.0.10").hostWant()
	want.PolicyHash = "abc"
	wantFindings(t, l.k.CheckHost(t.Context(), want), "table ip native_vmss is missing")
}

func TestNetnsCheckHost_written(t *testing.T) {
	tests := []struct {
		name, damage string
		want         []string
	}{
		{"all stands", "ip rule", nil},
		{"chain emptied", "nft flush chain ip native_vmss prerouting", []string{
			`chain prerouting lacks a rule "spoofed source"`, `chain prerouting lacks a rule "loopback of the node"`,
			`chain prerouting lacks a rule "no source"`,
		}},
		{"dormant", "nft add table ip native_vmss { flags dormant ; }", []string{"table ip native_vmss is dormant"}},
		{"policy of a chain", "nft chain ip native_vmss forward { policy drop ; }", []string{"policy of chain forward is drop"}},
		{"set emptied", "nft flush set ip native_vmss nics", []string{"set nics has not the elements"}},
		{"element gone", "nft delete element ip native_vmss native { 10.0.0.0/8 }", []string{"set native has not the elements"}},
		{"element too many", "nft add element ip native_vmss native { 203.0.113.0/24 }", []string{"set native has not the elements"}},
		{"rules of the same words are counted", "nft flush chain ip native_vmss forward", []string{
			`"a node is no router"`, `"a node is no router"`, `"wireserver"`, `"metadata service"`,
		}},
		{"rule gone", "ip rule del pref 599", []string{`policy rule "599: nop" is missing`}},
		{"route gone", "ip route flush table 28201", []string{`table 28201" is missing`}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			must(t, l.k.ApplySysctls(t.Context(), []string{"eth0"}))
			must(t, l.k.ApplyPolicy(t.Context(), testPolicy()))
			must(t, l.k.ApplyRules(t.Context(), testRuleNICs(l), RemotePodsPods))
			want := l.attach(1, "10.20.0.10").hostWant()
			want.Node = &NodeWant{Policy: testPolicy(), NICs: testRuleNICs(l), RemotePods: RemotePodsPods}
			l.node.Run(tt.damage)
			wantFindings(t, l.k.CheckHost(t.Context(), want), tt.want...)
		})
	}
}
