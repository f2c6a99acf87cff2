package plugin

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/native-vmss/native-vmss/pkg/node"
)

// Standard output belongs to the result, whatever the file is called.
func TestLogTarget_stderr(t *testing.T) {
	dir := t.TempDir()
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := os.Symlink("/proc/self/fd/1", link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"", "-", "stderr", "stdout", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/proc/thread-self/fd/1",
		fmt.Sprintf("/proc/%d/fd/1", os.Getpid()), "/dev/../dev/stdout", "//dev/stdout", link,
		dir, filepath.Join(dir, "no", "such", "directory"), fifo, "/proc/version/x",
	} {
		if got := logTarget(path); got != os.Stderr {
			t.Errorf("logTarget(%q) isn't stderr", path)
		}
	}
}

// A caller may send our result to a file, and a reader of a pipe may never read.
func TestLogTarget_openElsewhere(t *testing.T) {
	dir := t.TempDir()
	file, fifo := filepath.Join(dir, "result"), filepath.Join(dir, "fifo")
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	old := os.Stdout
	os.Stdout = out
	defer func() { os.Stdout = old }()
	if got := logTarget(file); got != os.Stderr {
		t.Error("the file of the result is taken for the log")
	}
	if err = syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	idle, err := os.OpenFile(fifo, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	if got := logTarget(fifo); got != os.Stderr {
		t.Error("a pipe that nobody reads is taken for the log")
	}
}

func TestLogger_file(t *testing.T) {
	path := filepath.Join(t.TempDir(), "nv.log")
	for range 2 { // appends
		log := Logger(node.Log{Level: slog.LevelInfo, File: path})
		log.Debug("hidden")
		log.Info("shown", "addr", "10.20.0.10")
	}
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "msg=shown addr=10.20.0.10\n") != 2 || strings.Contains(string(text), "hidden") {
		t.Errorf("%v\n%s", err, text)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&0o007 != 0 {
		t.Errorf("%v, mode %v", err, info.Mode())
	}
}
