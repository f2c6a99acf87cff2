// Package nstest gives tests network namespaces of their own.
package nstest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// required is the variable that makes a test fail, not skip, where namespaces may not be made.
const required = "NETNS_REQUIRED"

const threadNetns = "/proc/thread-self/ns/net"

// NS is a network namespace that lives until the test ends.
type NS struct {
	t    testing.TB
	file *os.File
}

// New puts the calling goroutine into a fresh network namespace until the test ends. Other goroutines don't inherit it.
func New(t testing.TB) *NS {
	t.Helper()
	runtime.LockOSThread()
	before, err := os.Open(threadNetns)
	if err != nil {
		runtime.UnlockOSThread()
		t.Fatal(err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		before.Close()
		runtime.UnlockOSThread()
		giveUp(t, err)
	}
	t.Cleanup(func() {
		defer before.Close()
		if err := unix.Setns(int(before.Fd()), unix.CLONE_NEWNET); err != nil {
			// The thread stays locked, so it dies with its goroutine and nobody else runs in the wrong namespace.
			t.Errorf("leave test namespace: %v", err)
			return
		}
		runtime.UnlockOSThread()
	})
	return current(t)
}

// Beside makes another fresh namespace and stays where the caller is.
func Beside(t testing.TB) *NS {
	t.Helper()
	type result struct {
		file *os.File
		err  error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- result{err: err}
			return
		}
		f, err := os.Open(threadNetns)
		done <- result{f, err}
	}()
	r := <-done
	if r.err != nil {
		giveUp(t, r.err)
	}
	t.Cleanup(func() { r.file.Close() })
	return &NS{t: t, file: r.file}
}

func current(t testing.TB) *NS {
	t.Helper()
	f, err := os.Open(threadNetns)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &NS{t: t, file: f}
}

func giveUp(t testing.TB, err error) {
	t.Helper()
	if os.Getenv(required) == "1" {
		t.Fatalf("make network namespace: %v", err)
	}
	t.Skipf("make network namespace: %v", err)
}

// Path leads to the namespace as long as the test runs.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd()) }

// Close gives up the last reference to a namespace that the test holds, as when a pod's sandbox ends.
func (n *NS) Close() { n.file.Close() }

// Do runs fn on a thread in n. fn must not call FailNow.
func (n *NS) Do(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- fn()
	}()
	return <-done
}

// Run runs a command line in n, fails the test if that fails, and returns its standard output.
func (n *NS) Run(line string) string {
	n.t.Helper()
	out, err := n.Try(line)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

// Try runs a command line in n; words are split at spaces. The error holds what the command wrote to its standard error.
func (n *NS) Try(line string) (string, error) {
	args := strings.Fields(line)
	var out, errs bytes.Buffer
	err := n.Do(func() error {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Stdout, cmd.Stderr = &out, &errs
		return cmd.Run()
	})
	if err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", line, err, errs.String())
	}
	return out.String(), nil
}
