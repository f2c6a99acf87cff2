package procfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestProcfile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "value")
	if err := os.WriteFile(path, []byte("12\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, "7"); err != nil {
		t.Error(err)
	}
	if b, err := Read(path); err != nil || string(b) != "72\n" { // neither truncated nor made anew
		t.Errorf("%q, %v", b, err)
	}
	if b, err := Read("/proc/sys/kernel/random/boot_id"); err != nil || len(b) != 37 {
		t.Errorf("%q, %v", b, err)
	}
}

func TestProcfile_errors(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "none")
	_, err := Read(missing)
	for _, err := range []error{err, Write(missing, "1")} {
		if !errors.Is(err, fs.ErrNotExist) || err.Error() != "open "+missing+": no such file or directory" {
			t.Errorf("error %v", err)
		}
	}
	if err := Write("/proc/self/stat", "1"); !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EIO) && !errors.Is(err, fs.ErrPermission) {
		t.Errorf("error %v", err)
	}
	if _, err := Read(filepath.Dir(missing)); !errors.Is(err, unix.EISDIR) {
		t.Errorf("error %v", err)
	}
}
