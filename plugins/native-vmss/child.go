package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/native-vmss/native-vmss/internal/failpoint"
)

const (
	maxLastWords = 4 << 10 // bytes of a child's stderr that an error text may quote
	maxOutput    = 1 << 20 // bytes of a child's stdout that are read
	// A grandchild that holds the pipes must not hold us after the child is gone.
	pipeGrace = 500 * time.Millisecond
)

// childExec starts other plugins so that they die with us and never share our stdout. The library's own can't set a
// parent-death signal.
type childExec struct {
	version.PluginDecoder
	lastWords bytes.Buffer // stderr of the last child, cut
}

var _ invoke.Exec = (*childExec)(nil)

// FindInPath looks in CNI_PATH only; a name with a slash is refused.
func (*childExec) FindInPath(plugin string, paths []string) (string, error) {
	return invoke.FindInPath(plugin, paths)
}

// ExecPlugin runs one command and returns the child's stdout.
func (c *childExec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	if err := failpoint.Hit("native-vmss.exec"); err != nil {
		return nil, err
	}
	// The death signal comes when the thread ends that started the child. A thread of our own for the whole process would cost an ADD a
	// millisecond: then each goroutine that waits for another is a switch of threads.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c.lastWords.Reset()
	stdout := &bytes.Buffer{}
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = environ
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Stdout = &limited{stdout, maxOutput}
	cmd.Stderr = io.MultiWriter(&limited{&c.lastWords, maxLastWords}, passedOn{os.Stderr})
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = pipeGrace
	err := cmd.Run()
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return stdout.Bytes(), nil
	}
	return nil, childError(err, stdout.Bytes())
}

// childError is the CNI error on the child's stdout, else what the system says of its end.
func childError(err error, stdout []byte) error {
	var e types.Error
	if json.Unmarshal(stdout, &e) == nil && e.Msg != "" {
		return &e
	}
	return fmt.Errorf("plugin failed without an error of its own: %w", err)
}

// passedOn never fails: what a child says is lost where nobody takes it (a runtime that died, a full disk), its work is not.
type passedOn struct{ w io.Writer }

func (p passedOn) Write(b []byte) (int, error) {
	_, _ = p.w.Write(b)
	return len(b), nil
}

// limited drops what goes beyond n bytes.
type limited struct {
	w io.Writer
	n int
}

func (l *limited) Write(p []byte) (int, error) {
	keep := min(len(p), l.n)
	l.n -= keep
	if _, err := l.w.Write(p[:keep]); err != nil {
		return 0, err
	}
	return len(p), nil
}
