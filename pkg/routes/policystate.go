package routes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// What takes the policy table out of force, or turns it against the pods, without a rule being gone.

// policyAsleep looks at the table's flags: a dormant one is there with all its rules, and the kernel asks none of them.
func (k *Kernel) policyAsleep(ctx context.Context, _ *builder) ([]string, error) {
	answer, err := k.nftAsk(ctx, "nft-gettable", policyTableRequest())
	if err != nil || answer == nil {
		return nil, err
	}
	attrs, err := nftAttrs(answer[nfgenmsgSize:])
	if err != nil {
		return nil, fmt.Errorf("look at the flags of table ip %s: %w", PolicyTable, err)
	}
	if nftNumber(attrs[unix.NFTA_TABLE_FLAGS])&unix.NFT_TABLE_F_DORMANT != 0 {
		return []string{fmt.Sprintf("table ip %s is dormant: none of its rules is in force", PolicyTable)}, nil
	}
	return nil, nil
}

// policyChainsChanged looks at what our chains do with packets that no rule ends.
func (k *Kernel) policyChainsChanged(ctx context.Context, want *builder) ([]string, error) {
	var changed []string
	for _, chain := range want.hooked {
		answer, err := k.nftAsk(ctx, "nft-getchain", policyChainRequest(chain))
		if err != nil {
			return nil, err
		}
		if answer == nil {
			continue // its rules are missing
		}
		attrs, err := nftAttrs(answer[nfgenmsgSize:])
		if err != nil {
			return nil, fmt.Errorf("look at chain %s of table ip %s: %w", chain, PolicyTable, err)
		}
		policy, hooked := attrs[unix.NFTA_CHAIN_POLICY]
		if !hooked {
			changed = append(changed, fmt.Sprintf("table ip %s: chain %s has no hook", PolicyTable, chain))
		} else if nftNumber(policy) != nfAccept {
			changed = append(changed, fmt.Sprintf("table ip %s: policy of chain %s is drop instead of accept", PolicyTable, chain))
		}
	}
	return changed, nil
}

// policySetsChanged compares the elements of sets.
func (k *Kernel) policySetsChanged(ctx context.Context, want *builder) ([]string, error) {
	var changed []string
	for _, set := range slices.Sorted(maps.Keys(want.elements)) {
		have, err := k.policyElements(ctx, set)
		if err != nil {
			return nil, fmt.Errorf("list set %s of table ip %s: %w", set, PolicyTable, err)
		}
		if !maps.Equal(have, elementsOf(want.elements[set])) {
			changed = append(changed, fmt.Sprintf("table ip %s: set %s has not the elements that it should have", PolicyTable, set))
		}
	}
	return changed, nil
}

// setElement is a key, or the first one behind an interval.
type setElement struct {
	key string
	end bool
}

func elementsOf(elements []nftables.SetElement) map[setElement]bool {
	found := make(map[setElement]bool, len(elements))
	for _, e := range elements {
		found[setElement{string(e.Key), e.IntervalEnd}] = true
	}
	return found
}

// policyElements lists a set of the kernel; one that isn't there has no elements.
func (k *Kernel) policyElements(ctx context.Context, set string) (map[setElement]bool, error) {
	answers, err := k.nftDump(ctx, "nft-getset", unix.NFT_MSG_GETSETELEM,
		nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_TABLE, nl.ZeroTerminated(PolicyTable)),
		nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated(set)))
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	found := map[setElement]bool{}
	for _, a := range answers {
		if len(a) < nfgenmsgSize {
			return nil, errors.New("an answer without a header")
		}
		attrs, err := nftAttrs(a[nfgenmsgSize:])
		if err != nil {
			return nil, err
		}
		list, err := nl.ParseRouteAttr(attrs[unix.NFTA_SET_ELEM_LIST_ELEMENTS])
		if err != nil {
			return nil, err
		}
		for _, item := range list {
			e, err := parseElement(item.Value)
			if err != nil {
				return nil, err
			}
			found[e] = true
		}
	}
	delete(found, setElement{string(make([]byte, addrSize)), true}) // nft writes that nothing before the first interval belongs to the set
	return found, nil
}

func parseElement(b []byte) (setElement, error) {
	attrs, err := nftAttrs(b)
	if err != nil {
		return setElement{}, err
	}
	key, err := nftAttrs(attrs[unix.NFTA_SET_ELEM_KEY])
	end := nftNumber(attrs[unix.NFTA_SET_ELEM_FLAGS])&unix.NFT_SET_ELEM_INTERVAL_END != 0
	return setElement{string(key[unix.NFTA_DATA_VALUE]), end}, err
}

// nftAttrs are the attributes of a message or of one that holds others.
func nftAttrs(b []byte) (map[uint16][]byte, error) {
	list, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, err
	}
	attrs := make(map[uint16][]byte, len(list))
	for _, a := range list {
		attrs[a.Attr.Type&^unix.NLA_F_NESTED] = a.Value
	}
	return attrs, nil
}

// nftNumber reads a number of nftables; one that isn't there is 0.
func nftNumber(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
