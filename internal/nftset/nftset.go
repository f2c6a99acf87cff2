// Package nftset has the elements of nftables sets: prefixes and names of links.
package nftset

import (
	"net/netip"

	"github.com/google/nftables"
	"go4.org/netipx"
)

// ifNameSize is the size of an interface name in a register (include/uapi/linux/if.h: IFNAMSIZ).
const ifNameSize = 16

// Prefixes turns IPv4 prefixes into intervals that don't touch each other: a start, and an end that is the first address after it. The
// interval that ends with the last address of all has no end. Those of other families are left out.
func Prefixes(prefixes []netip.Prefix) []nftables.SetElement {
	var merged netipx.IPSetBuilder
	for _, p := range prefixes {
		if p.Addr().Is4() {
			merged.AddPrefix(p)
		}
	}
	set, err := merged.IPSet()
	if err != nil {
		return nil // only an invalid prefix does this, and those aren't Is4
	}
	var elements []nftables.SetElement
	for _, r := range set.Ranges() {
		elements = append(elements, nftables.SetElement{Key: r.From().AsSlice()})
		if end := r.To().Next(); end.IsValid() {
			elements = append(elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return elements
}

// Links are the elements of a set of links' names.
func Links(names ...string) []nftables.SetElement {
	var elements []nftables.SetElement
	for _, name := range names {
		elements = append(elements, nftables.SetElement{Key: LinkName(name)})
	}
	return elements
}

// LinkName is a link's name as a register holds it.
func LinkName(name string) []byte {
	key := make([]byte, ifNameSize)
	copy(key, name)
	return key
}
