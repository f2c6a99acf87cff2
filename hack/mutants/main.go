// Mutants shows that the tests can fail: it applies one small wrong change after the other to a scratch clone of HEAD and
// expects the test that guards against it to turn red.
//
// Each testdata/mutants/*.patch names a guarantee and its test (the format is in that folder's README.md). A mutant whose test
// stays green, whose patch doesn't apply or whose tree doesn't compile is an error: a compiler's complaint shows nothing.
// Which mutant was last seen red, when and on which code is kept in testdata/mutants/LAST_RED.
//
//	go run ./hack/mutants [flags] [name ...]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// dir holds the patches and the record, relative to the repository's root.
const dir = "testdata/mutants"

type options struct {
	due      bool          // run only what changed since it was last red
	base     string        // commit to compare with; "" means the parent of HEAD
	baseline bool          // run each test on the unchanged tree first; without it nothing is recorded
	budget   time.Duration // start no mutant after this time; zero means no limit
	names    []string      // run only these
}

func main() {
	os.Exit(run())
}

func run() int {
	var o options
	flag.BoolVar(&o.due, "due", false, "run only mutants whose patched package changed since -base or since they were last red")
	flag.StringVar(&o.base, "base", os.Getenv("NVT_BASE"), "commit that -due compares with; empty means the parent of HEAD")
	flag.BoolVar(&o.baseline, "baseline", true, "first see each test green without its mutant, and record the result in "+recordFile)
	flag.DurationVar(&o.budget, "budget", 0, "start no mutant after this time")
	flag.Parse()
	o.names = flag.Args()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := mutate(ctx, o); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		return 1
	}
	return 0
}

// mutate runs the selected mutants and reports every other one with the date it was last red.
func mutate(ctx context.Context, o options) error {
	mutants, err := load(o.names)
	if err != nil {
		return err
	}
	rec, err := readRecord()
	if err != nil {
		return err
	}
	tree, err := newScratch(ctx)
	if err != nil {
		return err
	}
	defer tree.remove()

	if err := tree.mark(ctx, mutants, rec, o); err != nil {
		return err
	}
	start, red, later, wrong := time.Now(), 0, 0, 0
	for _, m := range mutants {
		out := o.budget > 0 && time.Since(start) > o.budget
		if !m.selected || out {
			later++
			fmt.Printf("later   %-40s last red %s\n", m.name, rec.date(m.name))
			continue
		}
		began := time.Now()
		if err := tree.try(ctx, m, o.baseline); err != nil {
			wrong++
			fmt.Printf("WRONG   %-40s %v\n", m.name, err)
		} else {
			red++
			rec.saw(m)
			if o.baseline { // each time: all of them take hours, and a run that is interrupted has seen something
				if err := rec.write(); err != nil {
					return err
				}
			}
			fmt.Printf("red     %-40s %.0f s  %s\n", m.name, time.Since(began).Seconds(), m.guarantee)
		}
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
	}
	fmt.Printf("mutants: %d red, %d wrong, %d not run\n", red, wrong, later)
	if wrong > 0 {
		return fmt.Errorf("%d of %d mutants were not caught by their tests", wrong, red+wrong)
	}
	return nil
}

// load reads the patches, all of them or those named.
func load(names []string) ([]*mutant, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil {
		return nil, err
	}
	var mutants []*mutant
	for _, f := range files {
		m, err := readMutant(f)
		if err != nil {
			return nil, err
		}
		if len(names) == 0 || slices.Contains(names, m.name) {
			mutants = append(mutants, m)
		}
	}
	if len(mutants) == 0 || len(names) > len(mutants) {
		return nil, fmt.Errorf("%d patches in %s match %q", len(mutants), dir, names)
	}
	return mutants, nil
}
