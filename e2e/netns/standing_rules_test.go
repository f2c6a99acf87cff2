package netns

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// watched is what a program that monitors the node has written until the kernel has told it of everything: mark does something that
// it will tell of, with a word of its own.
func (s *stage) watched(file, word string, mark func(word string)) string {
	s.t.Helper()
	var text []byte
	if !pathEventually(patience, func() bool {
		mark(word) // a monitor that is still starting misses the first ones
		var err error
		text, err = os.ReadFile(file)
		return err == nil && strings.Contains(string(text), word)
	}) {
		s.t.Fatalf("%s: the monitor did not tell of %s: %s", file, word, text)
	}
	return string(text)
}

// Pods come and go without a rule: on a node that stands neither ADD nor CHECK, GC or DEL changes a policy rule or anything of nftables, so
// that no pod can leave one behind, and none waits for a lock that others hold over their rules.
func TestNetnsStanding_pods_come_and_go_without_a_rule(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	s.settle()
	monitors := map[string]struct {
		command string
		mark    func(word string)
	}{
		"nft":  {"nft monitor", func(word string) { s.sh("nft add table ip " + word + "; nft delete table ip " + word) }},
		"rule": {"ip monitor rule", func(word string) { s.sh("ip rule add iif " + word + " prio 77; ip rule del iif " + word + " prio 77") }},
	}
	before := map[string]string{}
	for name, m := range monitors {
		file := filepath.Join(s.Dir, name+".monitor")
		ctx, cancel := context.WithCancel(context.Background())
		cmd := s.Node.Command(ctx, "sh", "-c", "exec stdbuf -oL "+m.command+" >"+file)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { cancel(); _ = cmd.Wait() }()
		before[name] = s.watched(file, "begin", m.mark)
	}
	for _, id := range []string{"one", "two"} {
		p, a := s.pathPod(id)
		s.check(id, p, a).ok()
		s.status().ok()
		s.reaches(p, a.IP)
	}
	s.del("one", nil).ok()
	s.gc().ok() // takes the other one
	s.clean("after DEL and GC")
	for name, m := range monitors {
		file := filepath.Join(s.Dir, name+".monitor")
		told := strings.TrimPrefix(s.watched(file, "ended", m.mark), before[name])
		for line := range strings.Lines(told) {
			// The first pod with an address makes its counters, once; nothing of them ever goes.
			if strings.HasPrefix(line, "add ") && strings.Contains(line, " native_vmss_acct ") {
				continue
			}
			if !strings.Contains(line, "begin") && !strings.Contains(line, "ended") && !strings.HasPrefix(line, "# new generation") {
				t.Errorf("%s: %s", m.command, strings.TrimSpace(line))
			}
		}
	}
}
