package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// cgroupRoot is where every distribution has them.
	cgroupRoot = "/sys/fs/cgroup"
	// cgroupDeath is how long killed processes may take to leave their group.
	cgroupDeath = 10 * time.Second
)

// Cgroup is a node's control group, for programs that start containers: those leave the node's namespaces and their parent's
// process group, and only this tells whose they are. The lab's end kills all that is in it.
type Cgroup struct {
	// Pods is the group that containers go below, in every hierarchy, as a runtime wants it named.
	Pods string
	// Procs is the file that a process writes its id to and is then in the group, with all that it starts. Make its directory.
	Procs string

	name string // below each hierarchy
}

// cgroupMount is one hierarchy: the only one where a machine has but version 2.
type cgroupMount struct{ target, kind, options string }

// Cgroups mounts the machine's control groups on the node, whose own /sys hides them.
func (n *Node) Cgroups() (Cgroup, error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return Cgroup{}, err
	}
	if len(mounts) == 0 {
		return Cgroup{}, errors.New("no control groups below " + cgroupRoot)
	}
	name := filepath.Join(cgroupName(n.lab.ID), n.Name)
	c := Cgroup{
		name:  name,
		Pods:  filepath.Join("/", name, "pods"),
		Procs: filepath.Join(mounts[0].target, name, "runtime", "cgroup.procs"),
	}
	err = n.Do(func() error {
		// Where each controller has its hierarchy they are side by side in memory.
		if mounts[0].target != cgroupRoot {
			if err := unix.Mount("tmpfs", cgroupRoot, "tmpfs", 0, "mode=755"); err != nil {
				return fmt.Errorf("mount %s: %w", cgroupRoot, err)
			}
		}
		for _, m := range mounts {
			if err := os.MkdirAll(m.target, 0o755); err != nil {
				return err
			}
			if err := unix.Mount(m.kind, m.target, m.kind, 0, m.options); err != nil {
				return fmt.Errorf("mount %s: %w", m.target, err)
			}
		}
		return nil
	})
	return c, err
}

// Remove kills all that is in the group and removes it.
func (c Cgroup) Remove() error { return removeCgroups(c.name) }

func cgroupName(id string) string { return strings.TrimSuffix(namePrefix(id), "-") }

// cgroupMounts are the hierarchies of this machine. Those without a controller come first: no controller refuses a process there.
func cgroupMounts() ([]cgroupMount, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	var list []cgroupMount
	for line := range strings.Lines(string(text)) {
		// proc_pid_mountinfo(5): … mount point, options, optional fields, "-", type, source, options of the file system
		before, after, _ := strings.Cut(line, " - ")
		left, right := strings.Fields(before), strings.Fields(after)
		if len(left) < 6 || len(right) < 3 || !strings.HasPrefix(left[4], cgroupRoot) {
			continue
		}
		m := cgroupMount{target: left[4], kind: right[0]}
		switch m.kind {
		case "cgroup2":
		case "cgroup":
			m.options = cgroupController(right[2])
		default:
			continue // the directory that the hierarchies are in
		}
		list = append(list, m)
	}
	rank := func(m cgroupMount) int {
		switch {
		case m.kind == "cgroup2":
			return 0
		case strings.HasPrefix(m.options, "none,"):
			return 1
		}
		return 2
	}
	slices.SortStableFunc(list, func(a, b cgroupMount) int { return rank(a) - rank(b) })
	return list, nil
}

// cgroupController leaves what names a hierarchy of version 1: "rw,cpu,cpuacct" is "cpu,cpuacct", "rw,xattr,name=systemd" is
// "none,name=systemd".
func cgroupController(options string) string {
	var names []string
	for o := range strings.SplitSeq(options, ",") {
		switch {
		case strings.HasPrefix(o, "name="):
			names = append(names, "none", o)
		case o != "rw" && o != "ro" && o != "xattr" && o != "clone_children" && !strings.HasPrefix(o, "release_agent="):
			names = append(names, o)
		}
	}
	return strings.Join(names, ",")
}

// removeCgroups kills all that is in a group and removes it, in every hierarchy.
func removeCgroups(name string) error {
	for end := time.Now().Add(cgroupDeath); ; time.Sleep(10 * time.Millisecond) {
		dirs, pids, err := cgroupTree(name)
		if err != nil || len(dirs) == 0 {
			return err
		}
		var errs []error
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				errs = append(errs, fmt.Errorf("kill %d: %w", pid, err))
			}
		}
		for _, dir := range slices.Backward(dirs) {
			if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, syscall.ENOENT) {
				errs = append(errs, fmt.Errorf("remove %s: %w", dir, err))
			}
		}
		if len(errs) > 0 && time.Now().After(end) {
			return errors.Join(errs...)
		}
	}
}

// cgroupTree lists the directories of a group, outer ones first, and the processes in them.
func cgroupTree(name string) (dirs []string, pids []int, err error) {
	var tops []string
	for _, pattern := range []string{cgroupRoot, cgroupRoot + "/*"} {
		match, _ := filepath.Glob(filepath.Join(pattern, name)) // the pattern is good
		tops = append(tops, match...)
	}
	for _, top := range tops {
		err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
			switch {
			case errors.Is(err, fs.ErrNotExist): // a runtime removes its own
				return nil
			case err != nil:
				return err
			case d.IsDir():
				dirs = append(dirs, path)
			case d.Name() == "cgroup.procs":
				text, _ := os.ReadFile(path) // as above
				for _, word := range strings.Fields(string(text)) {
					if pid, err := strconv.Atoi(word); err == nil && pid > 0 {
						pids = append(pids, pid)
					}
				}
			}
			return nil
		})
		if err != nil {
			return nil, nil, fmt.Errorf("list control groups: %w", err)
		}
	}
	return dirs, pids, nil
}
