package netns

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// pathBarrier holds processes back until all are there: each is a shell that opens a FIFO to read, which waits for a writer,
// and then becomes the plugin.
type pathBarrier struct {
	s    *stage
	fifo string
	wait []func() *answer
}

func (s *stage) newBarrier() *pathBarrier {
	s.t.Helper()
	b := &pathBarrier{s: s, fifo: filepath.Join(s.Dir, fmt.Sprintf("fifo%d", time.Now().UnixNano()))}
	if err := unix.Mkfifo(b.fifo, 0o600); err != nil {
		s.t.Fatal(err)
	}
	return b
}

// start starts a process that waits.
func (b *pathBarrier) start(c lab.Call) {
	b.s.t.Helper()
	// The process group of a shell that execs is the plugin's: nothing of the shell is left.
	wrap := filepath.Join(b.s.Dir, "wait.sh")
	if _, err := os.Stat(wrap); err != nil {
		if err := os.WriteFile(wrap, []byte("#!/bin/sh\n: <\"$BARRIER\"\nexec "+program(b.s.t, "native-vmss")+"\n"), 0o700); err != nil {
			b.s.t.Fatal(err)
		}
	}
	c.Env = append(c.Env, "BARRIER="+b.fifo)
	_, wait := b.s.Node.StartPlugin(context.Background(), wrap, c)
	b.wait = append(b.wait, func() *answer { return b.s.judge(c, wait()) })
}

// release lets all go at once and collects their answers; took is the time until the last one had ended.
func (b *pathBarrier) release() (answers []*answer, took time.Duration) {
	b.s.t.Helper()
	time.Sleep(300 * time.Millisecond) // the last ones reach their open
	f, err := os.OpenFile(b.fifo, os.O_WRONLY, 0)
	if err != nil {
		b.s.t.Fatal(err)
	}
	begin := time.Now()
	for _, wait := range b.wait {
		answers = append(answers, wait())
	}
	took = time.Since(begin)
	if err := f.Close(); err != nil {
		b.s.t.Fatal(err)
	}
	return answers, took
}

// burst is BR-30's node: 250 addresses and 250 pods.
type burst struct {
	*stage
	spaces []*lab.Namespace
}

const burstPods = 250

func newBurst(t *testing.T) *burst {
	t.Helper()
	pool := lab.AddrRange(netip.MustParseAddr("10.20.1.1"), burstPods)
	b := &burst{stage: newStage(t, lab.SimpleOptions{Pool: pool, Subnet: netip.MustParsePrefix("10.20.0.0/16")})}
	for i := range burstPods {
		b.spaces = append(b.spaces, b.Pod(t, fmt.Sprintf("b%d", i)))
	}
	return b
}

// together runs one command for each of the pods at once, STATUS beside it. All must succeed.
func (b *burst) together(what string, command func(pod int) string, pods []int) []*answer {
	b.t.Helper()
	gate := b.newBarrier()
	for _, i := range pods {
		gate.start(b.call(command(i), fmt.Sprintf("burst%d", i), b.spaces[i]))
	}
	stop, statuses := b.pathAskStatus()
	answers, took := gate.release()
	stop()
	if n := <-statuses; n == 0 {
		b.t.Errorf("no STATUS was answered during %s", what)
	}
	for i, a := range answers {
		if a.Exit != 0 {
			b.t.Errorf("%s: %s of pod %d: code %d: %s", what, a.Command, pods[i], a.Code, a.Msg)
		}
	}
	b.t.Logf("%s: the last had ended after %s", what, took.Round(time.Millisecond))
	if took > patience {
		b.t.Errorf("%s took %s", what, took)
	}
	return answers
}

// holds wants the store to hold so many addresses, each another.
func (b *burst) holds(when string, n int) {
	b.t.Helper()
	if held := b.held(); len(held) != n {
		b.t.Errorf("%s the store holds %d addresses, want %d", when, len(held), n)
	}
	if links := b.podLinks(); len(links) != n {
		b.t.Errorf("%s there are %d links, want %d", when, len(links), n)
	}
}

// BR-30: 250 at once on a node where nothing ran before: ADDs, DELs, then half of each.
func TestNetnsBR30_250_at_once(t *testing.T) {
	t.Parallel()
	b := newBurst(t)
	before := b.snapshot()
	all := make([]int, burstPods)
	for i := range all {
		all[i] = i
	}
	add, del := func(int) string { return "ADD" }, func(int) string { return "DEL" }

	// Slow enough that many processes are there before the first answer is: each that doesn't wait its turn asks too.
	good := lab.DocumentHandler(lab.NetworkDocument(b.NICs...))
	b.MD.HandleFunc(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(time.Second)
		good.ServeHTTP(w, r)
	})
	got := map[netip.Addr]bool{}
	for _, a := range b.together("250 ADDs", add, all) {
		got[a.IP] = true
	}
	if len(got) != burstPods {
		t.Errorf("%d distinct addresses, want %d", len(got), burstPods)
	}
	requests := len(b.MD.Requests())
	t.Logf("%d metadata requests", requests)
	if requests > 10 {
		t.Errorf("%d metadata requests, want 10 at most", requests)
	}
	b.holds("after 250 ADDs", burstPods)
	for _, i := range []int{0, burstPods / 2, burstPods - 1} {
		if !b.answers(b.spaces[i], lab.SimpleGateway) {
			t.Errorf("pod %d does not reach the gateway", i)
		}
	}
	b.together("250 DELs", del, all)
	b.clean("after 250 DELs")
	b.onlyNodeWide(before)
	time.Sleep(restAfterRebuild) // the addresses rest, as after a rebuild

	half := burstPods / 2
	b.together("125 ADDs", add, all[:half])
	mixed := b.together("125 ADDs and 125 DELs", func(i int) string {
		if i < half {
			return "DEL"
		}
		return "ADD"
	}, all)
	got = map[netip.Addr]bool{}
	for i, a := range mixed[half:] {
		if got[a.IP] = true; i%40 == 0 {
			b.reaches(b.spaces[half+i], a.IP)
		}
	}
	if len(got) != burstPods-half {
		t.Errorf("%d distinct addresses beside the DELs, want %d", len(got), burstPods-half)
	}
	b.holds("after 125 ADDs and 125 DELs", burstPods-half)
	b.together("the other 125 DELs", del, all[half:])
	b.clean("at the end")
	b.onlyNodeWide(before)
	b.consistent()
}

// pathAskStatus asks STATUS again and again until stop. On a new node it may say 50 until the first answer of metadata, from then
// on it must say yes. The count is that of the yes.
func (s *stage) pathAskStatus() (stop func(), count <-chan int) {
	s.t.Helper()
	done, n := make(chan struct{}), make(chan int, 1)
	go func() {
		yes := 0
		for {
			select {
			case <-done:
				n <- yes
				return
			default:
			}
			a := s.status()
			if a.Exit == 0 {
				yes++
			} else if a.Code != 50 || yes > 0 {
				s.t.Errorf("STATUS during the burst: code %d: %s", a.Code, a.Msg)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	return sync.OnceFunc(func() { close(done) }), n
}

// onlyNodeWide wants nothing new since before but what the first ADD of a node writes for good.
func (s *stage) onlyNodeWide(before lab.Snapshot) {
	s.t.Helper()
	for _, line := range before.Diff(s.snapshot()) {
		section, _, _ := strings.Cut(line, " ")
		if slices.Contains([]string{"link", "addr", "neigh", "conntrack", "iptables"}, section) || strings.Contains(line, "missing") &&
			section != "sysctl" {
			s.t.Errorf("%s", line)
		}
	}
}

// A store that is locked for longer than STATUS may wait is busy, not broken: STATUS says yes in time.
func TestNetnsPath_status_of_a_busy_store(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	s.settle()
	lock, err := os.OpenFile(s.Node.Path(stateDir+"/ipam.lock"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	s.status().ok()
	if d := time.Since(begin); d < 500*time.Millisecond || d > 5*time.Second {
		t.Errorf("STATUS took %s: it did not meet the lock, or waited beyond its second", d)
	}
}
