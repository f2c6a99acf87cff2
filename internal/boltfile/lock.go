package boltfile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/failpoint"
)

// Modes of what is made in the state directory.
const (
	dirMode  = 0o700
	fileMode = 0o600
)

// Held is a lock that was taken. It ends with Unlock, or with the process.
type Held struct{ file *os.File }

// Unlock gives the lock back. Closing the descriptor is the unlock: nothing else in this process shares its description.
func (h *Held) Unlock() {
	if h != nil {
		_ = h.file.Close()
	}
}

// noteSize bounds what a lock's file may hold for those to come.
const noteSize = 64

// Note is the text that an earlier holder left in the file; "" where there is none.
func (h *Held) Note() string {
	b := make([]byte, noteSize)
	n, _ := h.file.ReadAt(b, 0) // io.EOF, for it is shorter
	return string(b[:n])
}

// SetNote leaves a text in the file, in the place of the last one.
func (h *Held) SetNote(text string) error {
	if err := h.file.Truncate(0); err != nil {
		return err
	}
	_, err := h.file.WriteAt([]byte(text), 0)
	return err
}

// kind is one way of locking a file: the two calls, and how to find who holds it.
type kind struct {
	writable bool               // the kernel wants a descriptor that can write
	try      func(fd int) error // EWOULDBLOCK, EAGAIN or EACCES: somebody else has it
	wait     func(fd int) error // blocks in the kernel's queue
	holder   func(f *os.File) string
}

// Lock takes the exclusive lock of the file at path, which it makes when there is none.
func Lock(ctx context.Context, path string) (*Held, error) {
	return acquire(ctx, path, flock(unix.LOCK_EX))
}

// LockShared takes the shared lock of the file at path.
func LockShared(ctx context.Context, path string) (*Held, error) {
	return acquire(ctx, path, flock(unix.LOCK_SH))
}

// TryLock takes the exclusive lock of the file at path if nobody has it now.
func TryLock(path string) (*Held, bool, error) {
	how := flock(unix.LOCK_EX)
	for {
		f, err := openLock(path, how.writable)
		if err != nil {
			return nil, false, err
		}
		if err := sysLock(f, how.try); err != nil {
			_ = f.Close()
			if wouldBlock(err) {
				return nil, false, nil
			}
			return nil, false, unusable("lock", path, err)
		}
		if current(f, path) {
			return &Held{f}, true, nil
		}
		_ = f.Close()
	}
}

// LockRange takes the exclusive lock of one byte of the file at path. Locks of different offsets don't wait for each other, so
// one file serves any number of containers. The lock belongs to the open description (OFD), not to the process.
func LockRange(ctx context.Context, path string, offset int64) (*Held, error) {
	return acquire(ctx, path, byteRange(offset))
}

func flock(mode int) kind {
	return kind{
		try:    func(fd int) error { return unix.Flock(fd, mode|unix.LOCK_NB) },
		wait:   func(fd int) error { return unix.Flock(fd, mode) },
		holder: flockHolder,
	}
}

func byteRange(offset int64) kind {
	call := func(cmd int) func(int) error {
		return func(fd int) error {
			l := unix.Flock_t{Type: unix.F_WRLCK, Whence: int16(io.SeekStart), Start: offset, Len: 1}
			return unix.FcntlFlock(uintptr(fd), cmd, &l)
		}
	}
	return kind{
		writable: true,

		try:    call(unix.F_OFD_SETLK),
		wait:   call(unix.F_OFD_SETLKW),
		holder: func(f *os.File) string { return rangeHolder(f, offset) },
	}
}

// acquire locks the file that path names at the moment the lock is held: a file that was deleted or replaced while we waited
// guards nothing, since others lock the new one.
func acquire(ctx context.Context, path string, how kind) (*Held, error) {
	for {
		f, err := openLock(path, how.writable)
		if err != nil {
			return nil, err
		}
		if err := lockFile(ctx, f, how); err != nil {
			if errors.Is(err, ErrBusy) {
				return nil, fmt.Errorf("lock %s: %w", path, err)
			}
			return nil, unusable("lock", path, err)
		}
		if current(f, path) {
			return &Held{f}, nil
		}
		_ = f.Close()
	}
}

// lockFile locks f or closes it. The wait is a blocking system call that nothing can cancel, so a waiter that gives up leaves
// it to its goroutine, which closes the file as soon as the kernel hands it the lock: a lock never outlives the interest in it.
func lockFile(ctx context.Context, f *os.File, how kind) error {
	err := sysLock(f, how.try)
	if err == nil {
		return nil
	}
	if !wouldBlock(err) {
		_ = f.Close()
		return err
	}
	done := make(chan error) // unbuffered: the lock is either received or closed, never lost in between
	abandoned := make(chan struct{})
	go func() {
		err := sysLock(f, how.wait)
		select {
		case done <- err:
		case <-abandoned:
			_ = f.Close()
		}
	}()
	select {
	case err := <-done:
		if err != nil {
			_ = f.Close()
		}
		return err
	case <-ctx.Done():
		busy := fmt.Errorf("%w: %w; held by %s", ErrBusy, ctx.Err(), how.holder(f))
		close(abandoned)
		return busy
	}
}

// sysLock is the one place where a lock is taken.
func sysLock(f *os.File, call func(fd int) error) error {
	if err := failpoint.Hit("boltfile.lock"); err != nil {
		return err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	// RawConn keeps the descriptor from being closed and reused by another goroutine during the call.
	var lockErr error
	if err := raw.Control(func(fd uintptr) {
		for {
			if lockErr = call(int(fd)); !errors.Is(lockErr, unix.EINTR) {
				return
			}
		}
	}); err != nil {
		return err
	}
	return lockErr
}

func wouldBlock(err error) bool {
	return errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EACCES)
}

// Whatever stands in a lock's place, opening it neither waits nor leads elsewhere.
const lockFlags = unix.O_NOFOLLOW | unix.O_NONBLOCK

// openLock opens the lock file, making it and its directory when they are missing. On a read-only file system an existing one
// can still be locked by flock, so that readers work there.
func openLock(path string, writable bool) (*os.File, error) {
	if err := checkDir(filepath.Dir(path)); err != nil {
		return nil, unusable("open lock", path, err)
	}
	f, err := openFile(path, os.O_RDWR|lockFlags, fileMode)
	if errors.Is(err, fs.ErrNotExist) {
		f, err = openFile(path, os.O_RDWR|os.O_CREATE|lockFlags, fileMode)
	}
	if errors.Is(err, fs.ErrNotExist) {
		if err = makeDir(filepath.Dir(path)); err == nil {
			f, err = openFile(path, os.O_RDWR|os.O_CREATE|lockFlags, fileMode)
		}
	}
	if errors.Is(err, unix.EROFS) && !writable {
		f, err = openFile(path, os.O_RDONLY|lockFlags, fileMode)
	}
	if err == nil {
		err = checkLock(f)
	}
	if errors.Is(err, unix.ELOOP) {
		err = errors.New("is a symbolic link")
	}
	if err != nil {
		return nil, unusable("open lock", path, err)
	}
	return f, nil
}

// checkLock closes a lock that is refused.
func checkLock(f *os.File) error {
	info, err := f.Stat()
	if err == nil {
		err = checkFile(info)
	}
	if err != nil {
		_ = f.Close()
	}
	return err
}

// current reports whether path still names the file that was locked.
func current(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(path)
	return err == nil && os.SameFile(mine, named)
}

// unusable wraps what the machine refused, with the path it was about.
func unusable(op, path string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err // the path is named once
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return fmt.Errorf("%w: %s %s: %w", ErrUnusable, op, path, errno)
	}
	return fmt.Errorf("%w: %s %s: %w", ErrUnusable, op, path, err)
}
