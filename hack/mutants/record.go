package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

const (
	recordFile = dir + "/LAST_RED"
	recordHead = "# name, date and code on which a mutant was last seen red; written by hack/mutants, not by hand\n"
)

// entry is one line of the record.
type entry struct{ date, print string }

// record says when each mutant was last red: name -> entry.
type record map[string]entry

func readRecord() (record, error) {
	rec := record{}
	text, err := os.ReadFile(recordFile)
	if errors.Is(err, fs.ErrNotExist) {
		return rec, nil
	}
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) != 3 {
			return nil, fmt.Errorf("%s: line %q has not 3 fields", recordFile, strings.TrimSpace(line))
		}
		rec[f[0]] = entry{date: f[1], print: f[2]}
	}
	return rec, nil
}

func (r record) date(name string) string {
	if e, ok := r[name]; ok {
		return e.date
	}
	return "never"
}

func (r record) saw(m *mutant) {
	r[m.name] = entry{date: time.Now().UTC().Format(time.DateOnly), print: m.print}
}

// write leaves out mutants whose patch is gone.
func (r record) write() error {
	var b bytes.Buffer
	b.WriteString(recordHead)
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if _, err := os.Stat(filepath.Join(dir, name+".patch")); err != nil {
			continue
		}
		fmt.Fprintf(&b, "%s %s %s\n", name, r[name].date, r[name].print)
	}
	return os.WriteFile(recordFile, b.Bytes(), 0o644)
}
