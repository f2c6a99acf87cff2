//go:build kind

package kind

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/native-vmss/native-vmss/internal/fakeazure"
)

// counting is a table of the test's own; match is what a packet must be besides a ping from one address to another.
const counting = `table ip nvt_count {
	chain pings {
		type filter hook %s priority 300
		%s ip saddr %s ip daddr %s icmp type echo-request counter
	}
}
`

// fromFabric matches frames that the fabric sent, and no other machine.
const fromFabric = "iifname eth0 ether saddr " + fakeazure.FabricMAC

// countPings counts the pings that pass a hook of a namespace, until it is asked for their number. inside is the command that
// enters the namespace.
func countPings(t *testing.T, hook, match string, from, to netip.Addr, inside ...string) func() int {
	t.Helper()
	nft := func(stdin string, args ...string) (string, error) {
		args = slices.Concat(inside[1:], []string{"nft"}, args)
		return try(t.Context(), stdin, inside[0], args...)
	}
	if _, err := nft(fmt.Sprintf(counting, hook, match, from, to), "-f", "-"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		mustUndo(t, inside[0], slices.Concat(inside[1:], []string{"nft", "delete", "table", "ip", "nvt_count"})...)
	})
	return func() int {
		out, err := nft("", "-j", "list", "table", "ip", "nvt_count")
		if err != nil {
			t.Fatal(err)
		}
		return packets(t, out)
	}
}

func packets(t *testing.T, listing string) int {
	t.Helper()
	var doc struct {
		Nftables []struct {
			Rule *struct {
				Expr []struct {
					Counter *struct{ Packets int }
				}
			}
		}
	}
	if err := json.Unmarshal([]byte(listing), &doc); err != nil {
		t.Fatal(err)
	}
	for _, o := range doc.Nftables {
		if o.Rule == nil {
			continue
		}
		for _, e := range o.Rule.Expr {
			if e.Counter != nil {
				return e.Counter.Packets
			}
		}
	}
	t.Fatalf("no counter in %s", listing)
	return 0
}
