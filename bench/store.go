package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// storeBenchmark is the one of pkg/allocator that leases from a store of 200,000 addresses in memory, nearly all leased.
const storeBenchmark = "BenchmarkLease/leased/200000"

// storeRows runs it five times and takes the median of its medians.
func storeRows(ctx context.Context, f *fixture, _ options, rep *report) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", anchored(storeBenchmark), "-benchtime", "300x",
		"-count", "5", "./pkg/allocator")
	cmd.Dir, cmd.Stderr = f.bin.root, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("go test -bench: %w\n%s", err, out)
	}
	var lease figures
	size := 0.0
	for line := range strings.Lines(string(bytes.TrimSpace(out))) {
		if !strings.HasPrefix(line, storeBenchmark) {
			continue
		}
		us, ok := metric(line, "median-µs")
		mb, found := metric(line, "file-MB")
		if !ok || !found {
			return fmt.Errorf("no median-µs or file-MB in %q", line)
		}
		cpu, _ := metric(line, "cpu-median-µs")
		lease.add(sample{wall: microseconds(us), cpu: microseconds(cpu)})
		size = max(size, mb)
	}
	if len(lease.samples) == 0 {
		rep.remark("no " + storeBenchmark + " in pkg/allocator: rows of the allocator alone not measured")
		return nil
	}
	rep.add(row{name: "allocator alone, 200,000, tmpfs", sides: "Lease", a: lease, mustBe: time.Millisecond, goalBe: time.Millisecond / 2})
	rep.add(row{name: "store of 200,000, leased", sides: "MB", value: size, unit: "MB", mustNum: 110, goalNum: 64})
	return nil
}

func microseconds(us float64) time.Duration { return time.Duration(us * float64(time.Microsecond)) }

// anchored is the pattern that matches one benchmark with sub-benchmarks and no other.
func anchored(name string) string {
	return "^" + strings.ReplaceAll(name, "/", "$/^") + "$"
}

// metric finds "12.5 unit" in a benchmark's line.
func metric(line, unit string) (float64, bool) {
	words := strings.Fields(line)
	for i, w := range words {
		if w == unit && i > 0 {
			v, err := strconv.ParseFloat(words[i-1], 64)
			return v, err == nil
		}
	}
	return 0, false
}
