package routes

import (
	"context"
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// PodLink is a link of our group: the host end of a pod's pair.
type PodLink struct {
	Name      string
	Index     int
	MAC       [6]byte
	MTU       int
	Group     int // Group, unless somebody changed it: the alias is a mark too
	Master    int // index of a link that it was put under, which takes its packets away; 0 is right
	Up        bool
	NoARP     bool   // the node sends the pod's packets to itself
	AliasText string // as the kernel has it; empty for an attachment that was never finished
	Alias     Alias  // the zero Alias when AliasText can't be read
	Marked    bool   // Alias could be read
}

// Links lists the links that carry a mark of ours, all of them or an error.
func (k *Kernel) Links(ctx context.Context) ([]PodLink, error) {
	links, _, err := k.LinksAndNames(ctx)
	return links, err
}

// LinksAndNames is Links with the names of all links of the node, whoever made them.
func (k *Kernel) LinksAndNames(ctx context.Context) (links []PodLink, names []string, err error) {
	found, err := dump(ctx, k.rt, "link-list", (*netlink.Handle).LinkList)
	if err != nil {
		return nil, nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range found {
		names = append(names, l.Attrs().Name)
		if isOurs(l.Attrs()) {
			links = append(links, podLink(l.Attrs()))
		}
	}
	return links, names, nil
}

// Link finds one link of ours by name. A link of that name without a mark of ours is ErrForeignLink.
func (k *Kernel) Link(ctx context.Context, name string) (link PodLink, found bool, err error) {
	l, found, err := k.rt.linkByName(ctx, name)
	if err != nil || !found {
		return PodLink{}, false, err
	}
	if !isOurs(l.Attrs()) {
		return PodLink{}, false, fmt.Errorf("get link %s: %w", name, ErrForeignLink)
	}
	return podLink(l.Attrs()), true, nil
}

// AliasOfOthers tells whether somebody overwrote the alias of a link of ours. A later version's is none of others'.
func (l PodLink) AliasOfOthers() bool {
	return !l.Marked && l.AliasText != "" && !strings.HasPrefix(l.AliasText, aliasFamily)
}

// isOurs goes by either mark: people and network managers change groups, and a link that DEL takes for somebody else's stays, with
// an address that the next pod gets.
func isOurs(a *netlink.LinkAttrs) bool {
	if a.Group == Group {
		return true
	}
	_, err := ParseAlias(a.Alias)
	return err == nil
}

func podLink(a *netlink.LinkAttrs) PodLink {
	alias, err := ParseAlias(a.Alias)
	return PodLink{
		Name: a.Name, Index: a.Index, MAC: hardware(a.HardwareAddr), MTU: a.MTU, Group: int(a.Group), Master: a.MasterIndex, Up: a.Flags&net.FlagUp != 0,
		NoARP:     a.RawFlags&unix.IFF_NOARP != 0,
		AliasText: a.Alias, Alias: alias, Marked: err == nil,
	}
}
