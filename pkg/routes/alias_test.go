package routes

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func testAlias(addr string, key byte) Alias {
	return Alias{
		Addr: netip.MustParseAddr(addr), Generation: 0xa3f5c11e2b4, Network: Hash{15: 1}, Key: Hash{0: key},
		NetnsInode: 4026532281, Pod: "shop/web-0",
	}
}

func TestAlias_String(t *testing.T) {
	want := "nvm1 10.20.0.10 00000a3f5c11e2b4 00000000000000000000000000000001 07000000000000000000000000000000 4026532281 shop/web-0"
	if diff := cmp.Diff(want, testAlias("10.20.0.10", 7).String()); diff != "" {
		t.Error(diff)
	}
}

func TestAlias_String_fits(t *testing.T) {
	long := strings.Repeat("n", 63) + "/" + strings.Repeat("p", 253)
	tests := []struct{ name, pod string }{
		{"empty", ""},
		{"dash", "-"},
		{"short", "a/b"},
		{"long", long},
		{"long, other end", long + "x"},
		{"just fits", strings.Repeat("p", 130)},
		{"one byte too long", strings.Repeat("p", 131)},
		{"spaces and controls", "a b\n\x00/ü"},
	}
	seen := map[string]string{}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			a := testAlias("255.255.255.255", 7)
			a.Generation, a.NetnsInode, a.Pod = 1<<64-1, 1<<64-1, tt.pod
			s := a.String()
			if len(s) > aliasMax {
				t.Errorf("%d bytes", len(s))
			}
			got, err := ParseAlias(s)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(a, got, cmpopts.IgnoreFields(Alias{}, "Pod"), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
			if got.String() != s {
				t.Errorf("written again: %q", got.String())
			}
			if other, ok := seen[s]; ok && tt.pod != "-" {
				t.Errorf("same text as %q", other)
			}
			seen[s] = tt.pod
		})
	}
}

func TestParseAlias_refuses(t *testing.T) {
	good := testAlias("10.20.0.10", 7).String()
	for _, s := range []string{
		"", "nvm1", "uplink to rack 3", strings.Replace(good, "nvm1", "nvm2", 1), good + " ", good + " x", " " + good,
		strings.Replace(good, "10.20.0.10", "10.20.0.010", 1), strings.Replace(good, "0000000000000001", "000000000000001", 1),
		strings.ToUpper(good), strings.Replace(good, "a3f5c11e2b4", "A3F5C11E2B4", 1), strings.Replace(good, "00000a3f", "a3f", 1),
		strings.Replace(good, "4026532281", "04026532281", 1), strings.Replace(good, "4026532281", "-1", 1), strings.Replace(good, "4026532281", "+4026532281", 1),
	} {
		if a, err := ParseAlias(s); err == nil {
			t.Errorf("%q: %+v", s, a)
		}
	}
}

func FuzzParseAlias(f *testing.F) {
	f.Add(testAlias("10.20.0.10", 7).String())
	f.Add(testAlias("fd00::1", 7).String())
	f.Add("nvm1 10.20.0.10 0 0 0 0 -")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAlias(s)
		if err == nil && a.String() != s {
			t.Errorf("%q was read, and written as %q", s, a.String())
		}
	})
}
