package netns

import (
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// BR-15: no secondary address at all. What STATUS is worth: a full node is ready, and a node that
// nobody has asked for addresses yet asks by itself.
func TestNetnsBR15_no_address(t *testing.T) {
	t.Parallel()
	t.Run("a_node_says_why_it_has_none_and_serves_when_it_has", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, poolOf(1))
		primaryOnly := s.NICs[0]
		primaryOnly.Addrs = primaryOnly.Addrs[:1]
		s.MD.Serving(lab.NetworkDocument(primaryOnly))
		before := s.snapshot()
		p1, p2 := s.Pod(t, "p1"), s.Pod(t, "p2")

		s.status().fails(50, "no pod address known")
		s.add("c1", p1).fails(11, "0 total", "0 leased", "0 cooling", "eth0", lab.SimpleMAC)
		s.onlyNodeWide(before)
		s.clean("after a refused ADD")
		s.podEmpty(p1, "after a refused ADD")

		s.MD.Serving(lab.NetworkDocument(s.NICs...)) // .10 is there
		s.MD.Forget()
		begin := time.Now()
		if !pathEventually(patience, func() bool { time.Sleep(200 * time.Millisecond); return s.status().OK() }) {
			t.Fatalf("STATUS has not noticed the address after %s", time.Since(begin))
		}
		if n := len(s.MD.Requests()); n == 0 || float64(n) > 2+time.Since(begin).Seconds()/5 {
			t.Errorf("STATUS asked metadata %d times in %s: at most once in 5 s", n, time.Since(begin))
		}
		a := s.add("c1", p1).ok()
		s.reaches(p1, a.IP)

		s.status().ok() // full, not broken: its pods would lose their Services
		s.add("c2", p2).fails(11, "1 total", "1 leased", "0 cooling", "eth0", lab.SimpleMAC)
		s.podEmpty(p2, "after a refused ADD")
		s.reaches(p1, a.IP)
		s.sh("ip addr del " + lab.MetadataService.String() + "/32 dev lo") // the stub is down
		s.status().ok()
		s.del("c1", p1).ok()
		s.add("c2", p2).fails(11, "1 cooling")
		s.clean("after DEL")
		s.sh("ip addr add " + lab.MetadataService.String() + "/32 dev lo")
		s.onlyNodeWide(before)
	})

	t.Run("metadata_down_and_no_address_known_is_not_ready", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, poolOf(1))
		s.sh("ip addr del " + lab.MetadataService.String() + "/32 dev lo")
		before := s.snapshot()
		s.status().fails(50, "no pod address known", "http://169.254.169.254")
		s.noLeakOnNewNode(before)
	})
}
