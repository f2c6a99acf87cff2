package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestConfigs(t *testing.T) {
	tests := []struct {
		name string
		args []string
		want []string
	}{
		{"create", []string{"--root", "/r", "create", "--bundle", "/b", "--pid-file", "/p", "id"}, []string{"/b/config.json"}},
		{"joined", []string{"create", "--bundle=/b", "id"}, []string{"/b/config.json"}},
		{"exec", []string{"exec", "--process", "/tmp/p1", "--detach", "id"}, []string{"/tmp/p1"}},
		{"neither", []string{"kill", "id", "9"}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, configs(tt.args)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestRewrite(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{
			"bundle",
			`{"process":{"args":["/sbin/init"],"oomScoreAdj":-500,"rlimits":[{"type":"RLIMIT_NOFILE"}],` +
				`"capabilities":{"bounding":["CAP_SYS_ADMIN","CAP_SYS_RESOURCE"],"permitted":["CAP_SYS_RESOURCE"]}},"root":{"path":"r"}}`,
			`{"process":{"args":["/sbin/init"],"capabilities":{"bounding":["CAP_SYS_ADMIN"],"permitted":[]}},"root":{"path":"r"}}`,
		},
		{"process", `{"args":["sh"],"capabilities":{"effective":["CAP_SYS_RESOURCE","CAP_KILL"]}}`, `{"args":["sh"],"capabilities":{"effective":["CAP_KILL"]}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "config.json")
			if err := os.WriteFile(file, []byte(tt.in), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := rewrite(file); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, string(got)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
