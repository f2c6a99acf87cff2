package node

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/native-vmss/native-vmss/internal/boltfile"
	"github.com/native-vmss/native-vmss/internal/failpoint"
	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// ensureFresh brings the snapshot and the node-wide state up to date. When both stand it costs one read of the store, and of the
// kernel one look at each NIC, one at the policy table and one at the policy rules.
func (n *Node) ensureFresh(ctx context.Context) error {
	view, err := n.store.Read(ctx, Hash{})
	if err != nil {
		return err
	}
	stand, err := n.nicsStand(ctx, decodeRecord(view.Node))
	if err != nil {
		return err
	}
	view, err = n.refreshIfDue(ctx, view, stand)
	if err != nil {
		return err
	}
	return n.ensure(ctx, decodeRecord(view.Node))
}

// ensure makes sure of the node: the kernel's node-wide objects are those of this network's configuration. have is the stored record.
func (n *Node) ensure(ctx context.Context, have record) error {
	want, err := n.wanted(ctx, have)
	if err != nil {
		return err
	}
	if n.applied(have, want) {
		stands, err := n.stands(ctx, have)
		if err != nil {
			return err
		}
		if stands {
			n.known = &have
			return nil
		}
	}
	held, err := n.lockNode(ctx)
	if err != nil {
		return err
	}
	defer held.Unlock()
	return n.applyLocked(ctx)
}

// applied reports whether the record says that what is wanted was written, here.
func (n *Node) applied(have, want record) bool {
	return have.Applied == want.hash() && have.Network == want.Network && have.Place == n.place && !have.Undone
}

// stands looks whether the kernel still has what the record says: others flush tables and rules. It is part of every ADD and so
// leaves out what costs more or is seen elsewhere: single rules of the table, sysctls and the routes in the NICs' tables, which CHECK
// looks at.
func (n *Node) stands(ctx context.Context, rec record) (bool, error) {
	var missing []string
	has, err := n.kernel.HasPolicy(ctx, rec.Applied)
	if err != nil {
		return false, fmt.Errorf("%w: %w", ErrKernel, err)
	}
	if !has {
		missing = []string{"table ip " + routes.PolicyTable}
	} else if missing, err = n.kernel.RulesMissing(ctx, rec.ruleNICs(), rec.Wide.RemotePods); err != nil {
		return false, err
	}
	if len(missing) > 0 {
		n.log.Warn("node-wide state was damaged", "missing", strings.Join(missing, "; "))
	}
	return len(missing) == 0, nil
}

// ensureNIC makes sure of the NIC that a lease came from: this process or another may have asked metadata again since ensureFresh,
// because nothing was free, and found a NIC that is new here. Without its rules the pod's packets would leave by another.
func (n *Node) ensureNIC(ctx context.Context, g Grant) error {
	if g.NIC == (allocator.MAC{}) { // of another IPAM plugin, or of a rebuilt store
		return nil
	}
	rec, err := n.nics(ctx)
	if err != nil {
		return err
	}
	if _, known := rec.ownerOf(g); known {
		return nil
	}
	if rec, err = n.readRecord(ctx); err != nil {
		return err
	}
	if _, known := rec.ownerOf(g); !known {
		return fmt.Errorf("%w: NIC %s has %s", ErrNICGone, g.NIC, g.Addr)
	}
	return n.ensure(ctx, rec)
}

// applyLocked writes the node-wide state. The record is read again: another process may have done it
// while we waited for the lock.
func (n *Node) applyLocked(ctx context.Context) error {
	have, err := n.readRecord(ctx)
	if err != nil {
		return err
	}
	want, err := n.claimed(ctx, have)
	if err != nil {
		return err
	}
	if n.applied(have, want) {
		if stands, err := n.stands(ctx, have); err == nil && stands {
			return nil
		}
	}
	return n.apply(ctx, want, want.hash())
}

// apply writes the node-wide state. When it fails because the NICs aren't those of the record any more, the next try sees the new ones.
func (n *Node) apply(ctx context.Context, want record, hash string) error {
	return n.orChanged(ctx, want, n.write(ctx, want, hash))
}

// orChanged makes a failure ErrNICsChanged where the NICs aren't those of the record any more.
func (n *Node) orChanged(ctx context.Context, rec record, err error) error {
	if err == nil || len(rec.NICs) == 0 {
		return err
	}
	if stand, standErr := n.nicsStand(ctx, rec); standErr == nil && !stand {
		return fmt.Errorf("%w: %w", ErrNICsChanged, err)
	}
	return err
}

// write puts the policy table first: without it no pod may have a route.
func (n *Node) write(ctx context.Context, want record, hash string) error {
	if err := failpoint.Hit("node.apply"); err != nil {
		return err
	}
	if err := n.kernel.ApplyPolicy(ctx, want.policy(hash)); err != nil {
		return fmt.Errorf("%w: %w", ErrKernel, err)
	}
	if err := n.kernel.ApplySysctls(ctx, want.links()); err != nil {
		return err
	}
	err := n.kernel.ApplyRules(ctx, want.ruleNICs(), want.Wide.RemotePods)
	if want.Undone = errors.Is(err, routes.ErrNICDown); want.Undone { // pods of the other NICs don't wait for it
		n.log.Warn("routes by a NIC that is down are not made", "error", err)
	} else if err != nil {
		return err
	}
	want.Applied, want.Place = hash, n.place
	n.known = &want
	countErr := n.applyCounting(ctx, &want)
	n.log.Info("node-wide state written", "hash", hash, "network", want.Network)
	if err := n.putRecord(ctx, want); err != nil || n.noted == nil {
		return err // accounting never costs a pod its network; Repair reports it
	}
	return countErr
}

// wanted is the record as this network's configuration has it. A second network may not change what the pods of others live by.
func (n *Node) wanted(ctx context.Context, have record) (record, error) {
	want := have
	want.Network, want.Wide = n.conf.Name, n.conf.Wide
	if have.Network == "" || have.Network == n.conf.Name {
		return want, nil
	}
	stands, asked, differ := have.Wide.differs(n.conf.Wide)
	if !differ { // the first network stays the owner
		want.Network = have.Network
		return want, nil
	}
	pods, whose, err := n.othersPods(ctx)
	if err != nil {
		return want, err
	}
	if pods > 0 {
		if whose == "" {
			whose = have.Network
		}
		return want, keyError(ErrConfig, asked.name,
			"%s differs from the %s of network %q, which has pods here (%d): this key belongs to the node",
			asked.value, stands.value, whose, pods)
	}
	return want, nil
}

// claimed is wanted for who holds node.lock and writes next. Where that takes the node over from another network, pods are counted
// once more.
func (n *Node) claimed(ctx context.Context, have record) (record, error) {
	want, err := n.wanted(ctx, have)
	if err != nil || want.Network == have.Network {
		return want, err
	}
	return want, n.disown(ctx, have, func(ctx context.Context) error {
		_, err := n.wanted(ctx, have)
		return err
	})
}

// disown notes that nobody may rely on the node-wide state that stands, and then counts pods, which may refuse: an ADD that leased
// before is counted, and one that leases later finds the note in its last step (stillOurs). Who holds node.lock calls it before
// taking away what pods of others live by.
func (n *Node) disown(ctx context.Context, have record, count func(context.Context) error) error {
	if have.Applied == "" {
		return count(ctx)
	}
	noted := have
	noted.Applied = ""
	if err := n.putRecord(ctx, noted); err != nil {
		return err
	}
	if err := count(ctx); err != nil {
		return errors.Join(err, n.putRecord(ctx, have))
	}
	return nil
}

// servedBy reports whether a record vouches for node-wide state with this network's values.
func (n *Node) servedBy(rec record) bool {
	_, _, differ := rec.Wide.differs(n.conf.Wide)
	return rec.Applied != "" && (rec.Network == n.conf.Name || !differ)
}

// othersPods counts the pods that other networks have on our links, and names one of those networks if the store can: any of
// them may live by the node-wide values that stand, not only those of the network that brought them.
func (n *Node) othersPods(ctx context.Context) (pods int, whose string, err error) {
	all, err := n.store.List(ctx)
	if err != nil {
		return 0, "", err
	}
	for _, l := range all {
		if l.Owner.Main != mainType || l.Owner.Network == networkHash(n.conf.Name) {
			continue
		}
		if l.State == allocator.Leased || l.State == allocator.Releasing {
			pods++
			whose = l.Owner.NetworkName
		}
	}
	links, err := n.kernel.Links(ctx)
	if err != nil {
		return 0, "", err
	}
	for _, l := range links { // pods whose addresses another IPAM plugin gave have no lease
		if l.Marked && l.Alias.Generation == NoLease && l.Alias.Network != networkHash(n.conf.Name) {
			pods++
		}
	}
	return pods, whose, nil
}

func (n *Node) leasesOf(ctx context.Context, network Hash) ([]allocator.Lease, error) {
	all, err := n.store.List(ctx)
	if err != nil {
		return nil, err
	}
	var out []allocator.Lease
	for _, l := range all {
		if l.Owner.Network == network && (l.State == allocator.Leased || l.State == allocator.Releasing) {
			out = append(out, l)
		}
	}
	return out, nil
}

func (n *Node) lockNode(ctx context.Context) (*boltfile.Held, error) {
	ctx, cancel := context.WithTimeout(ctx, n.conf.IPAM.LockTimeout)
	defer cancel()
	return boltfile.Lock(ctx, n.path(nodeLockFile))
}

// mtu is the configured one, else that of the NIC that owns the address, read now: somebody may have changed it.
func (n *Node) mtu(ctx context.Context, g Grant) (int, error) {
	if n.conf.MTU != 0 {
		return n.conf.MTU, nil
	}
	rec, err := n.nics(ctx)
	if err != nil {
		return 0, err
	}
	nic := rec.nicOf(g)
	mtu, err := n.kernel.MTU(ctx, nic.Link)
	if err != nil {
		return 0, n.orChanged(ctx, rec, fmt.Errorf("MTU of NIC %q: %w", nic.Link, err))
	}
	return mtu, nil
}
