// Command vmssctl is what people type on a node: it reads store and kernel itself and needs no agent.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func main() { os.Exit(run(root())) }

// printError begins each line with our name, since it may stand in a log with others', and says nothing twice: what keeps one
// step from working often keeps the next.
func printError(w io.Writer, err error) {
	var said []string
	for _, line := range strings.Split(err.Error(), "\n") {
		if !slices.Contains(said, line) {
			fmt.Fprintln(w, "vmssctl:", line)
		}
		said = append(said, line)
	}
}

func run(cmd *cobra.Command) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := cmd.ExecuteContext(ctx); err != nil {
		printError(os.Stderr, err)
		return 1
	}
	return 0
}
