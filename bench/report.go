package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// row is one line of the table: two sides by their ratio, one side by its median, or a number. A limit of zero is none.
type row struct {
	name, sides string
	a, b        figures
	cpu         bool // processor time counts, not wall time

	must, goal       float64       // of the ratio of medians
	mustBe, goalBe   time.Duration // of the median of one side
	value            float64       // a number
	unit             string
	mustNum, goalNum float64
}

// report is one run.
type report struct {
	o                     options
	started               time.Time
	loadBefore, loadAfter string
	rows                  []row
	remarks               []string
}

func newReport(o options) *report {
	return &report{o: o, started: time.Now(), loadBefore: loadAverage()}
}

func (r *report) add(x row)       { r.rows = append(r.rows, x) }
func (r *report) remark(s string) { r.remarks = append(r.remarks, s) }

// judged is what is compared with the limits, in their unit.
func (x row) judged() (have, must, goal float64) {
	switch {
	case x.unit != "":
		return x.value, x.mustNum, x.goalNum
	case len(x.b.samples) == 0:
		return float64(median(x.times(x.a))), float64(x.mustBe), float64(x.goalBe)
	}
	return ratio(median(x.times(x.a)), median(x.times(x.b))), x.must, x.goal
}

func (x row) times(f figures) []time.Duration {
	if x.cpu {
		return f.cpus()
	}
	return f.walls()
}

func (x row) verdict() string {
	have, must, goal := x.judged()
	switch {
	case must == 0:
		return "no limit"
	case have > must:
		return "BROKEN"
	case goal != 0 && have <= goal:
		return "holds, goal reached"
	}
	return "holds"
}

// broken names the rows that miss what they must hold.
func (r *report) broken() (names []string) {
	for _, x := range r.rows {
		if x.verdict() == "BROKEN" {
			names = append(names, x.name)
		}
	}
	return names
}

const tableHead = "| row | sides | median | ratio | paired | processor | must hold | goal | verdict | spread min · p90 | n |\n" +
	"|---|---|---|---|---|---|---|---|---|---|---|\n"

// text is the run as it goes to the terminal and to the file.
func (r *report) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s · %s\n\n", r.started.UTC().Format("2006-01-02 15:04 UTC"), revision())
	fmt.Fprintf(&b, "%s · %d processors (%s) · Linux %s · %s\n", runtime.GOARCH, runtime.NumCPU(), cpuModel(), kernel(), runtime.Version())
	fmt.Fprintf(&b, "rounds %d, bursts %d of %d · load average %s before, %s after · took %s\n",
		r.o.rounds, r.o.bursts, r.o.burstSize, r.loadBefore, r.loadAfter, time.Since(r.started).Round(time.Second))
	for _, s := range append([]string{"accounting by nftables, the default, on our side; the peers have none", r.o.note}, r.remarks...) {
		if s != "" {
			fmt.Fprintf(&b, "note: %s\n", s)
		}
	}
	b.WriteString("\n" + tableHead)
	for _, x := range r.rows {
		b.WriteString(x.line())
	}
	return b.String() + "\n"
}

func (x row) line() string {
	if x.unit != "" {
		return fmt.Sprintf("| %s | – | %.2f %s | – | – | – | %s | %s | %s | – | 1 |\n",
			x.name, x.value, x.unit, limit(x.mustNum, " "+x.unit), limit(x.goalNum, " "+x.unit), x.verdict())
	}
	a := x.times(x.a)
	if len(x.b.samples) == 0 {
		return fmt.Sprintf("| %s | %s | %s ms | – | – | %s ms | %s | %s | %s | %s | %d |\n",
			x.name, x.sides, ms(median(a)), ms(median(x.a.cpus())), limit(msOf(x.mustBe), " ms"), limit(msOf(x.goalBe), " ms"), x.verdict(), spread(a), len(a))
	}
	b := x.times(x.b)
	processor := "–"
	if c := median(x.b.cpus()); c != 0 {
		processor = fmt.Sprintf("%s / %s ms", ms(median(x.a.cpus())), ms(c))
	}
	return fmt.Sprintf("| %s | %s | %s / %s ms | **%.2f** | %.2f | %s | %s | %s | %s | %s / %s | %d |\n",
		x.name, x.sides, ms(median(a)), ms(median(b)), ratio(median(a), median(b)), paired(a, b), processor,
		limit(x.must, " ×"), limit(x.goal, " ×"), x.verdict(), spread(a), spread(b), len(a))
}

// paired is the median of the ratios within each round.
func paired(a, b []time.Duration) float64 {
	const scale = 1e6 // quantile works on integers
	each := make([]time.Duration, 0, len(a))
	for i := range min(len(a), len(b)) {
		each = append(each, time.Duration(ratio(a[i], b[i])*scale))
	}
	return float64(median(each)) / scale
}

func msOf(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

func ms(d time.Duration) string { return fmt.Sprintf("%.2f", msOf(d)) }

func spread(of []time.Duration) string {
	return ms(quantile(of, 0)) + " · " + ms(quantile(of, 0.9))
}

func limit(v float64, unit string) string {
	if v == 0 {
		return "–"
	}
	return fmt.Sprintf("≤ %g%s", v, unit)
}

const resultsHead = `# Results

Written by the benchmarks alone (go run -C bench .): every run, in the order of time. README.md tells how to read them.

`

// appendTo adds the run to the file.
func (r *report) appendTo(path string) error {
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	text := r.text()
	if info, err := f.Stat(); err == nil && info.Size() == 0 {
		text = resultsHead + text
	}
	_, werr := f.WriteString(text)
	if err := f.Close(); werr == nil {
		werr = err
	}
	return werr
}

func loadAverage() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(b))[:3], " ")
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(b)) {
		if name, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

// revision is the commit that was measured; RESULTS.md itself always differs.
func revision() string {
	out, err := exec.Command("git", "describe", "--tags", "--always").Output()
	if err != nil {
		return "unknown revision"
	}
	rev := strings.TrimSpace(string(out))
	if exec.Command("git", "diff", "--quiet", "HEAD", "--", ":/", ":!/bench/RESULTS.md").Run() != nil {
		rev += " with changes"
	}
	return rev
}
