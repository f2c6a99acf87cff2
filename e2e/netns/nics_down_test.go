package netns

import (
	"strings"
	"testing"
	"time"
)

// A second NIC that is down costs nobody else anything, whether it was so from the start or goes down under its pods; once it is up
// again, so are they.
func TestNetnsNICs_one_that_is_down(t *testing.T) {
	t.Parallel()
	c, s := nicsStage(t, 6)
	c.plug(t)
	c.nicsListed(t, 0, 1)
	s.sh("ip link set eth1 down")
	one, a1 := s.podAt("one", "10.20.1.10")
	s.check("one", one, a1).ok()
	if !s.answers(one, c.Nodes[1].NICs[0].Primary) {
		t.Error("with the second NIC down the first one's pod reaches nobody")
	}
	if out := s.mustCtl("node", "repair"); !strings.Contains(out, "eth1") || !strings.Contains(out, "down") {
		t.Errorf("repair does not say which NIC is down: %s", out)
	}

	s.sh("ip link set eth1 up")
	time.Sleep(nicsRefresh)
	two, a2 := s.podAt("two", "10.20.17.10")
	s.nicsTwoWays(c, two, a2.IP)

	s.sh("ip link set eth1 down; nft delete table ip native_vmss")
	three, a3 := s.podAt("three", "10.20.1.11")
	s.mustCtl("node", "repair")
	s.check("three", three, a3).ok()
	s.check("one", one, a1).ok()

	s.sh("ip link set eth1 up")
	time.Sleep(nicsRefresh)
	s.podAt("four", "10.20.1.12")
	s.nicsTwoWays(c, two, a2.IP)
	s.check("two", two, a2).ok()
}
