package export

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/native-vmss/native-vmss/pkg/accounting"
)

var update = flag.Bool("update", false, "rewrite testdata")

func samples(n uint64) []accounting.Sample {
	return []accounting.Sample{
		{Direction: "rx", Class: "cluster", Bytes: n, Packets: n / 100},
		{Direction: "tx", Class: "cluster", Bytes: 2 * n, Packets: n / 50},
		{Direction: "rx", Class: "internet", Bytes: 3 * n, Packets: n / 30},
		{Direction: "tx", Class: "internet", Bytes: 0, Packets: 0},
	}
}

func podOf(namespace, name string, last byte, bytes uint64) accounting.PodUsage {
	return accounting.PodUsage{
		Namespace: namespace, Pod: name, Addr: netip.AddrFrom4([4]byte{10, 20, 0, last}), Mark: uint32(last) << 16, Samples: samples(bytes),
	}
}

func usual() accounting.Usage {
	off := podOf("team-b", "dark-0", 13, 700)
	off.Off = true
	return accounting.Usage{
		Backend: accounting.NFTables,
		Pods:    []accounting.PodUsage{podOf("team-a", "web-0", 10, 1000), podOf("team-a", "web-1", 11, 2000), off},
		Namespaces: []accounting.NamespaceUsage{
			{Namespace: "team-a", Samples: samples(50000)}, {Namespace: "team-b", Samples: samples(700)},
		},
		Node:    samples(9000),
		Resets:  map[string]uint64{"counters": 2, "store": 1},
		Unknown: map[string]time.Duration{"team-b": 1500 * time.Millisecond},
	}
}

func fixed(u accounting.Usage) Source {
	return func(context.Context) (accounting.Usage, error) { return u, nil }
}

// scrape returns the page and what a parser that isn't ours reads from it: "name{labels}" -> value.
func scrape(t *testing.T, c prometheus.Collector) (page string, values map[string]float64) {
	t.Helper()
	text, err := Page(c)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), parse(t, string(text))
}

func parse(t *testing.T, page string) map[string]float64 {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(page))
	if err != nil {
		t.Fatalf("%v\n%s", err, page)
	}
	values := map[string]float64{}
	for name, f := range families {
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			key := name + "{" + strings.Join(labels, ",") + "}"
			if _, twice := values[key]; twice {
				t.Errorf("%q comes twice", key)
			}
			values[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return values
}

func want(t *testing.T, values map[string]float64, key string, v float64) {
	t.Helper()
	if got, has := values[key]; !has || got != v {
		t.Errorf("%s is %v (there: %v), want %v", key, got, has, v)
	}
}

func absent(t *testing.T, values map[string]float64, part string) {
	t.Helper()
	for key := range values {
		if strings.Contains(key, part) {
			t.Errorf("%s is there", key)
		}
	}
}

// The page of a usual node, as users see it.
func TestPage_golden(t *testing.T) {
	for name, opt := range map[string]Options{"page": {}, "page-nopods": {NoPods: true}} {
		page, _ := scrape(t, New(fixed(usual()), opt))
		file := "testdata/" + name + ".golden"
		if *update {
			if err := os.WriteFile(file, []byte(page), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		golden, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(golden), page); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

// hostileNames are what somebody with a hand in a pod's name might try.
func hostileNames() []string {
	return []string{
		`a"} 1` + "\n" + `native_vmss_pod_mark{namespace="x",pod="injected`, `back\slash\`, "new\nline", "nul\x00nul", "bad\xff\xfeutf8", "bad\xfd\xfeutf8",
		"cursor\x1b[2J\x1b[H", "c1\u009b2J", "", other, strings.Repeat("x", 10_000), strings.Repeat("x", 10_000) + "y",
		strings.Repeat("é", 5_000), strings.Repeat("p", 240) + "-one", strings.Repeat("p", 240) + "-two", "�", "tab\t", "\u202egnp", "\r",
	}
}

func hostile() accounting.Usage {
	u := usual()
	for i, name := range hostileNames() {
		u.Pods = append(u.Pods, podOf(name, name, byte(100+i), uint64(i+1)*1000))
		u.Namespaces = append(u.Namespaces, accounting.NamespaceUsage{Namespace: name, Samples: samples(uint64(i+1) * 1000)})
		u.Unknown[name] = time.Second
		u.Resets[name] = 1
		u.Node = append(u.Node, accounting.Sample{Direction: "rx", Class: name, Bytes: 7})
	}
	u.Backend = "nf\x00\xff\ntables"
	return u
}

func many(n int) accounting.Usage {
	u := usual()
	for i := range n {
		name := fmt.Sprintf("pod-%04d", i)
		u.Pods = append(u.Pods, accounting.PodUsage{Namespace: "z-" + name, Pod: name, Samples: samples(1000)})
		u.Namespaces = append(u.Namespaces, accounting.NamespaceUsage{Namespace: "z-" + name, Samples: samples(1000)})
	}
	return u
}

// Prometheus's own judge has nothing to say of any page.
func TestPage_promtool(t *testing.T) {
	const promtool = "../../../bin/peers/promtool/promtool"
	if _, err := os.Stat(promtool); err != nil {
		t.Fatalf("%v (hack/promtool.sh puts it there)", err)
	}
	failing := func(context.Context) (accounting.Usage, error) { return accounting.Usage{}, errors.New("no store") }
	for name, source := range map[string]Source{
		"usual": fixed(usual()), "hostile": fixed(hostile()), "many": fixed(many(5000)), "empty": fixed(accounting.Usage{Backend: accounting.None}),
		"failing": failing,
	} {
		page, _ := scrape(t, New(source, Options{}))
		cmd := exec.Command(promtool, "check", "metrics")
		cmd.Stdin = strings.NewReader(page)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v: %.2000s", name, err, out)
		}
	}
	// The judge is awake.
	cmd := exec.Command(promtool, "check", "metrics")
	cmd.Stdin = strings.NewReader("# TYPE a counter\na{x=\"\x00\"} 1\n")
	if out, err := cmd.CombinedOutput(); err == nil {
		t.Errorf("promtool takes a counter without a help, with a NUL: %s", out)
	}
}

// Whatever pods are called: each has one series of its own, of bounded length, that neither a parser nor a terminal stumbles over.
func TestPage_hostile_names(t *testing.T) {
	page, values := scrape(t, New(fixed(hostile()), Options{}))
	if !utf8.ValidString(page) {
		t.Error("the page is no UTF-8")
	}
	for line := range strings.Lines(page) {
		if i := strings.IndexFunc(strings.TrimSuffix(line, "\n"), func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 || r == 0x202e }); i >= 0 {
			t.Errorf("control character %q in %.300q", line[i], line)
		}
		if !strings.HasPrefix(line, "#") && len(line) > 4*maxLabel {
			t.Errorf("a line of %d bytes", len(line))
		}
	}
	seen := map[string]bool{}
	for i, name := range hostileNames() {
		value := label(name)
		if len(value) > maxLabel || seen[value] || value == other {
			t.Errorf("%.60q has the label %q of %d bytes (seen before: %v)", name, value, len(value), seen[value])
		}
		seen[value] = true
		ns := ",namespace=" + value
		if series := "native_vmss_pod_network_bytes_total{class=cluster,direction=rx" + ns + ",pod=" + value + "}"; name == "" {
			absent(t, values, series) // pods without names can't be told apart
		} else {
			want(t, values, series, float64(i+1)*1000)
		}
		want(t, values, "native_vmss_namespace_network_bytes_total{class=cluster,direction=rx"+ns+"}", float64(i+1)*1000)
		want(t, values, "native_vmss_accounting_unknown_seconds_total{namespace="+value+"}", 1)
	}
	absent(t, values, "pod=injected}")
	for _, plain := range []string{"web-0", `back\slash\`, `quo"te`, "", strings.Repeat("p", 249) + "-one"} {
		if label(plain) != plain {
			t.Errorf("%q is shown as %q", plain, label(plain))
		}
	}
	if v := label(strings.Repeat("é", 5_000)); !utf8.ValidString(v) {
		t.Errorf("cut in the midst of a character: %q", v)
	}
}

// Beyond the limits all is in one series, and nothing is lost.
func TestPage_bounded(t *testing.T) {
	const n = 5000
	page, values := scrape(t, New(fixed(many(n)), Options{}))
	pods, namespaces := 0, 0
	for key := range values {
		if strings.HasPrefix(key, "native_vmss_pod_network_bytes_total{class=cluster,direction=rx,") {
			pods++
		}
		if strings.HasPrefix(key, "native_vmss_namespace_network_packets_total{class=cluster,direction=rx,") {
			namespaces++
		}
	}
	// dark-0 has a place, and no series.
	if pods != DefaultMaxPods || namespaces != DefaultMaxNamespaces+1 {
		t.Errorf("%d pods, %d namespaces", pods, namespaces)
	}
	want(t, values, "native_vmss_pod_network_bytes_total{class=cluster,direction=rx,namespace=_other,pod=_other}", (n+3-DefaultMaxPods)*1000)
	want(t, values, "native_vmss_namespace_network_bytes_total{class=cluster,direction=tx,namespace=_other}", (n+2-DefaultMaxNamespaces)*2000)
	want(t, values, "native_vmss_namespace_network_packets_total{class=cluster,direction=rx,namespace=_other}", (n+2-DefaultMaxNamespaces)*10)
	if len(page) > 4<<20 {
		t.Errorf("%d bytes", len(page))
	}
	again, _ := scrape(t, New(fixed(many(n)), Options{}))
	if again != page {
		t.Error("the same values give another page")
	}
}

// Two sandboxes of one name are one sample, the newest one's: a sum would fall when one of them goes.
func TestPage_duplicates(t *testing.T) {
	u := usual()
	newest := podOf("team-a", "web-0", 20, 500)
	newest.Use++
	u.Pods = slices.Insert(u.Pods, 0, newest)
	u.Namespaces = append(u.Namespaces, accounting.NamespaceUsage{Namespace: "team-a", Samples: samples(5)})
	u.Node = append(u.Node, samples(1)...)
	_, values := scrape(t, New(fixed(u), Options{}))
	want(t, values, "native_vmss_pod_network_bytes_total{class=cluster,direction=rx,namespace=team-a,pod=web-0}", 500)
	want(t, values, "native_vmss_namespace_network_bytes_total{class=cluster,direction=rx,namespace=team-a}", 50005)
	want(t, values, "native_vmss_node_network_bytes_total{class=cluster,direction=rx}", 9001)
	want(t, values, "native_vmss_pod_mark{namespace=team-a,pod=web-0}", 20<<16)
	want(t, values, "native_vmss_pod_mark{namespace=team-a,pod=web-1}", 11<<16)
}

// Unknown is not zero: not for a pod, not for one of two sandboxes, and not beyond the limit.
func TestPage_uncounted(t *testing.T) {
	u := usual()
	dark := podOf("team-a", "web-0", 20, 500)
	dark.Off, dark.Use = true, 1<<40
	u.Pods = append(u.Pods, dark)
	_, values := scrape(t, New(fixed(u), Options{}))
	absent(t, values, "network_bytes_total{class=cluster,direction=rx,namespace=team-b,pod=dark-0}")
	absent(t, values, "network_bytes_total{class=cluster,direction=rx,namespace=team-a,pod=web-0}")
	want(t, values, "native_vmss_pod_network_bytes_total{class=cluster,direction=rx,namespace=team-a,pod=web-1}", 2000)
	want(t, values, "native_vmss_accounting_unknown_seconds_total{namespace=team-b}", 1.5)

	_, values = scrape(t, New(fixed(u), Options{MaxPods: 1}))
	want(t, values, "native_vmss_pod_network_bytes_total{class=cluster,direction=rx,namespace=_other,pod=_other}", 2000)
}

func TestPage_state(t *testing.T) {
	for _, tt := range []struct {
		name               string
		change             func(*accounting.Usage)
		on, marksOn, stale float64
	}{
		{"on", func(*accounting.Usage) {}, 1, 1, 0},
		{"off", func(u *accounting.Usage) { u.Off = "no nf_tables" }, 0, 0, 0},
		{"marks off", func(u *accounting.Usage) { u.MarksOff = "Calico has these bits" }, 1, 0, 0},
		{"stale", func(u *accounting.Usage) { u.Stale = true }, 1, 1, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := usual()
			tt.change(&u)
			_, values := scrape(t, New(fixed(u), Options{}))
			want(t, values, "native_vmss_accounting_on{backend=nftables}", tt.on)
			want(t, values, "native_vmss_accounting_marks_on{}", tt.marksOn)
			want(t, values, "native_vmss_accounting_stale{}", tt.stale)
		})
	}
}

// A source that fails leaves the last good values, says so, and never breaks the page.
func TestCollector_source_fails(t *testing.T) {
	calls, failing := 0, true
	c := New(func(ctx context.Context) (accounting.Usage, error) {
		calls++
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("a source may take for ever")
		}
		if failing {
			return accounting.Usage{Node: samples(1)}, errors.New("store unusable")
		}
		return usual(), nil
	}, Options{})
	_, values := scrape(t, c)
	if diff := cmp.Diff(map[string]float64{"native_vmss_accounting_stale{}": 1, "native_vmss_scrape_errors_total{}": 1}, values); diff != "" {
		t.Errorf("without any values (-want +got):\n%s", diff)
	}
	failing = false
	_, good := scrape(t, c)
	failing = true
	_, values = scrape(t, c)
	want(t, good, "native_vmss_accounting_stale{}", 0)
	want(t, good, "native_vmss_scrape_errors_total{}", 1)
	want(t, values, "native_vmss_accounting_stale{}", 1)
	want(t, values, "native_vmss_scrape_errors_total{}", 2)
	for _, v := range []map[string]float64{good, values} {
		delete(v, "native_vmss_accounting_stale{}")
		delete(v, "native_vmss_scrape_errors_total{}")
	}
	if diff := cmp.Diff(good, values); diff != "" {
		t.Errorf("the last good values changed (-want +got):\n%s", diff)
	}
	if calls != 3 {
		t.Errorf("%d calls for 3 scrapes", calls)
	}
}

// Scrapes at the same time, while the source now and then fails and pods come and go: each page is whole, and no counter of a scraper falls.
func TestCollector_concurrent(t *testing.T) {
	var calls, open atomic.Uint64
	c := New(func(context.Context) (accounting.Usage, error) {
		if open.Add(1) > 1 {
			t.Error("two calls of the source overlap: the older values may be kept")
		}
		defer open.Add(^uint64(0))
		n := calls.Add(1)
		for range 100 {
			runtime.Gosched()
		}
		if n%3 == 0 {
			return accounting.Usage{}, errors.New("now and then")
		}
		u := usual()
		u.Node = samples(n)
		u.Namespaces[0].Samples = samples(n)
		if n%2 == 0 {
			u.Pods = append(u.Pods, podOf("team-a", fmt.Sprintf("pod-%d", n), 30, n))
		}
		return u, nil
	}, Options{})
	const scrapers, rounds = 8, 25
	var all sync.WaitGroup
	for range scrapers {
		all.Go(func() {
			before := map[string]float64{}
			for range rounds {
				_, values := scrape(t, c)
				for _, key := range slices.Sorted(maps.Keys(before)) {
					if strings.Contains(key, "_total{") && !strings.Contains(key, "pod=") && values[key] < before[key] {
						t.Errorf("%s fell from %v to %v", key, before[key], values[key])
					}
				}
				before = values
			}
		})
	}
	all.Wait()
	if n := calls.Load(); n != scrapers*rounds {
		t.Errorf("%d calls for %d scrapes", n, scrapers*rounds)
	}
}
