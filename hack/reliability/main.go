package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "reliability:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	match, err := regexp.Compile(strings.Join(args, " "))
	if err != nil {
		return err
	}
	if len(args) > 0 && match.MatchString("") {
		return fmt.Errorf("%q matches every row: a pasted | is an alternative, write \\| for it", match)
	}
	page, err := os.ReadFile(doc)
	if err != nil {
		return err
	}
	list, err := rows(string(page))
	if err != nil {
		return fmt.Errorf("%s: %w", doc, err)
	}
	all, twice, err := tests(".")
	if err != nil {
		return err
	}
	if err := check(list, all, twice); err != nil {
		return fmt.Errorf("%s: %w", doc, err)
	}
	list = slices.DeleteFunc(list, func(r row) bool { return !match.MatchString(r.text) })
	if len(list) == 0 {
		return fmt.Errorf("no row matches %q", match)
	}
	ended, err := runTests(list, all)
	if err != nil {
		return err
	}
	return judge(list, ended)
}

// runTests runs what the rows name, one package after the other, and tells how each test and subtest ended: pass, fail or skip.
func runTests(list []row, all map[string]test) (ended map[string]string, err error) {
	type run struct{ pkg, tag string }
	runs := map[run][]string{}
	for _, r := range list {
		for _, name := range r.tests {
			top, _, _ := strings.Cut(name, "/")
			of := run{all[top].pkg, all[top].tag}
			if !slices.Contains(runs[of], top) {
				runs[of] = append(runs[of], top)
			}
		}
	}
	ended = map[string]string{}
	for of, names := range runs {
		fmt.Printf("%s %s: %d tests\n", of.pkg, of.tag, len(names))
		pattern := "^(" + strings.Join(names, "|") + ")$"
		cmd := exec.Command("go", "test", "-race", "-count=1", "-timeout=2h", "-json", "-tags", of.tag, "-run", pattern, of.pkg)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			return nil, err
		}
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		if err := errors.Join(read(out, ended), cmd.Wait()); err != nil {
			fmt.Printf("%s: %v\n", of.pkg, err) // which tests failed is told by the rows
		}
	}
	return ended, nil
}

// read takes the events of one go test, and prints how each test ended, and what one says that fails.
func read(events io.Reader, ended map[string]string) error {
	said := map[string]string{}
	for dec := json.NewDecoder(events); ; {
		var e struct {
			Action, Test, Output string
			Elapsed              float64
		}
		if err := dec.Decode(&e); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		switch {
		case e.Action == "output" && e.Test != "":
			said[e.Test] += e.Output
		case e.Action == "output" || e.Action == "build-output":
			fmt.Print(e.Output)
		case e.Action == "fail":
			fmt.Print(said[e.Test])
			ended[e.Test] = e.Action
		case e.Action == "pass" || e.Action == "skip":
			ended[e.Test] = e.Action
		}
		if ended[e.Test] == e.Action && e.Test != "" && !strings.Contains(e.Test, "/") {
			fmt.Printf("%s %s %.1fs\n", e.Action, e.Test, e.Elapsed)
		}
	}
}

// judge wants every test of every row to have passed.
func judge(list []row, ended map[string]string) error {
	var errs []error
	words := map[string]string{"": "did not run", "fail": "failed", "skip": "was skipped"}
	for _, r := range list {
		for _, name := range r.tests {
			if end := ended[name]; end != "pass" {
				errs = append(errs, fmt.Errorf("line %d: %s %s", r.line, name, words[end]))
			}
		}
	}
	fmt.Printf("%d rows, %d tests without a pass\n", len(list), len(errs))
	return errors.Join(errs...)
}
