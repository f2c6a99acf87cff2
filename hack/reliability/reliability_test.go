package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Every row of the page names tests that make test runs and that don't skip themselves.
func TestReliability_rows(t *testing.T) {
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, doc))
	if err != nil {
		t.Fatal(err)
	}
	list, err := rows(string(page))
	if err != nil {
		t.Fatalf("%s: %v", doc, err)
	}
	all, twice, err := tests(root)
	if err != nil {
		t.Fatal(err)
	}
	if err := check(list, all, twice); err != nil {
		t.Errorf("%s:\n%v", doc, err)
	}
	names := map[string]bool{}
	for _, r := range list {
		for _, name := range r.tests {
			names[name] = true
		}
	}
	t.Logf("%d rows, %d tests and subtests of %d tests", len(list), len(names), len(all))
}

const table = "# title\n\n| fault | promise | test |\n|---|---|---|\n"

func TestRows(t *testing.T) {
	list, err := rows(table + "| a | b | `TestA`, `TestB/sub/case` |\n\ntext\n\n| x | `TestHead` |\n|---|---|\n| c | `FuzzC` |\n")
	if err != nil {
		t.Fatal(err)
	}
	var got [][]string
	for _, r := range list {
		got = append(got, r.tests)
	}
	if diff := cmp.Diff([][]string{{"TestA", "TestB/sub/case"}, {"FuzzC"}}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for name, page := range map[string]string{
		"no test":                  table + "| a | b | later |\n",
		"test in another cell":     table + "| a `TestA` | b | `TestB` |\n",
		"test outside of a table":  table + "| a | b | `TestA` |\n\nSee `TestB`.\n",
		"no table":                 "nothing\n",
		"second table without one": table + "| a | b | `TestA` |\n\n| c | d |\n|---|---|\n| e | f |\n",
	} {
		if _, err := rows(page); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestProves(t *testing.T) {
	dir := t.TempDir()
	const head = "import \"testing\"\n\n"
	for name, text := range map[string]string{
		"go.mod":       "module example\n\ngo 1.21\n",
		"a/a_test.go":  "package a\n\n" + head + "func TestA(t *testing.T) {\n\tt.Run(\"one\", nil)\n}\n\nfunc TestTwice(*testing.T) {}\n",
		"b/b_test.go":  "package b\n\n" + head + "func TestTwice(*testing.T) {}\n\nfunc TestSkips(t *testing.T) {\n\tt.Skip()\n}\n",
		"b/t_test.go":  "//go:build never\n\npackage b\n\n" + head + "func TestTagged(*testing.T) {}\n",
		"b/f_test.go":  "//go:build failpoint\n\npackage b\n\n" + head + "func TestFailpoint(*testing.T) {}\n\nfunc TestOther(*testing.T) {}\n",
		"b/helpers.go": "package b\n\nfunc TestHelper() {}\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, twice, err := tests(dir)
	if err != nil {
		t.Fatal(err)
	}
	for name, word := range map[string]string{
		"TestA": "", "TestA/one": "", "TestA/two": "two", "TestA/one/two": "two", "TestSkips": "skip", "TestTwice": "two packages",
		"TestTagged": "no such test", "TestFailpoint": "", "TestOther": "no such test", "TestHelper": "no such test", "TestNone": "no such test",
	} {
		err := proves(name, all, twice)
		if (err == nil) != (word == "") || err != nil && !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want %q", name, err, word)
		}
	}
}

func TestJudge(t *testing.T) {
	ended := map[string]string{}
	err := read(strings.NewReader(`{"Action":"run","Test":"TestA"}
{"Action":"pass","Test":"TestA/sub"}
{"Action":"pass","Test":"TestA"}
{"Action":"skip","Test":"TestS"}
{"Action":"output","Test":"TestF","Output":"it is broken\n"}
{"Action":"fail","Test":"TestF"}
{"Action":"fail"}
`), ended)
	if err != nil {
		t.Fatal(err)
	}
	for name, word := range map[string]string{
		"TestA": "", "TestA/sub": "", "TestA/gone": "did not run", "TestS": "skipped", "TestF": "failed",
	} {
		err := judge([]row{{line: 1, tests: []string{name}}}, ended)
		if (err == nil) != (word == "") || err != nil && !strings.Contains(err.Error(), word) {
			t.Errorf("%s: %v, want %q", name, err, word)
		}
	}
}
