package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/native-vmss/native-vmss/internal/boltfile"
	"github.com/native-vmss/native-vmss/pkg/node"
)

func repairCommand(s *settings) *cobra.Command {
	var every time.Duration
	var output string
	cmd := &cobra.Command{
		Use:   "repair",
		Short: "put back what others flushed or changed, add to the totals of traffic, collect leases whose pod is gone",
		Long: "repair says what it changed, or that there was nothing to do. It puts back what the pods here were made with; what the\n" +
			"configuration has changed since is pending until the next ADD. What is wrong inside a pod it can't mend: delete such a\n" +
			"pod. A lease whose link is gone is collected by a repair that comes 60 s or more after the first one that saw it so.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output: %q is neither text nor json", output)
			}
			p := printer{w: cmd.OutOrStdout(), json: output == "json", loop: every != 0}
			if every == 0 {
				return repairOnce(cmd, s, &p)
			}
			return repairLoop(cmd, s, &p, every)
		},
	}
	cmd.Flags().DurationVar(&every, "every", 0, "go on, with this much time between two passes, and print only what is new")
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json, one document a pass")
	return cmd
}

// repairLoop goes on after a failed pass: the next one may find what this one missed.
func repairLoop(cmd *cobra.Command, s *settings, p *printer, every time.Duration) error {
	if every < time.Second {
		return errors.New("--every: at least 1s")
	}
	if err := needRoot(); err != nil { // no pass will find another
		return err
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	failed := ""
	for {
		switch err := repairOnce(cmd, s, p); {
		case err == nil:
			failed = ""
		case err.Error() != failed:
			failed = err.Error()
			printError(cmd.ErrOrStderr(), err)
		}
		select {
		case <-cmd.Context().Done():
			return nil
		case <-tick.C:
		}
	}
}

// repairOnce prints what was done also when a later step fails, and nothing beyond it.
func repairOnce(cmd *cobra.Command, s *settings, p *printer) error {
	return s.onNode(cmd.Context(), func(ctx context.Context, n *node.Node) error {
		var did pass
		var repairErr, sweepErr, skippedErr error
		did.Repaired, repairErr = n.Repair(ctx)
		if !errors.Is(repairErr, node.ErrStore) && !errors.Is(repairErr, boltfile.ErrUnusable) { // the rest would say the same again
			did.Swept, sweepErr = n.Sweep(ctx)
			did.skipped, skippedErr = n.Skipped(ctx)
		}
		err := errors.Join(repairErr, sweepErr, skippedErr)
		return errors.Join(p.print(did, err), err)
	})
}

// pass is what one repair found and did.
type pass struct {
	node.Repaired
	node.Swept
	skipped []string
}

type printer struct {
	w          io.Writer
	json, loop bool
	skipped    []string // as printed last
	pending    string   // likewise
}

func (p *printer) print(did pass, failed error) error {
	if p.json {
		return json.NewEncoder(p.w).Encode(documentOf(did, failed))
	}
	said := false
	say := func(format string, args ...any) {
		fmt.Fprintf(p.w, format+"\n", args...)
		said = true
	}
	for _, what := range did.Changed {
		say("changed: %s", what)
	}
	for _, c := range did.Collected {
		say("collected: %s of %s", c.Addr, dash(c.Pod))
	}
	for _, c := range did.Waiting {
		if c.New || !p.loop {
			say("waiting: %s of %s has no link, collected if still so in %s", c.Addr, dash(c.Pod), up(c.In))
		}
	}
	if !p.loop || !slices.Equal(did.skipped, p.skipped) {
		for _, why := range did.skipped {
			fmt.Fprintln(p.w, "skipped:", why)
		}
		p.skipped = did.skipped
	}
	if did.Pending != "" && did.Pending != p.pending {
		fmt.Fprintln(p.w, "pending:", did.Pending)
	}
	p.pending = did.Pending
	if !said && failed == nil && !p.loop {
		fmt.Fprintf(p.w, "nothing to do (pods looked at: %d)\n", did.Pods)
	}
	return nil
}

// up rounds up to a second: who waits that long finds the lease ripe.
func up(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }

// document is a pass for scripts; its keys are part of the interface.
type document struct {
	Changed   []string      `json:"changed"`
	Pods      int           `json:"pods"`
	Collected []collectable `json:"collected"`
	Waiting   []collectable `json:"waiting"`
	Skipped   []string      `json:"skipped"`
	Pending   string        `json:"pending,omitempty"`
	Error     string        `json:"error,omitempty"`
}

type collectable struct {
	Address   string `json:"address"`
	Pod       string `json:"pod,omitempty"`
	InSeconds int64  `json:"inSeconds,omitempty"`
}

func documentOf(did pass, failed error) document {
	list := func(from []node.Collectable) []collectable {
		out := make([]collectable, 0, len(from))
		for _, c := range from {
			out = append(out, collectable{c.Addr.String(), c.Pod, int64(up(c.In) / time.Second)})
		}
		return out
	}
	d := document{
		Changed: append([]string{}, did.Changed...), Pods: did.Pods, Collected: list(did.Collected), Waiting: list(did.Waiting),
		Skipped: append([]string{}, did.skipped...), Pending: did.Pending,
	}
	if failed != nil {
		d.Error = failed.Error()
	}
	return d
}
