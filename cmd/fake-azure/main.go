// Command fake-azure runs the fake cloud of internal/fakeazure as a process.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/native-vmss/native-vmss/internal/fakeazure"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run serves until ctx ends. It prints one line per socket to stdout, then "ready".
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("fake-azure", flag.ContinueOnError)
	fs.SetOutput(stderr)
	config := fs.String("config", "", "`file` with the topology (required)")
	imds := fs.String("imds", "", "`addresses` of the metadata service, such as 169.254.169.254:80")
	wireserver := fs.String("wireserver", "", "`addresses` of the wireserver, such as 168.63.129.16:80,168.63.129.16:32526")
	dns := fs.String("dns", "", "`addresses` of the resolver, such as 168.63.129.16:53")
	admin := fs.String("admin", "", "`path` of the unix socket for changes, faults and counters")
	vm := fs.String("vm", "", "`name` of the VM that all requests come from (default: told by the source address)")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if *config == "" || fs.NArg() > 0 {
		fmt.Fprintln(stderr, "fake-azure: -config is required, and there are no arguments")
		fs.Usage()
		return 2
	}
	services := fakeazure.Services{IMDS: split(*imds), Wireserver: split(*wireserver), DNS: split(*dns), Admin: *admin, VM: *vm}
	if err := serve(ctx, *config, services, stdout); err != nil {
		fmt.Fprintln(stderr, "fake-azure:", err)
		return 1
	}
	return 0
}

func serve(ctx context.Context, config string, services fakeazure.Services, stdout io.Writer) error {
	cloud, err := fakeazure.Load(config)
	if err != nil {
		return err
	}
	server, err := cloud.Listen(services)
	if err != nil {
		return err
	}
	if len(server.Addrs()) == 0 {
		return errors.New("nothing to listen on: give -imds, -wireserver, -dns or -admin")
	}
	for _, addr := range server.Addrs() {
		fmt.Fprintln(stdout, addr)
	}
	fmt.Fprintln(stdout, "ready")
	return server.Serve(ctx)
}

// split reads a comma-separated list; "" has no element.
func split(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' })
}
