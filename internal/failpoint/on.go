//go:build failpoint

package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Variables that steer a failpoint build.
const (
	envPoint = "NVT_FAILPOINT"
	envTrace = "NVT_FAILPOINT_TRACE"
)

var (
	mu   sync.Mutex
	hits = map[string]int{}
)

// Hit records the point and fails or dies there when the environment asks for it.
func Hit(name string) error {
	n := count(name)
	point, action, nth := parse(os.Getenv(envPoint))
	if point != name || n != nth {
		return nil
	}
	if d, err := time.ParseDuration(action); err == nil {
		time.Sleep(d)
		return nil
	}
	if action == "panic" {
		panic("failpoint " + name)
	}
	if action == "kill" {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	}
	return fmt.Errorf("failpoint %s", name)
}

// count records a hit and returns its number.
func count(name string) int {
	mu.Lock()
	defer mu.Unlock()
	hits[name]++
	trace(name)
	return hits[name]
}

// parse reads "name=action#n"; n is 1 where it is left out.
func parse(v string) (point, action string, nth int) {
	point, action, _ = strings.Cut(v, "=")
	action, n, found := strings.Cut(action, "#")
	if !found {
		return point, action, 1
	}
	nth, _ = strconv.Atoi(n)
	return point, action, nth
}

func trace(name string) {
	path := os.Getenv(envTrace)
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	fmt.Fprintln(f, name)
}
