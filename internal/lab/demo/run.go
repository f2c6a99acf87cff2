package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// Exit codes; a signal's is 128 and its number, as a shell has it.
const (
	exitOK     = 0
	exitNotOK  = 1
	exitUsage  = 2
	exitSignal = 128
)

// Files that the demo uses, relative to the repository.
const (
	binDir       = "bin"
	conflistFile = "cni-conf/10-native-vmss.conflist"
)

// run is the whole demo. A signal ends the step that runs, what was built is removed, and then the demo ends; a second one ends
// it at once, and the lab's janitor removes the rest.
func run(w io.Writer, faultName string) int {
	d, err := newDemo(w, faultName)
	if err != nil {
		fmt.Fprintln(w, "demo:", err)
		return exitUsage
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	got := make(chan os.Signal, 1)
	go func() {
		got <- <-signals
		cancel()
		os.Exit(codeOf(<-signals))
	}()

	err = d.runSteps(ctx)
	closeErr := d.close()
	select {
	case s := <-got:
		fmt.Fprintf(w, "\n%s: stopped, %s\n", s, cleanedUp(closeErr))
		return codeOf(s)
	default:
	}
	return d.report.end(err, closeErr, d.fault)
}

func codeOf(s os.Signal) int {
	if n, ok := s.(syscall.Signal); ok {
		return exitSignal + int(n)
	}
	return exitNotOK
}

// newDemo looks at what must be there before anything is built.
func newDemo(w io.Writer, faultName string) (*demo, error) {
	d := &demo{id: lab.NewID(), report: &report{w: w, begin: time.Now()}}
	if faultName != "" {
		f, ok := faults[faultName]
		if !ok {
			return nil, fmt.Errorf("FAULT=%s is unknown: there are %s", faultName, strings.Join(faultNames(), ", "))
		}
		d.fault = &f
	}
	if os.Geteuid() != 0 {
		return nil, errors.New("network namespaces need root: run it with sudo")
	}
	root, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	d.bin, d.conflistPath = filepath.Join(root, binDir), filepath.Join(root, conflistFile)
	if d.shipped, err = os.ReadFile(d.conflistPath); err != nil {
		return nil, fmt.Errorf("run it from the repository: %w", err)
	}
	for _, name := range []string{"native-vmss", "ipam-vmss", "vmssctl", "fake-azure"} {
		if _, err := os.Stat(filepath.Join(d.bin, name)); err != nil {
			return nil, fmt.Errorf("make build first: %w", err)
		}
	}
	return d, nil
}

type step struct {
	title string
	run   func(context.Context) error
}

func (d *demo) steps() []step {
	return []step{
		{"A fake cloud with two nodes", d.build},
		{"Pods, and who has which address", d.addresses},
		{"Everybody reaches everybody", d.pings},
		{"What crosses the wire", d.wire},
		{"Nobody sends under another's address", d.spoof},
		{"masquerade: false, by a firewall", d.firewall},
		{"The platform's addresses", d.platform},
		{fmt.Sprintf("TCP throughput (%d cores play all machines: compare, don't quote)", runtime.NumCPU()), d.throughput},
		{"The neighbour table of a node", d.neighbours},
		{"DEL of everything", d.nothingLeft},
	}
}

func (d *demo) runSteps(ctx context.Context) error {
	d.report.start(d.id, d.fault)
	steps := d.steps()
	for i, s := range steps {
		if err := ctx.Err(); err != nil {
			return err
		}
		done := d.report.step(i+1, len(steps), s.title)
		if err := s.run(ctx); err != nil {
			return err
		}
		done()
	}
	return nil
}
