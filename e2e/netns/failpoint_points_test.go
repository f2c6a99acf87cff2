package netns

import (
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// fpGolden has a line for each case: its name, how many points it passes at least, and their names.
const (
	fpGolden    = "testdata/failpoints.txt"
	fpUnreached = "testdata/failpoints_elsewhere.txt"
)

// fpNames are the names of points, without their numbers.
func fpNames(hits []string) []string {
	names := map[string]bool{}
	for _, h := range hits {
		name, _, _ := strings.Cut(h, "#")
		names[name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// fpCompare prints the points of a case, and wants no fewer than there were: a step that no longer passes a failpoint is one that no
// test breaks.
func fpCompare(t *testing.T, name string, hits []string) {
	t.Helper()
	line := fmt.Sprintf("%s: %d %s", name, len(hits), strings.Join(fpNames(hits), " "))
	t.Logf("failpoints of %s", line)
	for _, golden := range fpLines(t, fpGolden) {
		of, rest, _ := strings.Cut(golden, ": ")
		if of != name {
			continue
		}
		var least int
		if _, err := fmt.Sscanf(rest, "%d", &least); err != nil {
			t.Fatalf("%s: %q: %v", fpGolden, golden, err)
		}
		for _, was := range strings.Fields(rest)[1:] {
			if !slices.Contains(fpNames(hits), was) {
				t.Errorf("%s: no longer passes %s", name, was)
			}
		}
		for _, is := range fpNames(hits) {
			if !slices.Contains(strings.Fields(rest)[1:], is) {
				t.Errorf("%s passes %s, which %s doesn't have yet: write\n%s", name, is, fpGolden, line)
			}
		}
		if len(hits) < least {
			t.Errorf("%s: %d points, were %d", name, len(hits), least)
		}
		return
	}
	t.Errorf("%s lacks a line: write\n%s", fpGolden, line)
}

// fpLines reads a file of testdata, without comments.
func fpLines(t *testing.T, file string) []string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(string(b)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return lines
}

// Forms in which the code names a point: the function that is one, with the name as its last or only string, or a step of a list.
var fpNamed = []struct {
	prefix string
	form   *regexp.Regexp
}{
	{"", regexp.MustCompile(`failpoint\.Hit\("([a-z.-]+)"\)`)},
	{"routes.", regexp.MustCompile(`\b(?:do|dump|netfilter|nftAsk|nftDump|enter)\((?:ctx|context\.Background\(\)), (?:[\w.]+, )?"([a-z0-9-]+)"`)},
	{"routes.", regexp.MustCompile(`\{"(pod-[a-z-]+)", (?:true|false),`)},
	{"accounting.", regexp.MustCompile(`\bnftEnter\(ctx, "([a-z-]+)"`)},
}

// Each point that the code names is passed by a case here, or by what is named with it. A new step is then either broken by these
// tests, or somebody says who does.
func TestFailpoint_each_of_the_code_is_broken(t *testing.T) {
	passed := map[string]bool{}
	for _, line := range fpLines(t, fpGolden) {
		_, rest, _ := strings.Cut(line, ": ")
		for _, name := range strings.Fields(rest)[1:] {
			passed[name] = true
		}
	}
	elsewhere := map[string]string{}
	for _, line := range fpLines(t, fpUnreached) {
		name, why, _ := strings.Cut(line, " ")
		elsewhere[name] = why
		if why == "" || passed[name] {
			t.Errorf("%s: %s needs a reason, and no case that passes it", fpUnreached, name)
		}
	}
	named := fpInCode(t)
	for name, file := range named {
		if !passed[name] && elsewhere[name] == "" {
			t.Errorf("%s: no case passes %s", file, name)
		}
	}
	for name := range elsewhere {
		if named[name] == "" {
			t.Errorf("%s: the code has no %s", fpUnreached, name)
		}
	}
	for name := range passed {
		if named[name] == "" {
			t.Errorf("%s: the code has no %s, or names it in a form that this test doesn't know", fpGolden, name)
		}
	}
	t.Logf("failpoints in the code: %d, broken here: %d", len(named), len(passed))
}

// fpInCode maps each point that the code names to a file that does.
func fpInCode(t *testing.T) map[string]string {
	t.Helper()
	named := map[string]string{}
	for _, dir := range []string{"pkg", "plugins", "internal/boltfile", "internal/boot", "cmd/vmssctl"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, f := range fpNamed {
				for _, m := range f.form.FindAllStringSubmatch(string(b), -1) {
					named[f.prefix+m[1]] = path
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return named
}
