package main

import (
	"context"
	"fmt"
)

// usedPool is small, so that after the warm-up every address has had a pod: its counters stand, as they do on a node after its first hour.
const usedPool = 2

// moreRounds is how many times more rounds these rows take: what accounting adds is a tenth of what an ADD's time varies by.
const moreRounds = 5

// accountingRows are what accounting costs an ADD and a DEL: with counters that stand, with those that the first pod of an address makes,
// and with iptables. A DEL's limit is of one whose link is gone: the kernel's removal of a link, the same on both sides, varies by ten times
// the limit.
func accountingRows(ctx context.Context, f *fixture, o options, rep *report) error {
	for _, c := range []struct {
		name, backend string
		pool          int
		again         bool
	}{
		{"counters stand", "nftables", usedPool, true},
		{"first pod of an address", "nftables", podPool, false},
		{"iptables", "iptables", usedPool, true},
	} {
		with := func(backend string) (*side, error) {
			s, err := f.ours(poolOf(c.pool), func(conf map[string]any) {
				conf["accounting"] = map[string]any{"backend": backend}
				if c.again {
					atOnce(conf)
				}
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
		add, del, err := cycles(ctx, moreRounds*o.rounds, on, off)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		on.linkFirst, off.linkFirst = true, true
		_, own, err := cycles(ctx, moreRounds*o.rounds, on, off)
		if err != nil {
			return fmt.Errorf("%s, links gone first: %w", c.name, err)
		}
		rep.add(row{name: "ADD with accounting: " + c.name, sides: names(on, off), a: add[0], b: add[1]})
		rep.add(row{name: "DEL with accounting: " + c.name, sides: names(on, off), a: del[0], b: del[1]})
		rep.add(row{name: "DEL with accounting, its link gone first: " + c.name, sides: names(on, off), a: own[0], b: own[1]})
		for _, part := range []struct {
			command string
			sides   [2]figures
			must    float64
		}{{"ADD", add, 2}, {"DEL, its link gone first", own, 1}} {
			r := row{name: part.command + ", more by accounting: " + c.name, unit: "ms"}
			r.value = msOf(median(part.sides[0].walls()) - median(part.sides[1].walls()))
			if c.backend == "nftables" {
				r.mustNum = part.must
			}
			rep.add(r)
		}
	}
	return nil
}
