package routes

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// ownNetns names the network namespace of the thread that opens it.
const ownNetns = "/proc/thread-self/ns/net"

// namespace is an open network namespace. Device and inode number name it for as long as it is open.
type namespace struct {
	fd       int
	dev, ino uint64
}

// openNamespace opens path, which must be a network namespace. O_NONBLOCK keeps a FIFO from blocking us for ever.
func openNamespace(path string) (namespace, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return namespace{}, err
	}
	n, err := asNamespace(fd)
	if err != nil {
		_ = unix.Close(fd)
	}
	return n, err
}

func asNamespace(fd int) (namespace, error) {
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return namespace{}, err
	}
	if fs.Type != unix.NSFS_MAGIC {
		return namespace{}, ErrNotNetns
	}
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if err != nil {
		return namespace{}, fmt.Errorf("ask for its type: %w", err)
	}
	if kind != unix.CLONE_NEWNET {
		return namespace{}, ErrNotNetns
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return namespace{}, err
	}
	return namespace{fd: fd, dev: st.Dev, ino: st.Ino}, nil
}

// Close gives back the descriptor.
func (n namespace) Close() error { return unix.Close(n.fd) }

func (n namespace) same(o namespace) bool { return n.dev == o.dev && n.ino == o.ino }

// do runs fn on a thread that is in n. /proc/sys/net shows the namespace of the thread that opens a file in it, so sysctls
// need such a thread; netlink doesn't, a socket stays where it was opened.
//
// A thread that isn't in n yet is a new one: its goroutine ends without unlocking it, so the runtime destroys the thread and
// no other goroutine ever runs in n.
func (n namespace) do(fn func() error) error {
	if here, err := n.runHere(fn); here {
		return err
	}
	return onNewThread(func() error {
		if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return fn()
	})
}

// runHere runs fn on the calling thread if that is in n already.
func (n namespace) runHere(fn func() error) (bool, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var st unix.Stat_t
	if err := unix.Stat(ownNetns, &st); err != nil || st.Dev != n.dev || st.Ino != n.ino {
		return false, nil
	}
	return true, fn()
}

// onNewThread runs fn on a thread that dies afterwards. The process's first thread can't die, and what /proc/<pid> shows is
// its namespace: when the goroutine lands on it, it holds it and lets another one do the work. A panic of fn is the caller's: in a
// goroutine of its own it would end the process, and the ADD could neither be undone nor answered.
func onNewThread(fn func() error) error {
	type outcome struct {
		err      error
		panicked any
	}
	done := make(chan outcome, 1)
	run := func(fn func() error) {
		var o outcome
		defer func() {
			o.panicked = recover()
			done <- o
		}()
		o.err = fn()
	}
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			run(fn)
			return
		}
		run(func() error { return onNewThread(fn) })
		runtime.UnlockOSThread()
	}()
	o := <-done
	if o.panicked != nil {
		panic(o.panicked)
	}
	return o.err
}
