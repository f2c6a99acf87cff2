package netns

import (
	"slices"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// document is what the stub serves, changed before it goes out.
func (s *stage) document(edit func(nics []any)) map[string]any {
	doc := lab.NetworkDocument(s.NICs...)
	if edit != nil {
		edit(doc["interface"].([]any))
	}
	return doc
}

func (s *stage) macIs(spelling any) map[string]any {
	return s.document(func(nics []any) {
		nic := nics[0].(map[string]any)
		if spelling == nil {
			delete(nic, "macAddress")
			return
		}
		nic["macAddress"] = spelling
	})
}

// BR-07: a MAC is spelled in many ways; one that is malformed never matches by accident.
func TestNetnsBR07_mac(t *testing.T) {
	t.Parallel()
	each(t, map[string]string{
		"12_digits_of_metadata":     "02005E100004",
		"dashes_of_ARM":             "02-00-5E-10-00-04",
		"colons_of_the_kernel":      "02:00:5e:10:00:04",
		"12_digits_in_lower_case":   "02005e100004",
		"colons_of_newer_documents": "02:00:5E:10:00:04",
	}, func(t *testing.T, spelling string) {
		s := newStage(t, lab.SimpleOptions{})
		s.MD.Serving(s.macIs(spelling))
		s.settle()
		before := s.snapshot()
		p := s.Pod(t, "p1")
		s.reaches(p, s.add("c1", p).ok().IP)
		s.del("c1", p).ok()
		s.noLeak(before)
	})
	each(t, map[string]struct {
		spelling any
		quoted   string
	}{
		"11_digits_match_nothing":        {"02005E10004", `"02005E10004"`},
		"empty_matches_nothing":          {"", `""`},
		"absent_matches_nothing":         {nil, `""`},
		"star_matches_nothing":           {"*", `"*"`},
		"all_zero_does_not_match_the_lo": {"000000000000", `"000000000000"`},
	}, func(t *testing.T, c struct {
		spelling any
		quoted   string
	},
	) {
		s := newStage(t, lab.SimpleOptions{})
		s.MD.Serving(s.macIs(c.spelling))
		before := s.snapshot()
		s.add("c1", s.Pod(t, "p1")).failsWith([]uint{11, 7}, c.quoted)
		s.del("c1", nil).ok()
		s.noLeakOnNewNode(before)
	})
	each(t, map[string]string{
		// The kernel refuses a macvlan the address of its own link, unless that link gets it afterwards.
		"twin_without_an_address_is_not_used": `ip link add link eth0 name enP1 type macvlan
			ip link set eth0 address 02:00:5e:10:00:99
			ip link set enP1 address 02:00:5e:10:00:04
			ip link set eth0 address 02:00:5e:10:00:04`,
		// On a real machine the twin is up, and comes first in the list of links.
		"twin_that_is_up_is_not_used": `ip link add enP1 type veth peer name enP1x
			ip link set enP1 address 02:00:5e:10:00:04; ip link set enP1 up; ip link set enP1x up`,
	}, func(t *testing.T, twin string) {
		s := newStage(t, lab.SimpleOptions{})
		s.sh(twin)
		p := s.Pod(t, "p1")
		added := s.add("c1", p).ok()
		s.reaches(p, added.IP)
		if via := s.sh("ip route get 203.0.113.10 from " + added.IP.String() + " iif " + added.HostLink); !strings.Contains(via, "dev eth0") {
			t.Errorf("pod leaves by %s", via)
		}
		if !slices.Contains(s.pool, added.IP) {
			t.Errorf("pod got %s", added.IP)
		}
	})
}
