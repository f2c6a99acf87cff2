package netns

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// Somebody edits the configuration while pods run: DEL takes each of them down by what was recorded, and leaves nothing.
func TestNetnsConf_changed_between_ADD_and_DEL(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(40))
	s.settle()
	before := s.snapshot()
	ipam := func(key string, value any) func(top map[string]any) {
		return func(top map[string]any) { top["ipam"] = map[string]any{"type": "ipam-vmss", key: value} }
	}
	top := func(key string, value any) func(map[string]any) { return func(top map[string]any) { top[key] = value } }
	nothing := func(map[string]any) {}
	for name, c := range map[string]struct{ added, deleted func(top map[string]any) }{
		"a_key_that_is_not_known":       {nothing, top("colour", "blue")},
		"an_ipam_key_that_is_not_known": {nothing, ipam("colour", "blue")},
		"a_number_that_is_a_text":       {nothing, top("mtu", "large")},
		"a_list_that_is_a_number":       {nothing, top("nativeCIDRs", 5)},
		"an_object_that_is_a_list":      {nothing, top("log", []int{1})},
		"a_duration_that_is_none":       {nothing, ipam("cooldown", "soon")},
		"a_URL_that_is_a_number":        {nothing, ipam("metadataURL", 7)},
		"another_cniVersion":            {nothing, top("cniVersion", "0.3.1")},
		"keys_that_are_gone": {func(top map[string]any) {
			top["interfacePrefix"], top["mtu"], top["log"] = "ab", 1400, map[string]any{"level": "debug"}
			top["ipam"] = map[string]any{"type": "ipam-vmss", "cooldown": "1s", "lockTimeout": "5s"}
		}, nothing},
		"another_interfacePrefix":            {nothing, top("interfacePrefix", "pod")},
		"an_interfacePrefix_that_is_invalid": {nothing, top("interfacePrefix", "far too long")},
		"interfacePrefix_is_gone":            {top("interfacePrefix", "pod"), nothing},
		"interfacePrefix_twice":              {top("interfacePrefix", "pod"), top("interfacePrefix", "cali")},
		"prefix_and_all_else_unreadable": {top("interfacePrefix", "pod"), func(top map[string]any) {
			top["interfacePrefix"], top["mtu"], top["nativeCIDRs"], top["log"], top["masquerade"] = 1, "x", "y", 2, "maybe"
			top["ipam"] = map[string]any{"type": "ipam-vmss", "cooldown": 1, "refresh": []int{}, "metadataURL": false, "lockTimeout": "z"}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.pathAs(t)
			p := s.Pod(t, "p")
			defer p.Close()
			a := s.add("c", p, withStdin(s.conf(c.added))).ok()
			s.reaches(p, a.IP)
			if !s.hasLink(a.HostLink) {
				t.Fatalf("no link %s", a.HostLink)
			}
			s.del("c", p, withStdin(s.conf(c.deleted))).ok()
			s.podEmpty(p, "after DEL")
			s.noLeak(before)
		})
	}
	t.Run("another_interfacePrefix_and_the_store_is_lost", func(t *testing.T) {
		s := s.pathAs(t)
		p := s.Pod(t, "p")
		s.add("c", p, withStdin(s.conf(top("interfacePrefix", "pod")))).ok()
		s.sh("rm " + stateDir + "/ipam.db")
		s.del("c", p, withStdin(s.conf(top("interfacePrefix", "cali")))).ok()
		s.podEmpty(p, "after DEL")
		s.noLeak(before)
	})
}

// DEL with another stateDir finds a store there that is made from what the kernel has, and takes the pod down. Its lease stays in the
// old directory until repair, GC or a DEL there; the new one gives nobody an address that is held.
func TestNetnsConf_another_stateDir(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(3))
	s.settle()
	stays, a := s.pathPod("stays")
	ends, b := s.pathPod("ends")
	moved := s.pathKeyed(network, nil)
	moved.ipam = map[string]any{"type": "ipam-vmss", "cooldown": "1s", "stateDir": "/run/elsewhere"}

	moved.del("ends", ends).ok()
	s.podEmpty(ends, "after DEL")
	if links := s.podLinks(); !slices.Equal(links, []string{a.HostLink}) {
		t.Errorf("links %v, want %s", links, a.HostLink)
	}
	moved.check("stays", stays, a).ok() // known there from the kernel
	for _, id := range []string{"n1", "n2"} {
		n := moved.pathRetried(id, s.Pod(t, id)).ok()
		if n.IP == a.IP {
			t.Errorf("%s was given %s, which a live pod holds", id, n.IP)
		}
	}
	moved.del("n1", nil).ok()
	moved.del("n2", nil).ok()
	if st := s.state(b.IP); st != "leased" {
		t.Fatalf("%s is %q in the old store", b.IP, st)
	}
	s.del("ends", ends).ok()
	if st := s.state(b.IP); st != "cooling" {
		t.Errorf("%s is %q in the old store after its DEL there", b.IP, st)
	}
	s.check("stays", stays, a).ok()
	moved.del("stays", stays).ok()
	s.podEmpty(stays, "after DEL")
	s.gc().ok()
	s.clean("after a GC with the old stateDir")
}

// Binaries are replaced by renames, all the time, while ADDs run, also those of the main plugin that executes ipam-vmss: none fails,
// none is half done. The failpoint build is the other version: without its variables it does the same.
func TestNetnsUpgrade_binaries_replaced_while_ADDs_run(t *testing.T) {
	t.Parallel()
	const pods = 24
	s := newStage(t, poolOf(2*pods))
	s.settle()
	ptp := peer(t, "ptp")
	dir := t.TempDir()
	install := func(name, from string) {
		b, err := os.ReadFile(program(t, from))
		if err == nil {
			err = errors.Join(os.WriteFile(filepath.Join(dir, name+".new"), b, 0o755), os.Rename(filepath.Join(dir, name+".new"), filepath.Join(dir, name)))
		}
		if err != nil {
			t.Error(err)
		}
	}
	both := func(of string) {
		for _, name := range []string{"native-vmss", "ipam-vmss"} {
			install(name, of+name)
		}
	}
	both("")
	stop := make(chan struct{})
	var replaced atomic.Int32
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				both([]string{"failpoint/", ""}[replaced.Load()%2])
				replaced.Add(1)
			}
		}
	})
	s.path = dir
	foreign := func(top map[string]any) { top["cniVersion"], top["name"], top["type"] = "1.0.0", "foreign", "ptp" }
	run := func(command string, i int, p *lab.Namespace) lab.Outcome {
		id, main, stdin := "c"+string(rune('a'+i)), filepath.Join(dir, "native-vmss"), s.conf()
		if i%2 == 1 {
			main, stdin = ptp, s.conf(foreign)
		}
		return s.Node.RunPlugin(context.Background(), main, s.call(command, id, p, withStdin(stdin)))
	}
	var spaces []*lab.Namespace
	for i := range pods {
		spaces = append(spaces, s.Pod(t, "c"+string(rune('a'+i))))
	}
	for _, command := range []string{"ADD", "DEL"} {
		pathMany(pods, func(i int) {
			if o := run(command, i, spaces[i]); o.Exit != 0 || strings.Contains(string(o.Stderr), "goroutine ") {
				t.Errorf("%s %d: exit %d %s %s", command, i, o.Exit, o.Stdout, o.Stderr)
			}
		})
		want := map[string]int{"ADD": pods, "DEL": 0}[command]
		if held := s.held(); len(held) != want {
			t.Errorf("after %s: %d leased, want %d", command, len(held), want)
		}
	}
	// On a busy machine few were replaced by now; a DEL may be repeated until there are enough.
	for end := time.Now().Add(patience); replaced.Load() < 5 && time.Now().Before(end); {
		pathMany(pods, func(i int) {
			if o := run("DEL", i, spaces[i]); o.Exit != 0 {
				t.Errorf("DEL %d again: exit %d %s %s", i, o.Exit, o.Stdout, o.Stderr)
			}
		})
	}
	close(stop)
	wg.Wait()
	t.Logf("replaced %d times", replaced.Load())
	if replaced.Load() < 5 {
		t.Errorf("replaced %d times: the test proves little", replaced.Load())
	}
	s.clean("after the last DEL")
}
