package netns

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// fullPool is five pods with all five addresses.
func fullPool(t *testing.T) (*stage, []*lab.Namespace, []*answer) {
	t.Helper()
	s := newStage(t, lab.SimpleOptions{})
	var pods []*lab.Namespace
	var added []*answer
	for i := range 5 {
		p := s.Pod(t, fmt.Sprintf("p%d", i+1))
		pods, added = append(pods, p), append(added, s.add(fmt.Sprintf("c%d", i+1), p).ok())
	}
	return s, pods, added
}

// powerLoss deletes what a machine loses of a pod.
func (s *stage) powerLoss(p *lab.Namespace, a *answer) {
	s.t.Helper()
	s.sh("ip link del " + a.HostLink)
	if err := p.Close(); err != nil {
		s.t.Fatal(err)
	}
}

// BR-22: reboot with leftovers: the store says that five pods run, and none does.
func TestNetnsBR22_reboot(t *testing.T) {
	t.Parallel()
	t.Run("leases_of_an_earlier_boot_block_nobody", func(t *testing.T) {
		t.Parallel()
		s, pods, added := fullPool(t)
		s.ipam["cooldown"] = "30s" // not applied to addresses from before the boot
		s.sh("cp " + stateDir + "/ipam.db /run/kept")
		for i, p := range pods {
			s.powerLoss(p, added[i])
		}
		s.sh(`nft flush ruleset
			ip rule flush; ip rule add from all lookup main prio 32766; ip rule add from all lookup default prio 32767
			ip route flush table 28201; ip route flush proto 217
			cp /run/kept ` + stateDir + `/ipam.db`)
		if err := s.Node.SetBootID("11111111-2222-3333-4444-555555555555"); err != nil {
			t.Fatal(err)
		}
		p6 := s.Pod(t, "p6")
		a := s.add("c6", p6).ok()
		s.reaches(p6, a.IP)
		if held := s.held(); len(held) != 1 || held[0] != a.IP {
			t.Errorf("%v are leased after the reboot, want %s alone", held, a.IP)
		}
		if left := s.sh("ls " + stateDir + " | grep -c damaged || true"); left != "0" {
			t.Error("a reboot was taken for damage")
		}
		s.del("c1", nil).ok() // a late DEL of an earlier boot
		s.reaches(p6, a.IP)
	})

	t.Run("two_that_survived_are_not_given_out", func(t *testing.T) {
		t.Parallel()
		s, pods, added := fullPool(t)
		for i := range 3 {
			s.powerLoss(pods[i], added[i])
		}
		if err := s.Node.SetBootID("11111111-2222-3333-4444-666666666666"); err != nil {
			t.Fatal(err)
		}
		// The policy table survived too: these addresses may have been in use a moment ago and cool down first.
		s.add("c6", s.Pod(t, "p6"))
		time.Sleep(1100 * time.Millisecond)
		live := []string{added[3].IP.String(), added[4].IP.String()}
		got := 0
		for i := range 5 {
			a := s.add(fmt.Sprintf("n%d", i), s.Pod(t, fmt.Sprintf("n%d", i)))
			if !a.OK() {
				a.fails(11)
				continue
			}
			got++
			if slices.Contains(live, a.IP.String()) {
				t.Errorf("live address %s was given out", a.IP)
			}
		}
		if got == 0 {
			t.Error("none of the three dead pods' addresses came back")
		}
		s.reaches(pods[3], added[3].IP)
		s.reaches(pods[4], added[4].IP)
	})

	t.Run("nothing_is_freed_by_guess_within_a_boot", func(t *testing.T) {
		t.Parallel()
		s, pods, added := fullPool(t)
		for i, p := range pods {
			s.powerLoss(p, added[i])
		}
		p6 := s.Pod(t, "p6")
		s.add("c6", p6).fails(11, "5 total", "5 leased")
		if held := s.held(); len(held) != 5 {
			t.Errorf("%v are leased, want all five", held)
		}
		s.del("c1", nil).ok()
		s.gc("c3", "c4", "c5").ok() // without c2
		if held := s.held(); len(held) != 3 {
			t.Errorf("%v are leased after a DEL and a GC, want three", held)
		}
		time.Sleep(1100 * time.Millisecond)
		a := s.add("c6", p6).ok()
		s.reaches(p6, a.IP)
	})
}
