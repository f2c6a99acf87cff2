package main

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/native-vmss/native-vmss/pkg/accounting"
)

var directions = []string{accounting.RX, accounting.TX}

// Widths in characters. A number has always as much, so that columns stay where they are from one frame to the next.
const (
	maxName     = 48
	minName     = 12
	numberWidth = 5 // 9.99M
	gap         = "  "
	minShare    = 5 // lines for the namespaces, where there are twice as many
)

// layout makes the lines of a frame for a terminal of that size; zero: all, as wide as they are. Where there is no room, what comes
// last is left out, rows and columns, and that is said.
func layout(f frame, sort string, width, height int) []string {
	if i := slices.Index(f.classes, sort); i >= 0 && width > 0 { // what is asked for stays longest
		f.classes = slices.Concat(f.classes[i:i+1], f.classes[:i], f.classes[i+1:])
	}
	lines := header(f, sort)
	namespaces, lost := namespaceTable(f, width)
	pods, alsoLost := podTable(f, width)
	if lost = append(lost, alsoLost...); len(lost) > 0 {
		slices.Sort(lost)
		lost = slices.Compact(lost)
		said := "too narrow for: " + strings.Join(lost, ", ")
		if utf8.RuneCountInString(said) > width {
			said = fmt.Sprintf("too narrow for %d groups of columns", len(lost))
		}
		lines = append(lines, said)
	}
	if height > 0 {
		room := height - len(lines) - 2 // empty lines
		share := min(len(namespaces), max(room/3, min(minShare, room/2), room-len(pods)))
		if share < tableHead+2 { // no row, or one and no count of the others
			share = 0
		}
		namespaces, pods = shorten(namespaces, share), shorten(pods, room-share)
	}
	lines = append(append(lines, ""), namespaces...)
	return append(append(lines, ""), pods...)
}

func header(f frame, sort string) []string {
	first := f.at.Format("15:04:05") + "  " + dash(f.backend)
	if f.seconds > 0 {
		first += fmt.Sprintf("  %.1fs", f.seconds)
	}
	lines := []string{first + "  bit/s, packets/s  by " + dash(sort)}
	if f.off != "" {
		lines = append(lines, "no rates: "+dash(f.off))
	}
	if f.marksOff != "" {
		lines = append(lines, "no marks: "+dash(f.marksOff))
	}
	uncounted := 0
	for _, p := range f.pods {
		if p.uncounted {
			uncounted++
		}
	}
	if uncounted > 0 && f.off == "" {
		lines = append(lines, fmt.Sprintf("not counted now: %d of %d pods", uncounted, len(f.pods)))
	}
	return lines
}

// table is rows of names and, two for each group, of numbers.
type table struct {
	names  int // columns
	groups []string
	rows   [][]string
}

func newTable(f frame, names ...string) table {
	t := table{names: len(names), groups: []string{"ALL"}}
	for _, class := range f.classes {
		t.groups = append(t.groups, strings.ToUpper(dash(class)))
	}
	t.rows = [][]string{names}
	return t
}

func cells(f frame, r rates, names ...string) []string {
	row := names
	for _, class := range append([]string{""}, f.classes...) {
		for _, direction := range directions {
			row = append(row, short(r != nil, r.of(direction, class).bits))
		}
	}
	return row
}

func namespaceTable(f frame, width int) (lines, lost []string) {
	names := maxName
	if width > 0 {
		names = max(minName, min(names, width-numbersWidth(len(f.classes)+2)))
	}
	t := newTable(f, "NAMESPACE")
	t.groups = append(t.groups, "PACKETS")
	add := func(name string, r rates) {
		row := cells(f, r, name)
		for _, direction := range directions {
			row = append(row, short(r != nil, r.of(direction, "").packets))
		}
		t.rows = append(t.rows, row)
	}
	add("(node)", f.node)
	for _, n := range f.namespaces {
		add(name(n.namespace, names), n.rates)
	}
	return t.lines(width)
}

func podTable(f frame, width int) (lines, lost []string) {
	type key struct{ namespace, pod string }
	same := map[key]int{}
	for _, p := range f.pods {
		same[key{p.namespace, p.pod}]++
	}
	namespaceWidth, podWidth := nameWidths(f, width)
	t := newTable(f, "NAMESPACE", "POD")
	for _, p := range f.pods {
		address := ""
		if same[key{p.namespace, p.pod}] > 1 {
			address = " (" + p.address + ")"
		}
		pod := name(p.pod, max(minName, podWidth-len(address))) + address
		t.rows = append(t.rows, cells(f, p.rates, name(p.namespace, namespaceWidth), pod))
	}
	return t.lines(width)
}

func numbersWidth(groups int) int { return groups * len(directions) * (numberWidth + len(gap)) }

// nameWidths shares what the numbers leave of a terminal's width. The pods' names have more to tell, so namespaces get half at most.
func nameWidths(f frame, width int) (namespace, pod int) {
	if width == 0 {
		return maxName, maxName
	}
	for _, p := range f.pods {
		namespace = max(namespace, utf8.RuneCountInString(p.namespace))
	}
	room := width - numbersWidth(len(f.classes)+1) - len(gap)
	namespace = max(minName, min(namespace, maxName, room/2))
	return namespace, max(minName, min(maxName, room-namespace))
}

// name shows a name that somebody else chose: its begin and its end, which is what pods of one deployment differ in.
func name(s string, width int) string {
	r := []rune(dash(s))
	if len(r) <= width {
		return string(r)
	}
	half := (width - 1) / 2
	return string(r[:width-1-half]) + "…" + string(r[len(r)-half:])
}

// shorten leaves the first lines of a table, and how many more there are.
func shorten(lines []string, room int) []string {
	switch {
	case len(lines) <= room:
		return lines
	case room <= tableHead:
		return lines[:max(room, 0)]
	}
	return append(lines[:room-1:room-1], fmt.Sprintf("… %d more", len(lines)-room+1))
}

// short writes a rate in three digits.
func short(known bool, v float64) string {
	if !known {
		return "-"
	}
	const step, rounded = 1000, 999.5
	units := []string{"", "k", "M", "G", "T"}
	unit := 0
	for v >= rounded && unit < len(units)-1 {
		v /= step
		unit++
	}
	digits := 0
	switch {
	case unit == 0:
	case v < 9.995:
		digits = 2
	case v < 99.95:
		digits = 1
	}
	return fmt.Sprintf("%.*f%s", digits, v, units[unit])
}

// tableHead is how many lines of a table are no row: groups, and names of columns.
const tableHead = 2

// lines has names begin, and numbers end, below each other. Groups that would stand beyond the width are left out: half a number is a
// wrong one.
func (t table) lines(width int) (lines, lost []string) {
	for range t.groups {
		t.rows[0] = append(t.rows[0], "RX", "TX")
	}
	widths := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
			if i >= t.names {
				widths[i] = max(widths[i], numberWidth)
			}
		}
	}
	for total(widths) > width && width > 0 && len(t.groups) > 1 {
		last := len(t.groups) - 1
		t.groups, lost = t.groups[:last], append(lost, t.groups[last])
		widths = widths[:len(widths)-len(directions)]
	}
	var top strings.Builder
	for _, w := range widths[:t.names] {
		top.WriteString(strings.Repeat(" ", w) + gap)
	}
	for i, group := range t.groups {
		at := t.names + i*len(directions)
		width := widths[at] + len(gap) + widths[at+1]
		fmt.Fprintf(&top, "%*s%s", width, name(group, width), gap)
	}
	lines = []string{strings.TrimRight(top.String(), " ")}
	for _, row := range t.rows {
		var line strings.Builder
		for i, cell := range row[:len(widths)] {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i < t.names {
				cell, pad = pad, cell // to the left
			}
			line.WriteString(pad + cell + gap)
		}
		lines = append(lines, strings.TrimRight(line.String(), " "))
	}
	return lines, lost
}

func total(widths []int) int {
	sum := -len(gap) // none at the end
	for _, w := range widths {
		sum += w + len(gap)
	}
	return sum
}
