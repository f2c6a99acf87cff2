package accounting

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/nstest"
)

// flavours are the two kinds of iptables; a test that is for both runs once with each as the one in PATH.
var flavours = []string{"nft", "legacy"}

func forFlavours(t *testing.T, test func(t *testing.T, flavour string)) {
	t.Helper()
	for _, f := range flavours {
		t.Run(f, func(t *testing.T) {
			usePath(t, f)
			test(t, f)
		})
	}
}

// usePath makes a folder the PATH in which iptables is of one flavour and all else as it was; it returns the folder. The lock of the
// legacy flavour is the test's own.
func usePath(t testing.TB, flavour string) string {
	t.Helper()
	dir := t.TempDir()
	for _, verb := range []string{"", "-save", "-restore"} {
		real, err := exec.LookPath("iptables-" + flavour + verb)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(real, filepath.Join(dir, "iptables"+verb)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(dir, "lock"))
	return dir
}

// wrapper puts a shell script into a folder.
func wrapper(t *testing.T, dir, name, script string) {
	t.Helper()
	path := filepath.Join(dir, name)
	_ = os.Remove(path)
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}

func newIPTables(t testing.TB) Backend {
	t.Helper()
	b, err := NewIPTables(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, s := range texts {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// testConf has a class that lies inside of the next one.
func testConf() Config {
	return Config{
		Hash: "one", NICs: []string{"eth0"}, MarkMask: 0x0fff0000,
		Classes: []Class{
			{Name: "storage", Prefixes: prefixes("10.9.0.0/16")},
			{Name: Cluster, Prefixes: prefixes("10.0.0.0/8", "192.168.0.0/16")},
		},
	}
}

func pod(i int, name string) Subject {
	return Subject{Addr: netip.AddrFrom4([4]byte{10, 0, byte(i / 250), byte(i%250 + 1)}), Slot: uint16(i), Used: true, Namespace: "default", Pod: name}
}

func apply(t testing.TB, b Backend, conf Config, subjects ...Subject) (changed, doubted []string) {
	t.Helper()
	changed, doubted, err := b.Apply(t.Context(), conf, subjects)
	if err != nil {
		t.Fatal(err)
	}
	return changed, doubted
}

func start(t testing.TB, b Backend, conf Config, s Subject) []Sample {
	t.Helper()
	out, err := b.Start(t.Context(), conf, s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func read(t testing.TB, b Backend) Reading {
	t.Helper()
	r, err := b.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// bytesOf is one value of a list; -1 where it isn't there.
func bytesOf(samples []Sample, direction, class string) int {
	for _, s := range samples {
		if s.Direction == direction && s.Class == class {
			return int(s.Bytes)
		}
	}
	return -1
}

func wantBytes(t *testing.T, what string, samples []Sample, direction, class string, want int) {
	t.Helper()
	if got := bytesOf(samples, direction, class); got != want {
		t.Errorf("%s: %s %s: %d bytes, want %d", what, direction, class, got, want)
	}
}

// rules are the lines of the mangle table, as another program prints them.
func rules(t testing.TB, ns *nstest.NS, flavour string) []string {
	t.Helper()
	var out []string
	for _, line := range strings.Split(ns.Run("iptables-"+flavour+"-save -t mangle"), "\n") {
		if strings.HasPrefix(line, "-A ") {
			out = append(out, line)
		}
	}
	return out
}

func countOf(lines []string, part string) (n int) {
	for _, l := range lines {
		if strings.Contains(l, part) {
			n++
		}
	}
	return n
}

// restore gives a text to the tool as somebody else would.
func restore(t *testing.T, flavour, text string, flags ...string) {
	t.Helper()
	cmd := exec.Command("iptables-"+flavour+"-restore", flags...)
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, text)
	}
}

// lab is a node with two pods and somebody outside who has an address of each class.
//
//	pods 10.0.0.2, 10.0.0.3 - node 10.0.0.1 (links of group 28278), 10.1.0.1 on eth0 - outside 10.1.0.2, 10.9.0.2, 203.0.113.2
type lab struct {
	node, outside *nstest.NS
	pods          [2]*nstest.NS
	subjects      [2]Subject
}

const pings = 3

// pingBytes is what one ping of 100 bytes is in IP: 20 for IP, 8 for ICMP.
const pingBytes = 128

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{node: nstest.New(t), outside: nstest.Beside(t)}
	l.node.Run("ip link set lo up")
	l.node.Run("ip link add eth0 type veth peer name out0")
	l.node.Run("ip link set out0 netns " + l.outside.Path())
	l.node.Run("ip addr add 10.1.0.1/24 dev eth0")
	l.node.Run("ip link set eth0 up")
	l.node.Run("ip route add default via 10.1.0.2 dev eth0 onlink")
	for _, a := range []string{"10.1.0.2/24", "10.9.0.2/32", "203.0.113.2/32"} {
		l.outside.Run("ip addr add " + a + " dev out0")
	}
	l.outside.Run("ip link set out0 up")
	l.outside.Run("ip route add 10.0.0.0/24 via 10.1.0.1 dev out0")
	l.node.Run("sysctl -qw net.ipv4.ip_forward=1")
	for i := range l.pods {
		p := nstest.Beside(t)
		addr := pod(i+1, "").Addr
		l.pods[i] = p
		l.subjects[i] = pod(i+1, fmt.Sprintf("web-%d", i))
		link := fmt.Sprintf("pod%d", i)
		l.node.Run("ip link add " + link + " type veth peer name eth0 netns " + p.Path())
		l.node.Run("ip link set " + link + " group 28278 up")
		l.node.Run(fmt.Sprintf("ip addr add 10.0.0.1/32 dev %s", link))
		l.node.Run(fmt.Sprintf("ip route add %s/32 dev %s src 10.0.0.1", addr, link))
		p.Run(fmt.Sprintf("ip addr add %s/32 dev eth0", addr))
		p.Run("ip link set eth0 up")
		p.Run("ip route add default via 10.0.0.1 dev eth0 onlink")
		observe(p)
	}
	return l
}

// observe lets nftables in a pod's own namespace count what comes and goes.
func observe(ns *nstest.NS) {
	for _, line := range []string{
		"nft add table ip seen",
		"nft add chain ip seen in { type filter hook input priority 0 ; }",
		"nft add chain ip seen out { type filter hook output priority 0 ; }",
		"nft add rule ip seen in counter",
		"nft add rule ip seen out counter",
	} {
		ns.Run(line)
	}
}

// seen are the bytes that a pod got and sent, by its own count.
func seen(t *testing.T, ns *nstest.NS) (rx, tx int) {
	t.Helper()
	var n []int
	for _, f := range strings.Split(ns.Run("nft list table ip seen"), "bytes ")[1:] {
		var v int
		if _, err := fmt.Sscan(f, &v); err != nil {
			t.Fatal(err)
		}
		n = append(n, v)
	}
	if len(n) != 2 {
		t.Fatalf("the observer has %d counters", len(n))
	}
	return n[0], n[1]
}

func ping(from *nstest.NS, to string) {
	from.Run(fmt.Sprintf("ping -q -i 0.01 -W 5 -c %d -s 100 %s", pings, to))
}

func total(samples []Sample, direction string) (n int) {
	for _, s := range samples {
		if s.Direction == direction {
			n += int(s.Bytes)
		}
	}
	return n
}

func sameSamples(a, b []Sample) bool { return slices.Equal(a, b) }
