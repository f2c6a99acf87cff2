package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// diff turns the one line of the test module's add into another.
func diff(line string) string {
	return "--- a/m/m.go\n+++ b/m/m.go\n@@ -1,3 +1,3 @@\n package m\n \n-func Add(a, b int) int { return a + b }\n+" + line + "\n"
}

const (
	guarded   = "Guarantee: it adds\nTest: go test -run TestAdd ./m\n\n"
	unguarded = "Guarantee: it adds\nTest: go test -run TestNothing ./m\n\n"
)

// repository makes a module with one tested function, commits it and makes it the working directory.
func repository(t *testing.T, patches map[string]string) {
	t.Helper()
	t.Chdir(t.TempDir())
	files := map[string]string{
		"go.mod":      "module example\n\ngo 1.21\n",
		"m/m.go":      "package m\n\nfunc Add(a, b int) int { return a + b }\n",
		"m/m_test.go": "package m\n\nimport \"testing\"\n\nfunc TestAdd(t *testing.T) {\n\tif Add(1, 2) != 3 {\n\t\tt.Fatal()\n\t}\n}\n\nfunc TestNothing(*testing.T) {}\n",
	}
	for name, text := range patches {
		files[filepath.Join(dir, name+".patch")] = text
	}
	for name, text := range files {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	git(t, "init", "--quiet")
	commit(t)
}

func commit(t *testing.T) {
	t.Helper()
	git(t, "add", ".")
	git(t, "-c", "user.name=t", "-c", "user.email=t@example", "commit", "--quiet", "-m", "step")
}

func git(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("git", args...).CombinedOutput(); err != nil {
		t.Fatalf("git %s: %v\n%s", args, err, out)
	}
}

func TestMutate(t *testing.T) {
	tests := []struct{ name, patch, want string }{
		{"caught", guarded + diff("func Add(a, b int) int { return a - b }"), ""},
		{"stays_green", unguarded + diff("func Add(a, b int) int { return a - b }"), "test stays green"},
		{"does_not_compile", guarded + diff("func Add(a, b int) int { return c }"), "doesn't compile"},
		{"breaks_the_test_build", guarded + diff("func Sub(a, b int) int { return a - b }"), "test doesn't compile"},
		{"does_not_apply", guarded + strings.ReplaceAll(diff("x"), "a + b", "a * b"), "patch doesn't apply"},
		{"no_such_test", strings.Replace(guarded, "TestAdd", "TestSub", 1) + diff("func Add(a, b int) int { return a - b }"), "no such test"},
		{"red_before", strings.Replace(guarded, "go test", "false; go test -nonsense", 1) + diff("func Add(a, b int) int { return a - b }"), "red without the mutant"},
		{"no_guarantee", "Test: go test ./m\n" + diff("x"), "no line \"Guarantee"},
		{"no_diff", guarded, "no diff"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			repository(t, map[string]string{"p": tt.patch})
			if got := outcome(t, "p"); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// outcome says what is wrong with one mutant, "" for a red one.
func outcome(t *testing.T, name string) string {
	t.Helper()
	mutants, err := load([]string{name})
	if err != nil {
		return err.Error()
	}
	s, err := newScratch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.remove()
	if err := s.try(t.Context(), mutants[0], true); err != nil {
		return err.Error()
	}
	return ""
}

func TestMutate_record(t *testing.T) {
	patch := guarded + diff("func Add(a, b int) int { return a - b }")
	repository(t, map[string]string{"p": patch})
	if err := mutate(t.Context(), options{baseline: true}); err != nil {
		t.Fatal(err)
	}
	commit(t)
	edit := func(file, text string) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		commit(t)
	}
	edit("README.md", "nothing that the mutant is about\n")
	if due(t) {
		t.Error("due although nothing that it watches changed")
	}
	edit("m/other.go", "package m\n")
	edit("README.md", "so that the parent of HEAD has the change above\n")
	if !due(t) {
		t.Error("not due although its package changed since it was last red")
	}
}

// due tells whether mutant p would run.
func due(t *testing.T) bool {
	t.Helper()
	mutants, err := load(nil)
	if err != nil {
		t.Fatal(err)
	}
	rec, err := readRecord()
	if err != nil {
		t.Fatal(err)
	}
	s, err := newScratch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.remove()
	if err := s.mark(t.Context(), mutants, rec, options{due: true}); err != nil {
		t.Fatal(err)
	}
	return mutants[0].selected
}

func TestMutate_wrongIsAnError(t *testing.T) {
	repository(t, map[string]string{"p": unguarded + diff("func Add(a, b int) int { return a - b }")})
	if err := mutate(t.Context(), options{baseline: true}); err == nil {
		t.Error("a mutant whose test stays green passed")
	}
	if err := mutate(t.Context(), options{names: []string{"q"}}); err == nil {
		t.Error("a name without a patch passed")
	}
}
