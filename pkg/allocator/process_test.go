package allocator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/boot"
)

// envWorker makes the test binary one of many processes that use a store: "<dir>:<worker>:<rounds>".
const envWorker = "NVT_ALLOCATOR_WORKER"

func TestMain(m *testing.M) {
	for env, run := range map[string]func(string) error{envWorker: work, envCounted: countedWork} {
		if v := os.Getenv(env); v != "" {
			if err := run(v); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	os.Exit(m.Run())
}

const processCool = 20 * time.Millisecond

func processStore(dir string) *Store {
	return Open(Options{
		Dir: dir, CoolDown: processCool, LockTimeout: 30 * time.Second, BootID: "boot", Now: boot.Clock,
		Kernel: func(context.Context) (Observed, error) { return Observed{}, nil },
	})
}

// endWorkers kills the first ones at some time of their work, and wants the others to end well.
func endWorkers(t *testing.T, cmds []*exec.Cmd, victims int) {
	t.Helper()
	for _, cmd := range cmds[:victims] {
		time.Sleep(time.Duration(20+rand.IntN(100)) * time.Millisecond)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for _, cmd := range cmds[victims:] {
		if err := cmd.Wait(); err != nil {
			t.Errorf("worker: %v", err)
		}
	}
}

// work leases and releases. Files made with O_EXCL prove, without the store, that nobody else has the address.
func work(v string) error {
	f := strings.Split(v, ":")
	dir := f[0]
	worker, _ := strconv.Atoi(f[1])
	rounds, _ := strconv.Atoi(f[2])
	s := processStore(dir)
	for i := range rounds {
		pod := worker*1000 + i
		l, err := s.Lease(context.Background(), request(pod))
		if errors.Is(err, ErrPoolExhausted) {
			time.Sleep(time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
		if err := use(dir, l, pod); err != nil {
			return err
		}
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
		if err := end(s, dir, l); err != nil {
			return err
		}
	}
	return nil
}

// use claims the address and checks that its last user left it a cool-down ago.
func use(dir string, l Lease, pod int) error {
	f, err := os.OpenFile(usedFile(dir, l), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("%s was given to two pods: %w", l.Addr, err)
	}
	fmt.Fprint(f, pod)
	_ = f.Close()
	if b, err := os.ReadFile(leftFile(dir, l)); err == nil {
		if left, _ := strconv.ParseInt(string(b), 10, 64); l.Since < time.Duration(left)+processCool {
			return fmt.Errorf("%s was reused %s after its last user", l.Addr, l.Since-time.Duration(left))
		}
	}
	return nil
}

// end is a DEL: the address is let go before the store says so.
func end(s *Store, dir string, l Lease) error {
	rel, found, err := s.Release(context.Background(), l.Owner.Key)
	if err != nil || !found || rel.Generation != l.Generation {
		return fmt.Errorf("release %s: found %v, generation %d: %w", l.Addr, found, rel.Generation, err)
	}
	_ = os.Remove(usedFile(dir, l))
	if err := os.WriteFile(leftFile(dir, l), fmt.Append(nil, int64(boot.Clock())), 0o600); err != nil {
		return err
	}
	return s.Cool(context.Background(), rel, nil)
}

func usedFile(dir string, l Lease) string { return filepath.Join(dir, "used-"+l.Addr.String()) }
func leftFile(dir string, l Lease) string { return filepath.Join(dir, "left-"+l.Addr.String()) }

// TestStore_manyProcesses has eight processes on one store, some of which are killed at a random time.
func TestStore_manyProcesses(t *testing.T) {
	dir := memDir(t)
	s := processStore(dir)
	if err := s.Sync(t.Context(), pool(12)); err != nil {
		t.Fatal(err)
	}
	const workers, victims, rounds = 8, 3, 60
	var cmds []*exec.Cmd
	for w := range workers {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s:%d:%d", envWorker, dir, w, rounds))
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds = append(cmds, cmd)
	}
	endWorkers(t, cmds, victims)
	f := &fixture{Store: s, t: t, dir: dir}
	left := 0
	for _, l := range f.byAddr() {
		if l.State != Leased && l.State != Releasing {
			continue
		}
		left++
		if err := end(s, dir, l); err != nil {
			t.Error(err)
		}
	}
	if left > victims {
		t.Errorf("%d leases are left of %d killed processes", left, victims)
	}
	f.invariants()
	if n := f.totals(); n.Total != 12 || n.Leased+n.Releasing != 0 {
		t.Errorf("totals %+v", n)
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "ipam.db.*")); len(files) > 0 {
		t.Errorf("a kill damaged the store: %v", files)
	}
}
