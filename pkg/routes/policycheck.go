package routes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// nfgenmsgSize is the size of the header of every message of netfilter (include/uapi/linux/netfilter/nfnetlink.h).
const nfgenmsgSize = 4

// policyRule names a rule of the policy table: its chain and its comment.
type policyRule struct{ chain, comment string }

// PolicyMissing says in words what of the policy table isn't there or isn't in force; nil when all of it stands. It compares chains, the
// elements of sets and the comments of rules, not what the rules do: a table that others flush, put to sleep or delete rules from is
// seen, one that they rewrite under the same words is not. It asks for more than an ADD can pay, so it is for CHECK.
func (k *Kernel) PolicyMissing(ctx context.Context, p Policy) ([]string, error) {
	_, found, err := k.configRules(ctx, p.Hash)
	if err != nil {
		return nil, err
	}
	if !found {
		return []string{fmt.Sprintf("table ip %s is missing or of another configuration", PolicyTable)}, nil
	}
	b := newBuilder(nil, policyTable())
	_ = b.policy(p) // no batch, no error: no messages either, which would cost more than the kernel's answers
	var missing []string
	for _, compare := range []func(context.Context, *builder) ([]string, error){
		k.policyAsleep, k.policyRulesMissing, k.policyChainsChanged, k.policySetsChanged,
	} {
		found, err := compare(ctx, b)
		if err != nil {
			return nil, err
		}
		missing = append(missing, found...)
	}
	return missing, nil
}

func (k *Kernel) policyRulesMissing(ctx context.Context, want *builder) ([]string, error) {
	have, err := k.policyRules(ctx)
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, w := range want.written {
		if have[w]--; have[w] < 0 {
			missing = append(missing, fmt.Sprintf("table ip %s: chain %s lacks a rule %q", PolicyTable, w.chain, w.comment))
		}
	}
	return missing, nil
}

// nftDump asks for a list of what the policy table has, table and object named by attributes. Each other change of any table interrupts
// a dump; these fit into one answer, so that seldom happens.
func (k *Kernel) nftDump(ctx context.Context, op string, message int, attrs ...*nl.RtAttr) (answers [][]byte, err error) {
	for try := range dumpTries {
		req := netfilterRequest(unix.NFNL_SUBSYS_NFTABLES, message, unix.NLM_F_DUMP, 0)
		for _, a := range attrs {
			req.AddData(a)
		}
		answers, err = k.netfilter(ctx, op, req)
		if !errors.Is(err, nl.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			break
		}
		time.Sleep(min(dumpPause<<try, dumpPauseMost))
	}
	return answers, err
}

// policyRules counts the rules that the kernel has.
func (k *Kernel) policyRules(ctx context.Context) (map[policyRule]int, error) {
	answers, err := k.nftDump(ctx, "nft-getrule", unix.NFT_MSG_GETRULE, nl.NewRtAttr(unix.NFTA_RULE_TABLE, nl.ZeroTerminated(PolicyTable)))
	if err != nil {
		return nil, fmt.Errorf("list rules of table ip %s: %w", PolicyTable, err)
	}
	have := make(map[policyRule]int, len(answers))
	for _, a := range answers {
		r, err := parsePolicyRule(a)
		if err != nil {
			return nil, fmt.Errorf("list rules of table ip %s: %w", PolicyTable, err)
		}
		have[r]++
	}
	return have, nil
}

func parsePolicyRule(answer []byte) (r policyRule, err error) {
	if len(answer) < nfgenmsgSize {
		return r, errors.New("an answer without a header")
	}
	attrs, err := nl.ParseRouteAttr(answer[nfgenmsgSize:])
	if err != nil {
		return r, err
	}
	for _, a := range attrs {
		switch a.Attr.Type {
		case unix.NFTA_RULE_CHAIN:
			r.chain = unix.ByteSliceToString(a.Value)
		case unix.NFTA_RULE_USERDATA:
			r.comment, _ = userdata.GetString(a.Value, userdata.TypeComment)
		}
	}
	return r, nil
}
