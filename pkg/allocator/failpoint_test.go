//go:build failpoint

package allocator

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A process that leases, sends, folds and ends is killed at each step that it takes, one after the other: nothing is counted twice or
// lost, whatever comes next.
func TestStore_books_failpoints(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace")
	f := countedFixture(t)
	if err := startCounted(t, f.dir, 1, 1, "NVT_FAILPOINT_TRACE="+trace).Wait(); err != nil {
		t.Fatal(err)
	}
	steps, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	hits := map[string]int{}
	for line := range strings.Lines(string(steps)) {
		point := strings.TrimSpace(line)
		hits[point]++
		t.Run(fmt.Sprintf("%s %d", point, hits[point]), func(t *testing.T) {
			f := countedFixture(t)
			c := counted{f.Store, f.dir}
			died := startCounted(t, f.dir, 1, 1, fmt.Sprintf("NVT_FAILPOINT=%s=kill#%d", point, hits[point])).Wait()
			if exit, ok := died.(*exec.ExitError); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("it wasn't killed: %v", died)
			}
			f.must(c.foldAll())
			f.balanced(c)
			// Both addresses may be cooling yet, by the machine's own clock.
			err := c.pod(meteredRequest(7, "after"))
			for end := time.Now().Add(time.Minute); errors.Is(err, ErrPoolExhausted) && time.Now().Before(end); err = c.pod(meteredRequest(7, "after")) {
				time.Sleep(10 * time.Millisecond)
			}
			f.must(err)
			f.balanced(c)
		})
	}
	if n := hits["boltfile.commit"]; n < 6 { // lease, three folds, release, end
		t.Errorf("%d commits were passed:\n%s", n, steps)
	}
}

// countedFixture is a node of two addresses, one of which has been used.
func countedFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: memDir(t)}
	f.Store = processStore(f.dir)
	f.sync(pool(2))
	f.must(counted{f.Store, f.dir}.pod(meteredRequest(1, "before")))
	return f
}
