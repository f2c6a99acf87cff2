package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/native-vmss/native-vmss/pkg/allocator"
)

// notOurs says in words what others did to these NICs or to all that is forwarded, so that pods' packets are lost. CHECK and Repair name
// it; it stays as it is, for it may be meant.
func (n *Node) notOurs(ctx context.Context, nics ...nicFact) (found []string, err error) {
	var errs []error
	for _, nic := range nics {
		changed, err := n.macChanged(ctx, nic)
		errs = append(errs, err)
		found = append(found, changed...)
	}
	main, err := n.kernel.MainLookedUp(ctx)
	if err == nil && !main {
		found = append(found, "no policy rule looks up table main: ip rule add pref 32766 lookup main")
	}
	dropped, droppedErr := n.kernel.ForwardDropped(ctx)
	return append(found, dropped...), errors.Join(append(errs, err, droppedErr)...)
}

// macChanged looks at one NIC; that it is gone is another finding.
func (n *Node) macChanged(ctx context.Context, nic nicFact) ([]string, error) {
	if is, err := n.kernel.IsNIC(ctx, nic.Link, nic.Index); err != nil || !is {
		return nil, err
	}
	mac, err := n.kernel.MAC(ctx, nic.Link)
	if now := allocator.MAC(mac).String(); err == nil && now != nic.MAC {
		return []string{fmt.Sprintf("NIC %s has MAC %s instead of %s: Azure drops what it sends", nic.Link, now, nic.MAC)}, nil
	}
	return nil, err
}

// namedNotOurs is what Repair says of it.
func (n *Node) namedNotOurs(ctx context.Context) error {
	rec, err := n.readRecord(ctx)
	if err != nil {
		return err
	}
	found, err := n.notOurs(ctx, rec.NICs...)
	errs := []error{err}
	for _, what := range found {
		errs = append(errs, fmt.Errorf("%w: %s", ErrNotOurs, what))
	}
	return errors.Join(errs...)
}
