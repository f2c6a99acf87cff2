package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// Cmd is an exec.Cmd whose program runs inside a namespace. Use its own Start, Wait, Run, Output and CombinedOutput.
type Cmd struct {
	*exec.Cmd

	space *Namespace
	enter func() error
	free  chan struct{} // closed when the thread that started the program may end
	once  sync.Once
}

func newCmd(ctx context.Context, n *Namespace, enter func() error, path string, args []string) *Cmd {
	cmd := exec.CommandContext(ctx, path, args...)
	// A group of its own: the end of the lab takes the program's children along.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return &Cmd{Cmd: cmd, space: n, enter: enter, free: make(chan struct{})}
}

// Start starts the program. The thread that forks it stays until Wait: Pdeathsig fires when that thread ends, not the process.
func (c *Cmd) Start() error {
	started := make(chan error, 1)
	go func() {
		_ = onThread(func() error {
			if err := c.enter(); err != nil {
				started <- err
				return nil
			}
			err := c.Cmd.Start()
			started <- err
			if err == nil {
				<-c.free
			}
			return nil
		})
	}()
	if err := <-started; err != nil {
		return err
	}
	c.space.mu.Lock()
	closed := c.space.closed
	if !closed {
		c.space.cmds[c] = struct{}{}
	}
	c.space.mu.Unlock()
	if closed {
		c.kill()
	}
	return nil
}

// Wait waits for the end of the program.
func (c *Cmd) Wait() error {
	err := c.Cmd.Wait()
	c.once.Do(func() { close(c.free) })
	c.space.mu.Lock()
	delete(c.space.cmds, c)
	c.space.mu.Unlock()
	return err
}

// Run starts the program and waits for its end.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the program and returns what it wrote to its standard output.
func (c *Cmd) Output() ([]byte, error) {
	var out, diag bytes.Buffer
	c.Stdout = &out
	if c.Stderr == nil {
		c.Stderr = &diag
	}
	err := c.Run()
	if err != nil && diag.Len() > 0 {
		err = fmt.Errorf("%s: %w: %s", filepath.Base(c.Path), err, strings.TrimSpace(diag.String()))
	}
	return out.Bytes(), err
}

// CombinedOutput runs the program and returns all that it wrote.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err := c.Run()
	return out.Bytes(), err
}

// kill ends the program and the group that it leads.
func (c *Cmd) kill() {
	if c.Process != nil {
		_ = syscall.Kill(-c.Process.Pid, syscall.SIGKILL)
	}
	c.once.Do(func() { close(c.free) })
}

// killInside ends every process, other than this one, that lives in one of the namespaces: grandchildren included.
func killInside(spaces []*Namespace) error {
	inodes := map[string]bool{}
	for _, n := range spaces {
		inodes[fmt.Sprintf("net:[%d]", n.inode)] = true
	}
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		return err
	}
	for _, link := range links {
		target, err := os.Readlink(link)
		if err != nil || !inodes[target] {
			continue // gone meanwhile, or not ours
		}
		pid, err := strconv.Atoi(strings.Split(link, "/")[2])
		if err != nil || pid == os.Getpid() {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill %d: %w", pid, err)
		}
	}
	return nil
}
