package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Priorities of our rules.
const (
	prioSkipOwn  = 499 // iif lo goto 599: the node's own traffic is left alone
	prioSpecific = 500 // to S lookup main suppress_prefixlength <len S>
	prioRemote   = 510 // to S lookup T
	prioEnd      = 599 // nop
)

// ruleRounds bounds how often ApplyRules looks again after a change.
const ruleRounds = 4

// RemotePods says whose traffic to remote pods goes by the gateway.
type RemotePods string

// The values of RemotePods.
const (
	RemotePodsPods RemotePods = "pods" // that of local pods
	RemotePodsNode RemotePods = "node" // the node's own too
	RemotePodsOff  RemotePods = "off"  // nobody's: each remote pod is a neighbour
)

// RuleNIC is a NIC with the subnets that Azure gave it.
type RuleNIC struct {
	Number  int // its table is 28200 + Number
	Link    string
	Index   int
	Gateway netip.Addr
	Primary netip.Addr // the address that Azure made the NIC's own
	Default bool       // main's default route leads out by it
	Subnets []netip.Prefix
}

func (n RuleNIC) table() int { return tableBase + n.Number }

// rule is one policy rule of ours, comparable; a zero field is not part of it.
type rule struct {
	prio     int
	from, to netip.Prefix
	fromNode bool // iif lo
	table    int
	suppress int // suppress_prefixlength, -1 for none
	jump     int // goto
}

// tableRoute is one route of ours in the table of a NIC, comparable.
type tableRoute struct {
	table int
	to    netip.Prefix
	via   netip.Addr
	index int
}

// ApplyRules makes our policy rules and the tables they use what they should be, and nothing else:
//
//	499: iif lo goto 599                                     with RemotePodsPods
//	500: to S lookup main suppress_prefixlength <len S>      local pods' /32s, and whatever is more specific than S
//	510: to S lookup 28201        28201: S via <gateway> dev <nic> onlink
//	599: nop
//
// A pod subnet is on-link for the NIC, so without them a node resolves every remote pod it talks to. Azure answers every ARP
// request with one MAC: by the gateway the frames on the wire are the same, and one neighbour is enough.
//
// It adds before it deletes, and adds in an order in which each rule finds what it points to. What the kernel compares when it
// deletes or refuses a rule is less than a rule has, so it looks again after a change until nothing is left to do. Routes by a NIC
// that is down are left out: then all the rest is done, and the error is ErrNICDown.
func (k *Kernel) ApplyRules(ctx context.Context, nics []RuleNIC, mode RemotePods) error {
	rules, routes, err := wanted(nics, mode)
	if err != nil {
		return fmt.Errorf("apply policy rules: %w", err)
	}
	for range ruleRounds {
		changed, err := k.rulesOnce(ctx, rules, routes)
		if err != nil {
			return err
		}
		if !changed {
			return k.missing(ctx, routes)
		}
	}
	return fmt.Errorf("apply policy rules: %w", ErrUnsettled)
}

// missing is ErrNICDown if a table's route isn't there after all is done.
func (k *Kernel) missing(ctx context.Context, want []tableRoute) error {
	have, err := k.ownTableRoutes(ctx)
	if err != nil {
		return err
	}
	for _, w := range want {
		if !slices.ContainsFunc(have, func(h netlink.Route) bool { return asTableRoute(h) == w }) {
			return fmt.Errorf("add route %s via %s dev #%d: %w", w.to, w.via, w.index, ErrNICDown)
		}
	}
	return nil
}

func (k *Kernel) rulesOnce(ctx context.Context, rules []rule, routes []tableRoute) (changed bool, err error) {
	have, err := k.ownRules(ctx)
	if err != nil {
		return false, err
	}
	haveRoutes, err := k.ownTableRoutes(ctx)
	if err != nil {
		return false, err
	}
	lookups := slices.IndexFunc(rules, func(r rule) bool { return r.table != 0 })
	if lookups < 0 {
		lookups = len(rules)
	}
	steps := []func() (bool, error){
		func() (bool, error) { return k.addRules(ctx, rules[:lookups], have) },
		func() (bool, error) { return k.addTableRoutes(ctx, routes, haveRoutes) },
		func() (bool, error) { return k.addRules(ctx, rules[lookups:], have) },
		func() (bool, error) { return k.delRules(ctx, have, rules) },
		func() (bool, error) { return k.delTableRoutes(ctx, haveRoutes, routes) },
	}
	for _, step := range steps {
		did, err := step()
		if err != nil {
			return changed, err
		}
		changed = changed || did
	}
	return changed, nil
}

// wanted lists rules in the order in which they are added: first 599 and 499, then those that look tables up.
func wanted(nics []RuleNIC, mode RemotePods) ([]rule, []tableRoute, error) {
	switch {
	case len(nics) == 0 || len(nics) == 1 && mode == RemotePodsOff:
		return nil, nil, nil
	case mode != RemotePodsPods && mode != RemotePodsNode && mode != RemotePodsOff:
		return nil, nil, fmt.Errorf("remotePods: unknown value %q", mode)
	}
	for _, nic := range nics {
		if !nic.Gateway.Is4() {
			return nil, nil, fmt.Errorf("no gateway for %s", nic.Link)
		}
		if nic.table() <= tableBase || nic.table() > tableLast {
			return nil, nil, fmt.Errorf("NIC number %d of %s is out of range", nic.Number, nic.Link)
		}
	}
	if len(nics) > 1 {
		rules, routes := wantedForSeveral(nics, mode)
		return rules, routes, nil
	}
	rules, routes := wantedForOne(nics[0], mode)
	return rules, routes, nil
}

func wantedForOne(nic RuleNIC, mode RemotePods) ([]rule, []tableRoute) {
	rules := []rule{{prio: prioEnd, suppress: -1}}
	if mode == RemotePodsPods {
		rules = append(rules, rule{prio: prioSkipOwn, fromNode: true, jump: prioEnd, suppress: -1})
	}
	var remote []rule
	var routes []tableRoute
	for _, s := range nic.subnets4() {
		rules = append(rules, rule{prio: prioSpecific, to: s, table: unix.RT_TABLE_MAIN, suppress: s.Bits()})
		remote = append(remote, rule{prio: prioRemote, to: s, table: nic.table(), suppress: -1})
		routes = append(routes, tableRoute{table: nic.table(), to: s, via: nic.Gateway, index: nic.Index})
	}
	return append(rules, remote...), routes
}

// subnets4 are the NIC's IPv4 subnets.
func (n RuleNIC) subnets4() []netip.Prefix {
	var out []netip.Prefix
	for _, s := range n.Subnets {
		if s.Addr().Is4() {
			out = append(out, s.Masked())
		}
	}
	return out
}

// ownRules lists the rules with our protocol number. What the kernel shows beyond our fields makes a rule a wrong one.
func (k *Kernel) ownRules(ctx context.Context) ([]netlink.Rule, error) {
	all, err := dump(ctx, k.rt, "rule-list", func(h *netlink.Handle) ([]netlink.Rule, error) {
		return h.RuleList(netlink.FAMILY_V4)
	})
	if err != nil {
		return nil, fmt.Errorf("list policy rules: %w", err)
	}
	return slices.DeleteFunc(all, func(r netlink.Rule) bool { return r.Protocol != Protocol }), nil
}

// asRule reads a rule of the kernel. A rule with a selector that none of ours has is not equal to any of ours.
func asRule(r netlink.Rule) rule {
	out := rule{
		prio: r.Priority, from: netPrefix(r.Src), to: netPrefix(r.Dst), fromNode: r.IifName == "lo", table: r.Table, suppress: r.SuppressPrefixlen,
		jump: max(r.Goto, 0),
	}
	foreign := r.Mark != 0 || r.Invert || r.Tos != 0 || r.OifName != "" || r.IPProto != 0 ||
		r.IifName != "" && r.IifName != "lo"
	if foreign {
		out.prio = -1
	}
	return out
}

// String is the rule as "ip rule" writes it.
func (r rule) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d:", r.prio)
	if r.from.IsValid() {
		fmt.Fprintf(&b, " from %s", r.from)
	}
	if r.to.IsValid() {
		fmt.Fprintf(&b, " to %s", r.to)
	}
	if r.fromNode {
		b.WriteString(" iif lo")
	}
	switch {
	case r.jump != 0:
		fmt.Fprintf(&b, " goto %d", r.jump)
	case r.table == unix.RT_TABLE_MAIN:
		b.WriteString(" lookup main")
	case r.table != 0:
		fmt.Fprintf(&b, " lookup %d", r.table)
	default:
		b.WriteString(" nop")
	}
	if r.suppress >= 0 {
		fmt.Fprintf(&b, " suppress_prefixlength %d", r.suppress)
	}
	return b.String()
}

// kernelRule writes a rule for the kernel.
func (r rule) kernelRule() *netlink.Rule {
	out := netlink.NewRule()
	out.Family = netlink.FAMILY_V4
	out.Priority, out.Protocol, out.Table, out.SuppressPrefixlen = r.prio, Protocol, r.table, r.suppress
	if r.from.IsValid() {
		out.Src = prefixNet(r.from)
	}
	if r.to.IsValid() {
		out.Dst = prefixNet(r.to)
	}
	if r.fromNode {
		out.IifName = "lo"
	}
	switch {
	case r.jump != 0:
		out.Goto = r.jump
	case r.table == 0:
		out.Type = unix.FR_ACT_NOP
	}
	return out
}

func (k *Kernel) addRules(ctx context.Context, want []rule, have []netlink.Rule) (changed bool, err error) {
	for _, w := range want {
		if slices.ContainsFunc(have, func(h netlink.Rule) bool { return asRule(h) == w }) {
			continue
		}
		err := k.rt.do(ctx, "rule-add", func(h *netlink.Handle) error { return h.RuleAdd(w.kernelRule()) })
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return changed, fmt.Errorf("add policy rule %d: %w", w.prio, err)
		}
		changed = true
		k.log.Info("policy rule added", "prio", w.prio, "prefix", w.to)
		k.note("policy rule %s added", w)
	}
	return changed, nil
}

// delRules deletes what isn't wanted, the rules that look tables up before those they are skipped by.
func (k *Kernel) delRules(ctx context.Context, have []netlink.Rule, want []rule) (changed bool, err error) {
	// The wider a rule is and the later it comes, the sooner it goes: what is left in between sends no packet astray.
	rank := func(r netlink.Rule) int {
		switch {
		case r.Table != 0:
			return -r.Priority
		case r.Goto > 0:
			return 1
		}
		return prioEnd
	}
	slices.SortStableFunc(have, func(a, b netlink.Rule) int { return rank(a) - rank(b) })
	for _, r := range have {
		if slices.Contains(want, asRule(r)) {
			continue
		}
		err := k.rt.do(ctx, "rule-del", func(h *netlink.Handle) error { return h.RuleDel(&r) })
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return changed, fmt.Errorf("delete policy rule %d: %w", r.Priority, err)
		}
		changed = true
		k.log.Info("policy rule deleted", "prio", r.Priority, "prefix", netPrefix(r.Dst))
		k.note("policy rule deleted: %s", strings.Join(strings.Fields(r.String()), " "))
	}
	return changed, nil
}
