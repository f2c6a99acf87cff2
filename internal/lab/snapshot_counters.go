package lab

import (
	"net/netip"
	"strings"
)

// countersTable is the table of accounting. An address's chains, counters and map elements are made by its first pod and stay for
// the next ones, so they are node-wide state: which addresses have had a pod makes no difference between two snapshots.
const countersTable = "native_vmss_acct"

// ofAddress tells by its name whether a chain or a counter of that table is an address's: t_10.20.0.10, c_10.20.0.10_tx_cluster.
func ofAddress(name string) bool {
	_, rest, _ := strings.Cut(name, "_")
	addr, _, _ := strings.Cut(rest, "_")
	_, err := netip.ParseAddr(addr)
	return err == nil
}

// withoutAddresses takes one object of "nft -j list ruleset"; false: it is an address's. A map is returned without its elements.
func withoutAddresses(o map[string]any) bool {
	for kind, v := range o {
		thing, _ := v.(map[string]any)
		if thing["table"] != countersTable {
			continue
		}
		name, _ := thing["name"].(string)
		if kind == "rule" {
			name, _ = thing["chain"].(string)
		}
		if ofAddress(name) {
			return false
		}
		if kind == "map" {
			delete(thing, "elem")
		}
	}
	return true
}
