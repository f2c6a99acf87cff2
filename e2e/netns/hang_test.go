package netns

import (
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// What never answers costs a command its own deadline, and nobody else anything. The deadlines are those of pkg/node; a busy
// machine adds to them.
const (
	addDeadline    = 30 * time.Second
	delDeadline    = 20 * time.Second
	gcDeadline     = 30 * time.Second
	statusDeadline = time.Second
	lockDeadline   = 10 * time.Second // the default of lockTimeout
	busyMachine    = 15 * time.Second
	hangs          = "echo $$ >pid\nexec sleep 300\n"
)

// took wants a command to have ended because of its deadline.
func (a *answer) took(deadline time.Duration) *answer {
	a.stage.t.Helper()
	if a.Took < deadline*9/10 || a.Took > deadline+busyMachine {
		a.stage.t.Errorf("%s ended after %s, want %s", a.Command, a.Took, deadline)
	}
	return a
}

// soon wants a command to have waited for nobody.
func (a *answer) soon() *answer {
	a.stage.t.Helper()
	if a.Took > statusDeadline+busyMachine/2 {
		a.stage.t.Errorf("%s took %s", a.Command, a.Took)
	}
	return a
}

// othersGoOn runs every command for another pod.
func (s *stage) othersGoOn(id string) {
	s.t.Helper()
	p := s.Pod(s.t, id)
	a := s.add(id, p).ok().soon()
	s.reaches(p, a.IP)
	s.check(id, p, a).ok().soon()
	s.status().ok()
	s.del(id, p).ok().soon()
}

// hung is a stage whose network gets its addresses from a plugin that hangs in one command.
type hung struct {
	*stage
	f    *foreign
	conf []byte
}

func newHung(t *testing.T, command string) *hung {
	t.Helper()
	s := newStage(t, poolOf(5))
	s.settle()
	h := &hung{stage: s, f: newForeign(s, `{"cniVersion":"1.1.0","ips":[{"address":"10.20.0.14/24"}]}`)}
	h.conf = s.conf(func(top map[string]any) { top["name"], top["ipam"] = "other", map[string]any{"type": h.f.name} })
	h.f.does(command, hangs)
	return h
}

func (h *hung) call(command string, p *lab.Namespace, added *answer) lab.Call {
	h.t.Helper()
	stdin := h.conf
	if added != nil {
		stdin = []byte(strings.Replace(string(h.conf), "{", `{"prevResult":`+string(added.Stdout)+`,`, 1))
	}
	c := h.stage.call(command, "p1", p, withStdin(stdin), func(c *lab.Call) { c.Path = h.f.path() })
	if command == "STATUS" || command == "GC" {
		c.Without = []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"}
	}
	return c
}

// start runs the command until its IPAM child hangs.
func (h *hung) start(c lab.Call) (cmd *lab.Cmd, wait func() lab.Outcome, child string) {
	h.t.Helper()
	cmd, wait = h.Node.StartPlugin(chainContext(h.t), program(h.t, "native-vmss"), c)
	if !pathEventually(patience, func() bool { return strings.HasSuffix(h.f.read("pid"), "\n") }) {
		h.t.Fatal("the IPAM was not started")
	}
	return cmd, wait, strings.TrimSpace(h.f.read("pid"))
}

// gone wants the child to have ended.
func (h *hung) gone(child, when string) {
	h.t.Helper()
	if child == "" || !pathEventually(patience, func() bool { return !alive(child) }) {
		h.t.Errorf("%s: the IPAM (pid %q) lives on", when, child)
	}
}

// alive tells whether a process runs; a zombie doesn't.
func alive(pid string) bool {
	stat, err := os.ReadFile("/proc/" + pid + "/stat")
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// An IPAM that never answers costs each command its own deadline; it is ended then, and nothing is left that wasn't there.
func TestNetnsHang_IPAM(t *testing.T) {
	t.Parallel()
	commands := map[string]struct {
		deadline time.Duration
		code     uint
		attached bool // the pod is there
	}{
		"ADD":    {addDeadline, 11, false},
		"DEL":    {delDeadline, 11, true},
		"CHECK":  {delDeadline, 11, true},
		"GC":     {gcDeadline, 11, true},
		"STATUS": {statusDeadline, 50, true},
	}
	each(t, commands, func(t *testing.T, c struct {
		deadline time.Duration
		code     uint
		attached bool
	},
	) {
		_, command, _ := strings.Cut(t.Name(), "/")
		h := newHung(t, command)
		p := h.Pod(t, "p1")
		var added *answer
		if c.attached {
			added = h.run(h.call("ADD", p, nil)).ok()
		}
		before := h.snapshot()
		call := h.call(command, p, added)
		_, wait, child := h.start(call)
		h.othersGoOn("q")
		if command != "STATUS" && !alive(child) { // STATUS is over by now
			t.Error("the IPAM ended on its own")
		}
		h.judge(call, wait()).fails(c.code, h.f.name+" "+command+": no answer in time").took(c.deadline)
		h.gone(child, "after the deadline")
		if command == "DEL" { // its own part is done
			if links := h.podLinks(); len(links) > 0 {
				t.Errorf("left: %v", links)
			}
		} else {
			h.noLeak(before)
		}
		if !c.attached {
			h.podEmpty(p, "after the deadline")
			if got := h.f.calls(); got != "ADD DEL" {
				t.Errorf("calls %q: what the IPAM may have reserved has to go", got)
			}
		}
		h.f.says(command, "", 0)
		h.run(h.call("DEL", p, nil)).ok()
		h.clean("after DEL")
		h.podEmpty(p, "after DEL")
	})
}

// An IPAM that hangs ends with the plugin that a runtime kills.
func TestNetnsHang_IPAM_whose_parent_is_killed(t *testing.T) {
	t.Parallel()
	each(t, map[string]string{"ADD": "ADD", "DEL": "DEL", "CHECK": "CHECK", "GC": "GC"}, func(t *testing.T, command string) {
		h := newHung(t, command)
		p := h.Pod(t, "p1")
		var added *answer
		if command != "ADD" {
			added = h.run(h.call("ADD", p, nil)).ok()
		}
		cmd, wait, child := h.start(h.call(command, p, added))
		if !alive(child) {
			t.Error("the IPAM ended on its own")
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		wait()
		h.gone(child, "after its parent was killed")
		h.f.says(command, "", 0)
		h.run(h.call("DEL", p, nil)).ok()
		h.clean("after DEL")
		h.podEmpty(p, "after DEL")
	})
}

// A metadata service that takes the question and never answers costs an ADD its time only where no address is known.
func TestNetnsHang_metadata(t *testing.T) {
	t.Parallel()
	silent := func(s *stage) {
		s.MD.HandleFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	}
	t.Run("on_a_new_node", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		silent(s)
		before := s.snapshot()
		done := make(chan *answer, 2)
		for _, id := range []string{"c1", "c2"} { // one asks, one waits for its turn
			p := s.Pod(t, id)
			go func() { done <- s.add(id, p) }()
		}
		if !pathEventually(patience, func() bool { return len(s.MD.Requests()) > 0 }) {
			t.Fatal("metadata was not asked")
		}
		s.status().fails(50, "no pod address known").soon()
		s.del("other", nil).ok().soon()
		s.gc().ok().soon()
		for range 2 {
			if a := (<-done).fails(11); a.Took > addDeadline+busyMachine {
				t.Errorf("ADD ended after %s", a.Took)
			}
		}
		s.noLeakOnNewNode(before)
	})
	t.Run("with_addresses_known", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		s.ipam["refresh"] = "1s"
		p, a := s.pathPod("c1")
		silent(s)
		time.Sleep(6 * time.Second) // the snapshot is old, and so is the last question
		before := s.snapshot()
		s.othersGoOn("q")
		s.check("c1", p, a).ok().soon()
		s.gc("c1").ok().soon()
		s.unchanged(before)
		s.reaches(p, a.IP)
		s.del("c1", p).ok().soon()
		s.clean("after DEL")
	})
}

// A pipe in the place of the lock for questions to metadata: nobody waits for somebody to write to it.
func TestNetnsHang_pipe_as_the_lock_of_metadata(t *testing.T) {
	t.Parallel()
	const lock = stateDir + "/metadata.lock"
	s := newStage(t, poolOf(2))
	s.pathPod("c1")
	s.sh("rm " + lock + "; mkfifo " + lock)
	p := s.Pod(t, "c2")
	late := withEnv("NVT_CLOCK_OFFSET=2h") // the snapshot is old
	s.runOf(pathFailing, s.call("ADD", "c2", p, late)).ok().soon()
	s.status().ok().soon() // with nothing free it would ask
	s.runOf(pathFailing, s.call("ADD", "c3", s.Pod(t, "c3"), late)).fails(5, lock, "not a regular file").soon()
	s.sh("rm " + lock)
	s.del("c2", p).ok().soon()
}

// stopped starts an ADD that holds a lock at a point, and stops it there.
func (s *stage) stopped(id string, p *lab.Namespace, point string, holds func() bool) (cmd *lab.Cmd, wait func() lab.Outcome) {
	s.t.Helper()
	cmd, wait = s.Node.StartPlugin(chainContext(s.t), program(s.t, pathFailing), s.call("ADD", id, p, at(point, "4s")))
	if !pathEventually(patience, holds) {
		s.t.Fatalf("no ADD came to %s", point)
	}
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	return cmd, wait
}

// goOn lets a stopped ADD come to its end, and takes away what it made.
func (s *stage) goOn(id string, p *lab.Namespace, cmd *lab.Cmd, wait func() lab.Outcome) {
	s.t.Helper()
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		s.t.Fatal(err)
	}
	s.judge(s.call("ADD", id, p), wait())
	s.del(id, p).ok()
	s.podEmpty(p, "after the stopped ADD and DEL")
}

// The store's lock is held by a process that was stopped: every command says who it is and ends, and STATUS does not call a busy
// store a broken one.
func TestNetnsHang_lock_of_the_store(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	s.settle()
	p, a := s.pathPod("c1")
	q, _ := s.pathPod("c2")
	lock, err := os.Open(s.Node.Path(filepath.Join(stateDir, "ipam.lock")))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	z := s.Pod(t, "z")
	cmd, wait := s.stopped("z", z, "boltfile.commit#1", func() bool {
		if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
			return true
		}
		_ = unix.Flock(int(lock.Fd()), unix.LOCK_UN)
		return false
	})
	holder := []string{"ipam.lock", "native-vmss", "pid " + strconv.Itoa(cmd.Process.Pid)}
	r := s.Pod(t, "r")
	answers := make(chan *answer, 4)
	for _, run := range []func() *answer{
		func() *answer { return s.add("r", r) },
		func() *answer { return s.check("c1", p, a) },
		func() *answer { return s.del("c2", q) },
		func() *answer { return s.gc("c1", "c2") },
	} {
		go func() { answers <- run() }()
	}
	s.status().ok().soon()
	for range cap(answers) {
		(<-answers).fails(11, holder...).took(lockDeadline)
	}
	s.reaches(p, a.IP)
	s.podEmpty(r, "after a refused ADD")
	s.goOn("z", z, cmd, wait)
	s.check("c1", p, a).ok()
	s.del("c2", q).ok()
	if held := s.held(); !slices.Equal(held, []netip.Addr{a.IP}) {
		t.Errorf("leased %v, want %s", held, a.IP)
	}
	s.othersGoOn("after")
}

// A container's lock is held by a process that was stopped: only that container's commands wait.
func TestNetnsHang_lock_of_a_container(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	s.settle()
	before := s.snapshot()
	z := s.Pod(t, "z")
	cmd, wait := s.stopped("z", z, "routes.pair-add#1", func() bool { return len(s.held()) > 0 })
	// Another machine's container of the same name, and a lock file with the same inode number on another file system.
	other := newStage(t, lab.SimpleOptions{})
	other.settle()
	y := other.Pod(t, "z")
	otherCmd, otherWait := other.stopped("z", y, "routes.pair-add#1", func() bool { return len(other.held()) > 0 })
	waiting := make(chan *answer, 2)
	go func() { waiting <- s.del("z", z) }()
	go func() { waiting <- s.add("z", z) }()
	s.othersGoOn("q")
	s.gc("z").ok().soon()
	for range cap(waiting) {
		(<-waiting).fails(11, "containers.lock", "native-vmss", "pid "+strconv.Itoa(cmd.Process.Pid)).took(lockDeadline)
	}
	other.del("z", y).fails(11, "pid "+strconv.Itoa(otherCmd.Process.Pid))
	other.goOn("z", y, otherCmd, otherWait)
	s.goOn("z", z, cmd, wait)
	s.noLeak(before)
}
