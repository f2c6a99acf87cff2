package routes

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// policyText has all that the policy table does, whatever handles the kernel numbers its parts by: two texts tell whether
// somebody changed it in between. It is empty without a table, and where nobody asks for changes; a table that can't be read has
// a text that equals no other.
func (k *Kernel) policyText() string {
	if k.noted == nil {
		return ""
	}
	conn, err := k.batch()
	if err != nil {
		return unreadable(err)
	}
	defer func() { _ = conn.CloseLasting() }()
	var lines []string
	add := func(what string, parts ...any) {
		b, err := json.Marshal(parts)
		if err != nil {
			b = []byte(err.Error())
		}
		lines = append(lines, what+" "+string(b))
	}
	chains, err := conn.ListChainsOfTableFamily(policyTable().Family)
	if err != nil {
		return unreadable(err)
	}
	for _, c := range chains {
		if c.Table.Name != PolicyTable {
			continue
		}
		add("chain", c.Name, c.Hooknum, c.Priority, c.Type, c.Policy)
		rules, err := conn.GetRules(policyTable(), c)
		if err != nil {
			return unreadable(err)
		}
		for i, r := range rules { // their order counts, so numbers keep it through the sort
			for j, e := range r.Exprs {
				add(fmt.Sprintf("rule %s %06d %06d %T", c.Name, i, j, e), e)
			}
			add(fmt.Sprintf("rule %s %06d end", c.Name, i), r.UserData)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	table, err := conn.ListTableOfFamily(PolicyTable, policyTable().Family)
	if err != nil {
		return unreadable(err)
	}
	add("table", table.Flags) // a dormant one has all its rules
	sets, err := conn.GetSets(policyTable())
	if err != nil {
		return unreadable(err)
	}
	for _, s := range sets {
		elements, err := conn.GetSetElements(s)
		if err != nil {
			return unreadable(err)
		}
		for _, e := range elements {
			add("element", s.Name, e.Key, e.KeyEnd, e.IntervalEnd)
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func unreadable(err error) string { return fmt.Sprintf("not read: %p %v", &err, err) }
