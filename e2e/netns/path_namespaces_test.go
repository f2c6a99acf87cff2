package netns

import (
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// A runtime mixes namespaces up: another container's ADD and DEL name the namespace of a live pod, and a DEL names one that is another
// pod's by now. Whose DEL it is says the container alone; the live pod loses no packet and keeps its link.
func TestNetnsPath_namespaces_mixed_up(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	s.settle()
	live, a := s.pathPod("live")
	s.reaches(live, a.IP)
	link := s.in(live, "ip -o link show eth0")
	lossless, back := s.stream(live, lab.SimpleGateway), s.stream(s.GW, a.IP)

	s.add("other", live).fails(4, "interface exists")
	s.del("other", live).ok()
	two := s.add("other", live, withIfName("eth1")).ok()
	if two.IP == a.IP {
		t.Errorf("both interfaces have %s", a.IP)
	}
	s.del("other", live, withIfName("eth0")).ok() // never added
	if !s.answers(s.GW, two.IP) {
		t.Errorf("the DEL of another interface cut %s off", two.IP)
	}
	s.del("other", live, withIfName("eth1")).ok()
	ended, e := s.pathPod("ended")
	s.del("ended", live).ok()
	s.podEmpty(ended, "after a DEL that named another namespace")
	if s.hasLink(e.HostLink) {
		t.Errorf("%s still stands", e.HostLink)
	}

	lossless()
	back()
	if now := s.in(live, "ip -o link show eth0"); now != link {
		t.Errorf("the pod's link became %s, it was %s", now, link)
	}
	s.holdsOnly("one pod lives", a.IP)
	s.check("live", live, a).ok()
}
