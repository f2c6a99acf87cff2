package accounting

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// owner is other software that uses bits of packet marks for itself.
type owner struct {
	name   string
	mask   uint32
	links  []string // what its links' names begin with
	chains []string // likewise its netfilter chains'; with neither it is taken to be everywhere
}

// owners and their default bits, as their documentation has them.
var owners = []owner{
	{name: "kube-proxy", mask: 0x0000c000},
	{name: "portmap", mask: 0x00002000},
	{name: "Calico", mask: 0xffff0000, links: []string{"cali"}, chains: []string{"cali-", "filter-cali-", "mangle-cali-", "nat-cali-", "raw-cali-"}},
	{name: "Cilium", mask: 0xffff0f00, links: []string{"cilium_", "lxc"}, chains: []string{"CILIUM_", "OLD_CILIUM_"}},
	{name: "Tailscale", mask: 0x00ff0000, links: []string{"tailscale"}, chains: []string{"ts-"}},
}

// MaskTaken says which software that is present on this node, whose links are given by name, uses bits of the mask; empty when none does.
// Two owners of one bit would misread each other's packets, so marks are off then. Counters never need them.
func MaskTaken(ctx context.Context, mask uint32, links []string) (why string, err error) {
	if mask == 0 {
		return "", nil
	}
	chains, err := nftChainNames(ctx)
	if err != nil {
		return "", err
	}
	for _, o := range owners {
		if o.mask&mask == 0 {
			continue
		}
		seen := "always reserved"
		if len(o.links) > 0 {
			if seen = first(links, o.links, "link"); seen == "" {
				seen = first(chains, o.chains, "chain")
			}
		}
		if seen != "" {
			return fmt.Sprintf("markMask %#08x overlaps %#08x of %s (%s)", mask, o.mask, o.name, seen), nil
		}
	}
	return "", nil
}

func first(names, prefixes []string, what string) string {
	for _, n := range names {
		for _, p := range prefixes {
			if strings.HasPrefix(n, p) {
				return what + " " + n
			}
		}
	}
	return ""
}

// nftChainNames lists the netfilter chains of the node. iptables of the nft flavour shows its chains there; the legacy flavour's can't be seen
// without its binary, but who has chains has links too.
func nftChainNames(ctx context.Context) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	sockets, err := openNFTSockets()
	if err != nil {
		return nil, err
	}
	defer sockets.close()
	list, err := sockets.dump(ctx, unix.NFT_MSG_GETCHAIN)
	if err != nil {
		return nil, fmt.Errorf("list chains: %w", err)
	}
	names := make([]string, 0, len(list))
	for _, c := range list {
		names = append(names, text(attribute(c, unix.NFTA_CHAIN_NAME)))
	}
	return names, nil
}
