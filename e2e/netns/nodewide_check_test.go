package netns

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// CRI-O checks a pod right after its ADD: node-wide state that another process is just writing is no fault of the pod. What is still
// missing when that one is done is named.
func TestNetnsNodeWide_CHECK_during_a_change(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(2))
	p, a := s.pathPod("p1")
	lock, err := os.OpenFile(s.Node.Path(stateDir+"/node.lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	s.sh("nft list table ip native_vmss >" + s.Dir + "/table")
	for name, back := range map[string]bool{"that_ends_well": true, "that_does_not": false} {
		t.Run(name, func(t *testing.T) {
			s := s.pathAs(t)
			if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			s.sh("nft delete table ip native_vmss")
			done := make(chan *answer)
			go func() { done <- s.check("p1", p, a) }()
			select {
			case got := <-done:
				t.Fatalf("CHECK did not wait for the change: exit %d %s", got.Exit, got.Msg)
			case <-time.After(time.Second):
			}
			if back {
				s.sh("nft -f " + s.Dir + "/table")
			}
			if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
				t.Fatal(err)
			}
			if got := <-done; back {
				got.ok()
			} else {
				got.fails(103, "native_vmss")
				s.sh("nft -f " + s.Dir + "/table")
			}
		})
	}
}
