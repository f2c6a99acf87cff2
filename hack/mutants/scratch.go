package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"
)

// commandLimit ends a build or a test that hangs.
const commandLimit = 10 * time.Minute

// scratch is a clone of HEAD that is thrown away.
type scratch struct {
	dir   string
	green map[string]error // build and test command -> its result on the unchanged tree
}

// newScratch clones HEAD. What isn't committed isn't in it, so it says so.
func newScratch(ctx context.Context) (*scratch, error) {
	dirty, err := command(ctx, ".", "git", "status", "--porcelain", "--untracked-files=no")
	if err != nil {
		return nil, err
	}
	if len(dirty) > 0 {
		fmt.Println("note: mutants run on HEAD, changes that are not committed are left out")
	}
	tmp, err := os.MkdirTemp("", "nvt-mutants-")
	if err != nil {
		return nil, err
	}
	s := &scratch{dir: tmp, green: map[string]error{}}
	if _, err := command(ctx, ".", "git", "clone", "--quiet", "--shared", ".", tmp); err != nil {
		s.remove()
		return nil, err
	}
	return s, nil
}

func (s *scratch) remove() { _ = os.RemoveAll(s.dir) }

// mark sets each mutant's fingerprint and whether it is to be run.
func (s *scratch) mark(ctx context.Context, mutants []*mutant, rec record, o options) error {
	changed := s.changed(ctx, o.base)
	for _, m := range mutants {
		files, err := command(ctx, s.dir, "git", append([]string{"ls-files", "--stage", "--"}, m.watched...)...)
		if err != nil {
			return err
		}
		m.print = fmt.Sprintf("%.8x", sha256.Sum256(append(files, m.text...)))
		touched := slices.ContainsFunc(m.patched, func(d string) bool { return slices.Contains(changed, d) })
		m.selected = !o.due || touched || rec[m.name].print != m.print
	}
	return nil
}

// changed lists the folders with changes since base. Where base is unknown (a shallow clone, the first commit) it lists none:
// the fingerprints still tell what changed since a mutant was last red.
func (s *scratch) changed(ctx context.Context, base string) []string {
	if base == "" {
		base = "HEAD~1"
	}
	out, err := command(ctx, s.dir, "git", "diff", "--name-only", base, "HEAD")
	if err != nil {
		fmt.Printf("note: no changes since %s are known\n", base)
		return nil
	}
	var folders []string
	for file := range strings.Lines(string(out)) {
		folders = append(folders, path.Dir(strings.TrimSpace(file)))
	}
	return unique(folders)
}

// try returns nil if the mutant's test is red, and what is wrong otherwise.
func (s *scratch) try(ctx context.Context, m *mutant, baseline bool) error {
	if baseline {
		if err := s.baseline(ctx, m); err != nil {
			return err
		}
	}
	defer s.reset()
	if _, err := command(ctx, s.dir, "git", "apply", "--recount", m.file); err != nil {
		return fmt.Errorf("patch doesn't apply: %w", err)
	}
	if _, err := command(ctx, s.dir, "go", "build", "./..."); err != nil {
		return fmt.Errorf("doesn't compile: %w", err)
	}
	out, err := s.test(ctx, m)
	var failed *testError
	switch {
	case err == nil && bytes.Contains(out, []byte("no tests to run")):
		return fmt.Errorf("no such test: %s", m.test)
	case err == nil:
		return fmt.Errorf("test stays green: %s", m.test)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &failed):
		return m.judge(out)
	}
	return err
}

// baseline runs a mutant's test on the unchanged tree, once for all mutants that share it.
func (s *scratch) baseline(ctx context.Context, m *mutant) error {
	key := m.build + "\x00" + m.test
	if _, done := s.green[key]; !done {
		_, err := s.test(ctx, m)
		s.green[key] = err
		s.reset()
	}
	if err := s.green[key]; err != nil {
		return fmt.Errorf("red without the mutant: %w", err)
	}
	return nil
}

// testError is a test command that ran and failed.
type testError struct{ err error }

func (e *testError) Error() string { return e.err.Error() }

func (s *scratch) test(ctx context.Context, m *mutant) ([]byte, error) {
	if m.build != "" {
		if _, err := command(ctx, s.dir, "bash", "-c", m.build); err != nil {
			return nil, fmt.Errorf("build: %w", err)
		}
	}
	out, err := command(ctx, s.dir, "bash", "-c", m.test)
	if err != nil {
		return out, &testError{err}
	}
	return out, nil
}

// reset undoes a mutant, and what its build and test left in the tree (bin/ included: its binaries are wrong).
func (s *scratch) reset() {
	ctx := context.Background() // also after an interrupt
	for _, args := range [][]string{{"reset", "--quiet", "--hard"}, {"clean", "--quiet", "-ffdx"}} {
		if _, err := command(ctx, s.dir, "git", args...); err != nil {
			panic(err) // the next mutant would run on a tree that nobody knows
		}
	}
}

// command runs a program in its own process group, so that the limit ends all that it started, and returns both outputs.
func command(ctx context.Context, dir, name string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "NETNS_REQUIRED=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		return out, fmt.Errorf("%s: %w%s", strings.Join(append([]string{name}, args...), " "), err, tail(out))
	}
	return out, nil
}
