package node

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const repository = "../.."

// What we ship parses, as it is and strictly; "every-key" holds the defaults.
func TestConflists_shipped(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(repository, "cni-conf", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("cni-conf: %v, %v", files, err)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			conf, err := ReadConf(path)
			if err != nil {
				t.Fatal(err)
			}
			if conf.Name == "" || conf.IPAM.Type == "" {
				t.Errorf("%+v", conf)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			checkVersions(t, data)
		})
	}
	everyKey, err := ReadConf(filepath.Join(repository, "cni-conf", "every-key.conflist"))
	if err != nil {
		t.Fatal(err)
	}
	want := minimal()
	want.Name = "native-vmss"
	if diff := cmp.Diff(want, everyKey, compareConf); diff != "" {
		t.Errorf("every-key.conflist is not the defaults (-want +got)\n%s", diff)
	}
}

// checkVersions: libcni picks the newest of cniVersions that it knows, and no plugin knows others than these.
func checkVersions(t *testing.T, data []byte) {
	t.Helper()
	var list struct {
		Version  string   `json:"cniVersion"`
		Versions []string `json:"cniVersions"`
		Plugins  []json.RawMessage
	}
	if err := json.Unmarshal(data, &list); err != nil {
		t.Fatal(err)
	}
	for _, v := range append(list.Versions, list.Version) {
		if !slices.Contains([]string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"}, v) {
			t.Errorf("cniVersion %q", v)
		}
	}
}

// Every configuration that the documentation shows can be used as it stands there.
func TestConflists_documented(t *testing.T) {
	pages, err := filepath.Glob(filepath.Join(repository, "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range snippets(string(text)) {
			found++
			if _, err := parseFile([]byte(s)); err != nil {
				t.Errorf("%s: %v\n%s", page, err, s)
			}
		}
	}
	if found == 0 {
		t.Error("no page shows a configuration")
	}
}

var fence = regexp.MustCompile("(?ms)^```json[a-z]*\n(.*?)^```")

// snippets are the fenced JSON blocks that hold a CNI configuration.
func snippets(markdown string) []string {
	var out []string
	for _, m := range fence.FindAllStringSubmatch(markdown, -1) {
		if strings.Contains(m[1], `"plugins"`) || strings.Contains(m[1], `"type"`) {
			out = append(out, m[1])
		}
	}
	return out
}

func TestSnippets(t *testing.T) {
	const page = "# A\n```json\n{\"type\": 1}\n```\n```sh\n\"type\"\n```\ntext\n```json\n{\"other\": 1}\n```\n```json\n{\"plugins\":\n []}\n```\n"
	if diff := cmp.Diff([]string{"{\"type\": 1}\n", "{\"plugins\":\n []}\n"}, snippets(page)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

const (
	foreignList = `{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"bridge","ipam":{"type":"host-local"}},null]}`
	ourList     = `{"cniVersion":"1.0.0","name":"ours","plugins":[{"type":"native-vmss","mtu":1400,"ipam":{"type":"ipam-vmss"}},{"type":"portmap"}]}`
	underPTP    = `{"cniVersion":"1.0.0","name":"ptp","plugins":[{"type":"ptp","mtu":"any","ipam":{"type":"ipam-vmss","stateDir":"/p"}}]}`
	brokenList  = `{"cniVersion":"1.0.0","name":"ours","plugins":[{"type":"native-vmss","mtuu":1400,"ipam":{"type":"ipam-vmss"}}]}`
	single      = `{"cniVersion":"1.0.0","name":"single","type":"native-vmss","ipam":{"type":"ipam-vmss","stateDir":"/s"}}`
)

func TestParseFile(t *testing.T) {
	tests := []struct {
		name, data string
		want       func(*Conf)
		err        error
	}{
		{"a list of ours", ourList, func(c *Conf) { c.Name, c.MTU = "ours", 1400 }, nil},
		{"under another main", underPTP, func(c *Conf) { c.Name, c.IPAM.StateDir = "ptp", "/p" }, nil},
		{"one plugin", single, func(c *Conf) { c.Name, c.IPAM.StateDir = "single", "/s" }, nil},
		{"a list of others", foreignList, nil, errNotOurs},
		{"an empty list", `{"name":"x","plugins":[]}`, nil, errNotOurs},
		{"others' plugin", `{"name":"x","type":"bridge","ipam":"none"}`, nil, errNotOurs},
		{"rubbish", `{"name":`, nil, errNotOurs},
		{"an unknown key", brokenList, nil, ErrUnknownKey},
		{"no name", `{"plugins":[{"type":"native-vmss","ipam":{"type":"ipam-vmss"}}]}`, nil, ErrConfig},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseFile([]byte(tt.data))
			if tt.want == nil {
				if !errors.Is(err, tt.err) {
					t.Errorf("error %v, want %v", err, tt.err)
				}
				return
			}
			want := minimal()
			tt.want(&want)
			if diff := cmp.Diff(want, got, compareConf); err != nil || diff != "" {
				t.Errorf("%v (-want +got)\n%s", err, diff)
			}
		})
	}
}

// A pipe that nobody writes to is no file to wait for.
func TestReadConf_pipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		_, err := ReadConf(path)
		done <- err
	}()
	select {
	case err := <-done:
		if err == nil || !strings.Contains(err.Error(), path+": not a regular file") {
			t.Errorf("ReadConf = %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("ReadConf waits for somebody to write")
	}
}

func TestFindConf(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		want  string // network's name; "" for the defaults
		err   error
	}{
		{"no file", nil, "", nil},
		{"ours alone", map[string]string{"10-ours.conflist": ourList}, "ours", nil},
		{"the first of ours", map[string]string{"20-single.conf": single, "30-ours.conflist": ourList, "10-other.conflist": foreignList}, "single", nil},
		{"a third ending", map[string]string{"10.json": single}, "single", nil},
		{"files that runtimes don't read", map[string]string{"10-ours.conflist.bak": brokenList, ".tmp": "x"}, "", nil},
		{"others' rubbish", map[string]string{"05-rubbish.conflist": "{", "10-ours.conflist": ourList}, "ours", nil},
		{"an unusable one of ours", map[string]string{"10-ours.conflist": brokenList, "20-single.conf": single}, "", ErrUnknownKey},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, text := range tt.files {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Mkdir(filepath.Join(dir, "00-directory.conf"), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := unix.Mkfifo(filepath.Join(dir, "00-pipe.conf"), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := FindConf(dir)
			if !errors.Is(err, tt.err) || err == nil && (got.Name != tt.want || got.IPAM.Type != IPAMType) {
				t.Errorf("FindConf = %+v, %v", got, err)
			}
		})
	}
	if got, err := FindConf(filepath.Join(t.TempDir(), "none")); err != nil || got.IPAM.StateDir != DefaultStateDir {
		t.Errorf("no directory: %+v, %v", got, err)
	}
}
