package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Snapshot is all state of a node that a plugin could leave behind, as sorted lines by kind. What changes by itself is not in
// it: interface indexes, handles, counters, timers, statistics, neighbour states.
type Snapshot struct {
	Sections map[string][]string
}

// SnapshotOptions say what to look at.
type SnapshotOptions struct {
	// Pool are the addresses of pods. Neighbours count if they are permanent or of the pool, connections if they name it.
	Pool []netip.Addr
	// Dirs are compared by names, modes and owners of what is in them; nil: /run/native-vmss and /var/lib/cni.
	Dirs []string
	// NoPrograms takes everything by netlink from this process instead of asking ip, nft, conntrack and iptables-save: for a
	// machine that lacks them. A test uses the programs, as foreign observers.
	NoPrograms bool
}

// linkWatch bounds the wait for links that come up; the kernel's own pause is a second.
const linkWatch = 5 * time.Second

var defaultDirs = []string{"/run/native-vmss", "/var/lib/cni"}

// observer is one kind of state and how its lines are taken.
type observer struct {
	section string
	look    func(context.Context, *scene) ([]string, error)
}

// scene is where a snapshot is taken.
type scene struct {
	space   *Namespace
	do      func(func() error) error
	command func(ctx context.Context, path string, args ...string) *Cmd
	o       SnapshotOptions
	pool    map[netip.Addr]bool
}

// Snapshot looks at the node.
func (n *Node) Snapshot(ctx context.Context, o SnapshotOptions) (Snapshot, error) {
	return takeSnapshot(ctx, &scene{space: n.Namespace, do: n.Do, command: n.Command, o: o})
}

// Snapshot looks at the namespace; files are the host's.
func (n *Namespace) Snapshot(ctx context.Context, o SnapshotOptions) (Snapshot, error) {
	if o.Dirs == nil {
		o.Dirs = []string{}
	}
	return takeSnapshot(ctx, &scene{space: n, do: n.Do, command: n.Command, o: o})
}

func takeSnapshot(ctx context.Context, s *scene) (Snapshot, error) {
	if s.o.Dirs == nil {
		s.o.Dirs = defaultDirs
	}
	s.pool = map[netip.Addr]bool{}
	for _, a := range s.o.Pool {
		s.pool[a] = true
	}
	observers := programObservers()
	if s.o.NoPrograms {
		observers = netlinkObservers()
	}
	observers = append(observers, observer{"sysctl", lookSysctls}, observer{"file", lookFiles})
	if err := awaitLinks(ctx, s.space); err != nil {
		return Snapshot{}, err
	}
	snap := Snapshot{Sections: map[string][]string{}}
	for _, ob := range observers {
		lines, err := ob.look(ctx, s)
		if err != nil {
			return Snapshot{}, fmt.Errorf("snapshot of %s: %s: %w", s.space.Name, ob.section, err)
		}
		all := append(snap.Sections[ob.section], lines...)
		slices.Sort(all)
		snap.Sections[ob.section] = all
	}
	return snap, nil
}

// awaitLinks waits for the kernel's link watch, which says of a link that has its carrier for a while that it has none.
func awaitLinks(ctx context.Context, n *Namespace) error {
	h, err := n.Handle()
	if err != nil {
		return err
	}
	const up, running = unix.IFF_UP | unix.IFF_LOWER_UP, unix.IFF_RUNNING
	for end := time.Now().Add(linkWatch); ; time.Sleep(5 * time.Millisecond) {
		late := false
		_, err := dump(h.LinkList, func(l netlink.Link) string {
			flags := l.Attrs().RawFlags
			late = late || flags&up == up && flags&running == 0
			return ""
		})
		if err != nil || !late || ctx.Err() != nil || time.Now().After(end) {
			return errors.Join(err, ctx.Err())
		}
	}
}

// Diff compares two snapshots: a line for everything that only one of them has, sorted by kind.
func (before Snapshot) Diff(after Snapshot) []string {
	sections := map[string]bool{}
	for s := range before.Sections {
		sections[s] = true
	}
	for s := range after.Sections {
		sections[s] = true
	}
	var lines []string
	for s := range sections {
		count := map[string]int{}
		for _, l := range after.Sections[s] {
			count[l]++
		}
		for _, l := range before.Sections[s] {
			count[l]--
		}
		for l, n := range count {
			switch {
			case n > 0:
				lines = append(lines, fmt.Sprintf("%s left behind: %s", s, l))
			case n < 0:
				lines = append(lines, fmt.Sprintf("%s missing: %s", s, l))
			}
		}
	}
	slices.Sort(lines)
	return lines
}

// lookSysctls reads net.ipv4.conf of every link.
func lookSysctls(_ context.Context, s *scene) ([]string, error) {
	var lines []string
	err := s.do(func() error {
		files, err := filepath.Glob("/proc/sys/net/ipv4/conf/*/*")
		for _, f := range files {
			b, rerr := os.ReadFile(f)
			if rerr != nil && !errors.Is(rerr, fs.ErrNotExist) && !errors.Is(rerr, fs.ErrPermission) {
				err = errors.Join(err, rerr)
			}
			if rerr == nil {
				lines = append(lines, strings.TrimPrefix(f, "/proc/sys/net/ipv4/conf/")+" = "+strings.TrimSpace(string(b)))
			}
		}
		return err
	})
	return lines, err
}

// lookFiles lists names, modes and owners. The directories themselves are in it.
func lookFiles(_ context.Context, s *scene) ([]string, error) {
	var lines []string
	err := s.do(func() error {
		for _, dir := range s.o.Dirs {
			err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
				if errors.Is(err, fs.ErrNotExist) {
					return nil // never made, or gone meanwhile
				}
				if err != nil {
					return err
				}
				info, err := os.Lstat(path)
				if err != nil {
					return err
				}
				line := fmt.Sprintf("%s %s", info.Mode(), path)
				if st, ok := info.Sys().(*syscall.Stat_t); ok {
					line = fmt.Sprintf("%s %d:%d %s", info.Mode(), st.Uid, st.Gid, path)
				}
				lines = append(lines, line)
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return lines, err
}
