package netns

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// br13Stage has two NICs; the stub lists the second one first.
func br13Stage(t *testing.T, edit func(nics []any) []any) *stage {
	t.Helper()
	s := newStage(t, lab.SimpleOptions{Pool2: lab.AddrRange(netip.MustParseAddr("10.20.1.50"), 2)})
	slices.Reverse(s.NICs)
	doc := lab.NetworkDocument(s.NICs...)
	if edit != nil {
		doc["interface"] = edit(doc["interface"].([]any))
	}
	s.MD.Serving(doc)
	return s
}

// br13V6 gives a NIC of the document IPv6 addresses alone.
func br13V6(nic any, addrs ...string) {
	var list []any
	for _, a := range addrs {
		list = append(list, map[string]any{"privateIpAddress": a})
	}
	n := nic.(map[string]any)
	n["ipv4"].(map[string]any)["ipAddress"] = []any{}
	n["ipv6"] = map[string]any{"ipAddress": list}
}

// loggedOnce wants one line of the log to name the MAC.
func (a *answer) loggedOnce(mac string) {
	a.stage.t.Helper()
	if n := strings.Count(string(a.Stderr), mac); n != 1 {
		a.stage.t.Errorf("%s: %d lines of the log name %s, want 1: %s", a.Command, n, mac, a.Stderr)
	}
}

// fills takes all of the node's addresses and returns them in order; the next ADD gets none.
func (s *stage) fills(want int) (got []netip.Addr) {
	s.t.Helper()
	time.Sleep(1100 * time.Millisecond) // an address that was just released cools down
	for _, id := range []string{"f1", "f2", "f3", "f4", "f5", "f6", "f7"}[:want] {
		_, a := s.pathPod(id)
		got = append(got, a.IP)
	}
	s.add("more", s.Pod(s.t, "more")).fails(11)
	slices.SortFunc(got, netip.Addr.Compare)
	return got
}

// BR-13: NICs are told apart by MAC, not by their order; what a NIC lacks is no panic and takes no other NIC along.
func TestNetnsBR13_nics(t *testing.T) {
	t.Parallel()
	t.Run("second_NIC_first_in_the_list", func(t *testing.T) {
		t.Parallel()
		s := br13Stage(t, nil)
		for id, ip := range map[string]string{"one": "10.20.0.10", "two": "10.20.1.50"} {
			p, a := s.podAt(id, ip)
			link := map[string]string{"one": "to-eth0", "two": "to-eth1"}[id]
			capture, err := s.GW.Capture("to-eth0", "to-eth1")
			if err != nil {
				t.Fatal(err)
			}
			if !s.answers(p, lab.SimpleGateway) || !s.answers(s.GW, a.IP) {
				t.Errorf("%s and the gateway don't reach each other", a.IP)
			}
			report, err := capture.Stop()
			if err != nil || report.Dropped > 0 {
				t.Fatalf("capture: %v, %d frames missed", err, report.Dropped)
			}
			all := report.Sum(func(f lab.Flow) bool { return !f.Out && f.Kind == lab.KindIPv4 && f.Src == a.IP })
			own := report.Sum(func(f lab.Flow) bool { return !f.Out && f.Kind == lab.KindIPv4 && f.Src == a.IP && f.Link == link })
			if own.Frames != 2 || all.Frames != own.Frames {
				t.Errorf("%s: %d of %d frames by %s, want 2 of 2", a.IP, own.Frames, all.Frames, link)
			}
		}
	})
	t.Run("second_NIC_with_IPv6_alone_is_skipped_and_named_once", func(t *testing.T) {
		t.Parallel()
		s := br13Stage(t, func(nics []any) []any { br13V6(nics[0], "fd00::4", "fd00::10"); return nics })
		p := s.Pod(t, "p1")
		a := s.add("c1", p).ok()
		a.loggedOnce(lab.SimpleMAC2)
		s.reaches(p, a.IP)
		s.del("c1", p).ok()
		if got := s.fills(5); !slices.Equal(got, lab.AddrRange(netip.MustParseAddr("10.20.0.10"), 5)) {
			t.Errorf("pods got %v", got)
		}
	})
	t.Run("dual_stack_NIC_gives_its_IPv4_addresses", func(t *testing.T) {
		t.Parallel()
		s := br13Stage(t, func(nics []any) []any {
			nics[1].(map[string]any)["ipv6"] = map[string]any{"ipAddress": []any{map[string]any{"privateIpAddress": "fd00::4"}}}
			return nics
		})
		if got := s.fills(7); !slices.Equal(got, s.pool) {
			t.Errorf("pods got %v, want %v", got, s.pool)
		}
	})
	t.Run("node_with_IPv6_alone_is_refused_in_plain_words", func(t *testing.T) {
		t.Parallel()
		s := br13Stage(t, func(nics []any) []any { br13V6(nics[1], "fd00::4", "fd00::10"); return nics[1:] })
		before := s.snapshot()
		s.add("c1", s.Pod(t, "p1")).fails(11, "IPv6", lab.SimpleMAC)
		s.status().fails(50)
		s.del("c1", nil).ok()
		s.noLeakOnNewNode(before)
	})
	t.Run("NIC_without_a_link_is_skipped_and_named_once", func(t *testing.T) {
		t.Parallel()
		s := br13Stage(t, nil)
		s.sh("ip link del eth1")
		p := s.Pod(t, "p1")
		a := s.add("c1", p).ok()
		a.loggedOnce(lab.SimpleMAC2)
		s.reaches(p, a.IP)
		s.del("c1", p).ok()
		if got := s.fills(5); slices.ContainsFunc(got, lab.SimpleSubnet2.Contains) {
			t.Errorf("pods got %v", got)
		}
	})
}
