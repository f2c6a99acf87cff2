package lab

import (
	"fmt"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// space is an open network namespace, whoever owns it.
type space struct {
	name string // for errors
	file *os.File

	mu     sync.Mutex
	handle *netlink.Handle // made by the first Handle
}

// Fd is an open descriptor of the namespace, valid until Close.
func (n *space) Fd() int { return int(n.file.Fd()) }

// Do runs f on a thread inside the namespace. Goroutines that f starts are not inside it; sockets and netlink handles that f
// opens stay inside it for ever.
func (n *space) Do(f func() error) error {
	return onThread(func() error {
		if err := n.enter(); err != nil {
			return err
		}
		return f()
	})
}

func (n *space) enter() error {
	if err := unix.Setns(n.Fd(), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter namespace %s: %w", n.name, err)
	}
	return nil
}

// Handle returns a netlink handle inside the namespace; it is shared and lives until Close.
func (n *space) Handle() (*netlink.Handle, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.handle != nil {
		return n.handle, nil
	}
	h, err := netlink.NewHandleAt(netns.NsHandle(n.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink in %s: %w", n.name, err)
	}
	n.handle = h
	return h, nil
}

// Sysctl writes a network setting of the namespace. The name's parts are separated by dots.
func (n *space) Sysctl(name, value string) error {
	return n.Do(func() error { return os.WriteFile(sysctlPath(name), []byte(value), 0o644) })
}
