package netns

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// foreignCall is a call of ipam-vmss as ptp makes it, whose pods have no link of ours.
func (s *stage) foreignCall(command, id string, pod *lab.Namespace) *answer {
	s.t.Helper()
	stdin := s.conf(func(top map[string]any) { top["name"], top["type"] = "foreign", "ptp" })
	c := s.call(command, id, pod, withStdin(stdin))
	o := s.Node.RunPlugin(context.Background(), program(s.t, "ipam-vmss"), c)
	if o.Exit != 0 {
		s.t.Errorf("ipam-vmss %s %s: exit %d %s", command, id, o.Exit, o.Stdout)
	}
	return &answer{Outcome: o, stage: s, Command: command}
}

// The boot id changes under pods that live on, as after a checkpoint of the machine's agent: with the store, or with a state directory
// that is empty. Every pod has what it had, under its key and generation, and is checked and taken down as ever; nobody gets what
// another holds. When it all goes at the next boot, so do the leases, and the addresses need no rest.
func TestNetnsReboot_with_pods_that_survive(t *testing.T) {
	t.Parallel()
	each(t, map[string]string{"store_kept": "true", "store_lost": "rm -r " + stateDir}, func(t *testing.T, lose string) {
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		stays, a := s.pathPod("stays")
		ends, b := s.pathPod("ends")
		s.foreignCall("ADD", "foreign", s.Pod(t, "foreign"))
		before, err := s.leaseTable()
		if err != nil || len(before) != 3 {
			t.Fatalf("leases %v, %v", before, err)
		}
		wide := s.nodeWide0()
		lossless := s.stream(stays, lab.SimpleGateway)
		s.sh(lose)
		if err := s.Node.SetBootID("11111111-2222-3333-4444-888888888881"); err != nil {
			t.Fatal(err)
		}
		s.check("stays", stays, a).ok()
		s.status().ok()
		now, err := s.leaseTable()
		if err != nil || len(now) != 3 {
			t.Errorf("leases %v, before the boot %v: %v", now, before, err)
		}
		for _, ip := range []netip.Addr{a.IP, b.IP} {
			if now[ip] != before[ip] {
				t.Errorf("lease of %s is %+v, before the boot %+v", ip, now[ip], before[ip])
			}
		}
		got := map[netip.Addr]bool{}
		for _, id := range []string{"n1", "n2"} { // all that is left of five
			n := s.pathRetried(id, s.Pod(t, id)).ok()
			if _, held := before[n.IP]; held || got[n.IP] {
				t.Errorf("%s was given %s, which another holds", id, n.IP)
			}
			got[n.IP] = true
		}
		s.add("n3", s.Pod(t, "n3")).fails(11, "5 leased")
		if now := s.nodeWide0(); now != wide {
			t.Errorf("node-wide state: %s\nbefore the boot: %s", now, wide)
		}
		s.del("ends", ends).ok()
		s.podEmpty(ends, "after DEL")
		s.check("stays", stays, a).ok()
		lossless()
		s.reaches(stays, a.IP)

		s.ipam["cooldown"] = "1h"
		for _, link := range s.podLinks() {
			s.sh("ip link del " + link)
		}
		s.sh(`nft flush ruleset; ip route flush table 28299
			ip rule flush; ip rule add from all lookup main prio 32766; ip rule add from all lookup default prio 32767
			ip route flush table 28201; ip route flush proto ` + pathProtocol)
		if err := s.Node.SetBootID("11111111-2222-3333-4444-888888888882"); err != nil {
			t.Fatal(err)
		}
		for i, id := range []string{"m0", "m1", "m2", "m3", "m4"} {
			p := s.Pod(t, id)
			m := s.add(id, p).ok()
			if i == 0 {
				s.reaches(p, m.IP)
			}
		}
		s.del("stays", nil).ok() // late ones, of the boot before
		s.del("n1", nil).ok()
		s.foreignCall("DEL", "foreign", nil)
		if held := s.held(); len(held) != 5 {
			t.Errorf("leased %v, want five", held)
		}
	})
}

// A state directory on a disk outlives the boot, and its leases don't.
func TestNetnsReboot_state_on_a_disk(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	s.ipam["stateDir"], s.ipam["cooldown"] = s.Dir+"/state", "1h"
	var added []*answer
	var pods []*lab.Namespace
	for _, id := range []string{"c1", "c2", "c3", "c4", "c5"} {
		p, a := s.pathPod(id)
		pods, added = append(pods, p), append(added, a)
	}
	leases := s.pathLeases()
	survivor, of := pods[4], added[4]
	for i, p := range pods[:4] {
		s.powerLoss(p, added[i])
	}
	s.sh("nft flush ruleset; ip route flush table 28201")
	if err := s.Node.SetBootID("11111111-2222-3333-4444-888888888883"); err != nil {
		t.Fatal(err)
	}
	var fresh []netip.Addr
	for _, id := range []string{"d1", "d2", "d3", "d4"} {
		fresh = append(fresh, s.add(id, s.Pod(t, id)).ok().IP)
	}
	s.add("d5", s.Pod(t, "d5")).fails(11, "5 leased")
	if slices.Contains(fresh, of.IP) {
		t.Errorf("%s of a live pod was given out: %v", of.IP, fresh)
	}
	now := s.pathLeases()
	if g := leases[of.IP.String()]; now[of.IP.String()] != g || len(now) != 5 {
		t.Errorf("leases %v, want five, and %s with generation %d", slices.Collect(maps.Keys(now)), of.IP, g)
	}
	s.check("c5", survivor, of).ok()
	s.reaches(survivor, of.IP)
	s.del("c5", survivor).ok()
	s.del("c1", nil).ok()
	if now := s.pathLeases(); len(now) != 4 {
		t.Errorf("leases %v after the DELs, want four", now)
	}
}
