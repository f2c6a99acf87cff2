package lab

import (
	"errors"
	"runtime"

	"golang.org/x/sys/unix"
)

// errGoexit is what a caller sees when its function ended the goroutine, which t.Fatal does.
var errGoexit = errors.New("function ended its goroutine (t.Fatal works only on the test's own)")

// onThread runs f on a thread of its own and waits for it. The thread is never given back to the runtime: f may change its
// namespaces, and a thread that comes back with foreign ones poisons whatever goroutine it runs next.
//
// The process's first thread can't end, and /proc/self shows its namespaces: it is held back while another one does the work.
func onThread(f func() error) error {
	var (
		err      error
		panicked any
		done     = make(chan struct{})
	)
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() {
			err = onThread(f)
			runtime.UnlockOSThread()
			return
		}
		err = errGoexit
		defer func() { panicked = recover() }()
		err = f()
	}()
	<-done
	if panicked != nil {
		panic(panicked)
	}
	return err
}
