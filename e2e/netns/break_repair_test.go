package netns

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// The files break_*_test.go hold what attacks on the node's path have found, and the attacks that are worth repeating.

// breakFixedIPAM makes an IPAM plugin that always answers with this address, and makes it the stage's.
func (s *stage) breakFixedIPAM(addr string) {
	s.t.Helper()
	dir := s.t.TempDir()
	script := "#!/bin/sh\ncat >/dev/null\n" + `[ "$CNI_COMMAND" != ADD ] || echo '{"cniVersion":"1.0.0","ips":[{"address":"` + addr + `/24"}]}'` + "\n"
	if err := os.WriteFile(filepath.Join(dir, "fixed"), []byte(script), 0o700); err != nil {
		s.t.Fatal(err)
	}
	s.path, s.ipam = dir, map[string]any{"type": "fixed"}
}

// A pod whose address another IPAM plugin gave has no lease in our store. Repair took its link for one that nobody stands for
// and cut every such pod off; it has to mend it, and a rebuilt store must not take it for a lease.
func TestNetnsBreak_repair_of_pods_with_another_IPAM(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	s.settle()
	s.breakFixedIPAM("10.20.0.12")
	p, a := s.pathPod("c1")
	for _, damage := range []string{"true", "ip route del 10.20.0.12; ip link set " + a.HostLink + " down", "rm " + stateDir + "/ipam.db"} {
		s.sh(damage)
		s.mustCtl("node", "repair")
		s.check("c1", p, a).ok()
		s.reaches(p, a.IP)
		if held := s.held(); len(held) > 0 {
			t.Errorf("%s, repair: the store holds %v, which another plugin gave", damage, held)
		}
	}
	s.del("c1", p).ok()
	s.clean("after DEL")
}

// Somebody renames a pod's host link. CHECK names it; DEL and GC find it by its mark, where they refused for ever, and where the
// route was gone too, freed the address of a pod that still had it.
func TestNetnsBreak_renamed_host_link(t *testing.T) {
	t.Parallel()
	each(t, map[string]string{
		"up":                   "ip link set $L name foo0",
		"down_without_a_route": "ip link set $L down; ip link set $L name foo0",
	}, func(t *testing.T, rename string) {
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		p := s.Pod(t, "c1")
		for _, undo := range []func() *answer{
			func() *answer { return s.del("c1", p) },
			func() *answer { return s.del("c1", nil, withNetns("")) },
			func() *answer { return s.gc() },
		} {
			a := s.add("c1", p).ok()
			s.sh(strings.ReplaceAll(rename, "$L", a.HostLink))
			s.check("c1", p, a).fails(103, a.HostLink)
			undo().ok()
			s.clean("after the rename")
			s.podEmpty(p, "after the rename")
		}
	})
}

// A lease that was taken from the kernel after the store was lost is as collectable as any other: it had no main plugin's name, and
// no sweep ever looked at it.
func TestNetnsBreak_sweep_after_a_lost_store(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	_, dead := s.pathPod("dead")
	_, live := s.pathPod("live")
	s.sh("rm " + stateDir + "/ipam.db")
	s.mustCtl("node", "repair")
	s.status().ok() // not a new node: the pods have addresses, whatever metadata was asked
	s.sh("ip link del " + dead.HostLink)
	for _, offset := range []string{"0s", "61s"} {
		if out, err := s.ctlEnv("failpoint/vmssctl", []string{"NVT_CLOCK_OFFSET=" + offset}, "node", "repair"); err != nil {
			t.Fatalf("repair: %v: %s", err, out)
		}
	}
	if held := s.held(); len(held) != 1 || held[0] != live.IP {
		t.Errorf("held %v, want %s alone", held, live.IP)
	}
}

// The NIC gets another name, or goes under a bridge that takes its addresses over. ADD and repair knew it by its old name until the
// snapshot was due, a minute later, and repair stopped there without having looked at a single pod.
func TestNetnsBreak_NIC_changes_under_pods(t *testing.T) {
	t.Parallel()
	each(t, map[string]string{
		"renamed": "ip link set eth0 name ens5",
		"under_a_bridge": "ip link add br0 type bridge; ip link set br0 address " + lab.SimpleMAC + "; ip addr flush dev eth0; " +
			"ip link set eth0 master br0; ip link set br0 up; ip addr add 10.20.0.4/24 dev br0 valid_lft 3600 preferred_lft 3600; " +
			"ip route add default via 10.20.0.1",
	}, func(t *testing.T, change string) {
		s := newStage(t, lab.SimpleOptions{})
		p, a := s.pathPod("c1")
		s.sh(change)
		s.mustCtl("node", "repair")
		s.check("c1", p, a).ok()
		s.reaches(p, a.IP)
		if !s.answers(p, lab.SimpleInternet) {
			t.Error("the pod does not reach the internet")
		}
		q, b := s.pathPod("c2")
		s.reaches(q, b.IP)
	})
	t.Run("an_ADD_comes_before_any_repair", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		p, a := s.pathPod("c1")
		s.sh("ip link set eth0 name ens5")
		q, b := s.pathPod("c2")
		s.check("c1", p, a).ok()
		s.reaches(q, b.IP)
	})
	t.Run("repair_mends_pods_although_the_node_is_not_mended", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		p, a := s.pathPod("c1")
		s.MD.HandleFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusNotFound) })
		s.sh("ip link set eth0 name ens5; ip route del " + a.IP.String())
		if out, err := s.ctl("node", "repair"); err == nil {
			t.Errorf("repair succeeded: %s", out)
		}
		s.reaches(p, a.IP)
	})
}

// Network managers that match veth* change a pod's link or take it under a bridge, and people clear aliases. Either of our marks is
// enough to know the link: CHECK names the change, repair undoes it, and a DEL that comes first leaves nothing.
func TestNetnsBreak_changed_host_link(t *testing.T) {
	t.Parallel()
	each(t, map[string]string{
		"another_group":  "ip link set $L group 0",
		"no_alias":       "ip link set $L alias ''",
		"under_a_bridge": "ip link add br9 type bridge; ip link set br9 up; ip link set $L master br9",
	}, func(t *testing.T, change string) {
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		p, a := s.pathPod("c1")
		change = strings.ReplaceAll(change, "$L", a.HostLink)
		s.sh(change)
		s.check("c1", p, a).fails(103, a.HostLink)
		s.mustCtl("node", "repair")
		s.check("c1", p, a).ok()
		s.reaches(p, a.IP)
		s.sh(": >" + stateDir + "/ipam.db") // the marks are right: a rebuild finds the pod
		if got := s.pathLeases(); got[a.IP.String()] == 0 {
			t.Errorf("after the store was lost: %v", got)
		}
		s.sh("ip link del br9 2>/dev/null || true")
		s.sh(change)
		s.del("c1", p).ok()
		s.podEmpty(p, "after DEL")
		s.clean("after DEL")
	})
}
