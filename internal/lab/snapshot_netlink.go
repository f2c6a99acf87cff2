package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// dumpTries bounds the repetitions of a dump that changed while it was read.
const dumpTries = 5

func netlinkObservers() []observer {
	return []observer{
		{"link", dumpLinks},
		{"addr", dumpAddrs},
		{"route", dumpRoutes},
		{"rule", dumpRules},
		{"neigh", dumpNeighbours},
		{"nft", dumpTables},
		{"conntrack", dumpConntrack},
	}
}

// dump repeats a dump that the kernel calls interrupted, and turns each object into a line; an empty one is left out.
func dump[T any](list func() ([]T, error), text func(T) string) ([]string, error) {
	var objects []T
	var err error = netlink.ErrDumpInterrupted
	for try := 0; try < dumpTries && errors.Is(err, netlink.ErrDumpInterrupted); try++ {
		objects, err = list()
	}
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, o := range objects {
		if l := text(o); l != "" {
			lines = append(lines, l)
		}
	}
	return lines, nil
}

func dumpLinks(_ context.Context, s *scene) ([]string, error) {
	h, err := s.space.Handle()
	if err != nil {
		return nil, err
	}
	return dump(h.LinkList, func(l netlink.Link) string {
		a := l.Attrs()
		return fmt.Sprintf("%s %s mtu %d group %d mac %s flags %s alias %q", l.Type(), a.Name, a.MTU, a.Group, a.HardwareAddr, a.Flags, a.Alias)
	})
}

// names maps interface indexes to names: the indexes mean nothing across two looks.
func (s *scene) names() (*netlink.Handle, func(int) string, error) {
	h, err := s.space.Handle()
	if err != nil {
		return nil, nil, err
	}
	byIndex := map[int]string{}
	_, err = dump(h.LinkList, func(l netlink.Link) string {
		byIndex[l.Attrs().Index] = l.Attrs().Name
		return ""
	})
	return h, func(i int) string { return byIndex[i] }, err
}

func dumpAddrs(_ context.Context, s *scene) ([]string, error) {
	h, name, err := s.names()
	if err != nil {
		return nil, err
	}
	list := func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) }
	return dump(list, func(a netlink.Addr) string {
		return fmt.Sprintf("%s dev %s scope %d flags %#x", a.IPNet, name(a.LinkIndex), a.Scope, a.Flags&^unix.IFA_F_TENTATIVE)
	})
}

func dumpRoutes(_ context.Context, s *scene) ([]string, error) {
	h, name, err := s.names()
	if err != nil {
		return nil, err
	}
	all := &netlink.Route{Table: unix.RT_TABLE_UNSPEC}
	list := func() ([]netlink.Route, error) {
		return h.RouteListFiltered(netlink.FAMILY_ALL, all, netlink.RT_FILTER_TABLE)
	}
	return dump(list, func(r netlink.Route) string {
		return routeText(r, name)
	})
}

func dumpRules(_ context.Context, s *scene) ([]string, error) {
	h, err := s.space.Handle()
	if err != nil {
		return nil, err
	}
	list := func() ([]netlink.Rule, error) { return h.RuleList(netlink.FAMILY_ALL) }
	return dump(list, func(r netlink.Rule) string {
		return fmt.Sprintf("family %d proto %d suppress %d goto %d: %s", r.Family, r.Protocol, r.SuppressPrefixlen, r.Goto, r)
	})
}

func dumpNeighbours(_ context.Context, s *scene) ([]string, error) {
	h, name, err := s.names()
	if err != nil {
		return nil, err
	}
	list := func() ([]netlink.Neigh, error) { return h.NeighList(0, netlink.FAMILY_ALL) }
	return dump(list, func(n netlink.Neigh) string {
		permanent := n.State&netlink.NUD_PERMANENT != 0
		if !permanent && !s.inPool(n.IP) {
			return ""
		}
		return fmt.Sprintf("%s dev %s mac %s permanent %v", n.IP, name(n.LinkIndex), n.HardwareAddr, permanent)
	})
}

func (s *scene) inPool(ip net.IP) bool {
	a, ok := netip.AddrFromSlice(ip)
	return ok && s.pool[a.Unmap()]
}

// dumpTables names every nftables object; of rules, how many a chain has.
func dumpTables(_ context.Context, s *scene) ([]string, error) {
	c, err := nftables.New(nftables.WithNetNSFd(s.space.Fd()))
	if err != nil {
		return nil, err
	}
	tables, err := c.ListTables()
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, t := range tables {
		name := fmt.Sprintf("%d %s", t.Family, t.Name)
		lines = append(lines, "table "+name)
		sets, err := c.GetSets(t)
		if err != nil {
			return nil, err
		}
		for _, set := range sets {
			elems, err := c.GetSetElements(set)
			if err != nil {
				return nil, err
			}
			if t.Name == countersTable && set.IsMap {
				elems = nil
			}
			lines = append(lines, fmt.Sprintf("set %s %s: %s", name, set.Name, elementKeys(elems)))
		}
		objs, err := c.GetObjects(t)
		if err != nil {
			return nil, err
		}
		for _, o := range objs {
			if k, ok := o.(*nftables.CounterObj); ok && (t.Name != countersTable || !ofAddress(k.Name)) {
				lines = append(lines, fmt.Sprintf("counter %s %s", name, k.Name))
			}
		}
	}
	chains, err := dumpChains(c)
	return append(lines, chains...), err
}

func dumpChains(c *nftables.Conn) ([]string, error) {
	chains, err := c.ListChains()
	if err != nil {
		return nil, err
	}
	var lines []string
	for _, ch := range chains {
		if ch.Table.Name == countersTable && ofAddress(ch.Name) {
			continue
		}
		rules, err := c.GetRules(ch.Table, ch)
		if err != nil {
			return nil, err
		}
		lines = append(lines, fmt.Sprintf("chain %d %s %s: %d rules", ch.Table.Family, ch.Table.Name, ch.Name, len(rules)))
	}
	return lines, nil
}

func elementKeys(elems []nftables.SetElement) string {
	var keys []string
	for _, e := range elems {
		keys = append(keys, fmt.Sprintf("%x", e.Key))
	}
	slices.Sort(keys)
	return strings.Join(keys, " ")
}

func dumpConntrack(_ context.Context, s *scene) ([]string, error) {
	h, err := netlink.NewHandleAt(netns.NsHandle(s.space.Fd()), unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	list := func() ([]*netlink.ConntrackFlow, error) {
		return h.ConntrackTableList(netlink.ConntrackTable, netlink.FAMILY_V4)
	}
	return dump(list, func(f *netlink.ConntrackFlow) string {
		a, b := f.Forward, f.Reverse
		if !slices.ContainsFunc([]net.IP{a.SrcIP, a.DstIP, b.SrcIP, b.DstIP}, s.inPool) {
			return ""
		}
		return fmt.Sprintf("proto %d %s:%d > %s:%d reply %s:%d > %s:%d",
			a.Protocol, a.SrcIP, a.SrcPort, a.DstIP, a.DstPort, b.SrcIP, b.SrcPort, b.DstIP, b.DstPort)
	})
}
