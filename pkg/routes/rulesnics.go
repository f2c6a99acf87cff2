package routes

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Priorities of the rules for more than one NIC, between and beside those for one.
const (
	prioOwnSpecific = 490 // from P lookup main suppress_prefixlength 31
	prioOwnNICs     = 491 // from P to S lookup T
	prioOwnOther    = 492 // from P lookup main suppress_prefixlength 0
	prioOwnOut      = 493 // from P lookup T
	prioPlatform    = 495 // to 168.63.129.16, 169.254.169.254 goto 599
	prioPair        = 520 // from S to S lookup T
	prioOther       = 540 // from S lookup main suppress_prefixlength 0
	prioOut         = 541 // from S lookup T
	prioNIC         = 560 // to S lookup T
)

const (
	localPodsOnly = 31 // suppress what is wider than a pod's /32
	noDefault     = 0  // suppress default routes
)

// wantedForSeveral has the egress follow the source: Azure drops a packet that leaves by a NIC that doesn't own its source.
// With S1, P1, T1 the subnet, primary address and table of the primary NIC, and S2, P2, T2 those of a second one:
//
//	490: from P2 lookup main suppress_prefixlength 31     the node's own answers under P2: to local pods directly,
//	491: from P2 to S1, S2 lookup T2                      to every NIC's subnet by their own NIC,
//	492: from P2 lookup main suppress_prefixlength 0      to tunnels and bridges by main,
//	493: from P2 lookup T2                                and out by their own NIC
//	490: from P1 lookup main suppress_prefixlength 31     and those under P1: main is right, but for the other NICs' subnets,
//	491: from P1 to S2 lookup T1                          which it has on-link
//	495: to 168.63.129.16, 169.254.169.254 goto 599       answer the primary NIC only
//	499: iif lo goto 599                                  with RemotePodsPods
//	500: to S1, S2 lookup main suppress_prefixlength len  local pods, and whatever is more specific
//	520: from S1 to S1, S2 lookup T1; from S2 to S1, S2 lookup T2
//	540: from S2 lookup main suppress_prefixlength 0      tunnels and bridges: 520 has taken every NIC's subnet
//	541: from S2 lookup T2
//	560: to S1 lookup T1; to S2 lookup T2                 what comes from elsewhere
//	599: nop
//
//	T2: default via <gateway of S2> dev <second NIC> onlink
func wantedForSeveral(nics []RuleNIC, mode RemotePods) ([]rule, []tableRoute) {
	rules := []rule{{prio: prioEnd, suppress: -1}}
	for _, a := range []netip.Addr{wireserver, imds} {
		rules = append(rules, rule{prio: prioPlatform, to: netip.PrefixFrom(a, a.BitLen()), jump: prioEnd, suppress: -1})
	}
	if mode == RemotePodsPods {
		rules = append(rules, rule{prio: prioSkipOwn, fromNode: true, jump: prioEnd, suppress: -1})
	}
	all := allSubnets(nics)
	for _, s := range all {
		rules = append(rules, rule{prio: prioSpecific, to: s, table: unix.RT_TABLE_MAIN, suppress: s.Bits()})
	}
	var routes []tableRoute
	for _, nic := range nics {
		rules = append(rules, nic.ownRules(all)...)
		rules = append(rules, nic.podRules(all)...)
		routes = append(routes, nic.routes(mode)...)
	}
	return rules, routes
}

func allSubnets(nics []RuleNIC) []netip.Prefix {
	var all []netip.Prefix
	for _, nic := range nics {
		all = append(all, nic.subnets4()...)
	}
	return all
}

// ownRules are for what the node itself sends under a NIC's primary address.
func (n RuleNIC) ownRules(all []netip.Prefix) []rule {
	if !n.Primary.Is4() {
		return nil
	}
	from := netip.PrefixFrom(n.Primary, n.Primary.BitLen())
	own := n.subnets4()
	rules := []rule{{prio: prioOwnSpecific, from: from, table: unix.RT_TABLE_MAIN, suppress: localPodsOnly}}
	for _, s := range all {
		if n.Default && slices.Contains(own, s) {
			continue
		}
		rules = append(rules, rule{prio: prioOwnNICs, from: from, to: s, table: n.table(), suppress: -1})
	}
	if n.Default {
		return rules
	}
	return append(rules,
		rule{prio: prioOwnOther, from: from, table: unix.RT_TABLE_MAIN, suppress: noDefault},
		rule{prio: prioOwnOut, from: from, table: n.table(), suppress: -1})
}

// podRules are for what pods with an address of this NIC send, and for what others send to its subnet.
func (n RuleNIC) podRules(all []netip.Prefix) []rule {
	var rules []rule
	for _, from := range n.subnets4() {
		for _, to := range all {
			rules = append(rules, rule{prio: prioPair, from: from, to: to, table: n.table(), suppress: -1})
		}
		if !n.Default {
			rules = append(rules,
				rule{prio: prioOther, from: from, table: unix.RT_TABLE_MAIN, suppress: noDefault},
				rule{prio: prioOut, from: from, table: n.table(), suppress: -1})
		}
		rules = append(rules, rule{prio: prioNIC, to: from, table: n.table(), suppress: -1})
	}
	return rules
}

// routes sends everything by the gateway; without remotePods the NIC's own subnet stays on-link.
func (n RuleNIC) routes(mode RemotePods) []tableRoute {
	routes := []tableRoute{{
		table: n.table(), to: netip.PrefixFrom(netip.IPv4Unspecified(), 0), via: n.Gateway, index: n.Index,
	}}
	if mode == RemotePodsOff {
		for _, s := range n.subnets4() {
			routes = append(routes, tableRoute{table: n.table(), to: s, index: n.Index})
		}
	}
	return routes
}
