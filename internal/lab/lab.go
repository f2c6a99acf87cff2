package lab

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
)

// TB is what the lab needs of a test; *testing.T, *testing.B and *testing.F have it.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Logf(format string, args ...any)
}

// Options of a lab. The zero value is good.
type Options struct {
	// ID is part of every name, so that labs can stand side by side; empty draws one. Lower-case letters and digits.
	ID string
	// Log gets what goes wrong in the background; nil discards it.
	Log *slog.Logger
}

// Lab owns namespaces, nodes and processes.
type Lab struct {
	// ID is the middle part of the names of the lab's namespaces.
	ID string
	// Dir is a directory for files of this lab; Close removes it.
	Dir string

	log     *slog.Logger
	janitor *janitor

	mu     sync.Mutex
	closed bool
	spaces []*Namespace
	undo   []func() error // run by Close, last first, before the namespaces go
}

var (
	validID   = regexp.MustCompile(`^[a-z0-9]{1,12}$`)
	errClosed = errors.New("lab is closed")
)

// NewID draws the id of a lab.
func NewID() string {
	b := make([]byte, 3)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

// New makes an empty lab.
func New(o Options) (*Lab, error) {
	if o.ID == "" {
		o.ID = NewID()
	}
	if !validID.MatchString(o.ID) {
		return nil, fmt.Errorf("lab id %q: want %s", o.ID, validID)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	dir, err := os.MkdirTemp("", "nvt-"+o.ID+"-")
	if err != nil {
		return nil, err
	}
	l := &Lab{ID: o.ID, Dir: dir, log: o.Log}
	if l.janitor, err = startJanitor(l.prefix(), dir); err != nil {
		o.Log.Warn("no janitor: an interrupted lab will leave its namespaces", "lab", o.ID, "error", err)
	}
	return l, nil
}

// ForTest makes a lab that ends with the test.
func ForTest(t TB) *Lab {
	t.Helper()
	l, err := New(Options{})
	if err != nil {
		t.Fatalf("make lab: %v", err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Logf("close lab %s: %v", l.ID, err)
		}
	})
	return l
}

func (l *Lab) prefix() string { return namePrefix(l.ID) }

func namePrefix(id string) string { return "nvt-" + id + "-" }

// Defer has f run by Close, before the namespaces are removed; last in, first out.
func (l *Lab) Defer(f func() error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.undo = append(l.undo, f)
}

// adopt makes the lab responsible for n.
func (l *Lab) adopt(n *Namespace) error {
	l.mu.Lock()
	closed := l.closed
	if !closed {
		l.spaces = append(l.spaces, n)
	}
	l.mu.Unlock()
	if closed {
		return errors.Join(errClosed, n.Close())
	}
	return nil
}

func (l *Lab) forget(n *Namespace) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.spaces = slices.DeleteFunc(l.spaces, func(o *Namespace) bool { return o == n })
}

// Close ends every process of the lab and removes all that it made. It may be called again and from a signal's goroutine.
func (l *Lab) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	undo, spaces := l.undo, slices.Clone(l.spaces)
	l.mu.Unlock()

	var errs []error
	for _, f := range slices.Backward(undo) {
		errs = append(errs, f())
	}
	errs = append(errs, killInside(spaces))
	for _, n := range slices.Backward(spaces) {
		errs = append(errs, n.Close())
	}
	errs = append(errs, Sweep(l.ID), os.RemoveAll(l.Dir))
	l.janitor.dismiss()
	return errors.Join(errs...)
}

// Sweep ends containers and removes names that a lab of this id left behind, and those only.
func Sweep(id string) error {
	if !validID.MatchString(id) {
		return fmt.Errorf("lab id %q: want %s", id, validID)
	}
	left, err := filepath.Glob(filepath.Join(netnsDir, namePrefix(id)+"*"))
	if err != nil {
		return err
	}
	errs := []error{removeCgroups(cgroupName(id))}
	for _, path := range left {
		errs = append(errs, removeName(path))
	}
	return errors.Join(errs...)
}
