package plugin

import (
	"io"
	"log/slog"
	"os"
	"slices"
	"syscall"

	"github.com/native-vmss/native-vmss/pkg/node"
)

const logMode = 0o640

// standard are the names that people give standard error by.
var standard = []string{"-", "stderr", "stdout"}

// Logger writes text to the configured file, else to stderr. Standard output belongs to the result, so a file that is it, by
// whatever name, means stderr; one that can't be used never fails a command.
func Logger(l node.Log) *slog.Logger {
	target := logTarget(l.File)
	log := slog.New(slog.NewTextHandler(target, &slog.HandlerOptions{Level: l.Level}))
	if target == os.Stderr && l.File != "" && !slices.Contains(standard, l.File) {
		log.Warn("log.file can't be used, logging to standard error", "file", l.File)
	}
	return log
}

func logTarget(path string) io.Writer {
	if path == "" || slices.Contains(standard, path) {
		return os.Stderr
	}
	// Without O_NONBLOCK a named pipe that nobody reads would hold the command up for ever.
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY|syscall.O_NONBLOCK, logMode) //nolint:forbidigo // a log is no state
	if err != nil {
		return os.Stderr
	}
	if !usable(f) {
		_ = f.Close()
		return os.Stderr
	}
	return f // the process ends soon; the kernel closes it
}

// usable refuses what would block when it is full, and standard output under another name: a link to /dev/stdout, or the file
// that the caller sends our result to.
func usable(f *os.File) bool {
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() && info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	out, err := os.Stdout.Stat()
	return err != nil || !os.SameFile(info, out)
}
