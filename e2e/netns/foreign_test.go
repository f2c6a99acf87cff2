package netns

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// foreign is a plugin made of shell: it prints what it was told to, per command, and notes how it was called.
type foreign struct {
	t    testing.TB
	s    *stage
	name string
	dir  string
}

// newForeign makes one whose ADD prints result.
func newForeign(s *stage, result string) *foreign {
	s.t.Helper()
	f := &foreign{t: s.t, s: s, name: "fake-ipam", dir: s.t.TempDir()}
	f.install()
	f.says("ADD", result, 0)
	return f
}

func (f *foreign) install() {
	f.t.Helper()
	f.write(f.name, "#!/bin/sh\ncd "+f.dir+"\necho $CNI_COMMAND >>calls\ncat >stdin.$CNI_COMMAND\n"+
		"[ ! -e $CNI_COMMAND.sh ] || . ./$CNI_COMMAND.sh\n")
}

// says sets what a command prints and its exit code.
func (f *foreign) says(command, text string, exit int) {
	f.t.Helper()
	f.does(command, fmt.Sprintf("cat <<'END'\n%s\nEND\nexit %d\n", text, exit))
}

// does sets a command's script.
func (f *foreign) does(command, script string) {
	f.t.Helper()
	f.write(command+".sh", script)
}

func (f *foreign) write(name, text string) {
	f.t.Helper()
	path := filepath.Join(f.dir, name)
	if err := os.WriteFile(path+".new", []byte(text), 0o700); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		f.t.Fatal(err)
	}
}

func (f *foreign) read(name string) string {
	text, err := os.ReadFile(filepath.Join(f.dir, name))
	if err != nil && !os.IsNotExist(err) {
		f.t.Fatal(err)
	}
	return string(text)
}

// calls are the commands in their order.
func (f *foreign) calls() string { return strings.Join(strings.Fields(f.read("calls")), " ") }

// stdin is what the last call of a command was given.
func (f *foreign) stdin(command string) string { return f.read("stdin." + command) }

// path is a CNI_PATH that has it before the others.
func (f *foreign) path() string { return f.dir + ":" + f.s.path }

// runtime is a chain's conflist with a CNI_PATH that has the plugin.
func (f *foreign) runtime(c *chain) *lab.Runtime {
	f.t.Helper()
	rt, err := f.s.Node.Runtime([]byte(c.conflist), f.dir, f.s.path, filepath.Dir(peer(f.t, "ptp")))
	if err != nil {
		f.t.Fatal(err)
	}
	return rt
}
