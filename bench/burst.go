package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// burstPool is what two NICs have: the first two bursts make all counters, the others find them. What an nftables table has is looked
// through with each change, so a pool of thousands, which no node has, would make each first pod slower than the one before.
const burstPool = 512

// burstRow is many ADDs at once, one process and one namespace each, from the barrier to the end of the last.
func burstRow(ctx context.Context, f *fixture, o options, rep *report) error {
	ours, err := f.ours(poolOf(burstPool), atOnce)
	if err != nil {
		return err
	}
	peer, err := f.peer(poolOf(1))
	if err != nil {
		return err
	}
	sides := []*side{ours, peer}
	pods := make([][]*lab.Namespace, len(sides))
	for i, s := range sides {
		for p := range o.burstSize {
			pods[i] = append(pods[i], s.simple.Pod(f, fmt.Sprintf("b%d", p)))
		}
		if _, _, err := s.cycle(ctx); err != nil { // warm
			return err
		}
	}
	var add, del [2]figures
	err = alternate(o.bursts, func(i int) error {
		a, err := sides[i].burst(ctx, "ADD", pods[i])
		if err != nil {
			return err
		}
		d, err := sides[i].burst(ctx, "DEL", pods[i])
		add[i].add(a)
		del[i].add(d)
		sides[i].calls += len(pods[i])
		return err
	})
	if err != nil {
		return err
	}
	rep.add(row{
		name: fmt.Sprintf("%d ADDs at once, total", o.burstSize), sides: names(ours, peer), a: add[0], b: add[1],
		must: 0.7, goal: 0.5,
	})
	rep.add(row{name: fmt.Sprintf("%d DELs at once, total", o.burstSize), sides: names(ours, peer), a: del[0], b: del[1]})
	return nil
}

// burst starts a process for every pod, which waits at the barrier, lets them go at once and waits for all.
func (s *side) burst(ctx context.Context, command string, pods []*lab.Namespace) (total sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	b, err := newBarrier(s.simple.Dir)
	if err != nil {
		return total, err
	}
	defer b.close()
	waits := make([]func() lab.Outcome, 0, len(pods))
	for p, pod := range pods {
		call := s.call(command, fmt.Sprintf("burst-%d", s.calls+p), pod.Path)
		call.Env = []string{holdPlugin + "=" + s.binary, holdBarrier + "=" + b.dir}
		_, wait := s.node.StartPlugin(ctx, b.holder, call)
		waits = append(waits, wait)
	}
	if err := b.allArrived(len(pods)); err != nil {
		return total, err
	}
	time.Sleep(10 * settle)
	began := time.Now()
	b.open()
	var errs []error
	for _, wait := range waits {
		if out := wait(); !out.OK() {
			errs = append(errs, s.failed(command, out))
		}
	}
	total.wall = time.Since(began)
	time.Sleep(10 * settle)
	return total, errors.Join(errs...)
}

// barrier is two named pipes: one on which processes say that they have arrived, one whose end they wait for.
type barrier struct {
	dir, holder    string
	arrived, start *os.File
}

// Names of the pipes, and of the variables by which a process knows that it is to wait.
const (
	arrivedPipe = "arrived"
	startPipe   = "start"
	holdPlugin  = "BENCH_HOLD_PLUGIN"
	holdBarrier = "BENCH_HOLD_BARRIER"
)

// holdScript says that it has arrived, waits for the barrier and becomes the plugin: from there on it is the same process that
// a runtime would have started. A shell, since 250 of them start before each burst.
const holdScript = `#!/bin/sh
plugin=$BENCH_HOLD_PLUGIN barrier=$BENCH_HOLD_BARRIER
unset BENCH_HOLD_PLUGIN BENCH_HOLD_BARRIER
exec 3<"$barrier/start"
echo >"$barrier/arrived"
read -r end <&3
exec 3<&-
exec "$plugin"
`

func newBarrier(in string) (*barrier, error) {
	dir, err := os.MkdirTemp(in, "barrier-")
	if err != nil {
		return nil, err
	}
	b := &barrier{dir: dir, holder: filepath.Join(dir, "hold")}
	if err := os.WriteFile(b.holder, []byte(holdScript), 0o700); err != nil {
		return nil, err
	}
	for name, file := range map[string]**os.File{arrivedPipe: &b.arrived, startPipe: &b.start} {
		path := filepath.Join(dir, name)
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			return nil, err
		}
		if *file, err = os.OpenFile(path, os.O_RDWR, 0); err != nil { // both ends: no open waits for the other
			return nil, err
		}
	}
	return b, nil
}

func (b *barrier) allArrived(n int) error {
	if err := b.arrived.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	for range n {
		if _, err := b.arrived.Read(make([]byte, 1)); err != nil {
			return fmt.Errorf("wait for processes to start: %w", err)
		}
	}
	return nil
}

// open is an end of file for all who wait.
func (b *barrier) open() { _ = b.start.Close() }

func (b *barrier) close() { _ = b.arrived.Close(); _ = b.start.Close() }
