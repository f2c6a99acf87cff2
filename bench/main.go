// Command bench measures whole processes: our plugin and its peers (ptp with host-local, built from their module at the version
// that go.mod pins), one after the other in every round, on nodes of the same make. See README.md.
//
//	go run -C bench . [flags]
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

type options struct {
	rounds, bursts, burstSize int
	rows                      string
	guard                     bool
	results, note             string
	against                   string
}

func main() { os.Exit(run()) }

func run() int {
	var o options
	flag.IntVar(&o.rounds, "rounds", 30, "rounds of the rows that start single processes")
	flag.IntVar(&o.bursts, "bursts", 10, "rounds of the row that starts many at once")
	flag.IntVar(&o.burstSize, "burst-size", 250, "processes that start at once")
	flag.StringVar(&o.rows, "rows", "pod,accounting,traffic,size,store,burst,version", "what to measure")
	flag.BoolVar(&o.guard, "guard", false, "exit with 1 when a figure misses what it must hold; writes no results")
	flag.StringVar(&o.results, "results", "RESULTS.md", "file that the run is appended to; empty: none")
	flag.StringVar(&o.against, "against", "", "folder with an earlier build of ours, measured in the peers' place; writes no results")
	flag.StringVar(&o.note, "note", "", "a remark for the results")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	rep, err := bench(ctx, o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 2
	}
	fmt.Print(rep.text())
	if o.guard {
		if broken := rep.broken(); len(broken) > 0 {
			fmt.Fprintln(os.Stderr, "bench: broken:", strings.Join(broken, ", "))
			return 1
		}
		return 0
	}
	if o.results == "" || o.against != "" {
		return 0
	}
	if err := rep.appendTo(o.results); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		return 2
	}
	return 0
}

// bench runs the chosen rows. What a row can't do ends the run: a figure that is missing would look like one that holds.
func bench(ctx context.Context, o options) (rep *report, err error) {
	f := &fixture{}
	defer f.cleanUp(&err)
	b, err := build(ctx)
	if err != nil {
		return nil, err
	}
	f.bin = b
	if o.against != "" {
		if f.bin.against, err = filepath.Abs(o.against); err != nil {
			return nil, err
		}
	}
	if err := f.install(); err != nil {
		return nil, err
	}
	rep = newReport(o)
	rows := []struct {
		name string
		run  func(context.Context, *fixture, options, *report) error
	}{
		{"pod", podRows}, {"accounting", accountingRows}, {"traffic", trafficRows}, {"size", sizeRow}, {"store", storeRows}, {"burst", burstRow}, {"version", versionRows},
	}
	chosen := strings.Split(o.rows, ",")
	for _, r := range rows {
		if !slices.Contains(chosen, r.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "measuring %s (load average %s)\n", r.name, loadAverage())
		if err := r.run(ctx, f, o, rep); err != nil {
			return nil, fmt.Errorf("%s: %w", r.name, err)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	rep.loadAfter = loadAverage()
	return rep, nil
}
