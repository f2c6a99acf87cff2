package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// netnsDir is where iproute2 keeps named network namespaces, so that `ip netns exec` finds the lab's as well.
const netnsDir = "/run/netns"

// Namespace is a named network namespace of a lab.
type Namespace struct {
	// Name is the file name below /run/netns.
	Name string
	// Path is the file that a runtime passes as CNI_NETNS.
	Path string

	space // its file keeps the namespace
	lab   *Lab
	inode uint64

	// guarded by the space's mu
	cmds   map[*Cmd]struct{}
	closed bool
}

// Namespace makes a network namespace with its loopback up.
func (l *Lab) Namespace(name string) (*Namespace, error) {
	if err := shareNetnsDir(); err != nil {
		return nil, err
	}
	n := &Namespace{Name: l.prefix() + name, lab: l, cmds: map[*Cmd]struct{}{}}
	n.space.name = n.Name
	n.Path = filepath.Join(netnsDir, n.Name)
	if err := n.create(); err != nil {
		return nil, fmt.Errorf("make namespace %s: %w", n.Name, err)
	}
	return n, l.adopt(n)
}

func (n *Namespace) create() error {
	f, err := os.OpenFile(n.Path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	f.Close()
	if err := onThread(n.bind); err != nil {
		return errors.Join(err, os.Remove(n.Path))
	}
	if n.file, err = os.Open(n.Path); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(n.file.Fd()), &st); err != nil {
		return err
	}
	n.inode = st.Ino
	return nil
}

// bind makes the namespace of the calling thread and pins it to the file.
func (n *Namespace) bind() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := loopbackUp(); err != nil {
		return err
	}
	if err := unix.Mount("/proc/thread-self/ns/net", n.Path, "none", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind: %w", err)
	}
	return nil
}

// loopbackUp sets lo up by an ioctl: cheaper than a netlink socket, and pods are made by the hundred.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	return nil
}

// Inode identifies the namespace among all of the machine.
func (n *Namespace) Inode() uint64 { return n.inode }

// Command prepares a program that will run inside the namespace.
func (n *Namespace) Command(ctx context.Context, path string, args ...string) *Cmd {
	return newCmd(ctx, n, n.enter, path, args)
}

// Close ends the processes that were started in the namespace and removes its name. The kernel frees it when the last
// process, socket and link of it are gone. A second call does nothing.
func (n *Namespace) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	cmds := n.cmds
	n.cmds = nil
	if n.handle != nil {
		n.handle.Close()
	}
	n.mu.Unlock()
	for c := range cmds {
		c.kill()
	}
	err := removeName(n.Path)
	n.lab.forget(n)
	return errors.Join(err, n.file.Close())
}

// removeName takes a namespace's name away; one that is not there is no fault.
func removeName(path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// shareNetnsDir makes /run/netns a shared mount, as `ip netns` does: namespaces that are made later then appear in the mount
// namespaces of nodes as well. The lock keeps two programs from mounting it twice.
func shareNetnsDir() error {
	if err := os.MkdirAll(netnsDir, 0o755); err != nil {
		return err
	}
	dir, err := os.Open(netnsDir)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", netnsDir, err)
	}
	share := func() error { return unix.Mount("", netnsDir, "none", unix.MS_SHARED|unix.MS_REC, "") }
	if share() == nil {
		return nil
	}
	// EINVAL: a plain directory, not a mount.
	if err := unix.Mount(netnsDir, netnsDir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s: %w", netnsDir, err)
	}
	if err := share(); err != nil {
		return fmt.Errorf("share %s: %w", netnsDir, err)
	}
	return nil
}
