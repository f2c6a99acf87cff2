package netns

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// heldAtLock starts a command with NVT_FAILPOINT in its environment and stops it at its nth lock, before that is taken. goOn lets it end.
func (s *stage) heldAtLock(nth string, start func(env ...string) *lab.Cmd) (goOn func()) {
	s.t.Helper()
	trace := s.Dir + "/trace"
	cmd := start("NVT_FAILPOINT=boltfile.lock=4s#"+nth, "NVT_FAILPOINT_TRACE="+trace)
	at := func() bool {
		hits, err := os.ReadFile(trace)
		return err == nil && strings.Count(string(hits), "boltfile.lock\n") == int(nth[0]-'0')
	}
	if !pathEventually(patience, at) {
		s.t.Fatalf("no lock %s", nth)
	}
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	return func() {
		if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
			s.t.Error(err)
		}
	}
}

// heldADD stops an ADD of s between its look at the node-wide state and its lease: nobody can count its pod.
func (s *stage) heldADD(id string, p *lab.Namespace) (end func() *answer) {
	s.t.Helper()
	var c lab.Call
	var wait func() lab.Outcome
	goOn := s.heldAtLock("3", func(env ...string) (cmd *lab.Cmd) {
		c = s.call("ADD", id, p, withEnv(env...))
		cmd, wait = s.Node.StartPlugin(chainContext(s.t), program(s.t, pathFailing), c)
		return cmd
	})
	if hits := s.sh("cat " + s.Dir + "/trace"); !strings.Contains(hits, "routes.rule-list") || strings.Contains(hits, "boltfile.commit") {
		s.t.Fatalf("not between look and lease: %s", hits)
	}
	return func() *answer {
		goOn()
		return s.judge(c, wait())
	}
}

// denied wants the pod not to reach wireserver.
func (s *stage) denied(p *lab.Namespace, ip netip.Addr) {
	s.t.Helper()
	s.sh("nft add table ip cnt; nft 'add chain ip cnt after { type filter hook forward priority 100 ; }'; " +
		"nft add rule ip cnt after ip daddr 168.63.129.16 counter")
	pathSend(s.t, p, pathTCP(netip.AddrPortFrom(ip, 5555), netip.MustParseAddrPort("168.63.129.16:80"), tcpSYN))
	s.reaches(p, ip)
	if got := s.sh("nft list chain ip cnt after"); !strings.Contains(got, "packets 0") {
		s.t.Errorf("the pod reaches wireserver: %s", got)
	}
}

// Who takes the node-wide state away counts pods first. An ADD that isn't counted yet finds at its end what was done; one that was
// quicker is counted after all. Either way no pod lives without what its network wants.
func TestNetnsNodeWide_changed_under_an_ADD(t *testing.T) {
	t.Parallel()
	allowing := func(s *stage) *stage { return s.pathKeyed("second", access("wireserver")) }
	begin := func(t *testing.T) (*stage, *lab.Namespace) {
		t.Helper()
		s := newStage(t, poolOf(5))
		s.settle()
		return s, s.Pod(t, "c1")
	}
	t.Run("cleaned_before_the_lease", func(t *testing.T) {
		t.Parallel()
		s, p := begin(t)
		end := s.heldADD("c1", p)
		s.mustCtl("node", "clean")
		a := end().ok()
		s.check("c1", p, a).ok()
		s.denied(p, a.IP)
	})
	t.Run("taken_over_before_the_lease", func(t *testing.T) {
		t.Parallel()
		s, p := begin(t)
		end := s.heldADD("c1", p)
		second, q := allowing(s), s.Pod(t, "q")
		b := second.add("q", q).ok()
		end().fails(7, "metadataAccess.wireserver", "second", "which has pods here (1)")
		s.podEmpty(p, "after a refused ADD")
		second.check("q", q, b).ok()
	})
	t.Run("clean_is_slower_than_an_ADD", func(t *testing.T) {
		t.Parallel()
		s, p := begin(t)
		type result struct {
			out []byte
			err error
		}
		done := make(chan result, 1)
		goOn := s.heldAtLock("4", func(env ...string) *lab.Cmd { // it has counted none, and holds node.lock
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			t.Cleanup(cancel)
			conf := s.Dir + "/clean.json"
			if err := os.WriteFile(conf, s.conf(), 0o600); err != nil {
				t.Fatal(err)
			}
			return s.startCtl(ctx, func(out []byte, err error) { done <- result{out, err} }, env, "--conf", conf, "node", "clean")
		})
		a := s.add("c1", p).ok()
		goOn()
		if got := <-done; got.err == nil || !strings.Contains(string(got.out), "pods have addresses here: 1") {
			t.Errorf("clean: %v %s", got.err, got.out)
		}
		s.check("c1", p, a).ok()
		s.denied(p, a.IP)
	})
	t.Run("a_takeover_is_slower_than_an_ADD", func(t *testing.T) {
		t.Parallel()
		s, p := begin(t)
		second, q := allowing(s), s.Pod(t, "q")
		var c lab.Call
		var wait func() lab.Outcome
		// Container, record, pods, node.lock, record, pods: the next lock is that of what it writes.
		goOn := second.heldAtLock("7", func(env ...string) (cmd *lab.Cmd) {
			c = second.call("ADD", "q", q, withEnv(env...))
			cmd, wait = s.Node.StartPlugin(chainContext(t), program(t, pathFailing), c)
			return cmd
		})
		a := s.add("c1", p).ok()
		goOn()
		second.judge(c, wait()).fails(7, "metadataAccess.wireserver", "which has pods here (1)")
		s.podEmpty(q, "after a refused ADD")
		s.check("c1", p, a).ok()
		s.denied(p, a.IP)
	})
}

// startCtl runs vmssctl and tells what it said when it has ended.
func (s *stage) startCtl(ctx context.Context, ended func(out []byte, err error), env []string, args ...string) *lab.Cmd {
	s.t.Helper()
	cmd := s.Node.Command(ctx, program(s.t, "failpoint/vmssctl"), args...)
	cmd.Env = append(os.Environ(), env...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		err := cmd.Wait()
		ended([]byte(out.String()), errors.Join(err, ctx.Err()))
	}()
	return cmd
}
