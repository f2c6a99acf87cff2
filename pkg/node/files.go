package node

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/native-vmss/native-vmss/internal/failpoint"
)

// What this package does to the file system, one function each. Each is a failpoint, and the linter bans the calls in them everywhere
// else.

const (
	stateFileMode = 0o600
	dropInMode    = 0o644
	dropInDirMode = 0o755
)

func makeDir(path string, mode os.FileMode) error {
	if err := failpoint.Hit("node.mkdir"); err != nil {
		return err
	}
	return os.MkdirAll(path, mode)
}

// writeInPlace is for what nobody needs whole.
func writeInPlace(path, text string) error {
	if err := failpoint.Hit("node.write"); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), stateFileMode)
}

// writeWhole never shows half a file: whoever boots with it reads all or nothing.
func writeWhole(path, text string) error {
	if err := makeDir(filepath.Dir(path), dropInDirMode); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".native-vmss-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already when all went well
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Chmod(dropInMode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := failpoint.Hit("node.rename"); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

func removeFile(path string) error {
	if err := failpoint.Hit("node.remove"); err != nil {
		return err
	}
	return os.Remove(path)
}
