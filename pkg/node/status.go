package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/boltfile"
	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// statusRefresh is what STATUS may spend on asking metadata itself: containerd holds a lock meanwhile.
const statusRefresh = 800 * time.Millisecond

// Status fails when no pod can get an address. A full node is no failure: it would turn NotReady and lose its running pods.
func (n *Node) Status(ctx context.Context) error {
	if err := n.makeStateDir(); err != nil {
		return err
	}
	// The store may be readable on a disk that went read-only, and then every ADD and DEL fails.
	if err := unix.Access(n.conf.IPAM.StateDir, unix.W_OK); err != nil {
		return fmt.Errorf("%w: write to %s: %w", ErrStore, n.conf.IPAM.StateDir, err)
	}
	return n.addrs.Status(ctx)
}

// Status asks metadata itself while no address is free, at most once in 5 s: on a new node nobody else would before the first pod
// comes, and none comes while STATUS fails. A full node asks too, and may learn of addresses that were added.
//
// A store that is busy for as long as STATUS may wait is one that serves: with 250 ADDs in the queue the node would else turn
// NotReady, and its pods would leave their Services. A holder that is stuck is named by every ADD and DEL.
func (l local) Status(ctx context.Context) error {
	err := l.status(ctx)
	if errors.Is(err, boltfile.ErrBusy) {
		l.log.Warn("status not known, taken for good", "error", err)
		return nil
	}
	return err
}

func (l local) status(ctx context.Context) error {
	view, err := l.store.Read(ctx, Hash{})
	if err != nil {
		return err
	}
	if !assignable(view) {
		asking, cancel := context.WithTimeout(ctx, statusRefresh)
		defer cancel()
		l.refreshIfNobodyDoes(asking, 0)
		if view, err = l.store.Read(ctx, Hash{}); err != nil {
			return err
		}
	}
	if !view.EverKnown {
		return fmt.Errorf("%w: metadata lists none for a NIC of this node, or can't be asked (%s)%s", ErrNoAddresses,
			l.conf.IPAM.MetadataURL, decodeRecord(view.Node).skipped())
	}
	return nil
}

// assignable reports whether an address could be handed out now.
func assignable(v allocator.View) bool {
	for _, t := range v.Totals {
		if t.Free > 0 {
			return true
		}
	}
	return false
}

// GC releases everything of this network whose key isn't in valid. Without a list (given is false) only what is provably
// dead goes. What an ADD left unfinished is nobody's and goes in any case. It goes on after an error and reports all.
func (n *Node) GC(ctx context.Context, valid []Key, given bool) error {
	if err := n.makeStateDir(); err != nil {
		return err
	}
	err := n.sameNamespace(ctx)
	if errors.Is(err, ErrNamespace) {
		return err
	}
	return errors.Join(err, n.gc(ctx, valid, given), n.collectUnfinished(ctx))
}

func (n *Node) gc(ctx context.Context, valid []Key, given bool) error {
	if !n.allocates() {
		return n.gcForeign(ctx, valid, given)
	}
	if !given {
		return n.removeDead(ctx)
	}
	return n.addrs.GC(ctx, valid)
}

// collectUnfinished removes links that an ADD made and never marked. Their leases may be gone: a store that is rebuilt, after a boot
// too, knows a link by its mark alone, and without a DEL nobody would ask for these again.
func (n *Node) collectUnfinished(ctx context.Context) error {
	links, err := n.kernel.Links(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range links {
		offset, ok := lockOffsetOf(l.Name)
		if !ok || l.Marked || wasMarked(l) {
			continue
		}
		errs = append(errs, n.withContainer(ctx, offset, func() error {
			now, found, err := n.kernel.Link(ctx, l.Name)
			if errors.Is(err, routes.ErrForeignLink) || err == nil && (!found || now.Marked || wasMarked(now)) {
				return nil
			}
			if err != nil {
				return err
			}
			if lease, leased, err := n.leaseOf(ctx, now.Name); err != nil || leased && n.lostMark(ctx, now, lease) {
				return err // repair marks it again
			}
			return n.removeUnfinished(ctx, now)
		}))
	}
	return errors.Join(errs...)
}

// leaseOf is the lease whose pod's link has this name.
func (n *Node) leaseOf(ctx context.Context, link string) (allocator.Lease, bool, error) {
	leases, err := n.store.List(ctx)
	if err != nil {
		return allocator.Lease{}, false, err
	}
	for _, l := range leases {
		if l.State == allocator.Leased && n.linkNameOf(l) == link {
			return l, true, nil
		}
	}
	return allocator.Lease{}, false, nil
}

// allocates tells whether pods' addresses come from this store, and not from another IPAM plugin.
func (n *Node) allocates() bool {
	_, ours := n.addrs.(local)
	return ours
}

// gcForeign removes the links; the addresses are the other plugin's, which reads the list itself. Without a list nothing is
// known to be dead: a link whose pod is gone went with it.
func (n *Node) gcForeign(ctx context.Context, valid []Key, given bool) error {
	var errs []error
	if given {
		errs = append(errs, n.removeLinks(ctx, valid))
	}
	return errors.Join(append(errs, n.addrs.GC(ctx, valid))...)
}

// removeLinks takes away this network's links but those of the valid keys.
func (n *Node) removeLinks(ctx context.Context, valid []Key) error {
	links, err := n.kernel.Links(ctx)
	if err != nil {
		return err
	}
	keep, network := hashes(valid), networkHash(n.conf.Name)
	var errs []error
	for _, l := range links {
		if !l.Marked || l.Alias.Network != network || keep[l.Alias.Key] {
			continue
		}
		err := n.detach(ctx, l.Alias.Key, func(ctx context.Context, teardown Teardown) error {
			// The list is older than the lock: a link that was made since is a younger attachment's.
			now, found, err := n.kernel.Link(ctx, l.Name)
			if errors.Is(err, routes.ErrForeignLink) || err == nil && (!found || now.Index != l.Index) {
				return nil
			}
			return errors.Join(err, teardown(ctx, Grant{}))
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", l.Name, err))
		}
	}
	return errors.Join(errs...)
}

func hashes(keys []Key) map[Hash]bool {
	set := make(map[Hash]bool, len(keys))
	for _, k := range keys {
		set[k.Hash()] = true
	}
	return set
}

// GC compares hashes: a record of a rebuilt store knows no names.
func (l local) GC(ctx context.Context, valid []Key) error {
	keep := hashes(valid)
	leases, err := l.leasesOf(ctx, networkHash(l.conf.Name))
	if err != nil {
		return err
	}
	var errs []error
	for _, lease := range leases {
		if keep[lease.Owner.Key] {
			continue
		}
		err := l.detach(ctx, lease.Owner.Key, func(ctx context.Context, teardown Teardown) error {
			// The list is older than the lock: a DEL and a new ADD may have come in between, and its lease is a younger one.
			view, err := l.store.Read(ctx, lease.Owner.Key)
			if err != nil || view.Lease == nil || view.Lease.Generation != lease.Generation {
				return err
			}
			return l.release(ctx, lease.Owner.Key, teardown)
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("release %s: %w", lease.Addr, err))
		}
	}
	return errors.Join(errs...)
}
