package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/native-vmss/native-vmss/pkg/accounting"
	"github.com/native-vmss/native-vmss/pkg/accounting/export"
)

// traffic opens what metrics and top read; tests give another.
type traffic func() (source export.Source, done func(), err error)

func (s *settings) traffic() (export.Source, func(), error) {
	n, err := s.openStanding()
	if err != nil {
		return nil, nil, err
	}
	return n.Usage, n.Close, nil
}

func metricsCommand(open traffic) *cobra.Command {
	var pods bool
	cmd := &cobra.Command{
		Use:   "metrics",
		Short: "print what pods and the node have sent and got, as Prometheus metrics",
		Long: "metrics prints the whole page once, in Prometheus's text format, or fails and prints nothing. Where the kernel's counters\n" +
			"can't be read but the store can, the values are those of the last fold and native_vmss_accounting_stale is 1.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			source, done, err := open()
			if err != nil {
				return err
			}
			defer done()
			ctx, cancel := context.WithTimeout(cmd.Context(), readTimeout)
			defer cancel()
			usage, err := source(ctx)
			if err != nil {
				return err
			}
			// It was read before, so that an error fails the command instead of standing in the page.
			read := func(context.Context) (accounting.Usage, error) { return usage, nil }
			page, err := export.Page(export.New(read, export.Options{NoPods: !pods}))
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(page)
			return err
		},
	}
	cmd.Flags().BoolVar(&pods, "pods", true, "series of single pods too, not only of namespaces")
	return cmd
}
