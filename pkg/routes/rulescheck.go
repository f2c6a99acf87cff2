package routes

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RulesMissing says in words which of our policy rules aren't there; nil when all stand. One dump of the rules, none when none is
// wanted: it is small enough for every ADD.
func (k *Kernel) RulesMissing(ctx context.Context, nics []RuleNIC, mode RemotePods) ([]string, error) {
	rules, _, err := wanted(nics, mode)
	if err != nil || len(rules) == 0 {
		return nil, err
	}
	have, err := k.ownRules(ctx)
	if err != nil {
		return nil, err
	}
	stand := make(map[rule]bool, len(have))
	for _, h := range have {
		stand[asRule(h)] = true
	}
	var missing []string
	for _, w := range rules {
		if !stand[w] {
			missing = append(missing, fmt.Sprintf("policy rule %q is missing or changed", w))
		}
	}
	return missing, nil
}

// MainLookedUp tells whether some rule sends every packet through table main, as the kernel's own one does. Without it the node has no
// route at all, whatever main has.
func (k *Kernel) MainLookedUp(ctx context.Context) (bool, error) {
	rules, err := dump(ctx, k.rt, "rule-list", func(h *netlink.Handle) ([]netlink.Rule, error) {
		return h.RuleList(netlink.FAMILY_V4)
	})
	if err != nil {
		return false, fmt.Errorf("list policy rules: %w", err)
	}
	return slices.ContainsFunc(rules, func(r netlink.Rule) bool {
		return r.Table == unix.RT_TABLE_MAIN && r.Src == nil && r.Dst == nil && r.IifName == "" && r.OifName == "" && r.Mark == 0
	}), nil
}

// TableRoutesMissing says in words which of our routes in the tables of the NICs aren't there. A NIC that is gone or down has none:
// the kernel drops them with it. It dumps every table, so it is for CHECK.
func (k *Kernel) TableRoutesMissing(ctx context.Context, nics []RuleNIC, mode RemotePods) ([]string, error) {
	_, routes, err := wanted(nics, mode)
	if err != nil || len(routes) == 0 {
		return nil, err
	}
	have, err := k.ownTableRoutes(ctx)
	if err != nil {
		return nil, err
	}
	stand := make(map[tableRoute]bool, len(have))
	for _, h := range have {
		stand[asTableRoute(h)] = true
	}
	var missing []string
	for _, w := range routes {
		if stand[w] {
			continue
		}
		link, found, err := k.rt.linkByIndex(ctx, w.index)
		if err != nil {
			return nil, err
		}
		if found && link.Attrs().Flags&net.FlagUp != 0 {
			missing = append(missing, fmt.Sprintf("route %q is missing or changed", w.words(link.Attrs().Name)))
		}
	}
	return missing, nil
}

// words writes a route as "ip route" does.
func (r tableRoute) words(link string) string {
	words := []string{r.to.String()}
	if r.via.IsValid() {
		words = append(words, "via", r.via.String())
	}
	return strings.Join(slices.Concat(words, []string{"dev", link, fmt.Sprintf("table %d", r.table)}), " ")
}
