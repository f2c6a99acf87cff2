package node

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPrepareFiles(t *testing.T) {
	root := t.TempDir()
	names := []string{"etc/cloud/cloud.cfg.d/99-native-vmss.cfg", "etc/systemd/networkd.conf.d/10-native-vmss.conf"}

	changes := prepareIn(t, root, false)
	if len(changes) != len(names) || changes[0].Done || changes[1].Done || len(filesBelow(t, root)) != 0 {
		t.Errorf("dry run: %+v, files %v", changes, filesBelow(t, root))
	}
	changes = prepareIn(t, root, true)
	if got := filesBelow(t, root); strings.Join(got, " ") != strings.Join(names, " ") {
		t.Errorf("files %v, want %v", got, names)
	}
	for i, c := range changes {
		if !c.Done || c.What != "write "+filepath.Join(root, names[i]) {
			t.Errorf("change %+v", c)
		}
	}
	for i, key := range []string{"apply_network_config_for_secondary_ips: false", "ManageForeignRoutes=no"} {
		path := filepath.Join(root, names[i])
		text, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(text), key) {
			t.Errorf("%s: %v, lacks %q", path, err, key)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
			t.Errorf("%s: %v, mode %v", path, err, info.Mode())
		}
	}
	if changes = prepareIn(t, root, true); len(changes) != 0 {
		t.Errorf("second run: %+v", changes)
	}
}

func prepareIn(t *testing.T, root string, do bool) []Change {
	t.Helper()
	changes, err := prepareFiles(root, do)
	if err != nil {
		t.Fatal(err)
	}
	return changes
}

func filesBelow(t *testing.T, root string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// A changed file is replaced in one step: who holds the old one open reads it to its end.
func TestPrepareFiles_replaces(t *testing.T) {
	root := t.TempDir()
	prepareIn(t, root, true)
	path := filepath.Join(root, dropIns[0].path)
	if err := os.WriteFile(path, []byte("datasource: {}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	old, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	if changes := prepareIn(t, root, true); len(changes) != 1 {
		t.Errorf("changes %+v", changes)
	}
	before, err := old.Stat()
	if err != nil {
		t.Fatal(err)
	}
	after, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if os.SameFile(before, after) || before.Size() != int64(len("datasource: {}\n")) {
		t.Error("the file was written in place")
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != dropIns[0].text {
		t.Errorf("%v, %q", err, text)
	}
}

// A directory that can't be written fails, and leaves nothing half done.
func TestPrepareFiles_fails(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "etc"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if changes, err := prepareFiles(root, true); err == nil || len(changes) != 0 {
		t.Errorf("prepareFiles = %+v, %v", changes, err)
	}
	root = t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, dropIns[0].path, "x"), 0o755); err != nil { // a directory in the file's place
		t.Fatal(err)
	}
	if _, err := prepareFiles(root, true); err == nil {
		t.Error("a directory was replaced")
	}
	if left := filesBelow(t, root); len(left) != 0 {
		t.Errorf("left %v", left)
	}
}
