package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/native-vmss/native-vmss/pkg/allocator"
)

// PrepareOptions say how far Prepare goes.
type PrepareOptions struct {
	Root   string // "/" but in tests
	DryRun bool   // say what would be done
	Force  bool   // do it on a node that has pods
}

// Change is one thing that Prepare did, or would do.
type Change struct {
	What string
	Done bool
}

// Prepare makes a node fit for pods: it writes the drop-ins and takes secondary addresses off the NICs' links. On a node
// that has pods it only says what it would do, unless forced.
func (n *Node) Prepare(ctx context.Context, opt PrepareOptions) ([]Change, error) {
	do := !opt.DryRun
	if do {
		if err := n.makeStateDir(); err != nil {
			return nil, err
		}
	}
	var refused error
	if do && !opt.Force {
		pods, err := n.pods(ctx)
		if err != nil {
			return nil, err
		}
		if pods > 0 {
			do, refused = false, fmt.Errorf("%w: %d: drain the node or use --force", ErrHasPods, pods)
		}
	}
	changes, err := prepareFiles(opt.Root, do)
	if err != nil {
		return changes, err
	}
	more, err := n.prepareLinks(ctx, do)
	changes = append(changes, more...)
	if err == nil && do {
		err = n.Refresh(ctx) // the addresses are free now, and the store should know
	}
	if len(changes) == 0 {
		refused = nil // nothing that would have been done was left
	}
	return changes, errors.Join(err, refused)
}

func (n *Node) pods(ctx context.Context) (count int, err error) {
	all, err := n.store.List(ctx)
	for _, l := range all {
		if l.State == allocator.Leased {
			count++
		}
	}
	return count, err
}

// prepareLinks takes those addresses off the links that metadata lists as secondaries; the primary stays.
func (n *Node) prepareLinks(ctx context.Context, do bool) ([]Change, error) {
	m, err := n.look(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoMetadata, err)
	}
	holder := map[netip.Addr]string{}
	for _, l := range m.links {
		for _, a := range l.Addrs {
			holder[a.Prefix.Addr()] = l.Name
		}
	}
	var changes []Change
	for _, nic := range m.snapshot.NICs {
		for _, a := range nic.OnLink {
			if do {
				if err := n.kernel.RemoveAddress(ctx, holder[a], a); err != nil {
					return changes, fmt.Errorf("remove %s from %s: %w", a, holder[a], err)
				}
			}
			changes = append(changes, Change{What: fmt.Sprintf("remove %s from %s", a, holder[a]), Done: do})
		}
	}
	if len(m.snapshot.Skipped) > 0 { // people who prepare a node want to know that it isn't fit
		return changes, fmt.Errorf("%w: %w", ErrNICSkipped, errors.Join(m.skipped...))
	}
	return changes, nil
}
