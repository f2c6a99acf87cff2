package main

import (
	"context"
	"os"
	"path/filepath"
)

// versionRows are the start of a process: VERSION of ours against a Go program that does nothing, in processor time, and the
// size of the binaries.
func versionRows(ctx context.Context, f *fixture, o options, rep *report) error {
	ours, err := f.ours(poolOf(1), nil)
	if err != nil {
		return err
	}
	empty := *ours
	empty.name, empty.binary = "empty program", f.bin.empty
	sides := []*side{ours, &empty}
	var took [2]figures
	part := func(i int) error {
		call := sides[i].call("VERSION", "", "")
		call.Stdin = []byte(`{"cniVersion":"1.1.0"}`)
		s, err := sides[i].run(ctx, call)
		took[i].add(s)
		return err
	}
	if err := alternate(warmUp, part); err != nil {
		return err
	}
	took = [2]figures{}
	if err := alternate(o.rounds, part); err != nil {
		return err
	}
	rep.add(row{name: "VERSION, processor time", sides: names(ours, &empty), a: took[0], b: took[1], cpu: true, must: 3})
	for _, name := range []string{"native-vmss", "ipam-vmss"} {
		info, err := os.Stat(filepath.Join(f.bin.ours, name))
		if err != nil {
			return err
		}
		rep.add(row{name: "binary " + name, sides: "MiB", value: float64(info.Size()) / (1 << 20), unit: "MiB", mustNum: 10})
	}
	return nil
}
