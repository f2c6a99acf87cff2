package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// volatile are keys of the programs' JSON whose values change by themselves or mean nothing across two looks.
var volatile = map[string]bool{
	// ip link, ip addr
	"ifindex": true, "link_index": true, "link_netnsid": true, "stats": true, "stats64": true,
	"valid_life_time": true, "preferred_life_time": true, "tentative": true,
	// ip route
	"expires": true, "cacheinfo": true, "used": true, "age": true,
	// nft
	"handle": true, "packets": true, "bytes": true, "metainfo": true, "last": true,
}

func programObservers() []observer {
	ip := func(args ...string) func(context.Context, *scene) ([]string, error) {
		return func(ctx context.Context, s *scene) ([]string, error) { return s.jsonLines(ctx, nil, "ip", args...) }
	}
	return []observer{
		{"link", ip("-j", "-d", "link", "show")},
		{"addr", lookAddrs},
		{"route", ip("-j", "-4", "route", "show", "table", "all")},
		{"route", ip("-j", "-6", "route", "show", "table", "all")},
		{"rule", ip("-j", "-4", "rule", "show")},
		{"rule", ip("-j", "-6", "rule", "show")},
		{"neigh", lookNeighbours},
		{"nft", lookRuleset},
		{"iptables", lookIPTables("iptables-save")},
		{"iptables", lookIPTables("iptables-legacy-save")},
		{"ip6tables", lookIPTables("ip6tables-save")},
		{"conntrack", lookConntrack},
	}
}

// objects runs a program that prints a JSON array and returns its elements.
func (s *scene) objects(ctx context.Context, program string, args ...string) ([]map[string]any, error) {
	out, err := s.command(ctx, program, args...).Output()
	if err != nil {
		return nil, err
	}
	var list []map[string]any
	if len(bytes.TrimSpace(out)) == 0 {
		return nil, nil // iproute2 prints nothing at all for an empty list
	}
	err = json.Unmarshal(out, &list)
	return list, err
}

func (s *scene) jsonLines(ctx context.Context, keep func(map[string]any) bool, program string, args ...string) ([]string, error) {
	list, err := s.objects(ctx, program, args...)
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, o := range list {
		if len(o) > 0 && (keep == nil || keep(o)) {
			lines = append(lines, line(o))
		}
	}
	return lines, nil
}

// line writes a value as JSON with sorted keys and without what is volatile.
func line(v any) string {
	b, _ := json.Marshal(clean(v)) // what came out of JSON goes in again
	return string(b)
}

func clean(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, x := range v {
			if volatile[k] {
				continue
			}
			out[k] = clean(x)
			if list, ok := out[k].([]any); ok && k == "elem" {
				slices.SortFunc(list, func(a, b any) int { return strings.Compare(line(a), line(b)) })
			}
		}
		return out
	case []any:
		out := make([]any, 0, len(v))
		for _, x := range v {
			out = append(out, clean(x))
		}
		return out
	}
	return v
}

// lookAddrs makes a line per address; the links have lines of their own.
func lookAddrs(ctx context.Context, s *scene) ([]string, error) {
	links, err := s.objects(ctx, "ip", "-j", "addr", "show")
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, link := range links {
		infos, _ := link["addr_info"].([]any)
		for _, info := range infos {
			lines = append(lines, line(map[string]any{"ifname": link["ifname"], "addr": info}))
		}
	}
	return lines, nil
}

func lookNeighbours(ctx context.Context, s *scene) ([]string, error) {
	list, err := s.objects(ctx, "ip", "-j", "neigh", "show")
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, n := range list {
		dst, _ := n["dst"].(string)
		states, _ := n["state"].([]any)
		a, _ := netip.ParseAddr(dst)
		permanent := slices.Contains(states, any("PERMANENT"))
		if !permanent && !s.pool[a] {
			continue
		}
		delete(n, "state")
		n["permanent"] = permanent
		lines = append(lines, line(n))
	}
	return lines, nil
}

// lookRuleset makes a line per table, chain, rule, set, map and counter.
func lookRuleset(ctx context.Context, s *scene) ([]string, error) {
	out, err := s.command(ctx, "nft", "-j", "list", "ruleset").Output()
	if err != nil {
		return nil, err
	}
	var doc struct{ Nftables []map[string]any }
	if err := json.Unmarshal(out, &doc); err != nil {
		return nil, err
	}
	var lines []string
	for _, o := range doc.Nftables {
		if _, about := o["metainfo"]; !about && withoutAddresses(o) {
			lines = append(lines, line(o))
		}
	}
	return lines, nil
}

// chainCounters are behind a chain's policy: ":INPUT ACCEPT [12:3456]".
var chainCounters = regexp.MustCompile(`\s*\[\d+:\d+\]`)

// lookIPTables is for whichever flavour is installed; none is fine.
func lookIPTables(program string) func(context.Context, *scene) ([]string, error) {
	return func(ctx context.Context, s *scene) ([]string, error) {
		if _, err := exec.LookPath(program); errors.Is(err, exec.ErrNotFound) {
			return nil, nil
		}
		out, err := s.command(ctx, program).Output()
		if err != nil {
			return nil, err
		}
		var lines []string
		table := ""
		for l := range strings.Lines(string(out)) {
			l = chainCounters.ReplaceAllString(strings.TrimSpace(l), "")
			switch {
			case l == "" || l == "COMMIT" || strings.HasPrefix(l, "#"):
			case strings.HasPrefix(l, "*"):
				table = l
			default:
				lines = append(lines, program+" "+table+" "+l)
			}
		}
		return lines, nil
	}
}

// conntrackVolatile are the timer, the state, flags and counters of an entry.
var conntrackVolatile = regexp.MustCompile(`^(\d+|[A-Z_]+|\[[A-Z_]+\]|(use|mark|packets|bytes|id)=.*)$`)

// lookConntrack makes a line per entry that names an address of the pool.
func lookConntrack(ctx context.Context, s *scene) ([]string, error) {
	out, err := s.command(ctx, "conntrack", "-L").Output()
	if err != nil {
		return nil, err
	}
	var lines []string
	for l := range strings.Lines(string(out)) {
		fields, named := []string{}, false
		for _, f := range strings.Fields(l) {
			if conntrackVolatile.MatchString(f) {
				continue
			}
			fields = append(fields, f)
			_, value, _ := strings.Cut(f, "=")
			a, err := netip.ParseAddr(value)
			named = named || err == nil && s.pool[a]
		}
		if named {
			lines = append(lines, strings.Join(fields, " "))
		}
	}
	return lines, nil
}
