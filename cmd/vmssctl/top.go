package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/native-vmss/native-vmss/internal/boot"
	"github.com/native-vmss/native-vmss/pkg/accounting"
	"github.com/native-vmss/native-vmss/pkg/accounting/export"
)

// readTimeout bounds one reading of kernel and store.
const readTimeout = 10 * time.Second

type topOptions struct {
	interval time.Duration
	count    int // frames; zero: until it is ended
	sort     string
	output   string
}

func (o topOptions) check() error {
	switch {
	case o.output != "table" && o.output != "json":
		return fmt.Errorf("--output: %q is neither table nor json", o.output)
	case o.interval < time.Second:
		return errors.New("--interval: at least 1s")
	case o.count < 0:
		return errors.New("--iterations: not below 0")
	}
	return nil
}

func topCommand(open traffic) *cobra.Command {
	var opt topOptions
	cmd := &cobra.Command{
		Use:   "top",
		Short: "show who sends and gets how much now",
		Long: "top shows the rates of namespaces and pods, by direction as they see it and by class of the peer. Rates are in bit/s, of IP\n" +
			"bytes as the kernel handles packets; k, M and G are powers of 1000. A '-' is a rate that isn't known. A namespace's rates\n" +
			"have those of pods that ended in between. On a terminal it goes on until Ctrl-C; elsewhere it prints one table per interval.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opt.check(); err != nil {
				return err
			}
			source, done, err := open()
			if err != nil {
				return err
			}
			defer done()
			tick := time.NewTicker(opt.interval)
			defer tick.Stop()
			t := top{source: source, opt: opt, clock: boot.Clock, now: time.Now, tick: tick.C, errs: cmd.ErrOrStderr()}
			t.view = viewFor(cmd.OutOrStdout(), opt)
			defer t.view.close()
			return t.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.DurationVar(&opt.interval, "interval", 2*time.Second, "time between two readings, at least 1s")
	f.IntVarP(&opt.count, "iterations", "n", 0, "end after that many intervals")
	f.StringVar(&opt.sort, "sort", sortTotal, "total, rx, tx, name, or a class such as internet")
	f.StringVarP(&opt.output, "output", "o", "table", "table or json, one document an interval")
	return cmd
}

// top reads once per tick and shows what happened since the last reading that was of use.
type top struct {
	source export.Source
	opt    topOptions
	clock  func() time.Duration
	now    func() time.Time
	tick   <-chan time.Time
	view   view
	errs   io.Writer
	before *reading
}

// run fails where the first reading does, or the last one of a given number; in between an error is shown and the next may do.
func (t *top) run(ctx context.Context) error {
	f, err := t.read(ctx)
	if err != nil {
		return err
	}
	if err := sortable(t.opt.sort, f.classes); err != nil {
		return err
	}
	if err := t.view.open(f); err != nil {
		return err
	}
	for i := 1; ; i++ {
		if !t.view.wait(ctx, t.tick) {
			return nil
		}
		f, err := t.read(ctx)
		if ctx.Err() != nil {
			return nil
		}
		last := i == t.opt.count
		if err != nil && last {
			return err
		}
		if err != nil {
			err = t.view.failed(err, t.errs)
		} else {
			err = t.view.show(f)
		}
		if err != nil || last {
			return err
		}
	}
}

func (t *top) read(ctx context.Context) (frame, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	now := reading{at: t.clock()}
	var err error
	if now.Usage, err = t.source(ctx); err != nil {
		return frame{}, err
	}
	f := compare(t.before, now)
	f.at = t.now()
	f.sort(t.opt.sort)
	if !now.Stale {
		t.before = &now
	}
	return f, nil
}

func sortable(key string, classes []string) error {
	keys := append([]string{sortTotal, accounting.RX, accounting.TX, sortName}, classes...)
	if !slices.Contains(keys, key) {
		return fmt.Errorf("--sort: %q is none of %s", key, dash(strings.Join(keys, ", ")))
	}
	return nil
}
