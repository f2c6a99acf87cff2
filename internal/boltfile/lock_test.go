package boltfile

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// envHold makes the test binary a process that holds a lock: "flock" or "range", then the path.
const envHold = "NVT_BOLTFILE_HOLD"

// atEnd runs after the last test.
var atEnd = func() {}

func TestMain(m *testing.M) {
	if how, path, ok := strings.Cut(os.Getenv(envHold), ":"); ok {
		hold(how, path)
	}
	code := m.Run()
	atEnd()
	os.Exit(code)
}

// hold takes the lock, says so and keeps it until stdin ends.
func hold(how, path string) {
	var err error
	if how == "range" {
		_, err = LockRange(context.Background(), path, 7)
	} else {
		_, err = Lock(context.Background(), path)
	}
	fmt.Println("held", err)
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	os.Exit(0)
}

// holder starts a process that holds the lock and returns its pid and a function that ends it.
func holder(t *testing.T, how, path string) (pid int, end func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-holder")
	cmd.Env = append(os.Environ(), "NVT_FAILPOINT_TRACE=", envHold+"="+how+":"+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "held <nil>") {
		t.Fatalf("holder said %q, %v", line, err)
	}
	var once sync.Once
	end = func() { once.Do(func() { _ = in.Close(); _ = cmd.Wait() }) }
	t.Cleanup(end)
	return cmd.Process.Pid, end
}

func short(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestLock_namesHolder(t *testing.T) {
	tests := []struct {
		name, how string
		take      func(context.Context, string) (*Held, error)
	}{
		{"exclusive", "flock", Lock},
		{"shared", "flock", LockShared},
		{"range", "range", func(ctx context.Context, p string) (*Held, error) { return LockRange(ctx, p, 7) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.lock")
			pid, end := holder(t, tt.how, path)
			_, err := tt.take(short(t, 50*time.Millisecond), path)
			if !errors.Is(err, ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("error is %v, want ErrBusy and the deadline", err)
			}
			want := fmt.Sprintf("held by boltfile.test -holder (pid %d, since %d-", pid, time.Now().Year())
			if !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %q lacks %q or the path", err, want)
			}
			end()
			held, err := tt.take(short(t, 5*time.Second), path)
			if err != nil {
				t.Fatalf("after the holder's end: %v", err)
			}
			held.Unlock()
		})
	}
}

// A waiter that gave up must not hold the lock once the kernel hands it over.
func TestLock_abandonedWaiterLetsGo(t *testing.T) {
	for _, how := range []string{"flock", "range"} {
		t.Run(how, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.lock")
			take := Lock
			if how == "range" {
				take = func(ctx context.Context, p string) (*Held, error) { return LockRange(ctx, p, 7) }
			}
			first, err := take(t.Context(), path)
			if err != nil {
				t.Fatal(err)
			}
			for range 5 {
				if _, err := take(short(t, 20*time.Millisecond), path); !errors.Is(err, ErrBusy) {
					t.Fatalf("error is %v, want ErrBusy", err)
				}
			}
			first.Unlock()
			for range 3 {
				again, err := take(short(t, 5*time.Second), path)
				if err != nil {
					t.Fatalf("an abandoned waiter kept the lock: %v", err)
				}
				again.Unlock()
			}
		})
	}
}

func TestLock_mutualExclusion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.lock")
	var wg sync.WaitGroup
	var inside, total atomic.Int32 // the race detector doesn't know flock
	for range 8 {
		wg.Go(func() {
			for range 50 {
				h, err := Lock(t.Context(), path)
				if err != nil {
					t.Error(err)
					return
				}
				if n := inside.Add(1); n != 1 {
					t.Errorf("%d holders at once", n)
				}
				total.Add(1)
				inside.Add(-1)
				h.Unlock()
			}
		})
	}
	wg.Wait()
	if n := total.Load(); n != 400 {
		t.Errorf("%d turns, want 400", n)
	}
}

func TestLock_deletedFile(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		t.Run(fmt.Sprint("replaced ", replaced), func(t *testing.T) { lockDeleted(t, replaced) })
	}
}

func lockDeleted(t *testing.T, replaced bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "x.lock")
	first, err := Lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan *Held)
	go func() {
		h, err := Lock(t.Context(), path)
		if err != nil {
			t.Error(err)
		}
		got <- h
	}()
	time.Sleep(50 * time.Millisecond) // it waits on the inode that goes away now
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if replaced {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	first.Unlock()
	second := <-got
	if _, ok, err := TryLock(path); ok || err != nil {
		t.Errorf("the waiter locked the deleted file: a third one got the new file's lock (%v, %v)", ok, err)
	}
	second.Unlock()
	third, ok, err := TryLock(path)
	if !ok || err != nil {
		t.Fatalf("TryLock of a free lock: %v, %v", ok, err)
	}
	third.Unlock()
}

func TestLockRange_offsetsAreIndependent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "containers.lock")
	const far = int64(1)<<44 - 1 // offsets are 44 bits of a hash
	for _, offset := range []int64{0, 1, 2, far} {
		h, err := LockRange(short(t, time.Second), path, offset)
		if err != nil {
			t.Fatalf("offset %d: %v", offset, err)
		}
		defer h.Unlock()
	}
	if _, err := LockRange(short(t, 20*time.Millisecond), path, far); !errors.Is(err, ErrBusy) {
		t.Errorf("error is %v, want ErrBusy", err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 0 || info.Mode().Perm() != 0o600 {
		t.Errorf("lock file: %v, %v", info, err)
	}
}

func TestLockShared_readersTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.lock")
	a, err := LockShared(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := LockShared(short(t, time.Second), path)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := TryLock(path); ok || err != nil {
		t.Errorf("writer beside readers: %v, %v", ok, err)
	}
	a.Unlock()
	b.Unlock()
}

func TestLock_unusablePaths(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, filepath.Join(file, "x.lock")} {
		_, err := Lock(t.Context(), path)
		if !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error is %v, want ErrUnusable with the path", path, err)
		}
	}
	deep := filepath.Join(dir, "a", "b", "x.lock")
	h, err := Lock(t.Context(), deep)
	if err != nil {
		t.Fatalf("a missing directory is made: %v", err)
	}
	h.Unlock()
	if info, err := os.Stat(filepath.Dir(deep)); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", info, err)
	}
}

func TestParseLockLine(t *testing.T) {
	tests := []struct {
		line string
		want lockLine
		ok   bool
	}{
		{"1: FLOCK  ADVISORY  WRITE 713 fe:01:4194321 0 EOF", lockLine{"FLOCK", 713, 0xfe, 1, 4194321, "0", "EOF"}, true},
		{" \t1: OFDLCK ADVISORY  WRITE -1 00:1b:97 77 77", lockLine{"OFDLCK", -1, 0, 0x1b, 97, "77", "77"}, true},
		{"1: -> FLOCK  ADVISORY  WRITE 714 fe:01:4194321 0 EOF", lockLine{}, false},
		{"1: FLOCK ADVISORY WRITE x fe:01:1 0 EOF", lockLine{}, false},
		{"1: FLOCK ADVISORY WRITE 1 fe-01 0 EOF", lockLine{}, false},
		{"", lockLine{}, false},
	}
	for _, tt := range tests {
		if got, ok := parseLockLine(tt.line); got != tt.want || ok != tt.ok {
			t.Errorf("%q: %+v %v, want %+v %v", tt.line, got, ok, tt.want, tt.ok)
		}
	}
	l := lockLine{start: "5", end: "9"}
	if l.covers(4) || !l.covers(5) || !l.covers(9) || l.covers(10) || !(lockLine{start: "0", end: "EOF"}).covers(1<<44) {
		t.Error("covers is wrong at a border")
	}
}

func TestDescribe(t *testing.T) {
	for _, tt := range []struct {
		pid  int
		want string
	}{{0, "unknown"}, {-1, "unknown"}, {1 << 30, "unknown (pid 1073741824)"}} {
		if got := describe(tt.pid); got != tt.want {
			t.Errorf("describe(%d) = %q, want %q", tt.pid, got, tt.want)
		}
	}
	since, ok := startTime(os.Getpid())
	if age := time.Since(since); !ok || age < 0 || age > time.Hour {
		t.Errorf("this process started %s ago (%v)", age, ok)
	}
}
