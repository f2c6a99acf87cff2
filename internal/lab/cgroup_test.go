package lab_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// escaped starts what a container runtime would: a process in a session and a network namespace of its own, and returns its id.
func escaped(node *lab.Node) (group lab.Cgroup, pid int, err error) {
	group, err = node.Cgroups()
	if err != nil {
		return group, 0, err
	}
	out, err := node.Command(context.Background(), "sh", "-ec", `mkdir -p "${1%/*}"; echo $$ >"$1"
		unshare -n setsid sleep 1000 >/dev/null 2>&1 & echo $!`, "sh", group.Procs).Output()
	if err != nil {
		return group, 0, err
	}
	_, err = fmt.Sscan(string(out), &pid)
	return group, pid, err
}

// cgroups are those of a lab that there are now.
func cgroups(id string) []string {
	var all []string
	for _, pattern := range []string{"/sys/fs/cgroup/nvt-", "/sys/fs/cgroup/*/nvt-"} {
		list, _ := filepath.Glob(pattern + id)
		all = append(all, list...)
	}
	return all
}

func TestNetnsLab_ends_what_left_its_namespaces(t *testing.T) {
	l, err := lab.New(lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	defer func() { // where the lab fails to
		for _, dir := range cgroups(l.ID) {
			_ = syscall.Rmdir(dir)
		}
	}()
	var pids []int
	var groups []lab.Cgroup
	for _, name := range []string{"one", "two"} {
		node, err := l.Node(name)
		if err != nil {
			t.Fatal(err)
		}
		group, pid, err := escaped(node)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = syscall.Kill(pid, syscall.SIGKILL); _ = group.Remove() }()
		if text, err := os.ReadFile(node.Path(group.Procs)); err != nil || !strings.Contains(string(text), fmt.Sprint(pid)) {
			t.Errorf("process %d isn't in %s: %q %v", pid, group.Procs, text, err)
		}
		pids, groups = append(pids, pid), append(groups, group)
	}
	alive := func(i int) bool {
		// A dead process that nobody has waited for has no file any more.
		file, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pids[i]))
		return file != ""
	}
	if err := groups[0].Remove(); err != nil {
		t.Error(err)
	}
	if alive(0) || !alive(1) {
		t.Errorf("after one node's group was removed its process lives: %t, the other's: %t", alive(0), alive(1))
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if alive(1) || len(cgroups(l.ID)) > 0 {
		t.Errorf("left: process %t, groups %v", alive(1), cgroups(l.ID))
	}
}
