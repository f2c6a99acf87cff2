package routes

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite testdata/*.golden")

// spaces at the end of lines come from the tools, and what follows @ is the number of a namespace's link.
var noise = regexp.MustCompile(`[ \t]+\n|@if\d+`)

// golden compares what tools showed with testdata/<name>.golden.
func golden(t *testing.T, name string, shown ...string) {
	t.Helper()
	got := noise.ReplaceAllStringFunc(strings.Join(shown, ""), func(s string) string {
		if strings.HasPrefix(s, "@") {
			return ""
		}
		return "\n"
	})
	path := filepath.Join("testdata", name+".golden")
	if *update {
		must(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}
