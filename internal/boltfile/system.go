package boltfile

import (
	"os"
	"path/filepath"

	bolt "go.etcd.io/bbolt"

	"github.com/native-vmss/native-vmss/internal/failpoint"
)

// What this package does to the file system, one function each beside sysLock. Each is a failpoint, and the linter bans the calls in
// them everywhere else.

// commit is the one place where a transaction becomes real.
func commit(tx *bolt.Tx) error {
	if err := failpoint.Hit("boltfile.commit"); err != nil {
		return err
	}
	return tx.Commit()
}

// openFile opens a file; one that it may make passes the failpoint.
func openFile(path string, flag int, mode os.FileMode) (*os.File, error) {
	if flag&os.O_CREATE != 0 {
		if err := failpoint.Hit("boltfile.create"); err != nil {
			return nil, err
		}
	}
	return os.OpenFile(path, flag, mode)
}

func makeDir(path string) error {
	if err := failpoint.Hit("boltfile.mkdir"); err != nil {
		return err
	}
	return os.MkdirAll(path, dirMode)
}

func remove(path string) error {
	if err := failpoint.Hit("boltfile.remove"); err != nil {
		return err
	}
	return os.Remove(path)
}

// rename is the one place where a store changes its name. On a disk the directory is synced, or a crash could bring the old
// name back.
func rename(from, to string) error {
	if err := failpoint.Hit("boltfile.rename"); err != nil {
		return err
	}
	if err := os.Rename(from, to); err != nil {
		return err
	}
	dir := filepath.Dir(to)
	if inMemory(dir) {
		return nil
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	return d.Sync()
}
