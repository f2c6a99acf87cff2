package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/pkg/accounting"
	"github.com/native-vmss/native-vmss/pkg/accounting/export"
)

// asTop has this program be 'vmssctl top' over readings that a test wrote; its value is how the source behaves.
const asTop = "NVT_AS_TOP"

func TestMain(m *testing.M) {
	if how, is := os.LookupEnv(asTop); is {
		cmd := topCommand(func() (export.Source, func(), error) { return grows(how), func() {}, nil })
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		os.Exit(run(cmd))
	}
	os.Exit(m.Run())
}

// grows is a source of 60 pods, more than a screen has lines.
func grows(how string) export.Source {
	n := uint64(0)
	return func(context.Context) (accounting.Usage, error) {
		n++
		if how == "fails" && n > 1 {
			return accounting.Usage{}, errors.New("store unusable\x1b[2J")
		}
		u := accounting.Usage{Backend: accounting.NFTables, Node: traffic4(n*kB, n*kB, 0, 0)}
		for i := range 60 {
			name := fmt.Sprintf("web-7d4b9c6f5d-%05d\x1b[%d;1H", i, i)
			u.Pods = append(u.Pods, running("team-a", name, byte(i), traffic4(n*uint64(i)*kB, 0, n*kB, 0)))
		}
		u.Namespaces = []accounting.NamespaceUsage{{Namespace: "team-a", Samples: traffic4(n*60*kB, 0, n*60*kB, 0)}}
		return u, nil
	}
}

// terminal is a pseudo-terminal and the program that runs on it.
type terminal struct {
	t      *testing.T
	master *os.File
	slave  *os.File
	cmd    *exec.Cmd
	seen   chan string // all that was written since the last time
	out    strings.Builder
}

func newTerminal(t *testing.T, cols, rows uint16, how string, args ...string) *terminal {
	t.Helper()
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	master := os.NewFile(uintptr(fd), "/dev/ptmx")
	t.Cleanup(func() { _ = master.Close() })
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(filepath.Join("/dev/pts", fmt.Sprint(number)), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = slave.Close() })
	term := &terminal{t: t, master: master, slave: slave, seen: make(chan string)}
	term.resize(cols, rows)
	term.cmd = exec.Command("/proc/self/exe", args...)
	term.cmd.Env = append(os.Environ(), asTop+"="+how, "TERM=xterm")
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = slave, slave, slave
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = term.cmd.Process.Kill() })
	go func() {
		defer close(term.seen)
		buf := make([]byte, 64<<10)
		for {
			n, err := master.Read(buf)
			if n > 0 {
				term.seen <- string(buf[:n])
			}
			if err != nil {
				return
			}
		}
	}()
	return term
}

func (term *terminal) resize(cols, rows uint16) {
	term.t.Helper()
	if err := unix.IoctlSetWinsize(int(term.slave.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols}); err != nil {
		term.t.Fatal(err)
	}
}

// until reads until the program has written that.
func (term *terminal) until(what string) string {
	term.t.Helper()
	start := term.out.Len()
	for !strings.Contains(term.out.String()[start:], what) {
		select {
		case s, open := <-term.seen:
			if !open {
				term.t.Fatalf("ended without %q: %q", what, term.out.String())
			}
			term.out.WriteString(s)
		case <-time.After(time.Minute):
			term.t.Fatalf("no %q: %q", what, term.out.String())
		}
	}
	return term.out.String()[start:]
}

// end waits for the program's end and returns all that it wrote.
func (term *terminal) end() (string, error) {
	term.t.Helper()
	done := make(chan error, 1)
	go func() { done <- term.cmd.Wait() }()
	for {
		select {
		case s := <-term.seen:
			term.out.WriteString(s)
		case err := <-done:
			// Our own end of the slave keeps the terminal open: what is still on its way is less than a buffer.
			_ = term.slave.Close()
			for s := range term.seen {
				term.out.WriteString(s)
			}
			return term.out.String(), err
		case <-time.After(time.Minute):
			term.t.Fatal("it doesn't end")
		}
	}
}

// frames are the pictures that were drawn, each as lines, and what came before the first and after the last.
func frames(out string) [][]string {
	out = strings.ReplaceAll(out, "\r\r\n", "\r\n") // the kernel's own
	var all [][]string
	for _, picture := range strings.Split(out, cursorHome)[1:] {
		picture, _, _ = strings.Cut(picture, leaveScreen)
		picture, _, _ = strings.Cut(picture, "\r\n"+clearBelow)
		all = append(all, strings.Split(picture, "\r\n"))
	}
	return all
}

// fits tells whether pictures stay inside the terminal.
func fits(t *testing.T, pictures [][]string, cols, rows int) {
	t.Helper()
	for _, lines := range pictures {
		if len(lines) > rows {
			t.Errorf("%d lines on a terminal of %d", len(lines), rows)
		}
		for _, line := range lines {
			text, cleared := strings.CutPrefix(line, clearLine)
			if !cleared || len([]rune(text)) > cols || strings.ContainsAny(text, "\x1b\r\n\x00") {
				t.Errorf("line of %d characters on a terminal of %d: %q", len([]rune(text)), cols, line)
			}
		}
	}
}

func termios(t *testing.T, f *os.File) unix.Termios {
	t.Helper()
	state, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	if err != nil {
		t.Fatal(err)
	}
	return *state
}

// On a terminal each frame takes the place of the one before, fits, and Ctrl-C gives the screen back as it was.
func TestScreen_interrupted(t *testing.T) {
	term := newTerminal(t, 80, 24, "works", "--interval", "1s")
	before := termios(t, term.slave)
	term.until(firstReading)
	term.until("1.0s  bit/s")
	term.until("… ")
	if diff := cmp.Diff(before, termios(t, term.slave)); diff != "" {
		t.Errorf("the terminal's modes changed: %s", diff)
	}
	if _, err := io.WriteString(term.master, "\x03"); err != nil { // Ctrl-C
		t.Fatal(err)
	}
	out, err := term.end()
	if err != nil {
		t.Errorf("Ctrl-C: %v", err)
	}
	if !strings.HasPrefix(out, enterScreen) || !strings.HasSuffix(out, leaveScreen) || strings.Count(out, enterScreen)+strings.Count(out, leaveScreen) != 2 {
		t.Errorf("the screen was not given back: %q", out)
	}
	fits(t, frames(strings.ReplaceAll(out, "^C", "")), 80, 24)
}

// Each way to end gives the screen back.
func TestScreen_ends(t *testing.T) {
	t.Run("iterations", func(t *testing.T) {
		out, err := newTerminal(t, 40, 10, "works", "--interval", "1s", "-n", "1").end()
		if err != nil || !strings.HasPrefix(out, enterScreen) || !strings.HasSuffix(out, leaveScreen) {
			t.Errorf("%v: %q", err, out)
		}
		fits(t, frames(out), 40, 10)
	})
	t.Run("error", func(t *testing.T) {
		out, err := newTerminal(t, 80, 24, "fails", "--interval", "1s", "-n", "2").end()
		text, _, left := strings.Cut(out, leaveScreen)
		if err == nil || !left || !strings.Contains(text, "vmssctl: store unusable?[2J") {
			t.Errorf("%v: %q", err, out)
		}
		// What is said at the end is said on the screen that stays.
		if !strings.HasPrefix(out[len(text)+len(leaveScreen):], "vmssctl: store unusable") {
			t.Errorf("after the screen was given back: %q", out[len(text):])
		}
	})
	t.Run("terminated", func(t *testing.T) {
		term := newTerminal(t, 80, 24, "works")
		term.until("NAMESPACE")
		if err := term.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if out, err := term.end(); err != nil || !strings.HasSuffix(out, leaveScreen) {
			t.Errorf("%v: %q", err, out)
		}
	})
	t.Run("wrong key", func(t *testing.T) {
		if out, err := newTerminal(t, 80, 24, "works", "--sort", "size").end(); err == nil || strings.Contains(out, "\x1b") {
			t.Errorf("%v: %q", err, out)
		}
	})
}

// A terminal that changes its size is drawn anew at once.
func TestScreen_resized(t *testing.T) {
	term := newTerminal(t, 80, 24, "works", "--interval", "1h")
	term.until("… ")
	term.resize(30, 12)
	second := term.until(cursorHome)
	_ = term.cmd.Process.Signal(syscall.SIGTERM)
	out, err := term.end()
	if err != nil {
		t.Error(err)
	}
	pictures := frames(out)
	if len(pictures) != 2 {
		t.Fatalf("%d pictures: %q", len(pictures), second)
	}
	fits(t, pictures[:1], 80, 24)
	fits(t, pictures[1:], 30, 12)
}

// Where there is no terminal, or one that can do nothing, no sequence is sent.
func TestScreen_none(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "-n", "1", "--interval", "1s")
	cmd.Env = append(os.Environ(), asTop+"=works", "TERM=xterm")
	out, err := cmd.CombinedOutput()
	if err != nil || strings.ContainsAny(string(out), "\x1b\r") || strings.Count(string(out), "\n") < 60 {
		t.Errorf("%v: %q", err, out)
	}
	term := newTerminal(t, 80, 24, "works", "-n", "1", "--interval", "1s", "-o", "json")
	if text, err := term.end(); err != nil || strings.Contains(text, enterScreen) {
		t.Errorf("json: %v: %q", err, text)
	}
}
