package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestScan(t *testing.T) {
	const header = "package p\n\nimport \"testing\"\n\nfunc f(t *testing.T) {\n\t"
	tests := []struct {
		name, file, src string
		want            []finding
	}{
		{"skip_with_text", "a_test.go", header + "t.Skip(\"no kvm here\")\n}\n", []finding{{6, "Skip", "no kvm here"}}},
		{"skip_without_text", "a_test.go", header + "t.Skip(t.Name())\n}\n", []finding{{6, "Skip", ""}}},
		{"skip_now_comment_beside", "a_test.go", header + "t.SkipNow() // needs ipvs\n}\n", []finding{{6, "SkipNow", "needs ipvs"}}},
		{"short_comment_above", "a_test.go", header + "// a minute of churn\n\t_ = testing.Short()\n}\n", []finding{{7, "testing.Short", "a minute of churn"}}},
		{"short_bare", "a_test.go", header + "_ = testing.Short()\n}\n", []finding{{6, "testing.Short", ""}}},
		{"skip_of_something_else", "a.go", "package p\n\nfunc f(d D) { d.Skip() }\n", nil},
		{"nolint", "a.go", "package p\n\nvar x int //nolint:unused // the wire format has it\n", []finding{{3, "nolint:unused", "the wire format has it"}}},
		{"nolint_bare", "a.go", "package p\n\nvar x int //nolint:unused\n", []finding{{3, "nolint:unused", ""}}},
		{"todo", "a.go", "package p\n\n// TODO(x): when Azure has v6\nvar x int\n", []finding{{3, "TODO", "when Azure has v6"}}},
		{"todo_bare", "a.go", "package p\n\n// TODO\nvar x int\n", []finding{{3, "TODO", ""}}},
		{"todo_in_block", "a.go", "package p\n\n/*\nFIXME: slow\n*/\nvar x int\n", []finding{{4, "FIXME", "slow"}}},
		{"todo_in_string", "a.go", "package p\n\nconst x = \"// TODO\"\n", nil},
		{"script", "a.sh", "#!/bin/bash\n# TODO\n# shellcheck disable=SC2086 # a list\nx=1 # FIXME: later\n", []finding{{2, "TODO", ""}, {3, "shellcheck disable=SC2086", "a list"}, {4, "FIXME", "later"}}},
		{"script_without_suffix", "run", "#!/bin/bash\n# shellcheck disable=SC1091\n", []finding{{2, "shellcheck disable=SC1091", ""}}},
		{"text", "a.md", "# TODO\n", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), tt.file)
			if err := os.WriteFile(file, []byte(tt.src), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := scan(file)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("scan(%s) = %+v, want %+v", tt.file, got, tt.want)
			}
		})
	}
}
