package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	bootIDFile = "/proc/sys/kernel/random/boot_id"
	cniDir     = "/var/lib/cni"
)

// Node is a machine of its own as far as a plugin can tell: its network, an empty /run and /var/lib/cni in memory, a /sys that
// shows its links, and the host's /run/netns. Everything else of the file system is the host's.
type Node struct {
	*Namespace

	mnt     *os.File
	tid     int // the thread that keeps the mount namespace visible below /proc
	release chan struct{}
	once    sync.Once
}

// Node makes a node without links.
func (l *Lab) Node(name string) (*Node, error) {
	if err := os.MkdirAll(cniDir, 0o755); err != nil { // a mount point must exist
		return nil, err
	}
	space, err := l.Namespace(name)
	if err != nil {
		return nil, err
	}
	n := &Node{Namespace: space, release: make(chan struct{})}
	ready := make(chan error, 1)
	go func() {
		_ = onThread(func() error {
			err := n.unshare()
			ready <- err
			if err == nil {
				<-n.release
			}
			return nil
		})
	}()
	if err := <-ready; err != nil {
		return nil, errors.Join(fmt.Errorf("make node %s: %w", space.Name, err), space.Close())
	}
	l.Defer(n.letGo)
	return n, nil
}

// unshare gives the calling thread the node's namespaces and mounts.
func (n *Node) unshare() error {
	if err := n.Namespace.enter(); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	n.tid = unix.Gettid()
	if err := privateMounts(); err != nil {
		return err
	}
	mnt, err := os.Open("/proc/thread-self/ns/mnt")
	n.mnt = mnt
	return err
}

// privateMounts is called in a new mount namespace. Slave: what the host mounts later (namespaces of pods) comes in, nothing
// goes out.
func privateMounts() error {
	if err := unix.Mount("", "/", "none", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts slave: %w", err)
	}
	names, err := os.Open(netnsDir) // found again under the new /run by this descriptor
	if err != nil {
		return err
	}
	defer names.Close()
	mounts := []struct{ source, target, kind, data string }{
		{"tmpfs", "/run", "tmpfs", "mode=755"},
		{"tmpfs", cniDir, "tmpfs", "mode=755"},
		{"sysfs", "/sys", "sysfs", ""},
	}
	for _, m := range mounts {
		if err := unix.Mount(m.source, m.target, m.kind, 0, m.data); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	for _, dir := range []string{netnsDir, "/run/lock"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	from := fmt.Sprintf("/proc/thread-self/fd/%d", names.Fd())
	if err := unix.Mount(from, netnsDir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", netnsDir, err)
	}
	return nil
}

// enter moves the calling thread into both namespaces.
func (n *Node) enter() error {
	if err := n.Namespace.enter(); err != nil {
		return err
	}
	// setns refuses a mount namespace to a thread that shares its root and working directory with others.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare file system state: %w", err)
	}
	if err := unix.Setns(int(n.mnt.Fd()), unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter mounts of %s: %w", n.Name, err)
	}
	return nil
}

// Do runs f on a thread inside the node's network and mount namespace; see Namespace.Do.
func (n *Node) Do(f func() error) error {
	return onThread(func() error {
		if err := n.enter(); err != nil {
			return err
		}
		return f()
	})
}

// Command prepares a program that will run on the node.
func (n *Node) Command(ctx context.Context, path string, args ...string) *Cmd {
	return newCmd(ctx, n.Namespace, n.enter, path, args)
}

// Path returns the name under which everybody else sees a file of the node.
func (n *Node) Path(file string) string {
	return fmt.Sprintf("/proc/%d/task/%d/root%s", os.Getpid(), n.tid, filepath.Join("/", file))
}

// SetBootID makes the node believe in another boot; empty goes back to the machine's own.
func (n *Node) SetBootID(id string) error {
	return n.Do(func() error {
		// Not mounted is EINVAL, and fine.
		if err := unix.Unmount(bootIDFile, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount boot id: %w", err)
		}
		if id == "" {
			return nil
		}
		f, err := os.CreateTemp("/run", "boot_id")
		if err != nil {
			return err
		}
		defer func() { _ = os.Remove(f.Name()) }() // the mount keeps the file
		_, werr := f.WriteString(id + "\n")
		if err := errors.Join(werr, f.Close()); err != nil {
			return err
		}
		if err := unix.Mount(f.Name(), bootIDFile, "none", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount boot id: %w", err)
		}
		return nil
	})
}

// Close ends the node.
func (n *Node) Close() error { return errors.Join(n.Namespace.Close(), n.letGo()) }

func (n *Node) letGo() error {
	var err error
	n.once.Do(func() {
		close(n.release)
		err = n.mnt.Close()
	})
	return err
}
