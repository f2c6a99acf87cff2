package netns

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// The files accounting_*_test.go compare what `vmssctl metrics` prints with what packet sockets inside the pods saw: to the byte.

// acctSeries names a series: its labels in the page's order, as they stand there.
type acctSeries struct{ name, labels string }

// acctPage is a page of metrics, by another reader than the one that the product uses.
type acctPage map[acctSeries]float64

// scrape runs the shipped vmssctl.
func (s *stage) scrape() acctPage {
	s.t.Helper()
	page, err := s.tryScrape()
	if err != nil {
		s.t.Fatal(err)
	}
	return page
}

func (s *stage) tryScrape() (acctPage, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := s.Node.Command(ctx, program(s.t, "vmssctl"), "--conf", s.ctlConf(), "metrics").Output()
	if err != nil {
		return nil, err
	}
	return acctParse(string(out))
}

// acctParse reads Prometheus's text format: "name{label="value",…} number", a type for each name, and each series once.
func acctParse(text string) (acctPage, error) {
	page, types := acctPage{}, map[string]string{}
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if rest, is := strings.CutPrefix(line, "# TYPE "); is {
			name, kind, _ := strings.Cut(rest, " ")
			types[name] = kind
		}
		if line == "" || line[0] == '#' {
			continue
		}
		end := strings.LastIndexByte(line, ' ')
		if end < 0 {
			return nil, fmt.Errorf("%q is no sample", line)
		}
		value, err := strconv.ParseFloat(line[end+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", line, err)
		}
		name, labels, _ := strings.Cut(line[:end], "{")
		k := acctSeries{name, strings.TrimSuffix(labels, "}")}
		if _, twice := page[k]; twice {
			return nil, fmt.Errorf("%q comes twice", line)
		}
		if want := "counter"; strings.HasSuffix(name, "_total") && types[name] != want {
			return nil, fmt.Errorf("%s is a %q, want a %s", name, types[name], want)
		}
		page[k] = value
	}
	return page, nil
}

// of is a series' value by name and some of its labels; several that have them are added up.
func (p acctPage) of(name string, labels ...string) (sum uint64) {
	for k, v := range p {
		if k.name == "native_vmss_"+name && acctHas(k.labels, labels) {
			sum += uint64(v)
		}
	}
	return sum
}

// has reports whether there is such a series.
func (p acctPage) has(name string, labels ...string) bool {
	for k := range p {
		if k.name == "native_vmss_"+name && acctHas(k.labels, labels) {
			return true
		}
	}
	return false
}

// acctHas looks for each `label=value` among labels; the tests' values need no escapes.
func acctHas(labels string, want []string) bool {
	for _, w := range want {
		name, value, _ := strings.Cut(w, "=")
		if !strings.Contains(","+labels+",", ","+name+`="`+value+`",`) {
			return false
		}
	}
	return true
}

// fell returns the counters that are lower than in an earlier page. A pod's own series may end with it.
func (p acctPage) fell(before acctPage) (lines []string) {
	for k, v := range before {
		now, there := p[k]
		if strings.HasSuffix(k.name, "_total") && now < v && (there || !strings.Contains(k.name, "_pod_")) {
			lines = append(lines, fmt.Sprintf("%s{%s} fell from %.0f to %.0f", k.name, k.labels, v, now))
		}
	}
	return lines
}

func TestAcctParse(t *testing.T) {
	page, err := acctParse("# HELP native_vmss_x_total Bytes.\n# TYPE native_vmss_x_total counter\n" +
		`native_vmss_x_total{class="a",direction="rx"} 5` + "\n" + `native_vmss_x_total{class="b",direction="rx"} 1.5e+09` + "\nnative_vmss_y 1\n")
	if err != nil || page.of("x_total", "class=a") != 5 || page.of("x_total", "direction=rx") != 1.5e9+5 || page.of("y") != 1 || page.has("y", "class=a") {
		t.Errorf("%v %v", page, err)
	}
	for _, bad := range []string{"x 1\nx 2\n", "x_total 1\n", "x\n", "x one\n"} {
		if _, err := acctParse(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	later := acctPage{{"native_vmss_x_total", `class="a",direction="rx"`}: 4}
	if got := later.fell(page); len(got) != 2 {
		t.Errorf("fell: %v", got)
	}
}
