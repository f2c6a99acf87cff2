package netns

import (
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// BR-38: a host link is named after the attachment, not after the pod: the old sandbox's late DEL takes nothing of the new.
func TestNetnsBR38_names(t *testing.T) {
	t.Parallel()
	type names struct{ ns1, name1, ns2, name2 string }
	long := strings.Repeat("p", 200)
	each(t, map[string]struct {
		names
		gone bool // p1 is gone and the DEL has no netns
	}{
		"late_DEL_of_the_same_pod_name":                    {names{"team-a", "web-0", "team-a", "web-0"}, false},
		"late_DEL_without_a_netns":                         {names{"team-a", "web-0", "team-a", "web-0"}, true},
		"names_that_are_one_text_when_joined":              {names{"a.b", "c", "a", "b.c"}, false},
		"names_that_differ_only_after_200_characters":      {names{"team-a", long + "one", "team-a", long + "two"}, false},
		"namespaces_that_differ_only_after_200_characters": {names{long + "one", "web-0", long + "two", "web-0"}, true},
	}, func(t *testing.T, c struct {
		names
		gone bool
	},
	) {
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		before := s.snapshot()
		p1, p2 := s.Pod(t, "p1"), s.Pod(t, "p2")
		one := s.add("c1", p1, podNamed(c.ns1, c.name1)).ok()
		two := s.add("c2", p2, podNamed(c.ns2, c.name2)).ok()
		for _, a := range []*answer{one, two} {
			if len(a.HostLink) > 15 || !s.hasLink(a.HostLink) {
				t.Errorf("host link %q", a.HostLink)
			}
		}
		if links := s.podLinks(); len(links) != 2 || one.HostLink == two.HostLink {
			t.Errorf("pod links %v, want two", links)
		}
		s.reaches(p2, two.IP)
		in, out := s.stream(s.GW, two.IP), s.stream(p2, lab.SimpleGateway)
		if c.gone {
			if err := p1.Close(); err != nil {
				t.Error(err)
			}
			s.del("c1", nil, withNetns(""), podNamed(c.ns1, c.name1)).ok()
		} else {
			s.del("c1", p1, podNamed(c.ns1, c.name1)).ok()
		}
		s.del("c1", nil, podNamed(c.ns1, c.name1)).ok()
		s.reaches(p2, two.IP)
		in()
		out()
		if links := s.podLinks(); len(links) != 1 || links[0] != two.HostLink {
			t.Errorf("pod links %v, want %s", links, two.HostLink)
		}
		s.check("c2", p2, two).ok()
		s.del("c2", p2).ok()
		s.noLeak(before)
	})
}
