package netns

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	benchPlugin   = "../../bin/native-vmss"
	benchConflist = "../../cni-conf/10-native-vmss.conflist"
	// benchPool is more than what cools for 30 s at 100 pods per second.
	benchPool = 4096
)

// BenchmarkNetnsADD is one pod with the shipped binary and conflist, start and exit of the process included. What it takes is put
// beside other plugins by bench/, which is the one to believe: here nothing is interleaved.
func BenchmarkNetnsADD(b *testing.B) {
	benchCycle(b, "ADD")
}

// BenchmarkNetnsDEL is the end of one pod; nearly all of it is the kernel's.
func BenchmarkNetnsDEL(b *testing.B) {
	benchCycle(b, "DEL")
}

// benchCycle adds and deletes pods and counts the time of one of the two commands.
func benchCycle(b *testing.B, measured string) {
	binary, err := filepath.Abs(benchPlugin)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := os.Stat(binary); err != nil {
		b.Fatalf("%v (make build makes it)", err)
	}
	s := lab.NewSimple(b, lab.SimpleOptions{
		Subnet: netip.MustParsePrefix("10.16.0.0/12"), Pool: lab.AddrRange(netip.MustParseAddr("10.24.0.0"), benchPool),
	})
	pod, conf := s.Pod(b, "pod"), benchConf(b)
	var total, cpu time.Duration
	run := func(container int, command string, count bool) {
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		c, wait := s.Node.StartPlugin(ctx, binary, lab.Call{
			Command: command, ContainerID: fmt.Sprintf("bench-%d", container), Netns: pod.Path, Path: filepath.Dir(binary), Stdin: conf,
		})
		out := wait()
		if !out.OK() {
			b.Fatalf("%s: exit %d, %v: %s%s", command, out.Exit, out.Err, out.Stdout, out.Stderr)
		}
		if count && command == measured {
			total += out.Took
			cpu += c.ProcessState.UserTime() + c.ProcessState.SystemTime()
		}
	}
	for i := range b.N + 1 { // the first one makes the node's state
		run(i, "ADD", i > 0)
		run(i, "DEL", i > 0)
	}
	b.ReportMetric(float64(total.Nanoseconds())/float64(b.N), "ns/op") // in place of the time of both commands
	b.ReportMetric(float64(cpu.Microseconds())/float64(b.N), "cpu-µs/op")
}

// benchConf is what a runtime makes of the first plugin of the shipped conflist.
func benchConf(b *testing.B) []byte {
	text, err := os.ReadFile(benchConflist)
	if err != nil {
		b.Fatal(err)
	}
	var list struct {
		CNIVersion, Name string
		Plugins          []map[string]any
	}
	if err := json.Unmarshal(text, &list); err != nil || len(list.Plugins) == 0 {
		b.Fatalf("%s: %v", benchConflist, err)
	}
	list.Plugins[0]["cniVersion"], list.Plugins[0]["name"] = list.CNIVersion, list.Name
	conf, err := json.Marshal(list.Plugins[0])
	if err != nil {
		b.Fatal(err)
	}
	return conf
}
