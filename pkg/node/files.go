package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/native-vmss/native-vmss/internal/boltfile"
	"github.com/native-vmss/native-vmss/internal/failpoint"
)

// What this package does to the file system, one function each. Each is a failpoint, and the linter bans the calls in them everywhere
// else.

const (
	dropInMode    = 0o644
	dropInDirMode = 0o755
)

func makeDir(path string, mode os.FileMode) error {
	if err := failpoint.Hit("node.mkdir"); err != nil {
		return err
	}
	return os.MkdirAll(path, mode)
}

// writeNote is for what nobody needs whole.
func writeNote(in *boltfile.Held, text string) error {
	if err := failpoint.Hit("node.write"); err != nil {
		return err
	}
	return in.SetNote(text)
}

// readRegular never waits: a pipe may stand where a file is looked for, and nobody may write to it.
func readRegular(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("read %s: not a regular file (%s)", path, info.Mode())
	}
	return os.ReadFile(path)
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
