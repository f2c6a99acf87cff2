package netns

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	interruptedRounds = 200
	// What comes and goes meanwhile; ifb links, since not every kernel has dummy links.
	churningLinks  = 50
	churningRoutes = 200
	churningGroup  = "4545"
	// Links that stay: only a list that takes the kernel several messages can be interrupted between two of them.
	standingLinks = 100
)

// standLinks does one thing to each of the links that stay.
func (s *stage) standLinks(command string) {
	s.t.Helper()
	var batch strings.Builder
	for i := range standingLinks {
		fmt.Fprintf(&batch, "link "+command+"\n", fmt.Sprintf("stays%d", i))
	}
	s.sh("ip -batch - <<'END'\n" + batch.String() + "END")
}

// churnLinks makes and deletes links and routes as fast as the kernel does, until stop; it returns how often.
func (s *stage) churnLinks() (stop func() (times int)) {
	s.t.Helper()
	var batch strings.Builder
	for i := range churningLinks {
		fmt.Fprintf(&batch, "link add churn%[1]d group %[2]s type ifb\naddr add 192.0.2.%[1]d/32 dev churn%[1]d\n"+
			"link set churn%[1]d up\n", i, churningGroup)
	}
	for i := range churningRoutes {
		fmt.Fprintf(&batch, "route add 198.51.100.%d/32 dev churn%d\n", i, i%churningLinks)
	}
	fmt.Fprintf(&batch, "link del group %s\n", churningGroup)
	file, count := filepath.Join(s.Dir, "churn.batch"), filepath.Join(s.Dir, "churn.count")
	if err := os.WriteFile(file, []byte(batch.String()), 0o600); err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := s.Node.Command(ctx, "sh", "-c", "while ip -batch "+file+"; do echo >>"+count+"; done")
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	return func() int {
		s.t.Helper()
		cancel()
		_ = cmd.Wait()
		// The batch that was under way is finished by its own process.
		if !pathEventually(patience, func() bool { return s.sh("ip -o link show group "+churningGroup) == "" }) {
			s.sh("ip link del group " + churningGroup)
		}
		b, err := os.ReadFile(count)
		if err != nil {
			s.t.Fatal(err)
		}
		return len(b)
	}
}

// BR-45: dumps that the kernel interrupts because links and routes come and go are repeated, not believed.
func TestNetnsBR45_churning_links(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(30))
	// Each refresh dumps links, addresses and routes; 1 s is the shortest that is allowed.
	s.ipam["refresh"], s.ipam["cooldown"] = "1s", "1ms"
	s.settle()
	before := s.snapshot()
	live := map[*lab.Namespace]*answer{}
	for i := range 5 {
		p, a := s.pathPod(fmt.Sprintf("live%d", i))
		live[p] = a
	}
	s.standLinks("add %s type ifb")
	stop := s.churnLinks()
	pathMany(interruptedRounds, func(i int) {
		id := fmt.Sprintf("c%d", i)
		p := s.Pod(t, id)
		defer p.Close()
		a := s.add(id, p)
		if a.Exit != 0 {
			t.Errorf("ADD %d: code %d: %s", i, a.Code, a.Msg)
			return
		}
		for _, l := range live {
			if l.IP == a.IP {
				t.Errorf("%s of a live pod was given out again", a.IP)
			}
		}
		if c := s.check(id, p, a); c.Exit != 0 {
			t.Errorf("CHECK %d: code %d: %s", i, c.Code, c.Msg)
		}
		if i%10 == 0 && !s.answers(p, lab.SimpleGateway) {
			t.Errorf("pod %d does not reach the gateway", i)
		}
		// A repair lists all links and routes, and removes what it takes for nobody's.
		if i%5 == 0 {
			if out, err := s.ctl("node", "repair"); err != nil {
				t.Errorf("repair: %v: %s", err, out)
			}
		}
		if d := s.del(id, p); d.Exit != 0 {
			t.Errorf("DEL %d: code %d: %s", i, d.Code, d.Msg)
		}
	})
	n := stop()
	t.Logf("%d links and %d routes came and went %d times", churningLinks, churningRoutes, n)
	if n < 20 {
		t.Errorf("links and routes came and went %d times only: the test proves little", n)
	}
	for p, a := range live {
		s.reaches(p, a.IP)
	}
	s.standLinks("del %s")
	if held := s.held(); len(held) != len(live) || len(s.podLinks()) != len(live) {
		t.Errorf("leased %v, links %v, want those of %d live pods", held, s.podLinks(), len(live))
	}
	for i := range len(live) {
		s.del(fmt.Sprintf("live%d", i), nil).ok()
	}
	s.noLeak(before)
	s.consistent()
}
