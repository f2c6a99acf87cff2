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
	if info.Mode().Perm()&writableByOthers != 0 {
		return fmt.Errorf("mode %#o lets others write it, want %#o", info.Mode().Perm(), fileMode)
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if ok && int(st.Uid) != os.Geteuid() && st.Uid != 0 {
		return fmt.Errorf("owned by uid %d, we are %d", st.Uid, os.Geteuid())
	}
	return nil
}
