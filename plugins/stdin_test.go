package plugins_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// BR-03: stdin that isn't the JSON a plugin expects.
func TestProcess_stdin(t *testing.T) {
	const good = `{"cniVersion":"1.0.0","name":"net1","type":"native-vmss","ipam":{"type":"ipam-vmss"}}`
	object := func(name, ipam string) string {
		return fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"type":"native-vmss"%s}`, name, ipam)
	}
	const ipam = `,"ipam":{"type":"ipam-vmss"}`
	tests := []struct {
		name, stdin string
		code        uint
		text        string
	}{
		{"byte order mark", "\xef\xbb\xbf" + good, 6, ""},
		{"empty", "", 6, ""},
		{"trailing comma", strings.TrimSuffix(good, "}") + ",}", 6, ""},
		{"twice", good + good, 6, ""},
		{"not an object", `["net1"]`, 6, ""},
		{"version of another kind", `{"cniVersion":1,"name":"net1"}`, 7, "cniVersion: 1 is not a string"},
		{"name of another kind", `{"cniVersion":"1.0.0","name":1}`, 7, "name: 1 is not a string"},
		{"a conflist", `{"cniVersion":"1.0.0","name":"net1","plugins":[` + good + `]}`, 7, "plugins"},
		{"no ipam", object("net1", ""), 7, "ipam"},
		{"empty ipam", object("net1", `,"ipam":{}`), 7, "ipam.type"},
		{"ipam is a text", object("net1", `,"ipam":"ipam-vmss"`), 7, "ipam"},
		{"ipam is a path", object("net1", `,"ipam":{"type":"../ipam-vmss"}`), 7, "ipam.type"},
		{"name with a blank", object("a b", ipam), 7, "network name"},
		{"name is ..", object("..", ipam), 7, "network name"},
		{"empty name", object("", ipam), 7, "network name"},
		{"name with a slash", object("a/b", ipam), 7, "network name"},
	}
	forEach(t, func(t *testing.T, plugin string) {
		for _, tt := range tests {
			for _, command := range []string{"ADD", "DEL"} {
				doc := call{plugin, command, nil, strings.NewReader(tt.stdin)}.run(t).failure(t)
				if doc.Code != tt.code || !strings.Contains(doc.Msg, tt.text) {
					t.Errorf("%s, %s: %+v, want code %d and %q", tt.name, command, doc, tt.code, tt.text)
				}
			}
		}
	})
}

// A directory can't be read: code 5, not a decode failure.
func TestProcess_stdinUnreadable(t *testing.T) {
	forEach(t, func(t *testing.T, plugin string) {
		dir, err := os.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer dir.Close()
		if doc := (call{plugin, "ADD", nil, dir}).run(t).failure(t); doc.Code != 5 || !strings.Contains(doc.Msg, "stdin") {
			t.Errorf("%+v", doc)
		}
	})
}

// A bad environment is answered although stdin never ends.
func TestProcess_stdinOpen(t *testing.T) {
	forEach(t, func(t *testing.T, plugin string) {
		doc := call{plugin, "ADD", map[string]string{"CNI_NETNS": ""}, endless(t)}.run(t).failure(t)
		if doc.Code != 4 || doc.CNIVersion != "1.1.0" {
			t.Errorf("%+v", doc)
		}
	})
}

// A caller that never closes stdin costs a command its own deadline, here STATUS's second.
func TestProcess_stdinHeldOpen(t *testing.T) {
	forEach(t, func(t *testing.T, plugin string) {
		doc := call{plugin, "STATUS", nil, endless(t)}.run(t).failure(t)
		if doc.Code != 11 || !strings.Contains(doc.Msg, "stdin") {
			t.Errorf("%+v", doc)
		}
	})
}

// An unknown key: ADD 2, STATUS 50, both with key, value and the nearest one; the verbs that clean up ignore it. Keys that
// others add and a configuration larger than a pipe are no mistake.
func TestProcess_keys(t *testing.T) {
	forEach(t, func(t *testing.T, plugin string) {
		const wrong = `"stateDir":"/x","cooldwn":"5s"`
		text := `{"cniVersion":"1.1.0","name":"net1","type":"native-vmss","ipam":{"type":"ipam-vmss",` + wrong + `}}`
		for command, code := range map[string]uint{"ADD": 2, "STATUS": 50} {
			doc := call{plugin, command, nil, strings.NewReader(text)}.run(t).failure(t)
			if doc.Code != code || !strings.Contains(doc.Msg, `ipam.cooldwn: value "5s"`) || !strings.Contains(doc.Msg, `"cooldown"`) {
				t.Errorf("%s: %+v", command, doc)
			}
		}
		more := `,"mtuu":1,"mtu":"x","runtimeConfig":7,"args":7,"prevResult":{},"dns":7,"x-note":"` + strings.Repeat("n", 200<<10) + `"`
		text, _ = conf(t, "1.1.0", more)
		call{plugin, "DEL", map[string]string{"CNI_ARGS": "IgnoreUnknown;=;rubbish", "CNI_NETNS": ""}, strings.NewReader(text)}.run(t).silent(t)
		call{plugin, "GC", nil, strings.NewReader(strings.Replace(text, "{", `{"cni.dev/valid-attachments":null,`, 1))}.run(t).silent(t)
		doc := call{plugin, "CHECK", nil, strings.NewReader(text)}.run(t).failure(t)
		if doc.Code != 7 || !strings.Contains(doc.Msg, "prevResult") {
			t.Errorf("CHECK: %+v", doc)
		}
	})
}

// BR-01: ADD names the bad pair and leaves nothing; DEL takes any CNI_ARGS.
func TestProcess_args(t *testing.T) {
	bad := map[string]string{
		"IgnoreUnknown": "IgnoreUnknown", "IgnoreUnknown=yes": "IgnoreUnknown=yes", "CommonArgs=1": "CommonArgs=1",
		"IgnoreUnknown=1;IP=x": "IP=x",
	}
	forEach(t, func(t *testing.T, plugin string) {
		for args, pair := range bad {
			text, _ := conf(t, "1.0.0", "")
			doc := call{plugin, "ADD", map[string]string{"CNI_ARGS": args}, strings.NewReader(text)}.run(t).failure(t)
			if doc.Code != 4 || !strings.Contains(doc.Msg, pair) || doc.CNIVersion != "1.0.0" {
				t.Errorf("%s: %+v", args, doc)
			}
			for range 2 {
				call{plugin, "DEL", map[string]string{"CNI_ARGS": args}, strings.NewReader(text)}.run(t).silent(t)
			}
		}
	})
}

// E7, E15: a CNI_NETNS that is no pod's is code 4 and names the variable. DEL doesn't care.
func TestProcess_netns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/run/netns/none", file, t.TempDir(), "/proc/self/ns/net", "/proc/self/ns/mnt", "/dev/null"} {
		text, _ := conf(t, "1.0.0", "")
		doc := call{"native-vmss", "ADD", map[string]string{"CNI_NETNS": path}, strings.NewReader(text)}.run(t).failure(t)
		if doc.Code != 4 || !strings.Contains(doc.Msg, "CNI_NETNS") || !strings.Contains(doc.Msg, path) {
			t.Errorf("%s: %+v", path, doc)
		}
		call{"native-vmss", "DEL", map[string]string{"CNI_NETNS": path}, strings.NewReader(text)}.run(t).silent(t)
	}
}
