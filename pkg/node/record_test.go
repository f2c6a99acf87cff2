package node

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/nstest"
	"github.com/native-vmss/native-vmss/pkg/accounting"
	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// nodeWideChanges has one change per key. Its test fails when a field of Wide is in none of them.
var nodeWideChanges = []struct {
	key    string
	change func(*Wide)
}{
	{"nativeCIDRs", func(w *Wide) { w.NativeCIDRs = prefixes("10.0.0.0/8") }},
	{"masquerade", func(w *Wide) { w.Masquerade = false }},
	{"remotePods", func(w *Wide) { w.RemotePods = routes.RemotePodsOff }},
	{"markMask", func(w *Wide) { w.MarkMask = 1 }},
	{"metadataAccess.wireserver", func(w *Wide) { w.Wireserver = true }},
	{"metadataAccess.imds", func(w *Wide) { w.IMDS = true }},
	{"accounting.backend", func(w *Wide) { w.Accounting = "iptables" }},
	{"accounting.classes", func(w *Wide) { w.Classes = []accounting.Class{{Name: "hub", Prefixes: prefixes("10.1.0.0/16")}} }},
}

func TestNodeWide_differs(t *testing.T) {
	base := defaultConf().Wide
	if key, _, differ := base.differs(defaultConf().Wide); differ {
		t.Errorf("equal settings differ in %v", key)
	}
	if fields := reflect.TypeFor[Wide]().NumField(); fields != len(nodeWideChanges) {
		t.Errorf("Wide has %d fields, tested are %d", fields, len(nodeWideChanges))
	}
	for _, tt := range nodeWideChanges {
		other := defaultConf().Wide
		tt.change(&other)
		mine, others, differ := base.differs(other)
		if !differ || mine.name != tt.key || others.name != tt.key || mine.value == others.value {
			t.Errorf("differs = %v %v, want two values of %s", mine, others, tt.key)
		}
		turnedMine, turnedOthers, differ := other.differs(base)
		if !differ || turnedMine != others || turnedOthers != mine {
			t.Errorf("differs, turned = %v %v, want %v %v", turnedMine, turnedOthers, others, mine)
		}
	}
}

func TestRecord_hash(t *testing.T) {
	base := record{Network: "net1", Wide: defaultConf().Wide, NICs: []nicFact{{Link: "eth0", Index: 2}}}
	same := base
	same.Network, same.Applied, same.Gone = "net2", "x", map[string]time.Duration{"k": 1}
	if base.hash() != same.hash() {
		t.Error("the hash covers what no kernel object is made from")
	}
	for _, tt := range nodeWideChanges {
		other := base
		tt.change(&other.Wide)
		if other.hash() == base.hash() {
			t.Errorf("the hash misses %s", tt.key)
		}
	}
	other := base
	other.NICs = []nicFact{{Link: "eth0", Index: 3}}
	if other.hash() == base.hash() {
		t.Error("the hash misses the NICs")
	}
}

// testNode is a node with a store and no kernel.
func testNode(t *testing.T, conf Conf) *Node {
	t.Helper()
	conf.IPAM.StateDir = t.TempDir()
	now := time.Hour
	n := &Node{conf: conf, log: slog.New(slog.DiscardHandler)}
	n.store = allocator.Open(allocator.Options{
		Dir: conf.IPAM.StateDir, CoolDown: time.Second, LockTimeout: time.Second, BootID: "boot-1",
		Now:    func() time.Duration { now += time.Millisecond; return now },
		Kernel: func(context.Context) (allocator.Observed, error) { return allocator.Observed{}, nil },
	})
	return n
}

// netnsNode is a testNode in an empty network namespace.
func netnsNode(t *testing.T, conf Conf) *Node {
	t.Helper()
	nstest.New(t)
	n := testNode(t, conf)
	kernel, err := routes.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kernel.Close)
	n.kernel = kernel
	return n
}

// leaseFor gives an address to a pod of a network.
func leaseFor(t *testing.T, n *Node, network string) allocator.Lease {
	t.Helper()
	snapshot := allocator.Snapshot{NICs: []allocator.NIC{{
		MAC: mac(4), Link: "eth0", Primary: addrs("10.20.0.4")[0], Subnets: prefixes("10.20.0.0/24"), Addrs: addrs("10.20.0.10"),
	}}}
	if err := n.store.Sync(t.Context(), snapshot); err != nil {
		t.Fatal(err)
	}
	a := Attachment{Key: Key{network, "c1", "eth0"}}
	lease, err := n.store.Lease(t.Context(), allocator.Request{Owner: owner(a), LinkName: linkName("veth", a.Hash())})
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func TestNetnsNode_wanted(t *testing.T) {
	conf := minimal()
	changed := conf.Wide
	changed.Masquerade = false
	nics := []nicFact{{Link: "eth0", Index: 2}}
	tests := []struct {
		name       string
		have       record
		leases     string // network that has a pod
		want       record
		refusedKey string
	}{
		{"nothing yet", record{NICs: nics}, "", record{Network: "net1", Wide: conf.Wide, NICs: nics}, ""},
		{
			"same network, changed value",
			record{Network: "net1", Wide: changed, NICs: nics, Applied: "x"},
			"net1",
			record{Network: "net1", Wide: conf.Wide, NICs: nics, Applied: "x"},
			"",
		},
		{
			"second network, same values",
			record{Network: "net0", Wide: conf.Wide, NICs: nics},
			"net0",
			record{Network: "net0", Wide: conf.Wide, NICs: nics},
			"",
		},
		{"second network, other values, pods", record{Network: "net0", Wide: changed, NICs: nics}, "net0", record{}, "masquerade"},
		{
			"third network, other values, pods of a second that shares the first one's",
			record{Network: "first", Wide: changed, NICs: nics},
			"net0",
			record{},
			"masquerade",
		},
		{
			"second network, other values, its own pods only",
			record{Network: "net0", Wide: changed, NICs: nics},
			"net1",
			record{Network: "net1", Wide: conf.Wide, NICs: nics},
			"",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			n := netnsNode(t, conf)
			if tt.leases != "" {
				leaseFor(t, n, tt.leases)
			}
			got, err := n.wanted(t.Context(), tt.have)
			if tt.refusedKey != "" {
				isKeyError(t, err, ErrConfig, tt.refusedKey)
				if !strings.Contains(err.Error(), `"net0"`) || !strings.Contains(err.Error(), "pods here (1)") ||
					!strings.Contains(err.Error(), "true differs from the false") {
					t.Errorf("%q doesn't say whose values stand", err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("wanted = %v\n%+v\nwant\n%+v", err, got, tt.want)
			}
		})
	}
}

// A pod that is being released still lives by the rules; one that is cooling doesn't.
func TestNetnsNode_wanted_releasing(t *testing.T) {
	n := netnsNode(t, minimal())
	lease := leaseFor(t, n, "net0")
	have := record{Network: "net0", Wide: Wide{}}
	if _, _, err := n.store.Release(t.Context(), lease.Owner.Key); err != nil {
		t.Fatal(err)
	}
	if _, err := n.wanted(t.Context(), have); !errors.Is(err, ErrConfig) {
		t.Errorf("releasing: wanted = %v", err)
	}
	if err := n.store.Cool(t.Context(), lease, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := n.wanted(t.Context(), have); err != nil {
		t.Errorf("cooling: wanted = %v", err)
	}
}

func TestRecord_nicOf(t *testing.T) {
	one := nicFact{MAC: allocator.MAC(mac(4)).String(), Link: "eth0", Subnets: prefixes("10.20.0.0/24")}
	two := nicFact{MAC: allocator.MAC(mac(5)).String(), Link: "eth1", Subnets: prefixes("10.20.1.0/24"), Default: true}
	r := record{NICs: []nicFact{one, two}}
	tests := []struct {
		name  string
		grant Grant
		want  string
	}{
		{"by MAC", Grant{Addr: addrs("10.20.1.9")[0], NIC: mac(4)}, "eth0"},
		{"by subnet", Grant{Addr: addrs("10.20.0.9")[0]}, "eth0"},
		{"unknown MAC, by subnet", Grant{Addr: addrs("10.20.0.9")[0], NIC: mac(9)}, "eth0"},
		{"neither", Grant{Addr: addrs("10.99.0.9")[0]}, "eth1"},
	}
	for _, tt := range tests {
		if got := r.nicOf(tt.grant); got.Link != tt.want {
			t.Errorf("%s: nicOf = %q, want %q", tt.name, got.Link, tt.want)
		}
	}
	for name, owned := range map[string]Grant{
		"":     {Addr: addrs("10.20.0.9")[0], NIC: mac(9)}, // of a NIC that isn't there: its subnet proves nothing
		"eth1": {Addr: addrs("10.20.0.9")[0], NIC: mac(5)},
		"eth0": {Addr: addrs("10.20.0.9")[0]},
	} {
		if got, known := r.ownerOf(owned); got.Link != name || known != (name != "") {
			t.Errorf("ownerOf(%+v) = %q, %v", owned, got.Link, known)
		}
	}
	if got := (record{}).nicOf(Grant{}); got.Link != "" {
		t.Errorf("empty record: nicOf = %+v", got)
	}
}

// A record of another version's shape reads as none.
func TestDecodeRecord(t *testing.T) {
	for _, raw := range []string{"", "null", "[]", "{", `{"nics":7}`} {
		if r := decodeRecord([]byte(raw)); r.Network != "" || len(r.NICs) != 0 || r.Applied != "" {
			t.Errorf("decodeRecord(%q) = %+v", raw, r)
		}
	}
}

func TestReservation(t *testing.T) {
	nic := nicFact{Link: "eth0", Subnets: prefixes("10.20.0.0/24", "10.30.0.0/16")}
	r, err := reservation(nic, addrs("10.30.4.5")[0])
	if err != nil || r.Addr.String() != "10.30.4.5/16" || r.Gateway.String() != "10.30.0.2" {
		t.Errorf("reservation = %v, %v", r, err)
	}
	if _, err := reservation(nic, addrs("10.40.4.5")[0]); !errors.Is(err, ErrNoMetadata) {
		t.Errorf("outside: %v", err)
	}
}
