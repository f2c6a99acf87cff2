package routes

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// netfilter is the only way to the NETLINK_NETFILTER socket, which is opened at its first use: one request, its answers.
// google/nftables has its own sockets for batches; single questions are asked here, where the error keeps its number.
func (k *Kernel) netfilter(ctx context.Context, op string, req *nl.NetlinkRequest) ([][]byte, error) {
	if err := enter(ctx, op); err != nil {
		return nil, err
	}
	sockets, err := k.netfilterSockets()
	if err != nil {
		return nil, err
	}
	req.Sockets = sockets
	return req.Execute(unix.NETLINK_NETFILTER, 0)
}

func (k *Kernel) netfilterSockets() (map[int]*nl.SocketHandle, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.nf != nil {
		return k.nf, nil
	}
	var s *nl.NetlinkSocket
	err := k.space.do(func() (err error) {
		s, err = nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open netfilter socket: %w", err)
	}
	tv := unix.NsecToTimeval(replyTimeout.Nanoseconds())
	if err := s.SetReceiveTimeout(&tv); err != nil {
		s.Close()
		return nil, fmt.Errorf("set netlink timeout: %w", err)
	}
	k.nf = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: s}}
	return k.nf, nil
}

// netfilterRequest begins a message to one of netfilter's subsystems. The version tells conntrack whether the family of the
// header counts.
func netfilterRequest(subsystem, message, flags int, version uint8) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(subsystem<<8|message, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: version})
	return req
}

// HasPolicy tells whether the policy table is there, was built from the configuration of that hash, and wasn't flushed since: one
// question, small enough for every ADD. A single chain or rule that somebody deleted is seen by PolicyMissing alone.
func (k *Kernel) HasPolicy(ctx context.Context, hash string) (bool, error) {
	rules, found, err := k.configRules(ctx, hash)
	return found && rules > 0, err
}

// configRules asks for the chain that names the configuration. The kernel answers with the number of its rules too.
func (k *Kernel) configRules(ctx context.Context, hash string) (rules uint32, found bool, err error) {
	answer, err := k.nftAsk(ctx, "nft-getchain", policyChainRequest(configChain(hash)))
	if err != nil || answer == nil {
		return 0, false, err
	}
	attrs, err := nftAttrs(answer[nfgenmsgSize:])
	if err != nil {
		return 0, false, fmt.Errorf("look for table ip %s: %w", PolicyTable, err)
	}
	return nftNumber(attrs[unix.NFTA_CHAIN_USE]), true, nil
}

func policyChainRequest(chain string) *nl.NetlinkRequest {
	req := netfilterRequest(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETCHAIN, 0, 0)
	req.AddData(nl.NewRtAttr(unix.NFTA_CHAIN_TABLE, nl.ZeroTerminated(PolicyTable)))
	req.AddData(nl.NewRtAttr(unix.NFTA_CHAIN_NAME, nl.ZeroTerminated(chain)))
	return req
}

func policyTableRequest() *nl.NetlinkRequest {
	req := netfilterRequest(unix.NFNL_SUBSYS_NFTABLES, unix.NFT_MSG_GETTABLE, 0, 0)
	req.AddData(nl.NewRtAttr(unix.NFTA_TABLE_NAME, nl.ZeroTerminated(PolicyTable)))
	return req
}

// PolicyTableExists tells whether a policy table is there, of whatever configuration: then we ran in this boot.
func (k *Kernel) PolicyTableExists(ctx context.Context) (bool, error) {
	answer, err := k.nftAsk(ctx, "nft-gettable", policyTableRequest())
	return answer != nil, err
}

// nftAsk asks for one object; nil where there is none.
func (k *Kernel) nftAsk(ctx context.Context, op string, req *nl.NetlinkRequest) ([]byte, error) {
	answers, err := k.netfilter(ctx, op, req)
	switch {
	case err == nil && len(answers) == 1 && len(answers[0]) >= nfgenmsgSize:
		return answers[0], nil
	case err == nil:
		err = errors.New("not one answer")
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case missingNFTables(err):
		err = fmt.Errorf("%w (%w)", ErrNoNFTables, err)
	}
	return nil, fmt.Errorf("look for table ip %s: %w", PolicyTable, err)
}

// missingNFTables knows the answers of a kernel without nf_tables: no such netlink family, or no such subsystem in it.
func missingNFTables(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP)
}
