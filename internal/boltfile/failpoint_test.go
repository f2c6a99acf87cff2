//go:build failpoint

package boltfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each point fails once; afterwards the store is what it was, and nothing is left beside it.
func TestFile_failpoints(t *testing.T) {
	for _, point := range []string{"boltfile.lock", "boltfile.commit"} {
		t.Run(point, func(t *testing.T) {
			s := newStore(t, t.TempDir(), nil)
			s.mustPut("a", "1")
			failNext(t, point)
			err := s.put("a", "2")
			if !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), point) {
				t.Errorf("error is %v, want ErrUnusable from %s", err, point)
			}
			t.Setenv("NVT_FAILPOINT", "")
			if v, err := s.get("a"); v != "1" || err != nil {
				t.Errorf("get: %q, %v", v, err)
			}
			s.mustPut("a", "3")
			s.wantRebuilds(ReasonMissing)
		})
	}
}

func TestFile_failpointsInRebuild(t *testing.T) {
	for _, point := range []string{"boltfile.commit", "boltfile.rename"} {
		for _, content := range []string{"", "damaged"} {
			t.Run(point+" "+content, func(t *testing.T) {
				s := newStore(t, t.TempDir(), nil)
				must(t, os.WriteFile(s.opt.Path, []byte(content), 0o600))
				failNext(t, point)
				if err := s.put("a", "1"); !errors.Is(err, ErrUnusable) {
					t.Errorf("error is %v, want ErrUnusable", err)
				}
				if f := s.files("*.new"); len(f) > 0 {
					t.Errorf("left %v", f)
				}
				t.Setenv("NVT_FAILPOINT", "")
				s.mustPut("a", "1")
				if v, err := s.get("a"); v != "1" || err != nil {
					t.Errorf("get: %q, %v", v, err)
				}
			})
		}
	}
}

// trace has a line for each hit of this process; the n-th hit of a point is the one that can be made to fail.
var trace = func() string {
	path := filepath.Join(os.TempDir(), fmt.Sprint("nvt-boltfile-trace-", os.Getpid()))
	if os.Getenv(envHold) == "" { // holders are children: their hits don't count here
		_ = os.Setenv("NVT_FAILPOINT_TRACE", path)
		atEnd = func() { _ = os.Remove(path) }
	}
	return path
}()

// failNext makes the coming hit of a point fail.
func failNext(t *testing.T, point string) {
	t.Helper()
	b, _ := os.ReadFile(trace)
	t.Setenv("NVT_FAILPOINT", fmt.Sprintf("%s=error#%d", point, strings.Count(string(b), point+"\n")+1))
}
