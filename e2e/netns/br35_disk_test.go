package netns

import (
	"fmt"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// onSmallDisk is a stage whose state directory is a tmpfs of its own, inside the node's mounts.
func onSmallDisk(t *testing.T, options string) *stage {
	t.Helper()
	s := newStage(t, poolOf(250))
	s.sh("mkdir -p " + stateDir + " && mount -t tmpfs -o mode=0700," + options + " state " + stateDir)
	return s
}

// notWired wants nothing of a failed ADD in node and pod.
func (s *stage) notWired(p *lab.Namespace, id string) {
	s.t.Helper()
	if s.hasLink(linkOf(id, "eth0")) {
		s.t.Errorf("failed ADD of %s left its link", id)
	}
	s.podIsBare(p)
}

func (s *stage) podIsBare(p *lab.Namespace) {
	s.t.Helper()
	if n := s.in(p, "ip -o link | grep -vc ' lo:' || true"); n != "0" {
		s.t.Errorf("failed ADD left %s links in the pod", n)
	}
}

// BR-35: the disk is read-only or full.
func TestNetnsBR35_disk(t *testing.T) {
	t.Parallel()
	t.Run("1_read_only", func(t *testing.T) {
		t.Parallel()
		s := onSmallDisk(t, "size=300k")
		s.settle()
		before := s.snapshot()
		p1, p2 := s.Pod(t, "p1"), s.Pod(t, "p2")
		one := s.add("c1", p1).ok()
		during := s.snapshot()
		s.sh("mount -o remount,ro " + stateDir)

		s.add("c2", p2).fails(5, stateDir, "read-only")
		s.notWired(p2, "c2")
		s.unchanged(during)
		s.reaches(p1, one.IP)
		s.status().fails(50, stateDir, "read-only")

		s.del("c1", p1).failsWith([]uint{5}, stateDir, "read-only") // not recorded, so it must be asked for again
		if s.hasLink(one.HostLink) {
			t.Errorf("DEL left %s", one.HostLink)
		}
		s.sh("mount -o remount,rw " + stateDir)
		s.del("c1", p1).ok()
		s.del("c2", p2).ok()
		s.status().ok()
		s.noLeak(before)
		s.consistent()
	})

	t.Run("2_full", func(t *testing.T) {
		t.Parallel()
		s := onSmallDisk(t, "size=300k")
		s.settle()
		before := s.snapshot()
		s.sh("cat /dev/zero >" + stateDir + "/fill 2>/dev/null || true; [ $(df --output=avail " + stateDir + " | tail -1) = 0 ]")
		var live []string
		pods := map[string]*lab.Namespace{}
		added := map[string]*answer{}
		failed := ""
		for i := range 120 { // until it fails
			id := fmt.Sprintf("c%d", i)
			pods[id] = s.Pod(t, id)
			a := s.add(id, pods[id])
			if !a.OK() {
				a.fails(5, stateDir, "no space left")
				failed = id
				break
			}
			live, added[id] = append(live, id), a
		}
		if failed == "" {
			t.Fatal("the disk never filled up")
		}
		t.Logf("%d pods before the disk was full", len(live))
		s.notWired(pods[failed], failed)
		s.consistent()
		if len(live) > 0 {
			last := live[len(live)-1]
			s.reaches(pods[last], added[last].IP)
			// DEL unwires; if it can't record that, it says so and works once there is room.
			if d := s.del(last, pods[last]); !d.OK() {
				d.fails(5, stateDir, "no space left")
			}
			if s.hasLink(added[last].HostLink) {
				t.Errorf("DEL left %s", added[last].HostLink)
			}
		}
		s.del(failed, pods[failed])
		s.sh("rm " + stateDir + "/fill")
		s.del(failed, pods[failed]).ok()
		again := s.add(failed, pods[failed]).ok()
		s.reaches(pods[failed], again.IP)
		for id, p := range pods {
			s.del(id, p).ok()
		}
		s.consistent()
		s.noLeak(before)
	})

	t.Run("3_inodes_used_up", func(t *testing.T) {
		t.Parallel()
		s := onSmallDisk(t, "size=300k,nr_inodes=4")
		use := "i=0; while touch " + stateDir + "/used$i 2>/dev/null; do i=$((i+1)); done"
		s.sh(use)
		before := s.snapshot()
		p := s.Pod(t, "p1")
		s.add("c1", p).fails(5, stateDir, "no space left")
		s.notWired(p, "c1")
		s.unchanged(before)
		s.status().fails(50, stateDir)
		s.del("c1", p) // nothing is there; whether that can be known is the store's affair
		s.sh("rm " + stateDir + "/used*; mount -o remount,nr_inodes=100 " + stateDir)
		a := s.add("c1", p).ok()
		s.reaches(p, a.IP)
		s.sh(use)
		d := s.del("c1", p)
		if !d.OK() {
			d.fails(5, stateDir)
		}
		if s.hasLink(a.HostLink) {
			t.Errorf("DEL left %s", a.HostLink)
		}
		s.sh("rm " + stateDir + "/used*")
		s.del("c1", p).ok()
		s.consistent()
		if held := s.held(); len(held) > 0 {
			t.Errorf("%v are still held", held)
		}
	})

	t.Run("4_disk_of_the_log_is_full_instead", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		s.top["log"] = map[string]any{"level": "debug", "file": "/run/log/native-vmss.log"}
		s.sh("mkdir /run/log && mount -t tmpfs -o size=16k tmpfs /run/log")
		s.settle()
		s.sh("cat /dev/zero >/run/log/fill 2>/dev/null || true")
		before := s.snapshot()
		p := s.Pod(t, "p1")
		begin := time.Now()
		a := s.add("c1", p).ok()
		s.reaches(p, a.IP)
		s.status().ok()
		s.check("c1", p, a).ok()
		s.del("c1", p).ok()
		if took := time.Since(begin); took > patience/2 {
			t.Errorf("took %v", took)
		}
		s.noLeak(before)
	})
}
