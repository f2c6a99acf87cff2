package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/native-vmss/native-vmss/pkg/node"
)

// repairBudget bounds one pass; a node with 250 pods takes well under a second.
const repairBudget = time.Minute

func nodeCommand(s *settings) *cobra.Command {
	cmd := group("node", "make this node fit for pods, and keep it so")
	cmd.AddCommand(prepareCommand(s), repairCommand(s), cleanCommand(s))
	return cmd
}

// onNode does something to this node, for as long as repairBudget allows.
func (s *settings) onNode(ctx context.Context, do func(context.Context, *node.Node) error) error {
	n, err := s.open()
	if err != nil {
		return err
	}
	defer n.Close()
	ctx, cancel := context.WithTimeout(ctx, repairBudget)
	defer cancel()
	return do(ctx, n)
}

func prepareCommand(s *settings) *cobra.Command {
	var opt node.PrepareOptions
	cmd := &cobra.Command{
		Use:   "prepare",
		Short: "keep cloud-init and networkd off the pods' addresses, and take those off the NICs' links",
		Long: "prepare writes two drop-ins, for cloud-init and for systemd-networkd, and removes the secondary addresses that are\n" +
			"on the NICs' links. It prints each change. On a node that has pods it changes nothing unless told by --force: a pod whose\n" +
			"address is on a NIC's link gets its traffic back then, and no other pod notices.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.onNode(cmd.Context(), func(ctx context.Context, n *node.Node) error {
				changes, err := n.Prepare(ctx, opt)
				printChanges(cmd.OutOrStdout(), changes, "would", err)
				return err
			})
		},
	}
	cmd.Flags().BoolVar(&opt.DryRun, "dry-run", false, "say what would be done")
	cmd.Flags().BoolVar(&opt.Force, "force", false, "do it on a node that has pods: one whose address is on a NIC's link gets its traffic back, others notice nothing")
	cmd.Flags().StringVar(&opt.Root, "root", "/", "root of the file system for the drop-ins")
	return cmd
}

// printChanges says "done" of a change that was made, and undone, a word, of one that wasn't.
func printChanges(w io.Writer, changes []node.Change, undone string, err error) {
	if len(changes) == 0 && err == nil {
		fmt.Fprintln(w, "nothing to do")
	}
	for _, c := range changes {
		if c.Done {
			fmt.Fprintln(w, "done:", c.What)
		} else {
			fmt.Fprintln(w, undone+":", c.What)
		}
	}
}

func cleanCommand(s *settings) *cobra.Command {
	var at string
	cmd := &cobra.Command{
		Use:   "clean",
		Short: "take our table, rules, routes and drop-ins off a node that has no pods of ours any more",
		Long: "clean removes the policy table, the policy rules and routes, and prepare's drop-ins if nobody changed them. It refuses\n" +
			"while a pod has an address, or while a file in " + node.ConfDir + " names a plugin of ours. Forwarding stays on, for\n" +
			"others may need it; the state directory is gone with the next boot.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return s.onNode(cmd.Context(), func(ctx context.Context, n *node.Node) error {
				changes, err := n.Clean(ctx, at)
				printChanges(cmd.OutOrStdout(), changes, "left", err)
				return err
			})
		},
	}
	cmd.Flags().StringVar(&at, "root", "/", "root of the file system for the drop-ins and for "+node.ConfDir)
	return cmd
}
