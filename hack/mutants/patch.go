package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one patch with its header.
type mutant struct {
	name      string   // file name without .patch
	file      string   // absolute path
	text      []byte   // the whole file
	guarantee string   // what the test protects
	test      string   // command that must turn red
	build     string   // command before the test, for tests that start binaries; "" if none
	patched   []string // folders of the patched files
	watched   []string // patched folders and those that the test names
	print     string   // fingerprint of the watched folders and the patch; set by scratch.mark
	selected  bool     // set by scratch.mark
}

func readMutant(file string) (*mutant, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	abs, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	m := &mutant{name: strings.TrimSuffix(filepath.Base(file), ".patch"), file: abs, text: text}
	if err := m.parse(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return m, nil
}

// parse reads the header, which ends at the first line of the diff, and the names of the patched files.
func (m *mutant) parse() error {
	for line := range strings.Lines(string(m.text)) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "+++ b/"); ok {
			m.patched = append(m.patched, path.Dir(name))
		}
		if name, ok := strings.CutPrefix(line, "--- a/"); ok {
			m.patched = append(m.patched, path.Dir(name))
		}
		if len(m.patched) == 0 {
			m.header(line)
		}
	}
	switch {
	case m.guarantee == "":
		return errors.New("no line \"Guarantee: ...\"")
	case m.test == "":
		return errors.New("no line \"Test: ...\"")
	case len(m.patched) == 0:
		return errors.New("no diff (lines \"--- a/file\" and \"+++ b/file\")")
	}
	m.watched = slices.Clone(m.patched)
	for _, word := range strings.Fields(m.test) {
		if strings.HasPrefix(word, "./") {
			m.watched = append(m.watched, path.Clean(strings.TrimSuffix(word, "/...")))
		}
	}
	m.patched, m.watched = unique(m.patched), unique(m.watched)
	return nil
}

func (m *mutant) header(line string) {
	key, value, _ := strings.Cut(line, ":")
	value = strings.TrimSpace(value)
	switch key {
	case "Guarantee":
		m.guarantee = value
	case "Test":
		m.test = value
	case "Build":
		m.build = value
	}
}

// isGoTest tells whether the output can be judged by go test's own lines.
func (m *mutant) isGoTest() bool { return strings.Contains(m.test, "go test ") }

// judge decides what a test that failed means: nil for a test that ran and is red.
func (m *mutant) judge(output []byte) error {
	for _, sign := range []string{"[build failed]", "[setup failed]"} {
		if bytes.Contains(output, []byte(sign)) {
			return fmt.Errorf("test doesn't compile: %s", tail(output))
		}
	}
	if !m.isGoTest() {
		return nil
	}
	for _, sign := range []string{"--- FAIL: ", "\npanic: ", "\nfatal error: "} {
		if bytes.Contains(output, []byte(sign)) {
			return nil
		}
	}
	return fmt.Errorf("no test failed, but the command did: %s", tail(output))
}

func unique(s []string) []string {
	slices.Sort(s)
	return slices.Compact(s)
}

// tail is the end of an output, for an error.
func tail(b []byte) string {
	const keep = 800
	b = bytes.TrimSpace(b)
	if len(b) > keep {
		b = b[len(b)-keep:]
	}
	return "\n\t" + strings.ReplaceAll(string(b), "\n", "\n\t")
}
