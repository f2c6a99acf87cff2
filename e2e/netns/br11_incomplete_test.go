package netns

import (
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// part is a variant of MD0 with something missing or odd.
type part struct {
	edit func(doc map[string]any, nic, v4 map[string]any)
	// whole says that the primary's own address is there: ADD works.
	whole bool
}

func subnetIs(v any) func(_, _, v4 map[string]any) {
	return func(_, _, v4 map[string]any) { v4["subnet"] = v }
}

func prefixIs(v any) func(_, _, v4 map[string]any) {
	return subnetIs([]any{map[string]any{"address": "10.20.0.0", "prefix": v}})
}

func partsMissing() map[string]part {
	return map[string]part{
		"network_absent":     {func(doc, _, _ map[string]any) { delete(doc, "interface") }, false},
		"interface_empty":    {func(doc, _, _ map[string]any) { doc["interface"] = []any{} }, false},
		"interface_null":     {func(doc, _, _ map[string]any) { doc["interface"] = nil }, false},
		"addresses_null":     {func(_, _, v4 map[string]any) { v4["ipAddress"] = nil }, false},
		"addresses_empty":    {func(_, _, v4 map[string]any) { v4["ipAddress"] = []any{} }, false},
		"subnet_absent":      {func(_, _, v4 map[string]any) { delete(v4, "subnet") }, true},
		"subnet_empty":       {subnetIs([]any{}), true},
		"prefix_is_a_number": {prefixIs(24), true},
		"prefix_with_slash":  {prefixIs("/24"), true},
		"prefix_empty":       {prefixIs(""), true},
		"two_subnets": {subnetIs([]any{
			map[string]any{"address": "10.20.0.0", "prefix": "24"}, map[string]any{"address": "10.20.9.0", "prefix": "24"},
		}), true},
	}
}

// BR-11: 200 with parts missing. A document without the primary's own address is incomplete: nothing is concluded from it.
//
// The two allocations stand in a pool of two, so that the third ADD has to ask.
func TestNetnsBR11_parts_missing(t *testing.T) {
	t.Parallel()
	each(t, partsMissing(), func(t *testing.T, c part) {
		s := newStage(t, lab.SimpleOptions{})
		full := s.NICs[0].Addrs
		s.NICs[0].Addrs = full[:3]
		s.MD.Serving(lab.NetworkDocument(s.NICs...))
		p1, p2, p3 := s.Pod(t, "p1"), s.Pod(t, "p2"), s.Pod(t, "p3")
		one, two := s.add("c1", p1).ok(), s.add("c2", p2).ok()
		time.Sleep(5100 * time.Millisecond) // with nothing free metadata is asked every 5 s at most

		s.NICs[0].Addrs = full
		s.serveWithout(c)
		before, records := s.snapshot(), s.records()
		a := s.add("c3", p3)
		if c.whole {
			a.ok()
			if a.IP == one.IP || a.IP == two.IP {
				t.Errorf("c3 got the live address %s", a.IP)
			}
			s.reaches(p3, a.IP)
			s.del("c3", p3).ok()
		} else {
			a.fails(11)
			s.sameRecords(records)
			s.unchanged(before)
			s.status().ok() // addresses are known
		}
		s.reaches(p1, one.IP)
		s.reaches(p2, two.IP)
		s.del("c1", p1).ok()
		s.del("c2", p2).ok()
	})
	for name, c := range partsMissing() {
		t.Run(name+"_on_a_new_node", func(t *testing.T) {
			t.Parallel()
			s := newStage(t, lab.SimpleOptions{})
			s.serveWithout(c)
			before := s.snapshot()
			p := s.Pod(t, "p1")
			if a := s.add("c1", p); c.whole {
				a.ok()
				s.reaches(p, a.IP)
			} else {
				a.fails(11)
				s.status().fails(50)
				s.noLeakOnNewNode(before)
			}
		})
	}
	t.Run("healthy_NIC_is_used_beside_an_incomplete_one", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{Pool2: lab.AddrRange(netip.MustParseAddr("10.20.1.50"), 2)})
		s.ipam["refresh"] = "1s"
		one, a := s.podAt("c1", "10.20.0.10")
		two, b := s.podAt("c2", "10.20.1.50")
		time.Sleep(nicsRefresh)
		s.MD.Forget()
		s.MD.Serving(s.document(func(nics []any) { delete(nics[1].(map[string]any), "ipv4") }))
		for _, id := range []string{"c3", "c4", "c5", "c6"} { // all that the healthy one has
			p, c := s.pathPod(id)
			if !lab.SimpleSubnet.Contains(c.IP) || c.IP == a.IP {
				t.Errorf("pod got %s", c.IP)
			}
			s.reaches(p, c.IP)
		}
		if len(s.MD.Requests()) == 0 {
			t.Error("nobody asked: the test proves nothing")
		}
		s.reaches(one, a.IP)
		s.reaches(two, b.IP)
		s.check("c2", two, b).ok()
		s.del("c2", two).ok()
		s.add("c7", s.Pod(t, "c7")).fails(11, lab.SimpleMAC2)
	})
	t.Run("healthy_NIC_is_used_beside_an_incomplete_one_on_a_new_node", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{Pool2: lab.AddrRange(netip.MustParseAddr("10.20.1.50"), 2)})
		s.MD.Serving(s.document(func(nics []any) { delete(nics[1].(map[string]any), "ipv4") }))
		p := s.Pod(t, "p1")
		a := s.add("c1", p).ok()
		if !lab.SimpleSubnet.Contains(a.IP) {
			t.Errorf("pod got %s of the NIC without addresses", a.IP)
		}
		s.reaches(p, a.IP)
	})
}

// serveWithout makes the stub serve the variant.
func (s *stage) serveWithout(c part) {
	doc := s.document(nil)
	nic := doc["interface"].([]any)[0].(map[string]any)
	c.edit(doc, nic, nic["ipv4"].(map[string]any))
	if _, there := doc["interface"]; there {
		s.MD.Serving(doc)
		return
	}
	s.MD.HandleFunc(func(w http.ResponseWriter, _ *http.Request) { // no network key at all
		_, _ = w.Write([]byte(`{"compute":{"name":"lab_0","azEnvironment":"AzurePublicCloud"}}`))
	})
}
