// Package procfile reads and writes the small files of /proc.
//
// Those under /proc/sys can be polled, so package os registers each with the runtime's poller, which wakes a thread for every one:
// half a dozen system calls and two switches of threads around one write, ten times in an ADD.
package procfile

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

// pageSize holds any file that this is for: the kernel gives a sysctl no more.
const pageSize = 4096

// Read returns what one read of the file gives.
func Read(path string) ([]byte, error) {
	fd, err := open(path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	b := make([]byte, pageSize)
	n, err := again(func() (int, error) { return unix.Read(fd, b) })
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	return b[:n], nil
}

// Write gives a file that is there its value in one write.
func Write(path, value string) error {
	fd, err := open(path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if _, err := again(func() (int, error) { return unix.Write(fd, []byte(value)) }); err != nil {
		return &fs.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

func open(path string, flag int) (int, error) {
	fd, err := again(func() (int, error) { return unix.Open(path, flag|unix.O_CLOEXEC, 0) })
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// again repeats what a signal interrupted; the runtime sends itself some.
func again(call func() (int, error)) (n int, err error) {
	for {
		if n, err = call(); err != unix.EINTR { //nolint:errorlint // a plain number of the kernel
			return n, err
		}
	}
}
