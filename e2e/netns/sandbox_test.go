package netns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// A container id is used again: after its DEL, in another network, and in another namespace while the first one lives. BR-17 has it
// in another namespace when the first one is gone.
func TestNetnsSandbox_container_id_used_again(t *testing.T) {
	t.Parallel()
	t.Run("after_its_DEL", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		before := s.snapshot()
		p, a := s.pathPod("c1")
		old, err := s.leaseTable()
		if err != nil {
			t.Fatal(err)
		}
		s.del("c1", p).ok()
		q := s.Pod(t, "q")
		b := s.add("c1", q).ok()
		now, err := s.leaseTable()
		if err != nil || now[b.IP].Generation <= old[a.IP].Generation || now[b.IP].Key != old[a.IP].Key {
			t.Errorf("lease %+v, the one before %+v, %v", now[b.IP], old[a.IP], err)
		}
		if b.IP == a.IP {
			t.Errorf("%s was used again at once", a.IP)
		}
		s.podEmpty(p, "after DEL")
		s.check("c1", q, b).ok()
		s.reaches(q, b.IP)
		s.gc("c1").ok()
		s.reaches(q, b.IP)
		s.del("c1", p).ok() // with the namespace of the first one, as a runtime that has it noted so
		s.podEmpty(q, "after DEL")
		s.noLeak(before)
	})
	t.Run("in_another_network", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		before := s.snapshot()
		second := s.pathKeyed("second", nil)
		p := s.Pod(t, "p")
		a := s.add("c1", p).ok()
		b := second.add("c1", p, withIfName("eth1")).ok()
		q := s.Pod(t, "q")
		c := second.add("c1", q).ok() // eth0, of the same container id: a third attachment
		for i, d := range []*answer{a, b, c} {
			for _, e := range []*answer{a, b, c}[:i] {
				if d.IP == e.IP || d.HostLink == e.HostLink {
					t.Errorf("%s by %s twice", d.IP, d.HostLink)
				}
			}
		}
		s.del("c1", p).ok()
		s.holdsOnly("after a DEL in the first network", b.IP, c.IP)
		second.gcWith(map[string]any{"cni.dev/valid-attachments": attachments("c1")}).ok() // eth0 alone
		s.holdsOnly("after a GC in the second network", c.IP)
		s.gc().ok()
		s.holdsOnly("after a GC in the first network", c.IP)
		second.check("c1", q, c).ok()
		second.del("c1", q).ok()
		s.noLeak(before)
	})
	t.Run("in_another_namespace_while_the_first_lives", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		before := s.snapshot()
		p, a := s.pathPod("c1")
		q := s.Pod(t, "q")
		b := s.add("c1", q).ok()
		if b.IP != a.IP {
			t.Errorf("the attachment has %s, it had %s", b.IP, a.IP)
		}
		s.podEmpty(p, "after its attachment moved")
		s.holdsOnly("after the second ADD", b.IP)
		s.check("c1", q, b).ok()
		s.del("c1", q).ok()
		s.noLeak(before)
	})
}

// sandboxPair is a pod whose old sandbox is being deleted while its new one is made.
type sandboxPair struct {
	point            string
	old, next        *lab.Namespace
	oldID, nextID    string
	deleted, added   *answer
	oldAddr          netip.Addr
	delCall, addCall lab.Call
}

// The pod of a stateful set comes back under its name while its old sandbox is being deleted, whichever step that DEL is at: the new
// one has its own address and link, and the old one's DEL takes nothing of it. BR-38 has the old sandbox alive. Where a runtime uses
// the container id again instead, the ADD waits for the DEL, and all of it stands or nothing does.
func TestNetnsSandbox_new_one_while_the_old_one_is_deleted(t *testing.T) {
	t.Parallel()
	each(t, map[string]bool{"of_another_id": false, "of_the_same_id": true}, func(t *testing.T, sameID bool) {
		const pods = 40
		s := newStage(t, poolOf(2*pods))
		s.ipam["lockTimeout"] = "30s"
		s.settle()
		traced := s.Pod(t, "trace")
		s.add("trace", traced).ok()
		points := slices.DeleteFunc(s.hits(s.call("DEL", "trace", traced)), func(p string) bool {
			return strings.HasPrefix(p, "boltfile.") && p != "boltfile.commit#1" // one that holds the store's lock is enough
		})
		before := s.snapshot()
		var pairs []*sandboxPair
		for i, point := range points {
			r := &sandboxPair{point: point, oldID: fmt.Sprintf("old%d", i), nextID: fmt.Sprintf("next%d", i)}
			if sameID {
				r.nextID = r.oldID
			}
			r.old, r.next = s.Pod(t, r.oldID), s.Pod(t, "n"+r.nextID)
			name := podNamed("team-a", fmt.Sprintf("web-%d", i))
			r.oldAddr = s.add(r.oldID, r.old, name).ok().IP
			r.delCall = s.call("DEL", r.oldID, r.old, name, at(point, "2s"))
			r.addCall = s.call("ADD", r.nextID, r.next, name)
			pairs = append(pairs, r)
		}
		done := make(chan bool)
		for _, r := range pairs {
			go func() {
				r.deleted = s.runOf(pathFailing, r.delCall)
				done <- true
			}()
			go func() {
				time.Sleep(500 * time.Millisecond) // most of them come to a DEL that sleeps, and any order has to do
				r.added = s.run(r.addCall)
				done <- true
			}()
		}
		for range 2 * len(pairs) {
			<-done
		}
		keys := s.pathKeys()
		for _, r := range pairs {
			r.deleted.ok()
			s.podEmpty(r.old, "after the DEL that slept at "+r.point)
			if r.added.Exit != 0 {
				t.Errorf("%s: ADD of the new sandbox: code %d: %s", r.point, r.added.Code, r.added.Msg)
				continue
			}
			if !s.hasLink(linkOf(r.nextID, "eth0")) { // its id was deleted later than it was added
				if !sameID {
					t.Errorf("%s: the old sandbox's DEL took the new one's link", r.point)
				}
				s.podEmpty(r.next, "after its DEL")
				continue
			}
			if r.added.IP == r.oldAddr {
				t.Errorf("%s: %s was used again at once", r.point, r.oldAddr)
			}
			s.reaches(r.next, r.added.IP)
			s.run(s.call("CHECK", r.nextID, r.next, withStdin(s.prev(r.added)))).ok()
		}
		if links := s.podLinks(); len(links) != len(keys) || !sameID && len(links) != len(pairs) {
			t.Errorf("%d links and %d leases of %d pods", len(links), len(keys), len(pairs))
		}
		t.Logf("points of DEL: %v", points)
		for _, r := range pairs {
			s.del(r.nextID, r.next).ok()
		}
		s.noLeak(before)
		s.consistent()
	})
}

// A DEL that comes before its ADD has nothing to do and keeps nobody from that ADD. BR-21 has the DELs during and after it.
func TestNetnsSandbox_DEL_before_ADD(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	before := s.snapshot()
	p := s.Pod(t, "p")
	s.del("c1", p).ok() // on a node where nothing ran before
	s.del("c1", nil, withNetns("")).ok()
	s.noLeakOnNewNode(before)
	a := s.add("c1", p).ok()
	s.reaches(p, a.IP)
	s.check("c1", p, a).ok()
	s.del("c1", p).ok()
	s.clean("after DEL")
}
