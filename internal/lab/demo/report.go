package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// nameWidth is the column in which names of lines end.
const nameWidth = 20

// report writes what a person reads.
type report struct {
	w     io.Writer
	begin time.Time
	lines int
}

// notOK is a line that doesn't hold.
type notOK struct{ name, want, saw string }

func (e *notOK) Error() string { return fmt.Sprintf("%s: expected %s, saw %s", e.name, e.want, e.saw) }

func (r *report) start(id string, f *fault) {
	fmt.Fprintf(r.w, "native-vmss demo: binaries of %s/, conflist %s, lab %s\n", binDir, conflistFile, id)
	if f != nil {
		fmt.Fprintf(r.w, "seeded fault: %s; the line %q has to find it\n", f.what, f.line)
	}
}

// step begins a step; the function returned ends it.
func (r *report) step(n, of int, title string) func() {
	fmt.Fprintf(r.w, "\n[%d/%d] %s\n", n, of, title)
	begin := time.Now()
	return func() { fmt.Fprintf(r.w, "  %.1f s\n", time.Since(begin).Seconds()) }
}

// ok writes a line that holds.
func (r *report) ok(name, format string, args ...any) {
	r.lines++
	fmt.Fprintf(r.w, "  ok      %-*s  %s\n", nameWidth, name, fmt.Sprintf(format, args...))
}

// more goes on with a line.
func (r *report) more(format string, args ...any) {
	fmt.Fprintf(r.w, "  %-*s  %s\n", nameWidth+8, "", fmt.Sprintf(format, args...))
}

// check writes a line that holds, or returns one that doesn't.
func (r *report) check(holds bool, name, want, saw string) error {
	if !holds {
		return &notOK{name, want, saw}
	}
	r.ok(name, "%s", saw)
	return nil
}

// table writes rows under a header, aligned.
func (r *report) table(header string, rows []string) {
	t := tabwriter.NewWriter(r.w, 0, 0, 2, ' ', 0)
	for _, row := range append([]string{header}, rows...) {
		fmt.Fprintf(t, "          %s\n", strings.ReplaceAll(row, "|", "\t"))
	}
	_ = t.Flush() // the terminal is gone: nobody reads on
}

// end writes how it went and returns the exit code.
func (r *report) end(err, closeErr error, f *fault) int {
	took := time.Since(r.begin).Seconds()
	if err != nil {
		fmt.Fprintf(r.w, "  NOT OK  %v\n\nfailed after %.1f s; %s\n", err, took, cleanedUp(closeErr))
		return exitNotOK
	}
	if closeErr != nil {
		fmt.Fprintf(r.w, "  NOT OK  %s\n", cleanedUp(closeErr))
		return exitNotOK
	}
	fmt.Fprintf(r.w, "\nall %d lines hold, %.1f s; %s\n", r.lines, took, cleanedUp(nil))
	if f != nil {
		fmt.Fprintf(r.w, "but %s: nobody noticed\n", f.what)
	}
	return exitOK
}

func cleanedUp(err error) string {
	if err != nil {
		return fmt.Sprintf("clean up: %v", err)
	}
	return "everything removed"
}

// plural is "1 frame", "2 frames".
func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
