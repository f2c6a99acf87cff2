package routes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Verdicts (include/uapi/linux/netfilter.h).
const (
	nfDrop   = 0
	nfAccept = 1
)

// filterChain is a chain of somebody else that sees all that the node forwards.
type filterChain struct {
	family       uint8
	famName      string
	table, chain string
	help         string
}

// filterChains are the names that iptables, ufw and Debian's nftables.conf use. To list every chain of a node would cost more the more
// Services it has.
var filterChains = []filterChain{
	{unix.NFPROTO_IPV4, "ip", "filter", "FORWARD", "accept pods' packets in it, or chain the firewall plugin (cni-conf/firewall.conflist)"},
	{unix.NFPROTO_IPV4, "ip", "filter", "forward", acceptInIt},
	{unix.NFPROTO_INET, "inet", "filter", "forward", acceptInIt},
}

// What iptables accepts, the firewall plugin's rules among it, is dropped all the same by a chain that isn't iptables' own.
const acceptInIt = "accept pods' packets in it: no rule of another chain helps"

// ForwardDropped says in words which chains of others drop all that is forwarded, pods' packets among it: their policy is drop and they
// have no rule. What a chain with rules lets through can't be told from here. Such chains are never ours to change.
func (k *Kernel) ForwardDropped(ctx context.Context) ([]string, error) {
	var found []string
	for _, c := range filterChains {
		drops, err := k.dropsAll(ctx, c)
		if err != nil {
			return found, fmt.Errorf("look at chain %s of table %s %s: %w", c.chain, c.famName, c.table, err)
		}
		if drops {
			found = append(found, fmt.Sprintf("table %s %s: chain %s drops all that is forwarded (policy drop, no rule): %s",
				c.famName, c.table, c.chain, c.help))
		}
	}
	drops, err := k.legacyForwardDropped(ctx)
	if drops {
		found = append(found, "iptables-legacy: chain FORWARD of table filter drops all that is forwarded (policy DROP, no rule): "+
			"accept pods' packets in it with iptables-legacy")
	}
	return found, err
}

func (k *Kernel) dropsAll(ctx context.Context, c filterChain) (bool, error) {
	req := c.request(unix.NFT_MSG_GETCHAIN, 0)
	req.AddData(nl.NewRtAttr(unix.NFTA_CHAIN_TABLE, nl.ZeroTerminated(c.table)))
	req.AddData(nl.NewRtAttr(unix.NFTA_CHAIN_NAME, nl.ZeroTerminated(c.chain)))
	answers, err := k.netfilter(ctx, "nft-getchain", req)
	if errors.Is(err, unix.ENOENT) || err == nil && len(answers) == 0 {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	drops, err := forwardPolicyDrop(answers[0])
	if err != nil || !drops {
		return false, err
	}
	req = c.request(unix.NFT_MSG_GETRULE, unix.NLM_F_DUMP)
	req.AddData(nl.NewRtAttr(unix.NFTA_RULE_TABLE, nl.ZeroTerminated(c.table)))
	req.AddData(nl.NewRtAttr(unix.NFTA_RULE_CHAIN, nl.ZeroTerminated(c.chain)))
	rules, err := k.netfilter(ctx, "nft-getrule", req)
	if errors.Is(err, nl.ErrDumpInterrupted) || errors.Is(err, unix.EINTR) {
		return false, nil // somebody is at work there
	}
	return len(rules) == 0, err
}

func (c filterChain) request(message, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|message, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: c.family})
	return req
}

// forwardPolicyDrop reads a chain: is it at the forward hook, with policy drop?
func forwardPolicyDrop(answer []byte) (bool, error) {
	if len(answer) < nfgenmsgSize {
		return false, errors.New("an answer without a header")
	}
	attrs, err := nl.ParseRouteAttr(answer[nfgenmsgSize:])
	if err != nil {
		return false, err
	}
	policy, hook := uint32(nfAccept), uint32(0) // of a chain without a hook
	for _, a := range attrs {
		switch a.Attr.Type &^ unix.NLA_F_NESTED {
		case unix.NFTA_CHAIN_POLICY:
			policy = binary.BigEndian.Uint32(a.Value)
		case unix.NFTA_CHAIN_HOOK:
			inner, err := nl.ParseRouteAttr(a.Value)
			if err != nil {
				return false, err
			}
			i := slices.IndexFunc(inner, func(a syscall.NetlinkRouteAttr) bool { return a.Attr.Type == unix.NFTA_HOOK_HOOKNUM })
			if i >= 0 {
				hook = binary.BigEndian.Uint32(inner[i].Value)
			}
		}
	}
	return policy == nfDrop && hook == unix.NF_INET_FORWARD, nil
}
