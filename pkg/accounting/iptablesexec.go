package accounting

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/native-vmss/native-vmss/internal/boltfile"
	"github.com/native-vmss/native-vmss/internal/failpoint"
)

const (
	// lockWait bounds all waits of one change for the lock of iptables; the tool itself counts in whole seconds.
	lockWait  = 2 * time.Second
	lockPause = 50 * time.Millisecond
	// A grandchild that holds the pipes must not hold us after the child is gone.
	pipeGrace = 500 * time.Millisecond
	// maxWords is what an error text may quote.
	maxWords = 300
	// exitLocked is RESOURCE_PROBLEM of iptables (include/xtables.h); the nft flavour also ends so where the kernel refuses a change.
	exitLocked = 4
	// exitNoTable is VERSION_PROBLEM: the kernel has no such table.
	exitNoTable = 3
)

// legacyTables names the tables that the legacy flavour has in this namespace. Asking the tool would make them.
const legacyTables = "/proc/thread-self/net/ip_tables_names"

// tool is one flavour's pair of programs.
type tool struct {
	savePath, restorePath string

	mu            sync.Mutex // guards the rest
	known, legacy bool
}

func (t *tool) String() string { return t.savePath }

// findTool finds the first of these names in PATH.
func findTool(names ...string) (*tool, error) {
	for _, name := range names {
		save, err := exec.LookPath(name + "-save")
		restore, err2 := exec.LookPath(name + "-restore")
		if err == nil && err2 == nil {
			return &tool{savePath: save, restorePath: restore}, nil
		}
	}
	return nil, fmt.Errorf("%w: no %s-save and -restore in PATH", ErrUnavailable, names[0])
}

// isLegacy tells the flavours apart by the program's own name, and asks it where a wrapper hides that.
func (t *tool) isLegacy(ctx context.Context) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known {
		return t.legacy, nil
	}
	file, err := filepath.EvalSymlinks(t.savePath)
	switch base := filepath.Base(file); {
	case err == nil && strings.Contains(base, "legacy"):
		t.legacy = true
	case err == nil && strings.Contains(base, "nft"):
		t.legacy = false
	default:
		out, err := run(ctx, t.savePath, "", "-V")
		if err != nil {
			return false, err
		}
		t.legacy = !bytes.Contains(out, []byte("nf_tables"))
	}
	t.known = true
	return t.legacy, nil
}

// other is the flavour that isn't used and what it has, nil where it has nothing of ours. One that can't work here has nothing.
func (x *xtables) other(ctx context.Context) (*tool, table, error) {
	legacy, err := x.tool.isLegacy(ctx)
	if err != nil {
		return nil, nil, err
	}
	name := "iptables-nft"
	if !legacy {
		name = "iptables-legacy"
	}
	if !legacy && !hasLegacyTable() {
		return nil, nil, nil
	}
	t, err := findTool(name)
	var have table
	if err == nil {
		have, err = t.save(ctx)
	}
	if errors.Is(err, ErrUnavailable) {
		x.log.Debug("the other flavour of iptables is not looked at", "err", err)
		return nil, nil, nil
	}
	if err != nil || !have.ours() {
		return nil, nil, err
	}
	return t, have, nil
}

// incompatible is what the nft flavour says of a table that holds rules which aren't its own.
const incompatible = "is incompatible, use 'nft' tool"

// lockLegacy takes the lock that each change by the legacy flavour holds.
func lockLegacy(ctx context.Context) (*boltfile.Held, error) {
	path := os.Getenv("XTABLES_LOCKFILE")
	if path == "" {
		path = "/run/xtables.lock"
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	held, err := boltfile.LockShared(ctx, path)
	if errors.Is(err, boltfile.ErrBusy) {
		err = fmt.Errorf("%w: %w", ErrLocked, err)
	}
	return held, err
}

// hasLegacyTable reports whether the legacy flavour has a mangle table here.
func hasLegacyTable() bool {
	names, err := os.ReadFile(legacyTables)
	return err == nil && slices.Contains(strings.Fields(string(names)), "mangle")
}

// save reads the mangle table, without making one. The legacy flavour changes it in two steps, between which every counter is zero, and its
// save takes no lock: we do.
func (t *tool) save(ctx context.Context) (table, error) {
	legacy, err := t.isLegacy(ctx)
	if err != nil {
		return nil, err
	}
	if legacy && !hasLegacyTable() {
		return table{}, nil
	}
	if legacy {
		held, err := lockLegacy(ctx)
		if err != nil {
			return nil, err
		}
		defer held.Unlock()
	}
	out, err := run(ctx, t.savePath, "", "-c", "-t", "mangle")
	if err != nil {
		return nil, err
	}
	if bytes.Contains(out, []byte(incompatible)) { // then there is nothing else in the dump, and no error
		return nil, fmt.Errorf("%w: table mangle has what %s can't show", ErrUnavailable, t.savePath)
	}
	have, err := parseTable(out)
	if err != nil {
		return nil, fmt.Errorf("output of %s: %w", t.savePath, err)
	}
	return have, nil
}

// restore commits one text, all or nothing. It waits for the tool's lock, but not for ever.
func (t *tool) restore(ctx context.Context, text string) error {
	until := time.Now().Add(lockWait)
	for left := lockWait; ; {
		wait := strconv.Itoa(int(left / time.Second))
		_, err := run(ctx, t.restorePath, text, "--noflush", "-c", "-w", wait)
		left = time.Until(until) - lockPause
		if !errors.Is(err, ErrLocked) || left < time.Second {
			return err
		}
		time.Sleep(lockPause)
	}
}

// run starts one program and returns what it prints; every start passes here. The child dies with us: a transaction is then done or
// not done, and none comes later.
func run(ctx context.Context, path, stdin string, args ...string) ([]byte, error) {
	if err := failpoint.Hit("accounting.iptables"); err != nil {
		return nil, err
	}
	// The death signal comes when the thread ends that started the child.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var out, words bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	cmd.Stdout, cmd.Stderr = &out, &words
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = pipeGrace
	err := cmd.Run()
	if err == nil {
		return out.Bytes(), nil
	}
	said := strings.Join(strings.Fields(words.String()), " ")
	said = said[:min(len(said), maxWords)]
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s: %w: %s", path, ctx.Err(), said)
	}
	return nil, fmt.Errorf("%s: %w: %s", path, classify(err, said), said)
}

// classify finds out what an end means.
func classify(err error, said string) error {
	var exit *exec.ExitError
	errors.As(err, &exit)
	switch {
	case errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case exit == nil:
		return err
	case exit.ExitCode() == exitNoTable, containsAny(said, "Table does not exist", "table does not exist", incompatible,
		"Failed to initialize nft", "can't open lock file", "Couldn't load match", "Couldn't load target"):
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case exit.ExitCode() == exitLocked && strings.Contains(said, "xtables lock"):
		return fmt.Errorf("%w: %w", ErrLocked, err)
	}
	return err
}

func containsAny(s string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(s, part) })
}

// isFinal is for errors that a new plan would meet again.
func isFinal(err error) bool {
	return errors.Is(err, ErrLocked) || errors.Is(err, ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, context.Canceled)
}
