package node

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/native-vmss/native-vmss/pkg/accounting"
	"github.com/native-vmss/native-vmss/pkg/allocator"
)

func counted(bytes, packets uint64) allocator.Count {
	return allocator.Count{Bytes: bytes, Packets: packets}
}

// An ADD writes to the store only where the counters have other values than those that are noted.
func TestMeter_noted(t *testing.T) {
	folded := []allocator.Series{
		{Direction: "rx", Class: "cluster", Folded: counted(10, 1)},
		{Direction: "tx", Class: "cluster", Used: counted(9, 1)},
	}
	rx := allocator.Sample{Direction: "rx", Class: "cluster", Bytes: 10, Packets: 1}
	zero := allocator.Sample{Direction: "tx", Class: "cluster"}
	for name, tt := range map[string]struct {
		live []allocator.Sample
		want bool
	}{
		"the same":            {[]allocator.Sample{rx, zero}, true},
		"one more":            {[]allocator.Sample{rx, {Direction: "tx", Class: "cluster", Bytes: 1, Packets: 1}}, false},
		"one lacks":           {[]allocator.Sample{zero}, false},
		"none":                {nil, false},
		"bytes differ":        {[]allocator.Sample{{Direction: "rx", Class: "cluster", Bytes: 11, Packets: 1}}, false},
		"another class's":     {[]allocator.Sample{{Direction: "rx", Class: "internet", Bytes: 10, Packets: 1}}, false},
		"other packets, only": {[]allocator.Sample{{Direction: "rx", Class: "cluster", Bytes: 10, Packets: 2}, zero}, false},
	} {
		if got := noted(folded, tt.live); got != tt.want {
			t.Errorf("%s: noted = %v", name, got)
		}
	}
}

// Own classes come first, then the cluster's: nativeCIDRs, the NICs' subnets and what is never the internet.
func TestRecord_countingConf(t *testing.T) {
	hub := accounting.Class{Name: "hub", Prefixes: prefixes("10.30.0.0/16")}
	base := record{Wide: defaultConf().Wide, NICs: []nicFact{{Link: "eth0", Subnets: []netip.Prefix{netip.MustParsePrefix("20.1.0.0/24"), netip.MustParsePrefix("fd00::/64")}}}}
	base.Wide.NativeCIDRs, base.Wide.Classes, base.Counting.Mask = prefixes("10.0.0.0/8"), []accounting.Class{hub}, 0xff0000
	got := base.countingConf()
	want := accounting.Config{Hash: got.Hash, NICs: []string{"eth0"}, MarkMask: 0xff0000, Classes: []accounting.Class{hub, {
		Name: "cluster", Prefixes: prefixes("10.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "127.0.0.0/8", "20.1.0.0/24"),
	}}}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	for name, change := range map[string]func(*record){
		"class":   func(r *record) { r.Wide.Classes = nil },
		"native":  func(r *record) { r.Wide.NativeCIDRs = prefixes("10.0.0.0/9") },
		"NIC":     func(r *record) { r.NICs = append(r.NICs, nicFact{Link: "eth1"}) },
		"mask":    func(r *record) { r.Counting.Mask = 0 },
		"backend": func(r *record) { r.Wide.Accounting = accounting.IPTables },
	} {
		other := base
		other.NICs = append([]nicFact{}, base.NICs...)
		if change(&other); other.countingConf().Hash == got.Hash {
			t.Errorf("%s: the same hash", name)
		}
	}
}
