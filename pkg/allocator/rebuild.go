package allocator

import (
	"context"
	"fmt"
	"strings"

	bolt "go.etcd.io/bbolt"

	"github.com/native-vmss/native-vmss/internal/boltfile"
)

// rebuild fills an empty store with the leases that the kernel shows. Which other addresses there are, only the next snapshot
// knows; until then none can be handed out. It is the one thing that asks the kernel under ipam.lock.
func (s *Store) rebuild(ctx context.Context, tx *bolt.Tx, why boltfile.Reason) error {
	if s.opt.Kernel == nil {
		return errNoKernel
	}
	seen, err := s.opt.Kernel(ctx)
	if err != nil {
		return fmt.Errorf("ask the kernel for holders: %w", err)
	}
	for name := range fills {
		if _, err := tx.CreateBucketIfNotExists([]byte(name)); err != nil {
			return fmt.Errorf("create bucket %s: %w", name, err)
		}
	}
	t := newTxn(tx, s.opt.Now(), s.opt.CoolDown)
	if err := t.putRebuilt(seen.Ran); err != nil {
		return err
	}
	if err := t.putSummary(summary{}); err != nil {
		return err
	}
	if seen.Ran { // noted before the holders: what their counters have may be of earlier pods
		if err := t.noteLost(); err != nil {
			return err
		}
		if why != boltfile.ReasonDamaged && why != boltfile.ReasonBoot { // boltfile has a line for those
			s.log.Error("store was lost: totals of traffic start again", "reason", string(why))
		}
	}
	last := uint64(0)
	for _, h := range seen.Holders {
		if err := t.adopt(h); err != nil {
			return err
		}
		last = max(last, h.Generation)
	}
	if len(seen.Holders) > 0 { // a node whose pods have addresses is no new one, whatever metadata says next
		if err := t.putSnapshot(snapshotState{ever: true}); err != nil {
			return err
		}
	}
	s.log.Info("leases taken from the kernel", "leases", len(seen.Holders), "ran", seen.Ran, "reason", string(why))
	return t.putGeneration(max(last, uint64(t.now)))
}

// adopt enters a holder. Two links that claim one address are a fault of the kernel's state which is not ours to judge; the
// younger one counts.
func (t *txn) adopt(h Holder) error {
	a := h.Addr.Unmap()
	if !a.IsValid() {
		return fmt.Errorf("holder %q has no address", h.Pod)
	}
	old, found, err := t.record(a)
	if err != nil {
		return err
	}
	r := record{
		State: Leased, Since: t.now, Generation: h.Generation,
		Owner: Owner{Key: h.Key, Network: h.Network, NetnsInode: h.NetnsInode, Pod: h.Pod, Main: h.Main},
	}
	if found && h.Generation <= old.Generation {
		return nil
	}
	was := &old
	if !found {
		was = nil
	}
	if err := t.change(a, was, &r); err != nil || !h.Metered {
		return err
	}
	namespace, pod, ok := strings.Cut(h.Pod, "/")
	if !ok {
		namespace, pod = "", h.Pod
	}
	_, err = t.beginMeter(a, h.Generation, StartMeter{Key: h.Key, Namespace: namespace, Pod: pod})
	return err
}
