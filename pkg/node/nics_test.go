package node

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/metadata"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// mac numbers MACs of one vendor.
func mac(n byte) [6]byte { return [6]byte{0x00, 0x0d, 0x3a, 0, 0, n} }

func addrs(list ...string) []netip.Addr {
	out := make([]netip.Addr, 0, len(list))
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

// docNIC is a NIC of a document: its subnet is a /24, the primary's.
func docNIC(m byte, list ...string) metadata.NIC {
	n := metadata.NIC{MAC: mac(m), V4: addrs(list...)}
	if len(n.V4) > 0 {
		n.Subnets = []netip.Prefix{netip.PrefixFrom(n.V4[0], 24).Masked()}
	}
	return n
}

// link is a link of the node with addresses: "10.20.0.4/24", or with "+" in front as DHCP gave it.
func link(m byte, name string, index int, list ...string) routes.NIC {
	l := routes.NIC{Name: name, Index: index, MAC: mac(m), Up: true}
	for _, s := range list {
		bare := strings.TrimPrefix(s, "+")
		l.Addrs = append(l.Addrs, routes.NICAddr{Prefix: netip.MustParsePrefix(bare), Dynamic: bare != s})
	}
	return l
}

func withDefault(l routes.NIC, gateway string, metric int, prefSrc string) routes.NIC {
	d := routes.DefaultRoute{Metric: metric}
	if gateway != "" {
		d.Gateway = netip.MustParseAddr(gateway)
	}
	if prefSrc != "" {
		d.PrefSrc = netip.MustParseAddr(prefSrc)
	}
	l.Defaults = append(l.Defaults, d)
	return l
}

func document(nics ...metadata.NIC) metadata.Document { return metadata.Document{NICs: nics} }

var four = docNIC(4, "10.20.0.4", "10.20.0.10", "10.20.0.11")

// How the primary address of one NIC is found, or why it isn't.
var primaryTests = []struct {
	name    string
	nic     metadata.NIC
	links   []routes.NIC
	primary string // "" for an error
	problem string
}{
	{"the DHCP lease", four, []routes.NIC{link(4, "eth0", 2, "+10.20.0.4/24")}, "10.20.0.4", ""},
	{
		"the DHCP lease behind what cloud-init added", four,
		[]routes.NIC{link(4, "eth0", 2, "10.20.0.10/24", "10.20.0.11/24", "+10.20.0.4/24")},
		"10.20.0.4", "",
	},
	{
		"the DHCP lease before prefsrc", four,
		[]routes.NIC{withDefault(link(4, "eth0", 2, "+10.20.0.4/24", "10.20.0.10/24"), "10.20.0.1", 100, "10.20.0.10")},
		"10.20.0.4", "",
	},
	{
		"prefsrc of the default route", four,
		[]routes.NIC{withDefault(link(4, "eth0", 2, "10.20.0.10/24", "10.20.0.4/24"), "10.20.0.1", 0, "10.20.0.4")},
		"10.20.0.4", "",
	},
	{"the only address", four, []routes.NIC{link(4, "eth0", 2, "10.20.0.4/24")}, "10.20.0.4", ""},
	{
		"two leases", four,
		[]routes.NIC{link(4, "eth0", 2, "+10.20.0.4/24", "+10.20.0.10/24")},
		"",
		"links: eth0: 10.20.0.4 dynamic, 10.20.0.10 dynamic; metadata: [10.20.0.4 10.20.0.10 10.20.0.11]",
	},
	{
		"two static addresses, no prefsrc", four,
		[]routes.NIC{withDefault(link(4, "eth0", 2, "10.20.0.4/24", "10.20.0.10/24"), "10.20.0.1", 0, "")},
		"",
		"eth0: 10.20.0.4 static, 10.20.0.10 static",
	},
	{"a link that is down", four, []routes.NIC{down(link(4, "eth0", 2, "+10.20.0.4/24"))}, "", "eth0): its link is down"},
	{"no address", four, []routes.NIC{link(4, "eth0", 2)}, "", "eth0: no address"},
	{"an address that metadata doesn't list", four, []routes.NIC{link(4, "eth0", 2, "+10.20.0.5/24")}, "", "10.20.0.5 dynamic"},
	{
		"a document without the primary", docNIC(4, "10.20.0.10", "10.20.0.11"),
		[]routes.NIC{link(4, "eth0", 2, "+10.20.0.4/24")},
		"", "metadata: [10.20.0.10 10.20.0.11]",
	},
	{"a document without addresses", docNIC(4), []routes.NIC{link(4, "eth0", 2, "+10.20.0.4/24")}, "", "metadata: []"},
	{"no link", four, []routes.NIC{link(5, "eth0", 2, "+10.20.0.4/24")}, "", "NIC 00:0d:3a:00:00:04: no link here has this MAC"},
	{
		"a twin without an address", four,
		[]routes.NIC{link(4, "enP1", 3), link(4, "eth0", 2, "+10.20.0.4/24")},
		"10.20.0.4", "",
	},
	{
		"a twin with an address of others", four,
		[]routes.NIC{link(4, "eth0", 2, "+10.20.0.4/24"), link(4, "mv0", 9, "192.168.7.1/24")},
		"10.20.0.4", "",
	},
	{
		"twins that both have it", four,
		[]routes.NIC{link(4, "eth0", 2, "+10.20.0.4/24"), link(4, "mv0", 9, "10.20.0.4/24")},
		"", "2 links with this MAC hold one each",
	},
}

func TestMatch_primary(t *testing.T) {
	for _, tt := range primaryTests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := match(document(tt.nic), tt.links, nil)
			if tt.primary == "" {
				if !errors.Is(err, metadata.ErrIncomplete) || !strings.Contains(err.Error(), tt.problem) {
					t.Errorf("error %v, want %q", err, tt.problem)
				}
				if len(m.snapshot.Skipped) != 1 {
					t.Errorf("Skipped = %v", m.snapshot.Skipped)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := []allocator.NIC{{
				MAC: mac(4), Link: "eth0", Primary: netip.MustParseAddr(tt.primary),
				Subnets: prefixes("10.20.0.0/24"), Addrs: addrs("10.20.0.10", "10.20.0.11"),
			}}
			got := slices.Clone(m.snapshot.NICs)
			got[0].OnLink = nil // TestMatch_onLink's
			if diff := cmp.Diff(want, got, compareConf); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestMatch_onLink(t *testing.T) {
	doc := document(docNIC(4, "10.20.0.4", "10.20.0.11", "10.20.0.10", "10.20.0.12"), docNIC(5, "10.20.1.4", "10.20.1.10"))
	clean := []routes.NIC{link(4, "eth0", 2, "+10.20.0.4/24"), link(5, "eth1", 3, "+10.20.1.4/24")}
	squat := []routes.NIC{ // .11 where it belongs, .10 on another link, .10 of the other NIC on the first
		link(4, "eth0", 2, "+10.20.0.4/24", "10.20.0.11/24", "10.20.1.10/32"), link(5, "eth1", 3, "+10.20.1.4/24", "10.20.0.10/32"),
	}
	a, err := match(doc, clean, nil)
	if err != nil {
		t.Fatal(err)
	}
	b, err := match(doc, squat, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(a.snapshot.NICs[0].OnLink)+len(a.snapshot.NICs[1].OnLink) != 0 {
		t.Errorf("clean links: OnLink = %v", a.snapshot.NICs)
	}
	if diff := cmp.Diff(addrs("10.20.0.10", "10.20.0.11"), b.snapshot.NICs[0].OnLink, compareConf); diff != "" {
		t.Errorf("OnLink (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff(addrs("10.20.1.10"), b.snapshot.NICs[1].OnLink, compareConf); diff != "" {
		t.Errorf("OnLink (-want +got)\n%s", diff)
	}
	if a.snapshot.Digest == b.snapshot.Digest {
		t.Error("the digest is the same with and without addresses on links")
	}
	if diff := cmp.Diff(addrs("10.20.0.10", "10.20.0.11", "10.20.0.12"), b.snapshot.NICs[0].Addrs, compareConf); diff != "" {
		t.Errorf("Addrs (-want +got)\n%s", diff)
	}
}

// BR-13: neither the document's order of NICs and addresses nor the kernel's of links means anything. What depended on it
// would renumber the routing tables of running pods.
func TestMatch_anyOrder(t *testing.T) {
	one, two := docNIC(4, "10.20.0.4", "10.20.0.10", "10.20.0.11"), docNIC(5, "10.20.1.4", "10.20.1.50")
	oneTurned := one
	oneTurned.V4 = addrs("10.20.0.11", "10.20.0.10", "10.20.0.4")
	links := []routes.NIC{
		withDefault(link(4, "eth0", 2, "+10.20.0.4/24"), "10.20.0.1", 100, ""),
		withDefault(link(5, "eth1", 3, "+10.20.1.4/24"), "10.20.1.1", 200, ""),
	}
	turned := []routes.NIC{links[1], links[0]}
	want, err := match(document(one, two), links, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, doc := range map[string]metadata.Document{"NICs": document(two, one), "addresses": document(oneTurned, two)} {
		for _, l := range [][]routes.NIC{links, turned} {
			got, err := match(doc, l, nil)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want.snapshot, got.snapshot, compareConf); diff != "" {
				t.Errorf("%s turned: snapshot (-want +got)\n%s", name, diff)
			}
			if diff := cmp.Diff(want.facts, got.facts, compareConf); diff != "" {
				t.Errorf("%s turned: facts (-want +got)\n%s", name, diff)
			}
		}
	}
	wantFacts := []nicFact{
		{
			MAC: "00:0d:3a:00:00:04", Link: "eth0", Index: 2, Primary: netip.MustParseAddr("10.20.0.4"),
			Subnets: prefixes("10.20.0.0/24"), Gateway: netip.MustParseAddr("10.20.0.1"), Default: true,
		},
		{
			MAC: "00:0d:3a:00:00:05", Link: "eth1", Index: 3, Primary: netip.MustParseAddr("10.20.1.4"),
			Subnets: prefixes("10.20.1.0/24"), Gateway: netip.MustParseAddr("10.20.1.1"),
		},
	}
	if diff := cmp.Diff(wantFacts, want.facts, compareConf); diff != "" {
		t.Errorf("facts (-want +got)\n%s", diff)
	}
}

// The healthy NIC is used, the others are skipped and named; the problems that the document came with stay.
func TestMatch_oneUsable(t *testing.T) {
	doc := document(docNIC(6, "10.20.2.4"), docNIC(5, "10.20.1.50"), docNIC(4, "10.20.0.4", "10.20.0.10"))
	doc.Problems = []string{"interface[3]: is null"}
	doc.NICs[2].Problems = []string{"ipv4.subnet[0]: odd"}
	m, err := match(doc, []routes.NIC{link(4, "eth0", 2, "+10.20.0.4/24"), link(5, "eth1", 3, "+10.20.1.4/24")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.snapshot.NICs) != 1 || m.snapshot.NICs[0].MAC != mac(4) {
		t.Errorf("NICs = %+v", m.snapshot.NICs)
	}
	if diff := cmp.Diff([]allocator.MAC{mac(5), mac(6)}, m.snapshot.Skipped); diff != "" {
		t.Errorf("Skipped (-want +got)\n%s", diff)
	}
	text := errors.Join(m.problems...).Error()
	for _, want := range []string{
		"interface[3]: is null", "NIC 00:0d:3a:00:00:04: ipv4.subnet[0]: odd", "NIC 00:0d:3a:00:00:06: no link",
		"NIC 00:0d:3a:00:00:05: primary address not known",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("problems lack %q:\n%s", want, text)
		}
	}
}

// Two NICs in one subnet: one of them is skipped, in words that name both. The one that pods use stays, else the primary one.
func TestMatch_oneSubnet(t *testing.T) {
	doc := document(docNIC(4, "10.20.0.4", "10.20.0.10"), docNIC(5, "10.20.0.5", "10.20.0.50"))
	eth0, eth1 := link(4, "eth0", 2, "+10.20.0.4/24"), link(5, "eth1", 3, "+10.20.0.5/24")
	tests := []struct {
		name   string
		links  []routes.NIC
		before []nicFact
		want   string
	}{
		{"the primary NIC stays", []routes.NIC{eth0, withDefault(eth1, "10.20.0.1", 100, "")}, nil, "eth1"},
		{"without one the first", []routes.NIC{eth0, eth1}, nil, "eth0"},
		{
			"the one in use stays",
			[]routes.NIC{eth0, withDefault(eth1, "10.20.0.1", 100, "")},
			[]nicFact{{MAC: allocator.MAC(mac(4)).String()}},
			"eth0",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := match(doc, tt.links, tt.before)
			if err != nil || len(m.facts) != 1 || m.facts[0].Link != tt.want || len(m.snapshot.NICs) != 1 {
				t.Fatalf("facts %+v, %v", m.facts, err)
			}
			if len(m.snapshot.Skipped) != 1 || len(m.skipped) != 1 {
				t.Fatalf("skipped %v: %v", m.snapshot.Skipped, m.skipped)
			}
			for _, word := range []string{"00:0d:3a:00:00:04", "eth0", "00:0d:3a:00:00:05", "eth1", "10.20.0.0/24"} {
				if !strings.Contains(m.skipped[0].Error(), word) {
					t.Errorf("%v does not name %s", m.skipped[0], word)
				}
			}
		})
	}
}

func TestMatch_nothing(t *testing.T) {
	if _, err := match(metadata.Document{}, nil, nil); !errors.Is(err, metadata.ErrIncomplete) {
		t.Errorf("match = %v", err)
	}
	six := metadata.NIC{MAC: mac(4), V6: addrs("fd00::4", "fd00::10")}
	if _, err := match(document(six), []routes.NIC{link(4, "eth0", 2)}, nil); !errors.Is(err, metadata.ErrIncomplete) ||
		!strings.Contains(err.Error(), "IPv6 addresses only") {
		t.Errorf("IPv6 only: match = %v", err)
	}
}

// A document that lists the gateway or a platform address among a NIC's own: a pod with it would cut off the node.
func TestMatch_notForPods(t *testing.T) {
	nic := docNIC(4, "10.20.0.4", "10.20.0.1", "10.20.0.10", "168.63.129.16", "169.254.169.254", "169.254.1.1")
	m, err := match(document(nic), []routes.NIC{link(4, "eth0", 2, "+10.20.0.4/24")}, nil)
	if err != nil || !slices.Equal(m.snapshot.NICs[0].Addrs, addrs("10.20.0.10")) || len(m.problems) != 4 {
		t.Errorf("addresses %v, problems %v, %v", m.snapshot.NICs[0].Addrs, m.problems, err)
	}
}

func TestMatch_subnetsAndGateway(t *testing.T) {
	bare := docNIC(4, "10.20.0.4", "10.20.0.10")
	bare.Subnets = nil
	other := docNIC(4, "10.20.0.4", "10.20.0.10")
	other.Subnets = prefixes("10.20.0.0/24", "10.30.0.0/24")
	tests := []struct {
		name    string
		nic     metadata.NIC
		link    routes.NIC
		subnets []netip.Prefix
		gateway string
	}{
		{"subnet from the link alone", bare, link(4, "eth0", 2, "+10.20.0.4/22"), prefixes("10.20.0.0/22"), "10.20.0.1"},
		{"a /32 on the link says nothing", other, link(4, "eth0", 2, "+10.20.0.4/32"), prefixes("10.20.0.0/24", "10.30.0.0/24"), "10.20.0.1"},
		{"the link's first", other, link(4, "eth0", 2, "+10.20.0.4/22"), prefixes("10.20.0.0/22", "10.20.0.0/24", "10.30.0.0/24"), "10.20.0.1"},
		{"gateway of the route", other, withDefault(link(4, "eth0", 2, "+10.20.0.4/24"), "10.20.0.9", 5, ""), other.Subnets, "10.20.0.9"},
		{"a route without gateway", other, withDefault(link(4, "eth0", 2, "+10.20.0.4/24"), "", 5, ""), other.Subnets, "10.20.0.1"},
		{"nothing known", bare, link(4, "eth0", 2, "+10.20.0.4/32"), nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := match(document(tt.nic), []routes.NIC{tt.link}, nil)
			if err != nil {
				t.Fatal(err)
			}
			gateway := netip.Addr{}
			if tt.gateway != "" {
				gateway = netip.MustParseAddr(tt.gateway)
			}
			if diff := cmp.Diff(tt.subnets, m.facts[0].Subnets, compareConf); diff != "" || m.facts[0].Gateway != gateway {
				t.Errorf("gateway %s, subnets (-want +got)\n%s", m.facts[0].Gateway, diff)
			}
		})
	}
}

func down(l routes.NIC) routes.NIC {
	l.Up = false
	return l
}
