// Package plugins_test runs the plugins as processes, as a runtime does. Nothing here needs a namespace of its own: what
// is asked for is refused before the node is touched, or isn't there.
package plugins_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// deadline of one call; all of them end at once.
const deadline = 30 * time.Second

var (
	plugins = []string{"native-vmss", "ipam-vmss"}
	specs   = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}
	binDir  string
)

func TestMain(m *testing.M) {
	os.Exit(func() int {
		var err error
		if binDir, err = os.MkdirTemp("", "native-vmss-bin-"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(binDir)
		build := exec.CommandContext(context.Background(), "go", "build", "-o", binDir, "./native-vmss", "./ipam-vmss")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "%v: %s\n", err, out)
			return 1
		}
		return m.Run()
	}())
}

// call is one run of a plugin: the environment of a good call with changes; "" takes a variable away.
type call struct {
	plugin, command string
	env             map[string]string
	stdin           io.Reader
}

type answer struct {
	stdout, stderr string
	exit           int
}

func (c call) run(t *testing.T) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	env := map[string]string{
		"CNI_COMMAND": c.command, "CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/none", "CNI_IFNAME": "eth0",
		"CNI_PATH": binDir,
	}
	maps.Copy(env, c.env)
	cmd := exec.CommandContext(ctx, filepath.Join(binDir, c.plugin))
	cmd.Env = []string{}
	for k, v := range env {
		if v != "" {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.stdin, &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
		t.Fatalf("%+v: %v", c, errors.Join(err, ctx.Err()))
	}
	return answer{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// document is the error object of the specification.
type document struct {
	CNIVersion   string `json:"cniVersion"`
	Code         uint   `json:"code"`
	Msg, Details string
}

// failure checks that the call failed with one error document and nothing else on stdout.
func (a answer) failure(t *testing.T) document {
	t.Helper()
	var doc document
	dec := json.NewDecoder(strings.NewReader(a.stdout))
	if err := dec.Decode(&doc); err != nil {
		t.Fatalf("stdout %q: %v", a.stdout, err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		t.Errorf("stdout has more than one document: %q", a.stdout)
	}
	if a.exit != 1 || doc.CNIVersion == "" || doc.Msg == "" {
		t.Errorf("exit %d, document %+v", a.exit, doc)
	}
	if strings.Contains(a.stderr, "panic") || strings.Contains(a.stderr, "goroutine ") {
		t.Errorf("stderr: %s", a.stderr)
	}
	return doc
}

// silent checks that the call succeeded and printed nothing.
func (a answer) silent(t *testing.T) {
	t.Helper()
	if a.exit != 0 || a.stdout != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", a.exit, a.stdout, a.stderr)
	}
}

// conf is a good configuration with its state in a directory of the test, and more keys that begin with a comma.
func conf(t *testing.T, spec, more string) (text, stateDir string) {
	t.Helper()
	stateDir = filepath.Join(t.TempDir(), "state")
	return fmt.Sprintf(`{"cniVersion":%q,"name":"net1","type":"native-vmss","ipam":{"type":"ipam-vmss",`+
		`"stateDir":%q,"metadataURL":"file:///none"}%s}`, spec, stateDir, more), stateDir
}

// endless is a stdin that stays open and says nothing.
func endless(t *testing.T) io.Reader {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r
}

// refused is a call with a good configuration in a version of the specification. It must fail and touch nothing.
func refused(t *testing.T, plugin, command, spec string, env map[string]string) document {
	t.Helper()
	text, stateDir := conf(t, spec, "")
	doc := call{plugin, command, env, strings.NewReader(text)}.run(t).failure(t)
	untouched(t, stateDir)
	return doc
}

// untouched fails if a refused call made its state directory.
func untouched(t *testing.T, stateDir string) {
	t.Helper()
	if _, err := os.Stat(stateDir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the state directory was made (%v)", err)
	}
}

func forEach(t *testing.T, test func(t *testing.T, plugin string)) {
	t.Helper()
	for _, p := range plugins {
		t.Run(p, func(t *testing.T) { test(t, p) })
	}
}

// A runtime asks for VERSION with stdin closed, empty or held open.
func TestProcess_VERSION(t *testing.T) {
	want := map[string]any{"cniVersion": "1.1.0", "supportedVersions": []any{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}}
	forEach(t, func(t *testing.T, plugin string) {
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		closed := exec.CommandContext(ctx, "sh", "-c", `exec "$0" <&-`, filepath.Join(binDir, plugin))
		closed.Env = []string{"CNI_COMMAND=VERSION"}
		out, err := closed.Output()
		if err != nil {
			t.Fatal(err)
		}
		open := endless(t)
		none := map[string]string{"CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": "", "CNI_PATH": ""}
		for _, text := range []string{
			string(out), call{plugin, "VERSION", none, open}.run(t).stdout, call{plugin, "VERSION", nil, nil}.run(t).stdout,
			call{plugin, "VERSION", nil, strings.NewReader("rubbish")}.run(t).stdout,
		} {
			var got map[string]any
			if err := json.Unmarshal([]byte(text), &got); err != nil {
				t.Fatalf("%v: %q", err, text)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		}
	})
}

// Somebody who starts the plugin by hand gets told what it is, also at a terminal that never ends.
func TestProcess_noCommand(t *testing.T) {
	forEach(t, func(t *testing.T, plugin string) {
		open := endless(t)
		a := call{plugin, "", map[string]string{"CNI_CONTAINERID": ""}, open}.run(t)
		a.silent(t)
		if !strings.Contains(a.stderr, plugin) || !strings.Contains(a.stderr, "0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0") {
			t.Errorf("stderr %q", a.stderr)
		}
	})
}

func TestProcess_environment(t *testing.T) {
	tests := []struct {
		command string
		env     map[string]string
		bad     []string
	}{
		{"ADD", map[string]string{"CNI_NETNS": ""}, []string{"CNI_NETNS"}},
		{"ADD", map[string]string{"CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": "", "CNI_PATH": ""}, []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"}},
		{"ADD", map[string]string{"CNI_CONTAINERID": "../x", "CNI_NETNS": "", "CNI_IFNAME": "a b"}, []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"}},
		{"CHECK", map[string]string{"CNI_NETNS": "", "CNI_IFNAME": ""}, []string{"CNI_NETNS", "CNI_IFNAME"}},
		{"DEL", map[string]string{"CNI_CONTAINERID": "", "CNI_IFNAME": "eth0:1"}, []string{"CNI_CONTAINERID", "CNI_IFNAME"}},
		{"GC", map[string]string{"CNI_PATH": ""}, []string{"CNI_PATH"}},
		{"STATUS", map[string]string{"CNI_PATH": ""}, []string{"CNI_PATH"}},
		{"add", nil, []string{"CNI_COMMAND"}},
		{"DELETE", nil, []string{"CNI_COMMAND"}},
	}
	forEach(t, func(t *testing.T, plugin string) {
		for _, tt := range tests {
			doc := refused(t, plugin, tt.command, "0.4.0", tt.env)
			if doc.Code != 4 || doc.CNIVersion != "0.4.0" {
				t.Errorf("%s %v: %+v", tt.command, tt.env, doc)
			}
			for _, name := range []string{"CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_PATH"} {
				if strings.Contains(doc.Msg, name) != slices.Contains(tt.bad, name) {
					t.Errorf("%s %v: %q, want %v", tt.command, tt.env, doc.Msg, tt.bad)
				}
			}
		}
	})
}

func TestProcess_identifiers(t *testing.T) {
	long := strings.Repeat("a", 300)
	bad := map[string][]string{
		"CNI_CONTAINERID": {"-c", ".c", "_c", "c/1", "../c", "c 1", "c;1", "c\n", "é", "c*"},
		"CNI_IFNAME":      {".", "..", "a/b", "a:1", "a b", "a\tb", "sixteen-bytes-xx", long},
	}
	forEach(t, func(t *testing.T, plugin string) {
		for name, values := range bad {
			for i, value := range values {
				command := []string{"ADD", "DEL", "CHECK"}[i%3]
				doc := refused(t, plugin, command, "1.0.0", map[string]string{name: value})
				if doc.Code != 4 || !strings.Contains(doc.Msg, name) {
					t.Errorf("%s %s=%q: %+v", command, name, value, doc)
				}
			}
		}
		// There is no limit on a container id's length, and DEL of what isn't there is success.
		for _, id := range []string{"c", long, "0.A_b-c"} {
			text, _ := conf(t, "1.0.0", "")
			call{plugin, "DEL", map[string]string{"CNI_CONTAINERID": id, "CNI_NETNS": ""}, strings.NewReader(text)}.run(t).silent(t)
		}
	})
}

func TestProcess_versions(t *testing.T) {
	first := map[string]string{"ADD": "0.3.0", "DEL": "0.3.0", "CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
	forEach(t, func(t *testing.T, plugin string) {
		for command, from := range first {
			for _, spec := range []string{"0.2.0", "1.1", "9.9.9", "abc", ""} {
				doc := refused(t, plugin, command, spec, nil)
				if doc.Code != 1 || doc.CNIVersion != "1.1.0" {
					t.Errorf("%s in %q: %+v", command, spec, doc)
				}
			}
			for _, spec := range specs {
				if spec >= from {
					continue
				}
				doc := refused(t, plugin, command, spec, nil)
				if doc.Code != 1 || doc.CNIVersion != spec || !strings.Contains(doc.Msg, command) {
					t.Errorf("%s in %s: %+v", command, spec, doc)
				}
			}
		}
		// The library takes no version at all for 0.1.0, which nobody wrote.
		doc := call{plugin, "ADD", nil, strings.NewReader(`{"name":"net1","ipam":{"type":"ipam-vmss"}}`)}.run(t).failure(t)
		if doc.Code != 1 || doc.Msg != "cniVersion: missing" || doc.Details != "" {
			t.Errorf("no cniVersion: %+v", doc)
		}
	})
}
