package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/native-vmss/native-vmss/internal/boot"
	"github.com/native-vmss/native-vmss/internal/lab"
	"github.com/native-vmss/native-vmss/pkg/allocator"
)

// The limits that must hold, and the goals to report against.

// podPool outlasts the cool-down of 30 s: an address per round, and some for warming up.
const podPool = 512

// warmUp are cycles that are run and not counted: page cache, the node's rules, the first snapshot.
const warmUp = 3

// podRows are ADD and DEL of one pod against the peers: on a node whose addresses have all had a pod, as after its first hour, and on one
// where each pod is the first with its address, which makes the counters.
func podRows(ctx context.Context, f *fixture, o options, rep *report) error {
	for _, c := range []struct {
		when   string
		pool   int
		change func(map[string]any)
	}{
		{"", usedPool, atOnce}, {" (first pod of an address)", podPool, nil},
	} {
		ours, err := f.ours(poolOf(c.pool), c.change)
		if err != nil {
			return err
		}
		peer, err := f.peer(poolOf(1))
		if err != nil {
			return err
		}
		add, del, err := cycles(ctx, o.rounds, ours, peer)
		if err != nil {
			return err
		}
		rep.add(row{name: "ADD, whole process" + c.when, sides: names(ours, peer), a: add[0], b: add[1], must: 0.8, goal: 0.55})
		rep.add(row{name: "DEL, whole process" + c.when, sides: names(ours, peer), a: del[0], b: del[1], must: 1.1, goal: 1})
	}
	return nil
}

// atOnce has an address be given again at once, so that few addresses serve many pods. The peer does so always.
func atOnce(conf map[string]any) {
	ipam, _ := conf["ipam"].(map[string]any)
	ipam["cooldown"] = "0s"
}

func names(a, b *side) string { return a.name + " / " + b.name }

// cycles measures ADD and DEL of both sides.
func cycles(ctx context.Context, rounds int, sides ...*side) (add, del [2]figures, err error) {
	count := false
	part := func(i int) error {
		a, d, err := sides[i].cycle(ctx)
		if err == nil && count {
			add[i].add(a)
			del[i].add(d)
		}
		return err
	}
	if err := alternate(warmUp, part); err != nil {
		return add, del, err
	}
	count = true
	return add, del, alternate(rounds, part)
}

// Sizes of the stores that row 3 compares.
const (
	fewAddresses  = 256
	manyAddresses = 200_000
	// spareAddresses of each store are free, the others leased: one per round, since they cool for 30 s.
	spareAddresses = 128
)

// sizeRow is ADD with a full store against ADD with a small one.
func sizeRow(ctx context.Context, f *fixture, o options, rep *report) error {
	if o.rounds+warmUp > spareAddresses {
		return fmt.Errorf("-rounds %d: at most %d", o.rounds, spareAddresses-warmUp)
	}
	many, err := f.filled(ctx, manyAddresses)
	if err != nil {
		return err
	}
	few, err := f.filled(ctx, fewAddresses)
	if err != nil {
		return err
	}
	add, del, err := cycles(ctx, o.rounds, many, few)
	if err != nil {
		return err
	}
	sides := fmt.Sprintf("%d / %d addresses", manyAddresses, fewAddresses)
	rep.add(row{name: "ADD by size of the store", sides: sides, a: add[0], b: add[1], must: 1.15, goal: 1.05})
	rep.add(row{name: "DEL by size of the store", sides: sides, a: del[0], b: del[1]})
	return nil
}

// filled is a node of ours with so many addresses, nearly all of them leased. Metadata is asked once, in the first ADD: what is
// compared is the store, and no machine has a document of 12 MB.
func (f *fixture) filled(ctx context.Context, n int) (*side, error) {
	o := poolOf(1) // the gateway needs no routes to pods that are not there
	s, err := f.ours(o, func(conf map[string]any) {
		ipam, _ := conf["ipam"].(map[string]any)
		ipam["refresh"] = "24h"
	})
	if err != nil {
		return nil, err
	}
	pool := lab.AddrRange(o.Pool[0], n)
	nic := s.simple.NICs[0]
	nic.Addrs = append([]netip.Addr{nic.Addrs[0]}, pool...)
	s.simple.MD.Serving(lab.NetworkDocument(nic))
	if err := fill(ctx, s.node.Path(stateDir), pool[spareAddresses:]); err != nil {
		return nil, fmt.Errorf("fill store: %w", err)
	}
	if _, _, err := s.cycle(ctx); err != nil {
		return nil, err
	}
	info, err := os.Stat(filepath.Join(s.node.Path(stateDir), "ipam.db"))
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(os.Stderr, "store with %d addresses, %d leased: %.1f MB\n", n, n-spareAddresses, float64(info.Size())/1e6)
	return s, nil
}

const stateDir = "/run/native-vmss"

// fill makes a store in which the addresses are leased, in one transaction: it is told that the kernel shows them all.
func fill(ctx context.Context, dir string, leased []netip.Addr) error {
	id, err := boot.ID()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	store := allocator.Open(allocator.Options{
		Dir: dir, CoolDown: 30 * time.Second, BootID: id, Now: boot.Clock,
		Kernel: func(context.Context) (allocator.Observed, error) { return holders(leased), nil },
	})
	_, err = store.Read(ctx, allocator.Hash{})
	return err
}

func holders(leased []netip.Addr) allocator.Observed {
	seen := allocator.Observed{Holders: make([]allocator.Holder, 0, len(leased))}
	for i, a := range leased {
		h := allocator.Holder{Addr: a, Generation: uint64(i + 1), Network: allocator.Hash{1}, Pod: fmt.Sprintf("default/pod-%d", i)}
		// Keys are hashes: spread over the whole range.
		sum := sha256.Sum256(binary.BigEndian.AppendUint64(nil, uint64(i)))
		h.Key = allocator.Hash(sum[:len(h.Key)])
		seen.Holders = append(seen.Holders, h)
	}
	return seen
}
