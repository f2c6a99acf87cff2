package boltfile

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"syscall"
)

// guard runs fn so that nothing the file contains can end the process: a fault in the mapping becomes a panic, a panic
// becomes damage. The panicked *bolt.DB is abandoned, since closing it may deadlock; only its file is closed, which gives back
// bbolt's lock on the inode.
func guard(fn func(file **os.File) error) (err error) {
	var file *os.File
	old := debug.SetPanicOnFault(true)
	defer debug.SetPanicOnFault(old)
	defer func() {
		if p := recover(); p != nil {
			if file != nil {
				_ = file.Close()
			}
			err = damage("panic: %v", p)
		}
	}()
	return fn(&file)
}

// writableByOthers are the mode bits that let somebody else change the store.
const writableByOthers = 0o022

// checkFile refuses what can't be the store: something else in its place, or a file that others own or may write.
func checkFile(info os.FileInfo) error {
	switch {
	case info.IsDir():
		return errors.New("is a directory")
	case !info.Mode().IsRegular():
		return fmt.Errorf("is not a regular file (%s)", info.Mode())
	}
	return checkOwner(info, info.Mode(), fileMode)
}

// checkDir refuses a directory in which others could put what they like in the place of the store or of a lock. One with the sticky
// bit, as a tmpfs has it, lets nobody do so. One that is missing can be made.
func checkDir(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.IsDir():
		return syscall.ENOTDIR
	}
	mode := info.Mode()
	if mode&os.ModeSticky != 0 {
		mode &^= writableByOthers
	}
	if err := checkOwner(info, mode, dirMode); err != nil {
		return fmt.Errorf("its directory: %w", err)
	}
	return nil
}

func checkOwner(info os.FileInfo, mode, want os.FileMode) error {
	if mode&writableByOthers != 0 {
		return fmt.Errorf("mode %#o lets others write it, want %#o", mode.Perm(), want)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if ok && int(st.Uid) != os.Geteuid() && st.Uid != 0 {
		return fmt.Errorf("owned by uid %d, we are %d", st.Uid, os.Geteuid())
	}
	return nil
}
