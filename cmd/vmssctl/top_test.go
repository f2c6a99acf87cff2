package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/native-vmss/native-vmss/pkg/accounting"
	"github.com/native-vmss/native-vmss/pkg/accounting/export"
)

var update = flag.Bool("update", false, "rewrite testdata")

func traffic4(rxCluster, txCluster, rxInternet, txInternet uint64) []accounting.Sample {
	const packet = 1250 // bytes: a round number of bits
	s := func(direction, class string, bytes uint64) accounting.Sample {
		return accounting.Sample{Direction: direction, Class: class, Bytes: bytes, Packets: bytes / packet}
	}
	return []accounting.Sample{
		s("rx", "cluster", rxCluster), s("rx", "internet", rxInternet), s("tx", "cluster", txCluster), s("tx", "internet", txInternet),
	}
}

func running(namespace, name string, last byte, s []accounting.Sample) accounting.PodUsage {
	return accounting.PodUsage{Namespace: namespace, Pod: name, Addr: netip.AddrFrom4([4]byte{10, 20, 0, last}), Samples: s}
}

const (
	kB = 1000
	mB = 1000 * kB
)

// twoReadings are 2 s apart. In between web-1 ended, web-2 came, db-0 came again with its name and address, dark-0 wasn't counted
// at first, and two sandboxes are called twin.
func twoReadings() []accounting.Usage {
	dark := running("team-b", "dark-0", 14, nil)
	dark.Off = true
	before := accounting.Usage{
		Backend: accounting.NFTables,
		Pods: []accounting.PodUsage{
			running("team-a", "web-0", 10, traffic4(10*mB, 20*mB, 5*mB, 0)),
			running("team-a", "web-1", 11, traffic4(90*mB, 90*mB, 90*mB, 90*mB)),
			running("team-b", "db-0", 12, traffic4(500*mB, 1*kB, 0, 0)),
			dark,
			running("team-b", "twin", 15, traffic4(0, 0, 0, 0)), running("team-b", "twin", 16, traffic4(0, 0, 0, 0)),
		},
		Namespaces: []accounting.NamespaceUsage{
			{Namespace: "team-a", Samples: traffic4(1000*mB, 1000*mB, 1000*mB, 1000*mB)},
			{Namespace: "team-b", Samples: traffic4(500*mB, 0, 0, 0)},
			{Namespace: "lost", Samples: traffic4(5*mB, 0, 0, 0)},
		},
		Node: traffic4(0, 0, 0, 0),
	}
	now := accounting.Usage{
		Backend: accounting.NFTables,
		Pods: []accounting.PodUsage{
			running("team-a", "web-0", 10, traffic4(10*mB+250*kB, 20*mB+25*mB, 5*mB, 0)),
			running("team-a", "web-2", 13, traffic4(1*mB, 2*mB, 0, 0)),
			running("team-b", "db-0", 12, traffic4(1*mB, 50*kB, 0, 0)),
			running("team-b", "dark-0", 14, traffic4(900*mB, 900*mB, 900*mB, 900*mB)),
			running("team-b", "twin", 15, traffic4(1250, 0, 0, 0)), running("team-b", "twin", 16, traffic4(2500, 0, 0, 0)),
		},
		Namespaces: []accounting.NamespaceUsage{
			{Namespace: "team-a", Samples: traffic4(1000*mB+1250*kB, 1000*mB+27*mB, 1000*mB, 1000*mB)},
			{Namespace: "team-b", Samples: traffic4(501*mB, 50*kB, 0, 0)},
			{Namespace: "lost", Samples: traffic4(4*mB, 0, 0, 0)},
			{Namespace: "new", Samples: traffic4(0, 0, 0, 25*kB)},
		},
		Node: traffic4(125*kB, 250, 0, 0),
	}
	return []accounting.Usage{before, now}
}

// fakeTop reads these usages one by one, each 2 s after the one before; nil is an error.
func fakeTop(w io.Writer, opt topOptions, usages ...*accounting.Usage) (*top, *bytes.Buffer) {
	var errs bytes.Buffer
	clock, next := time.Duration(0), 0
	tick := make(chan time.Time)
	close(tick)
	opt.interval = 2 * time.Second
	if opt.sort == "" {
		opt.sort = sortTotal
	}
	return &top{
		opt: opt, tick: tick, view: viewFor(w, opt), errs: &errs,
		clock: func() time.Duration { clock += 2 * time.Second; return clock },
		now:   func() time.Time { return time.Date(2026, 11, 30, 21, 0, 5, 0, time.UTC) },
		source: func(context.Context) (accounting.Usage, error) {
			next++
			if u := usages[next-1]; u != nil {
				return *u, nil
			}
			return accounting.Usage{}, errors.New("store unusable")
		},
	}, &errs
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	file = "testdata/" + file + ".golden"
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

func TestTop_golden(t *testing.T) {
	two := twoReadings()
	for name, opt := range map[string]topOptions{
		"top":          {output: "table", count: 1},
		"top-internet": {output: "table", count: 1, sort: "internet"},
		"top-name":     {output: "table", count: 1, sort: sortName},
		"top-json":     {output: "json", count: 1},
	} {
		var out bytes.Buffer
		top, errs := fakeTop(&out, opt, &two[0], &two[1])
		if err := top.run(t.Context()); err != nil || errs.Len() > 0 {
			t.Errorf("%s: %v %s", name, err, errs)
		}
		golden(t, name, out.String())
	}
}

// ratesIn runs top over these readings and returns its last document.
func ratesIn(t *testing.T, usages ...*accounting.Usage) topDocument {
	t.Helper()
	var out bytes.Buffer
	top, _ := fakeTop(&out, topOptions{output: "json", count: len(usages) - 1}, usages...)
	if err := top.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	var doc topDocument
	dec := json.NewDecoder(&out)
	for dec.More() {
		doc = topDocument{}
		if err := dec.Decode(&doc); err != nil {
			t.Fatal(err)
		}
	}
	return doc
}

// rowOf returns a pod's received bits per second in class cluster; -1: unknown.
func rowOf(t *testing.T, rows []rateRowDoc, namespace, pod string) float64 {
	t.Helper()
	for _, r := range rows {
		if r.Namespace == namespace && r.Pod == pod {
			for _, v := range r.Rates {
				if v.Direction == "rx" && v.Class == "cluster" {
					return v.BitsPerSecond
				}
			}
			return -1
		}
	}
	t.Fatalf("no row of %s/%s in %+v", namespace, pod, rows)
	return 0
}

// A pod that came in between counts from zero, one that came again under the same name and address too; what isn't known isn't zero.
func TestTop_pods_that_come_and_go(t *testing.T) {
	two := twoReadings()
	doc := ratesIn(t, &two[0], &two[1])
	for name, want := range map[string]float64{"team-a/web-0": mB, "team-a/web-2": 4 * mB, "team-b/db-0": 4 * mB, "team-b/dark-0": -1} {
		ns, pod, _ := strings.Cut(name, "/")
		if got := rowOf(t, doc.Pods, ns, pod); got != want {
			t.Errorf("%s: %v bit/s, want %v", name, got, want)
		}
	}
	for ns, want := range map[string]float64{"team-a": 5 * mB, "team-b": 4 * mB, "new": 0, "lost": -1} {
		if got := rowOf(t, doc.Namespaces, ns, ""); got != want {
			t.Errorf("namespace %s: %v bit/s, want %v", ns, got, want)
		}
	}
	if len(doc.Pods) != 6 {
		t.Errorf("%d pods: one that ended has no row", len(doc.Pods))
	}
}

// Where counters weren't read or nothing was counted there are no rates, and the next good reading is compared with the last good one.
func TestTop_no_rates(t *testing.T) {
	two := twoReadings()
	changed := func(change func(*accounting.Usage)) *accounting.Usage {
		u := two[0]
		change(&u)
		return &u
	}
	stale := changed(func(u *accounting.Usage) { u.Stale = true })
	off := changed(func(u *accounting.Usage) { u.Off = "no nf_tables" })
	lost := changed(func(u *accounting.Usage) { u.Resets = map[string]uint64{"store": 1} })
	tests := []struct {
		name    string
		usages  []*accounting.Usage
		off     string
		seconds float64
		web     float64
	}{
		{"stale", []*accounting.Usage{&two[0], stale}, staleReading, 0, -1},
		{"after stale", []*accounting.Usage{&two[0], stale, &two[1]}, "", 4, mB / 2},
		{"stale at first", []*accounting.Usage{stale, &two[1]}, firstReading, 0, -1},
		{"off", []*accounting.Usage{&two[0], off}, "no nf_tables", 0, -1},
		{"after off", []*accounting.Usage{off, &two[1]}, firstReading, 0, -1},
		{"store lost", []*accounting.Usage{&two[1], lost}, storeLost, 0, -1},
		{"after an error", []*accounting.Usage{&two[0], nil, &two[1]}, "", 4, mB / 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			doc := ratesIn(t, tt.usages...)
			if web := rowOf(t, doc.Pods, "team-a", "web-0"); doc.Off != tt.off || doc.Seconds != tt.seconds || web != tt.web {
				t.Errorf("%q, %v s, %v bit/s, want %q, %v, %v", doc.Off, doc.Seconds, web, tt.off, tt.seconds, tt.web)
			}
			if strings.Contains(tt.name, "after") || tt.seconds > 0 {
				return
			}
			if web := rowOf(t, doc.Namespaces, "team-a", ""); web != -1 {
				t.Errorf("the namespace has %v bit/s", web)
			}
		})
	}
}

// The first reading decides whether it can work at all; later errors are shown and it goes on; the last one is the command's.
func TestTop_errors(t *testing.T) {
	two := twoReadings()
	for _, tt := range []struct {
		name   string
		opt    topOptions
		usages []*accounting.Usage
		want   string
		frames int
		said   string
	}{
		{"first", topOptions{count: 2}, []*accounting.Usage{nil}, "store unusable", 0, ""},
		{"between", topOptions{count: 3}, []*accounting.Usage{&two[0], &two[1], nil, &two[1]}, "<nil>", 2, "vmssctl: store unusable\n"},
		{"last", topOptions{count: 2}, []*accounting.Usage{&two[0], &two[1], nil}, "store unusable", 1, ""},
		{
			"sort",
			topOptions{count: 1, sort: "size"},
			[]*accounting.Usage{&two[0]},
			`--sort: "size" is none of total, rx, tx, name, cluster, internet`, 0, "",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			tt.opt.output = "json"
			top, errs := fakeTop(&out, tt.opt, tt.usages...)
			err := top.run(t.Context())
			if fmt.Sprint(err) != tt.want || strings.Count(out.String(), "\n") != tt.frames || errs.String() != tt.said {
				t.Errorf("%v, %d frames, said %q", err, strings.Count(out.String(), "\n"), errs)
			}
		})
	}
	for _, args := range [][]string{{"--interval", "10ms"}, {"-o", "yaml"}, {"-n", "-1"}} {
		cmd := topCommand(func() (export.Source, func(), error) { t.Error("opened"); return nil, nil, errors.New("x") })
		cmd.SetArgs(args)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || err.Error() == "x" {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// Whatever pods are called, a table has one line for each and nothing that a terminal obeys.
func TestTop_hostile_names(t *testing.T) {
	names := []string{"\x1b[2J\x1b[H", "a\nb", "nul\x00", "bad\xff", "c1\u009b2J", strings.Repeat("x", 10_000), "tab\there", "\u202egnp", ""}
	u := accounting.Usage{Backend: "nf\x1b[2Jt", Off: "\x1b]0;x\a", MarksOff: "\x1b[H"}
	for i, n := range names {
		u.Pods = append(u.Pods, running(n, n, byte(i+1), []accounting.Sample{{Direction: "rx", Class: "\x1b[31m", Bytes: 1}}))
		u.Namespaces = append(u.Namespaces, accounting.NamespaceUsage{Namespace: n})
	}
	var out bytes.Buffer
	top, _ := fakeTop(&out, topOptions{output: "table", count: 1}, &u, &u)
	if err := top.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	const head = 3 + 1 + 3 + 1 + 2 // and the node's own line
	if lines := strings.Count(out.String(), "\n"); lines != head+2*len(names) {
		t.Errorf("%d lines, want %d:\n%s", lines, head+2*len(names), &out)
	}
	for line := range strings.Lines(out.String()) {
		if i := strings.IndexFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x202e }); i >= 0 {
			t.Errorf("%q in %q", line[i], line)
		}
		if len([]rune(line)) > 250 {
			t.Errorf("a line of %d characters", len([]rune(line)))
		}
	}
}

func TestShort(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0", 0.4: "0", 1: "1", 999.4: "999", 999.5: "1.00k", 9994: "9.99k", 9996: "10.0k", 12345: "12.3k", 99960: "100k", 999499: "999k",
		999500: "1.00M", 25e9: "25.0G", 3.2e12: "3.20T", 5e15: "5000T",
	} {
		if got := short(true, v); got != want {
			t.Errorf("%v: %s, want %s", v, got, want)
		}
	}
	if short(false, 5) != "-" {
		t.Error("unknown")
	}
}

// In 80 columns a frame has all its numbers, and in few lines both tables, with what was left out counted.
func TestLayout_fits(t *testing.T) {
	u := twoReadings()[1]
	for i := range 100 {
		name := fmt.Sprintf("web-7d4b9c6f5d-%05d-and-a-tail-of-some-length", i)
		u.Pods = append(u.Pods, running("a-namespace-with-a-long-name", name, byte(i), traffic4(1, 1, 1, 1)))
		u.Namespaces = append(u.Namespaces, accounting.NamespaceUsage{Namespace: name})
	}
	f := compare(nil, reading{Usage: u})
	for height := 1; height <= 300; height++ {
		lines := layout(f, sortTotal, 80, height)
		if height >= 8 && len(lines) > height {
			t.Errorf("%d lines in %d", len(lines), height)
		}
		for _, line := range lines {
			if n := len([]rune(line)); n > 80 {
				t.Errorf("%d characters: %q", n, line)
			}
		}
		if text := strings.Join(lines, "\n"); height == 24 && strings.Count(text, " more") != 2 {
			t.Errorf("what was left out is not counted:\n%s", text)
		}
	}
	if whole := layout(f, sortTotal, 80, 0); len(whole) < 210 {
		t.Errorf("%d lines without a limit", len(whole))
	}
}

// What a terminal is too narrow for is left out as whole columns, the class that was asked for last, and named.
func TestLayout_narrow(t *testing.T) {
	classes := []string{"cluster", "internet", "storage", "observability-of-all-kinds"}
	var all []accounting.Sample
	for _, class := range classes {
		for _, direction := range directions {
			all = append(all, accounting.Sample{Direction: direction, Class: class, Bytes: 123_456_789})
		}
	}
	u := accounting.Usage{Backend: "nftables", Namespaces: []accounting.NamespaceUsage{{Namespace: "team-a", Samples: all}}}
	u.Pods = []accounting.PodUsage{running("team-a", "web-0-with-a-name-that-is-rather-long", 1, all)}
	f := compare(nil, reading{Usage: u})
	for _, width := range []int{50, 60, 80, 140} {
		lines := layout(f, "internet", width, 24)
		text := strings.Join(lines, "\n")
		lost := ""
		for _, line := range lines {
			if len([]rune(line)) > width {
				t.Errorf("%d: too wide: %q", width, line)
			}
			if rest, ok := strings.CutPrefix(line, "too narrow for"); ok {
				lost = rest
			}
		}
		want := map[int]string{
			50: " 5 groups of columns", 60: " 4 groups of columns", 80: ": CLUSTER, PACKETS", 140: "",
		}[width]
		if has := strings.Contains(text, " INTERNET"); lost != want || !has {
			t.Errorf("%d: left out are %q, want %q; INTERNET is there: %v\n%s", width, lost, want, has, text)
		}
	}
}
