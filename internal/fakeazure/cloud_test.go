package fakeazure

import (
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var byValue = cmp.Options{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmpopts.EquateEmpty()}

// example is the documented config.
func example(t *testing.T) *Cloud {
	t.Helper()
	c, err := Load("testdata/cloud.json")
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func ips(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, ip(s))
	}
	return out
}

func TestLoad_example(t *testing.T) {
	top := example(t).Snapshot()
	if len(top.Subnets) != 3 || len(top.VMs) != 3 || top.IMDSRate != 5 {
		t.Fatalf("%+v", top)
	}
	want := NIC{
		Name: "nic0", MAC: MAC{0x02, 0, 0x5e, 0x10, 0, 4}, Subnet: "nodes", Primary: ip("10.20.0.4"),
		Secondaries: ips("10.20.0.10", "10.20.0.11", "10.20.0.12", "10.20.0.13", "10.20.0.14"),
	}
	if diff := cmp.Diff(want, top.VMs[0].NICs[0], byValue); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if mac := top.VMs[1].NICs[0].MAC; mac.String() != "02:00:5e:10:00:06" || mac.IMDS() != "02005E100006" {
		t.Errorf("mac %s, %s", mac, mac.IMDS())
	}
	route := Route{Prefix: netip.MustParsePrefix("0.0.0.0/0"), NextHop: ip("10.20.9.4")}
	if diff := cmp.Diff([]Route{route}, top.Subnets[1].Routes, byValue); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if got := top.Subnets[1].Gateway(); got != ip("10.20.1.1") {
		t.Errorf("gateway %s", got)
	}
}

func TestNew_refused(t *testing.T) {
	const nics = `"nics":[{"name":"a","mac":"020000000001","subnet":"s","primary":"10.0.0.4"`
	config := func(vms string) string {
		return `{"subnets":[{"name":"s","prefix":"10.0.0.0/24"}],"vms":[` + vms + `]}`
	}
	tests := []struct{ name, in, want string }{
		{"unknown key", `{"subnets":[],"vms":[],"vm":1}`, `unknown field "vm"`},
		{"two values", `{}{}`, "something follows"},
		{"host bits", `{"subnets":[{"name":"s","prefix":"10.0.0.1/24"}]}`, `subnet "s": prefix 10.0.0.1/24`},
		{"no NIC", config(`{"name":"v"}`), "needs a name and a NIC"},
		{"unknown subnet", config(`{"name":"v","nics":[{"mac":"020000000001","subnet":"x","primary":"10.0.0.4"}]}`), `subnet "x": not found`},
		{"no mac", config(`{"name":"v","nics":[{"subnet":"s","primary":"10.0.0.4"}]}`), "mac 00:00:00:00:00:00 missing"},
		{"bad mac", config(`{"name":"v","nics":[{"mac":"02000000001"}]}`), `mac "02000000001": not six bytes`},
		{"outside", config(`{"name":"v",` + nics + `,"secondaries":["10.0.1.4"]}]}`), "10.0.1.4 is outside of subnet"},
		{"reserved", config(`{"name":"v",` + nics + `,"secondaries":["10.0.0.3"]}]}`), "10.0.0.3 is kept by Azure"},
		{"broadcast", config(`{"name":"v",` + nics + `,"secondaries":["10.0.0.255"]}]}`), "10.0.0.255 is kept by Azure"},
		{"twice in one NIC", config(`{"name":"v",` + nics + `,"secondaries":["10.0.0.4"]}]}`), "address 10.0.0.4: in use"},
		{"name twice", config(`{"name":"v",` + nics + `}]},{"name":"v","nics":[{"mac":"020000000002","subnet":"s","primary":"10.0.0.5"}]}`), "name: in use"},
		{"mac twice", config(`{"name":"v",` + nics + `}]},{"name":"w","nics":[{"mac":"020000000001","subnet":"s","primary":"10.0.0.5"}]}`), "in use"},
		{"address twice", config(`{"name":"v",` + nics + `}]},{"name":"w","nics":[{"mac":"020000000002","subnet":"s","primary":"10.0.0.4"}]}`), "10.0.0.4: in use"},
		{"too many", config(`{"name":"v",` + nics + `}]},{"name":"w","nics":[{"mac":"020000000002","subnet":"s","primary":"10.0.0.5","secondaries":["10.0.0.6-10.1.0.6"]}]}`), "limit of addresses of one NIC"},
		{"endless range", config(`{"name":"v",` + nics + `,"secondaries":["::-ffff::"]}]}`), "more than 262144"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			top, err := ParseTopology([]byte(tt.in))
			if err == nil {
				_, err = New(top)
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// The truth changes at once, metadata after its lag.
func TestCloud_lag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := example(t)
		if err := c.SetIMDSLag("vmss_1", 5*time.Second); err != nil {
			t.Fatal(err)
		}
		shown := func() []netip.Addr { return c.vms[1].views[c.vms[1].NICs[0].MAC].now() }
		before := shown()
		expect := func(when string, want ...netip.Addr) {
			t.Helper()
			if diff := cmp.Diff(want, shown(), byValue); diff != "" {
				t.Errorf("%s (-want +got)\n%s", when, diff)
			}
		}
		if err := c.AddAddresses("vmss_1", "", ip("10.20.0.30")); err != nil {
			t.Fatal(err)
		}
		if vm, nic, ok := c.Owner(ip("10.20.0.30")); !ok || vm.Name != "vmss_1" || nic.Name != "nic0" {
			t.Errorf("owner is %s %s", vm.Name, nic.Name)
		}
		expect("just added", before...)
		time.Sleep(5 * time.Second)
		expect("after the lag", append(before, ip("10.20.0.30"))...)
		if err := c.RemoveAddresses("vmss_1", "nic0", ip("10.20.0.30"), ip("10.20.0.20")); err != nil {
			t.Fatal(err)
		}
		if _, _, ok := c.Owner(ip("10.20.0.20")); ok {
			t.Error("a removed address has an owner")
		}
		expect("just removed", append(before, ip("10.20.0.30"))...)
		if err := c.AddAddresses("vmss_1", "", ip("10.20.0.20")); err != nil { // back before metadata noticed
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		expect("after the second lag", before...)
	})
}

func TestCloud_AddAddresses_refused(t *testing.T) {
	c := example(t)
	for want, err := range map[error]error{
		ErrInUse:    c.AddAddresses("vmss_0", "nic0", ip("10.20.0.40"), ip("10.20.0.20")),
		ErrNotFound: c.RemoveAddresses("vmss_0", "nic0", ip("10.20.0.4")),
	} {
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	if _, _, ok := c.Owner(ip("10.20.0.40")); ok {
		t.Error("part of a refused request was done")
	}
	if err := c.AddAddresses("vmss_0", "nicX", ip("10.20.0.40")); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

// The cloud picks what is free, holds back what was removed, and says when the subnet is full: 256 - 5 - what is used.
func TestCloud_AssignAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := example(t)
		if err := c.RemoveAddresses("vmss_0", "", ip("10.20.0.10")); err != nil {
			t.Fatal(err)
		}
		const free = 256 - 5 - 2 - 9 // two primaries, nine secondaries
		if _, err := c.AssignAddresses("vmss_0", "", free); !errors.Is(err, ErrSubnetFull) {
			t.Fatalf("got %v", err)
		}
		picked, err := c.AssignAddresses("vmss_0", "", free-1)
		if err != nil || len(picked) != free-1 {
			t.Fatalf("%d, %v", len(picked), err)
		}
		for _, addr := range picked {
			if addr == ip("10.20.0.10") || c.top.Subnets[0].reserved(addr) || !c.top.Subnets[0].Prefix.Contains(addr) {
				t.Errorf("picked %s", addr)
			}
		}
		time.Sleep(defaultReuseHold)
		if picked, err = c.AssignAddresses("vmss_1", "", 1); err != nil || picked[0] != ip("10.20.0.10") {
			t.Errorf("%v, %v", picked, err)
		}
	})
}

// A hook sees the present state first, then every change before the call that made it returns.
func TestCloud_OnChange(t *testing.T) {
	c := example(t)
	var mu sync.Mutex
	var sizes []int
	remove := c.OnChange(func(top Topology) {
		mu.Lock()
		defer mu.Unlock()
		sizes = append(sizes, len(top.VMs[0].NICs[0].Secondaries))
	})
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			if err := c.AddAddresses("vmss_0", "", offset(ip("10.20.0.100"), i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	_ = c.AddAddresses("vmss_0", "", ip("10.20.0.4")) // refused: no change
	remove()
	if err := c.RemoveVM("vmss_0"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int{5, 6, 7, 8, 9}, sizes); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if _, _, ok := c.Owner(ip("10.20.0.4")); ok {
		t.Error("the address of a deleted VM has an owner")
	}
}
