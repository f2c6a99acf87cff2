package node

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/metadata"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// matched is a metadata document laid over the node's links.
type matched struct {
	snapshot allocator.Snapshot
	links    []routes.NIC
	facts    []nicFact
	skipped  []error // those of problems that take a whole NIC
	problems []error // NICs that nothing is handed out of, each with what was seen
}

// match ties each NIC of the document to a link by MAC, never by order, and finds its primary address. A NIC for which that
// fails is skipped: its pool stays as it was. A document in which it fails for every NIC is incomplete. before are the NICs that
// pods use already.
func match(doc metadata.Document, links []routes.NIC, before []nicFact) (matched, error) {
	var m matched
	for _, p := range doc.Problems {
		m.problems = append(m.problems, errors.New(p))
	}
	for _, nic := range doc.NICs {
		for _, p := range nic.Problems {
			m.problems = append(m.problems, fmt.Errorf("NIC %s: %s", allocator.MAC(nic.MAC), p))
		}
	}
	onHost := hostAddresses(links)
	for _, nic := range doc.NICs {
		link, primary, err := primaryOf(nic, links)
		if err == nil && !link.Up {
			err = fmt.Errorf("NIC %s (%s): its link is down", allocator.MAC(nic.MAC), link.Name)
		}
		if err != nil {
			m.problems = append(m.problems, err)
			m.skipped = append(m.skipped, err)
			m.snapshot.Skipped = append(m.snapshot.Skipped, allocator.MAC(nic.MAC))
			continue
		}
		m.add(nic, link, primary, onHost)
	}
	m.sort()
	markDefault(m.facts, links)
	m.dropOverlaps(before)
	m.snapshot.Digest = digest(m.snapshot)
	if len(m.facts) == 0 {
		return m, fmt.Errorf("%w: %w", metadata.ErrIncomplete, errors.Join(m.problems...))
	}
	return m, nil
}

// dropOverlaps skips a NIC whose subnet another NIC has too: by which of the two a packet must leave would be a question of the
// single address, and egress here follows the subnet. A NIC that pods use already stays, whatever the default routes are today;
// else the primary NIC does.
func (m *matched) dropOverlaps(before []nicFact) {
	rank := func(f nicFact) int {
		inUse := slices.ContainsFunc(before, func(b nicFact) bool { return b.MAC == f.MAC })
		return 2*boolRank(inUse) + boolRank(f.Default)
	}
	order := slices.Clone(m.facts)
	slices.SortStableFunc(order, func(a, b nicFact) int { return rank(b) - rank(a) })
	var kept []nicFact
	for _, f := range order {
		i := slices.IndexFunc(kept, func(k nicFact) bool { return overlap(f.Subnets, k.Subnets) })
		if i < 0 {
			kept = append(kept, f)
			continue
		}
		err := fmt.Errorf("NIC %s (%s): its subnet %s is that of NIC %s (%s) too: two NICs in one subnet are not supported",
			f.MAC, f.Link, overlapping(f.Subnets, kept[i].Subnets), kept[i].MAC, kept[i].Link)
		m.problems = append(m.problems, err)
		m.skipped = append(m.skipped, err)
		m.skip(f)
	}
}

func boolRank(b bool) int {
	if b {
		return 1
	}
	return 0
}

func overlap(a, b []netip.Prefix) bool { return overlapping(a, b).IsValid() }

// overlapping is the first of a that one of b overlaps; zero without one.
func overlapping(a, b []netip.Prefix) netip.Prefix {
	i := slices.IndexFunc(a, func(p netip.Prefix) bool { return slices.ContainsFunc(b, p.Overlaps) })
	if i < 0 {
		return netip.Prefix{}
	}
	return a[i]
}

// skip takes back what add made of a NIC.
func (m *matched) skip(f nicFact) {
	m.facts = slices.DeleteFunc(m.facts, func(g nicFact) bool { return g.MAC == f.MAC })
	m.snapshot.NICs = slices.DeleteFunc(m.snapshot.NICs, func(n allocator.NIC) bool {
		if n.MAC.String() != f.MAC {
			return false
		}
		m.snapshot.Skipped = append(m.snapshot.Skipped, n.MAC)
		return true
	})
}

// digest covers what the kernel added too: an address that came onto a link changes nothing in the document.
func digest(s allocator.Snapshot) [sha256.Size]byte {
	b, _ := json.Marshal(s) // plain data: can't fail
	return sha256.Sum256(b)
}

// sort undoes the document's order, which may change at any time: the facts' order numbers the NICs' routing tables, and any
// change of the digest makes the store compare everything.
func (m *matched) sort() {
	byMAC := func(a, b allocator.MAC) int { return bytes.Compare(a[:], b[:]) }
	slices.SortFunc(m.snapshot.NICs, func(a, b allocator.NIC) int { return byMAC(a.MAC, b.MAC) })
	slices.SortFunc(m.snapshot.Skipped, byMAC)
	sortFacts(m.facts)
}

func sortFacts(facts []nicFact) {
	slices.SortFunc(facts, func(a, b nicFact) int { return cmp.Compare(a.Index, b.Index) })
}

// notForPods would cut off the whole node if a document listed them and a pod got one; so would the NIC's gateway.
var notForPods = []netip.Addr{
	netip.AddrFrom4([4]byte{168, 63, 129, 16}), netip.AddrFrom4([4]byte{169, 254, 169, 254}), routes.Gateway(),
}

func (m *matched) add(nic metadata.NIC, link routes.NIC, primary netip.Addr, onHost map[netip.Addr]bool) {
	subnets := subnetsOf(nic, link, primary)
	gateway := gatewayOf(link, subnets)
	secondaries := make([]netip.Addr, 0, len(nic.V4))
	var occupied []netip.Addr
	for _, a := range nic.V4 {
		if a == primary {
			continue
		}
		if a == gateway || slices.Contains(notForPods, a) {
			m.problems = append(m.problems, fmt.Errorf("NIC %s: %s is the platform's, not handed out", allocator.MAC(nic.MAC), a))
			continue
		}
		secondaries = append(secondaries, a)
		if onHost[a] {
			occupied = append(occupied, a)
		}
	}
	slices.SortFunc(secondaries, netip.Addr.Compare)
	slices.SortFunc(occupied, netip.Addr.Compare)
	m.snapshot.NICs = append(m.snapshot.NICs, allocator.NIC{
		MAC: allocator.MAC(nic.MAC), Link: link.Name, Primary: primary, Subnets: subnets, Addrs: secondaries, OnLink: occupied,
	})
	m.facts = append(m.facts, nicFact{
		MAC: allocator.MAC(nic.MAC).String(), Link: link.Name, Index: link.Index, Primary: primary, Subnets: subnets,
		Gateway: gateway,
	})
}

// primaryOf picks the link with the NIC's MAC that holds its primary address. An accelerated-networking twin has the same
// MAC and no address; more than one candidate is ambiguous.
func primaryOf(nic metadata.NIC, links []routes.NIC) (routes.NIC, netip.Addr, error) {
	mac := allocator.MAC(nic.MAC)
	var seen []string
	var found []routes.NIC
	var primary netip.Addr
	for _, l := range links {
		if l.MAC != nic.MAC {
			continue
		}
		p, ok := primaryCandidate(l)
		seen = append(seen, fmt.Sprintf("%s: %s", l.Name, addressesOf(l)))
		if ok && slices.Contains(nic.V4, p) {
			found, primary = append(found, l), p
		}
	}
	switch {
	case len(seen) == 0:
		return routes.NIC{}, netip.Addr{}, fmt.Errorf("NIC %s: no link here has this MAC", mac)
	case len(found) == 1:
		return found[0], primary, nil
	case len(nic.V4) == 0 && len(nic.V6) > 0:
		return routes.NIC{}, netip.Addr{}, fmt.Errorf("NIC %s: metadata lists IPv6 addresses only (%d), and pods get IPv4", mac, len(nic.V6))
	}
	why := "none of its links holds one address that is from DHCP, its default route's preferred source or its only one, and that metadata lists"
	if len(found) > 1 {
		why = fmt.Sprintf("%d links with this MAC hold one each", len(found))
	}
	return routes.NIC{}, netip.Addr{}, fmt.Errorf("NIC %s: primary address not known: %s (links: %s; metadata: %v)",
		mac, why, strings.Join(seen, "; "), nic.V4)
}

// primaryCandidate is the address that DHCP gave to the link; without one the preferred source of its default route;
// without that its only address. Stock cloud-init adds every secondary as a static address, so "the first" means nothing.
func primaryCandidate(l routes.NIC) (netip.Addr, bool) {
	var dynamic []netip.Addr
	for _, a := range l.Addrs {
		if a.Dynamic {
			dynamic = append(dynamic, a.Prefix.Addr())
		}
	}
	switch {
	case len(dynamic) == 1:
		return dynamic[0], true
	case len(dynamic) > 1:
		return netip.Addr{}, false
	}
	for _, d := range l.Defaults {
		if d.PrefSrc.IsValid() {
			return d.PrefSrc, true
		}
	}
	if len(l.Addrs) == 1 {
		return l.Addrs[0].Prefix.Addr(), true
	}
	return netip.Addr{}, false
}

// subnetsOf has the subnet of the primary first: the kernel knows it (DHCP's mask is the subnet's), metadata may add others.
func subnetsOf(nic metadata.NIC, link routes.NIC, primary netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range link.Addrs {
		if a.Prefix.Addr() == primary && a.Prefix.Bits() < primary.BitLen() {
			out = append(out, a.Prefix.Masked())
		}
	}
	for _, s := range nic.Subnets {
		if !slices.Contains(out, s.Masked()) {
			out = append(out, s.Masked())
		}
	}
	return out
}

// gatewayOf is the default route's next hop, else the subnet's first address, which Azure keeps for it.
func gatewayOf(link routes.NIC, subnets []netip.Prefix) netip.Addr {
	for _, d := range link.Defaults {
		if d.Gateway.IsValid() {
			return d.Gateway
		}
	}
	if len(subnets) > 0 {
		return subnets[0].Addr().Next()
	}
	return netip.Addr{}
}

// markDefault finds the primary NIC: of those that pods use, the one whose default route in main has the lowest metric. Other
// links' default routes (a VPN's) say nothing about it.
func markDefault(facts []nicFact, links []routes.NIC) {
	best, metric := -1, 0
	for i := range facts {
		facts[i].Default = false
		for _, l := range links {
			if l.Index != facts[i].Index {
				continue
			}
			for _, d := range l.Defaults {
				if best < 0 || d.Metric < metric {
					best, metric = i, d.Metric
				}
			}
		}
	}
	if best >= 0 {
		facts[best].Default = true
	}
}

// keepKnown adds the NICs of the record that this document had nothing usable about, as long as their links are there: pods
// with their addresses live by the rules made from them.
func keepKnown(facts, before []nicFact, links []routes.NIC) []nicFact {
	out := slices.Clone(facts)
	for _, old := range before {
		known := slices.ContainsFunc(facts, func(f nicFact) bool { return f.MAC == old.MAC })
		there := slices.ContainsFunc(links, func(l routes.NIC) bool {
			return l.Index == old.Index && l.Name == old.Link && allocator.MAC(l.MAC).String() == old.MAC
		})
		if !known && there {
			out = append(out, old)
		}
	}
	sortFacts(out)
	markDefault(out, links)
	return out
}

func hostAddresses(links []routes.NIC) map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, l := range links {
		for _, a := range l.Addrs {
			out[a.Prefix.Addr()] = true
		}
	}
	return out
}

func addressesOf(l routes.NIC) string {
	words := make([]string, 0, len(l.Addrs))
	for _, a := range l.Addrs {
		kind := "static"
		if a.Dynamic {
			kind = "dynamic"
		}
		words = append(words, a.Prefix.Addr().String()+" "+kind)
	}
	if len(words) == 0 {
		return "no address"
	}
	return strings.Join(words, ", ")
}
