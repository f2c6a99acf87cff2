package lab_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// leftovers: a command that leaves one object behind, and what the comparer must call it. noPrograms is what it is called
// without foreign programs, "-" where that variant doesn't look.
var leftovers = []struct {
	kind, script, want, noPrograms string
}{
	{"link", "ip link add left0 type ifb", `link left behind: .*"ifname":"left0"`, "link left behind: ifb left0"},
	{"alias", "ip link set eth0 alias changed", `link left behind: .*"ifalias":"changed"`, `alias "changed"`},
	{"link down", "ip link set lo down", `link missing: .*"lo"`, "link missing: device lo"},
	{"addr", "ip addr add 192.0.2.7/32 dev eth0", `addr left behind: .*192.0.2.7`, "addr left behind: 192.0.2.7/32"},
	{"route", "ip route add 192.0.2.0/24 dev eth0 proto 217", `route left behind: .*192.0.2.0/24`, "route left behind: 192.0.2.0/24"},
	{"route in a table", "ip route add unreachable 10.20.0.10/32 table 28299", `route left behind: .*28299`, "table 28299"},
	{"missing route", "ip route del default", `route missing: .*"dst":"default"`, "route missing: default"},
	{"rule", "ip rule add pref 500 to 10.20.0.0/24 lookup main suppress_prefixlength 24", `rule left behind: .*500`, "rule left behind"},
	{"IPv6 rule", "ip -6 rule add pref 501 lookup main", `rule left behind: .*501`, "rule left behind: family 10"},
	{"neighbour", "ip neigh add 192.0.2.9 lladdr 02:00:00:00:00:01 dev eth0", `neigh left behind: .*192.0.2.9`, "neigh left behind: 192.0.2.9"},
	{"neighbour of the pool", "ip neigh add 10.20.0.11 lladdr 02:00:00:00:00:01 dev eth0 nud stale", `neigh left behind: .*10.20.0.11`, "neigh left behind: 10.20.0.11"},
	{"nft table", "nft add table ip left", `nft left behind: .*"table".*left`, "nft left behind: table 2 left"},
	{"nft rule", "nft add table inet base; nft add chain inet base c; nft add rule inet base c counter accept", `nft left behind: .*"rule"`, "c: 1 rules"},
	{"nft element", "nft 'add table ip s; add set ip s m { type ipv4_addr; }; add element ip s m { 10.20.0.10 }'", `nft left behind: .*"set".*10.20.0.10`, "0a14000a"},
	{"nft counter", "nft 'add table ip k; add counter ip k left'", `nft left behind: .*"counter".*left`, "counter 2 k left"},
	{"iptables chain", "iptables -N LEFT", `iptables left behind: .*:LEFT`, "-"},
	{"iptables rule", "iptables -A FORWARD -s 10.20.0.10 -j ACCEPT", `iptables left behind: .*10.20.0.10`, "-"},
	{
		"conntrack", "conntrack -I -s 10.20.0.12 -d 192.0.2.1 -p tcp --sport 1000 --dport 80 --state SYN_SENT -t 60",
		`conntrack left behind: tcp src=10.20.0.12`, "conntrack left behind: proto 6 10.20.0.12:1000",
	},
	{"sysctl", "echo 1 >/proc/sys/net/ipv4/conf/eth0/proxy_arp", `sysctl left behind: eth0/proxy_arp = 1`, "sysctl left behind: eth0/proxy_arp = 1"},
	{"file", "mkdir -p /run/native-vmss; touch /run/native-vmss/left", `file left behind: .*/run/native-vmss/left`, "file left behind"},
	{"file of the cache", "mkdir -p /var/lib/cni/results; touch /var/lib/cni/results/x", `file left behind: .*/var/lib/cni/results/x`, "file left behind"},
	{"mode", "chmod 711 /var/lib/cni", `file missing: .*rwxr-xr-x`, "file left behind"},
	{"owner", "chown 7:7 /var/lib/cni", `file left behind: .*7:7 /var/lib/cni`, "7:7 /var/lib/cni"},
}

func TestNetnsSnapshot_names_what_is_left(t *testing.T) {
	s := lab.NewSimple(t, lab.SimpleOptions{})
	o := lab.SnapshotOptions{Pool: s.NICs[0].Addrs[1:]}
	before, netBefore := mustSnapshots(t, s, o)
	for _, tt := range leftovers {
		t.Run(tt.kind, func(t *testing.T) {
			if out, err := s.Node.Command(context.Background(), "sh", "-c", tt.script).CombinedOutput(); err != nil {
				t.Fatalf("%s: %v: %s", tt.script, err, out)
			}
			after, netAfter := mustSnapshots(t, s, o)
			mustName(t, before.Diff(after), tt.want)
			if tt.noPrograms != "-" {
				mustName(t, netBefore.Diff(netAfter), tt.noPrograms)
			}
			before, netBefore = after, netAfter
		})
	}
}

// mustSnapshots takes both variants, the programs first: they leave nothing themselves.
func mustSnapshots(t *testing.T, s *lab.Simple, o lab.SnapshotOptions) (programs, netlink lab.Snapshot) {
	t.Helper()
	programs, err := s.Node.Snapshot(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	o.NoPrograms = true
	if netlink, err = s.Node.Snapshot(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	return programs, netlink
}

// mustName wants a line that has the parts of want, which ".*" separates, in their order.
func mustName(t *testing.T, lines []string, want string) {
	t.Helper()
	for _, l := range lines {
		found := true
		for part := range strings.SplitSeq(want, ".*") {
			_, rest, ok := strings.Cut(l, part)
			if found = found && ok; !found {
				break
			}
			l = rest
		}
		if found {
			return
		}
	}
	t.Errorf("no line %q in:\n%s", want, strings.Join(lines, "\n"))
}

func TestNetnsSnapshot_ignores_what_changes_by_itself(t *testing.T) {
	ctx := context.Background()
	s := lab.NewSimple(t, lab.SimpleOptions{})
	script := `nft 'add table ip t; add counter ip t k; add chain ip t c { type filter hook output priority 0; };
		add rule ip t c counter counter name k accept'; iptables -P FORWARD ACCEPT`
	if out, err := s.Node.Command(ctx, "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	o := lab.SnapshotOptions{Pool: s.NICs[0].Addrs[1:]}
	before, netBefore := mustSnapshots(t, s, o)
	if r, err := s.Node.Ping(ctx, lab.SimpleInternet, lab.PingOptions{Count: 3}); err != nil || r.Lost() > 0 {
		t.Fatal(r, err)
	}
	if _, err := s.Node.Connect(ctx, netip.AddrPortFrom(lab.SimpleGateway, 1), 1e9); err != nil {
		t.Fatal(err)
	}
	// The same link again: another index. The same rule again: another handle.
	script = `ip link add gone0 type ifb; ip link del gone0; ip link add v0 type veth peer name v1; ip link del v0; nft add table ip x; nft delete table ip x`
	if out, err := s.Node.Command(ctx, "sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	after, netAfter := mustSnapshots(t, s, o)
	if d := before.Diff(after); len(d) > 0 {
		t.Errorf("programs:\n%s", strings.Join(d, "\n"))
	}
	if d := netBefore.Diff(netAfter); len(d) > 0 {
		t.Errorf("netlink:\n%s", strings.Join(d, "\n"))
	}
}
