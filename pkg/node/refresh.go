package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/native-vmss/native-vmss/internal/boltfile"
	"github.com/native-vmss/native-vmss/internal/boot"
	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/metadata"
)

const (
	// A VM may make 5 metadata requests per second in all, and others need them too: when nothing is free, ask this often.
	refreshWhenEmpty = 5 * time.Second
	// With a free address at hand the answer isn't worth waiting for.
	refreshBudget = time.Second
	// What is left of an ADD's 30 s after this long without an answer is needed for the rest.
	refreshBudgetEmpty = 20 * time.Second
)

// refreshIfDue asks metadata when the stored snapshot is old. With an assignable address, or where another IPAM plugin has the
// addresses, a slow or failing service costs at most a second and no ADD; else the answer decides. The view comes back as it is
// afterwards. stand says whether the recorded NICs will do.
func (n *Node) refreshIfDue(ctx context.Context, view allocator.View, stand bool) (allocator.View, error) {
	if younger(view, n.conf.IPAM.Refresh) && stand {
		return view, nil
	}
	if stand && (!n.allocates() || assignable(view)) {
		n.refreshIfNobodyDoes(ctx, view.SnapshotAt)
	} else if _, err := n.refreshAfter(ctx, view.SnapshotAt, view.SnapshotKnown); err != nil {
		if stand {
			return view, err
		}
		if left, goneErr := n.forgetGone(ctx); !left {
			return view, errors.Join(err, goneErr)
		}
		n.log.Warn("metadata not refreshed, stored snapshot used without the NICs that are gone", "error", err)
	}
	return n.store.Read(ctx, Hash{})
}

// younger reports whether the stored snapshot is from less than d ago. One from a time to come is of no age that can be told.
func younger(view allocator.View, d time.Duration) bool {
	age := boot.Clock() - view.SnapshotAt
	return view.SnapshotKnown && age >= 0 && age < d
}

// nicsStand reports whether NICs are known, and are the links that the record says: rules are made from them.
func (n *Node) nicsStand(ctx context.Context, rec record) (bool, error) {
	for _, nic := range rec.NICs {
		if is, err := n.kernel.IsNIC(ctx, nic.Link, nic.Index); err != nil || !is {
			return false, err
		}
	}
	return len(rec.NICs) > 0, nil
}

// forgetGone drops the NICs whose link the kernel no longer has from record and store, for want of an answer from metadata, and
// reports whether something was dropped and the others will do. A link that was renamed or put under another is no such NIC.
func (n *Node) forgetGone(ctx context.Context) (bool, error) {
	held, err := n.lockNode(ctx)
	if err != nil {
		return false, err
	}
	defer held.Unlock()
	rec, err := n.readRecord(ctx)
	if err != nil {
		return false, err
	}
	var left []nicFact
	var gone []allocator.MAC
	for _, nic := range rec.NICs {
		there, err := n.kernel.HasLink(ctx, nic.Index)
		if err != nil {
			return false, err
		}
		mac, err := net.ParseMAC(nic.MAC)
		if there || err != nil {
			left = append(left, nic)
		} else {
			gone = append(gone, allocator.MAC(mac))
		}
	}
	rec.NICs = left
	if stand, err := n.nicsStand(ctx, rec); err != nil || !stand || len(gone) == 0 {
		return false, err
	}
	links, err := n.kernel.NICs(ctx)
	if err != nil {
		return false, err
	}
	markDefault(rec.NICs, links)
	if err := n.store.Withhold(ctx, gone...); err != nil {
		return false, err
	}
	return true, n.putRecord(ctx, rec)
}

// refreshIfNobodyDoes is for a node that has free addresses: whoever holds the lock is asking already. A question that was asked
// since the answer that the caller has seen brought none.
func (n *Node) refreshIfNobodyDoes(ctx context.Context, seen time.Duration) {
	held, ok, err := boltfile.TryLock(n.path(metadataLockFile))
	if err != nil {
		n.log.Warn("metadata not refreshed, stored snapshot used", "error", err)
		return
	}
	if !ok {
		return
	}
	defer held.Unlock()
	if asked := lastAsked(held); asked > seen && boot.Clock()-asked < refreshWhenEmpty {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, refreshBudget)
	defer cancel()
	if err := n.fetch(ctx, held); err != nil {
		n.log.Warn("metadata not refreshed, stored snapshot used", "error", err)
	}
}

// refreshExhausted asks again because nothing is free; false when the snapshot is younger than 5 s.
func (n *Node) refreshExhausted(ctx context.Context) (bool, error) {
	view, err := n.store.Read(ctx, Hash{})
	if err != nil {
		return false, err
	}
	if younger(view, refreshWhenEmpty) {
		return false, nil
	}
	return n.refreshAfter(ctx, view.SnapshotAt, view.SnapshotKnown)
}

// refreshAfter waits for its turn and asks, unless the one before it brought a newer snapshot than the caller has seen.
func (n *Node) refreshAfter(ctx context.Context, seen time.Duration, known bool) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, refreshBudgetEmpty)
	defer cancel()
	held, err := boltfile.Lock(ctx, n.path(metadataLockFile))
	if err != nil {
		return false, err
	}
	defer held.Unlock()
	view, err := n.store.Read(ctx, Hash{})
	if err != nil {
		return false, err
	}
	if view.SnapshotKnown && (!known || view.SnapshotAt > seen) {
		return true, nil
	}
	if err := n.fetch(ctx, held); err != nil {
		return false, fmt.Errorf("%w: %w", ErrNoMetadata, err)
	}
	return true, nil
}

// fetch asks metadata and the kernel and stores what they agree on. The caller holds metadata.lock.
func (n *Node) fetch(ctx context.Context, held *boltfile.Held) error {
	n.noteAsked(held)
	m, err := n.look(ctx)
	if err != nil {
		return err
	}
	for _, p := range m.problems {
		n.log.Warn("NIC skipped", "error", p)
	}
	// The facts first: who gets an address of a new NIC has to find that NIC in the record.
	if err := n.storeFacts(ctx, m); err != nil {
		return err
	}
	if err := n.store.Sync(ctx, m.snapshot); err != nil {
		return err
	}
	// Where nothing had changed Sync was the first to write, and so to find damage that readers don't meet: the facts went with the
	// store that it had rebuilt.
	return n.storeFacts(ctx, m)
}

// look lays metadata's document over the node's links.
func (n *Node) look(ctx context.Context) (matched, error) {
	client, err := metadata.New(n.conf.IPAM.MetadataURL, n.log)
	if err != nil {
		return matched{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	doc, err := client.Fetch(ctx)
	if err != nil {
		return matched{}, err
	}
	links, err := n.kernel.NICs(ctx)
	if err != nil {
		return matched{}, err
	}
	rec, err := n.readRecord(ctx)
	if err != nil {
		return matched{}, err
	}
	m, err := match(doc, links, rec.NICs)
	m.links = links
	return m, err
}

// storeFacts notes what the rules need to know about the NICs; ensure writes the rules when they changed.
func (n *Node) storeFacts(ctx context.Context, m matched) error {
	held, err := n.lockNode(ctx)
	if err != nil {
		return err
	}
	defer held.Unlock()
	rec, err := n.readRecord(ctx)
	if err != nil {
		return err
	}
	before := rec.hash()
	skipped := texts(m.skipped)
	same := slices.Equal(skipped, rec.Skipped)
	rec.NICs, rec.Skipped = keepKnown(m.facts, rec.NICs, m.links), skipped
	if rec.hash() == before && same && rec.Network != "" {
		return nil
	}
	return n.putRecord(ctx, rec)
}

func texts(errs []error) []string {
	var out []string
	for _, err := range errs {
		out = append(out, err.Error())
	}
	return out
}

// Refresh asks metadata now.
func (n *Node) Refresh(ctx context.Context) error {
	if err := n.makeStateDir(); err != nil {
		return err
	}
	held, err := n.lockMetadata(ctx)
	if err != nil {
		return err
	}
	defer held.Unlock()
	return n.fetch(ctx, held)
}

// lockMetadata waits for its turn to ask as long as for any lock. An ADD that has nothing to hand out waits longer
// (refreshAfter): who holds the lock may be waiting for the answer itself.
func (n *Node) lockMetadata(ctx context.Context) (*boltfile.Held, error) {
	ctx, cancel := context.WithTimeout(ctx, n.conf.IPAM.LockTimeout)
	defer cancel()
	return boltfile.Lock(ctx, n.path(metadataLockFile))
}

// lastAsked and noteAsked keep the boot-clock time of the last question in metadata.lock, for the processes to come. It only
// spares them a wait, so a value that can't be read or written counts as "long ago".
func lastAsked(held *boltfile.Held) time.Duration {
	ns, err := strconv.ParseInt(strings.TrimSpace(held.Note()), 10, 64)
	if err != nil || time.Duration(ns) > boot.Clock() { // of an earlier boot
		return 0
	}
	return time.Duration(ns)
}

func (n *Node) noteAsked(held *boltfile.Held) {
	if err := writeNote(held, strconv.FormatInt(int64(boot.Clock()), 10)); err != nil {
		n.log.Debug("time of the question not noted", "error", err)
	}
}
