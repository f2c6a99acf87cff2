package main

import (
	"context"
	"fmt"
)

// usedPool is small, so that after the warm-up every address has had a pod: its counters stand, as they do on a node after its first hour.
const usedPool = 2

// accountingRows are what accounting costs an ADD and a DEL: with counters that stand, with those that the first pod of an address makes,
// and with iptables.
func accountingRows(ctx context.Context, f *fixture, o options, rep *report) error {
	for _, c := range []struct {
		name, backend string
		pool          int
		coolDown      string
	}{
		{"counters stand", "nftables", usedPool, "0s"},
		{"first pod of an address", "nftables", podPool, "30s"},
		{"iptables", "iptables", usedPool, "0s"},
	} {
		with := func(backend string) (*side, error) {
			s, err := f.ours(poolOf(c.pool), func(conf map[string]any) {
				conf["accounting"] = map[string]any{"backend": backend}
				ipam, _ := conf["ipam"].(map[string]any)
				ipam["cooldown"] = c.coolDown
			})
			if err == nil {
				s.name = backend
			}
			return s, err
		}
		on, err := with(c.backend)
		if err != nil {
			return err
		}
		off, err := with("none")
		if err != nil {
			return err
		}
		add, del, err := cycles(ctx, o.rounds, on, off)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		rep.add(row{name: "ADD with accounting: " + c.name, sides: names(on, off), a: add[0], b: add[1]})
		rep.add(row{name: "DEL with accounting: " + c.name, sides: names(on, off), a: del[0], b: del[1]})
	}
	return nil
}
