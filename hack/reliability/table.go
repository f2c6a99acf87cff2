package main

import (
	"fmt"
	"regexp"
	"strings"
)

// doc is the page, seen from the repository's root.
const doc = "docs/reliability.md"

// row is a line of a table: its last cell names the tests.
type row struct {
	line  int
	text  string // the whole line
	tests []string
}

// testName finds the names of tests, with subtests behind slashes, in text between backquotes.
var testName = regexp.MustCompile("`((?:Test|Fuzz)[^`]*)`")

// rows reads all tables of a page. A row that names no test is an error, and so is a name outside the last cell, which nobody would run.
func rows(page string) (list []row, err error) {
	header := true // of the table that comes next
	for i, line := range strings.Split(page, "\n") {
		names := testName.FindAllStringSubmatch(line, -1)
		if !strings.HasPrefix(line, "|") {
			header = true
			if len(names) > 0 {
				return nil, fmt.Errorf("line %d: %s is in no table", i+1, names[0][1])
			}
			continue
		}
		if strings.HasPrefix(line, "|---") {
			header = false
			continue
		}
		if header {
			continue
		}
		cells := strings.Split(strings.Trim(line, "| "), "|")
		r := row{line: i + 1, text: line}
		for _, m := range testName.FindAllStringSubmatch(cells[len(cells)-1], -1) {
			r.tests = append(r.tests, m[1])
		}
		if len(r.tests) == 0 || len(r.tests) != len(names) {
			return nil, fmt.Errorf("line %d: the last cell names %d tests, the line %d: %s", i+1, len(r.tests), len(names), line)
		}
		list = append(list, r)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("no rows")
	}
	return list, nil
}
