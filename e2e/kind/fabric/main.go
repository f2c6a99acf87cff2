// Command fabric is the cloud that a kind cluster's nodes live in: the namespaces of internal/lab's cloud (fabric, hub, firewall,
// internet, a peer that plays thousands of machines), the services of internal/fakeazure, and one port per node.
//
//	fabric -network nvt-kind -admin fabric.sock -pods 160 nvt-kind-control-plane=4711 nvt-kind-worker=4712
//
// The arguments are nodes and the pids of their first processes. A node keeps its eth0, address and all; the other end of that
// cable leaves Docker's bridge and becomes a port of the fabric. Nothing that a node sends passes the machine's netfilter, bridge or
// uplink from then on, so neither Docker's masquerade nor the machine's own rules have a part in it. The machine itself, for the
// API server's published port, is one more port: its address on Docker's bridge.
//
// It prints "ready" and serves until it is told to end; its namespaces, and with them the nodes' cables, end with it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/native-vmss/native-vmss/internal/fakeazure"
	"github.com/native-vmss/native-vmss/internal/lab"
)

// labID makes the namespaces' names: nvt-kind-fabric, nvt-kind-hub …
const labID = "kind"

// whoamiPort is where the hub and the internet tell who asks them.
const whoamiPort = ":8080"

type options struct {
	network string // Docker's bridge
	admin   string // path of fakeazure's admin socket
	probe   string // path of the program that answers in the hub and in the internet
	pods    int    // secondaries per node
	nodes   []container
}

type container struct {
	name string
	pid  int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fabric:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) (err error) {
	o, err := parse(args)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	c, err := lab.NewCloud(lab.CloudOptions{ID: labID, Nodes: []lab.CloudNodeOptions{}, Log: log})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	s := &stage{Cloud: c, options: o, log: log, ports: map[string]*fakeazure.Port{}}
	server, err := s.build(ctx)
	if err != nil {
		return err
	}
	for _, addr := range server.Addrs() {
		fmt.Println(addr)
	}
	fmt.Println("ready")
	return server.Serve(ctx)
}

func parse(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("fabric", flag.ContinueOnError)
	fs.StringVar(&o.network, "network", "nvt-kind", "`bridge` of the nodes' Docker network")
	fs.StringVar(&o.admin, "admin", "fabric.sock", "`path` of the unix socket for changes, faults and counters")
	fs.StringVar(&o.probe, "probe", "bin/kind/probe", "`path` of the probe that answers in the hub and in the internet")
	fs.IntVar(&o.pods, "pods", 160, "secondary addresses per node")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	for _, arg := range fs.Args() {
		name, pid, _ := strings.Cut(arg, "=")
		n, err := strconv.Atoi(pid)
		if err != nil {
			return o, fmt.Errorf("node %q: want name=pid", arg)
		}
		o.nodes = append(o.nodes, container{name, n})
	}
	if len(o.nodes) == 0 {
		return o, errors.New("no nodes")
	}
	abs, err := filepath.Abs(o.probe)
	o.probe = abs
	return o, err
}

// secondaries are a node's pod addresses: 10.20.1.10 and on for the first node, 10.20.2.10 for the second …
func secondaries(node, count int) []netip.Addr {
	return lab.AddrRange(netip.AddrFrom4([4]byte{10, 20, byte(1 + node), 10}), count)
}
