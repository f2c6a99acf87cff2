package netns

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// Not of the list, found by it: the moment ADD has answered, the pod's first packet must pass. An end of a pair that was up
// before its peer has no queue until the kernel's link watch ran, which a busy machine does late; what is sent until then is
// dropped.
func TestNetnsFirstPacket_after_ADD_is_delivered(t *testing.T) {
	t.Parallel()
	const rounds = 30
	s := newStage(t, poolOf(rounds))
	for i := range rounds {
		p := s.Pod(t, fmt.Sprintf("p%d", i))
		out := s.run(s.call("ADD", fmt.Sprintf("c%d", i), p)).ok()
		if !s.echo(p, netip.Addr{}, lab.SimpleGateway, silence) {
			t.Errorf("round %d: first packet of %s lost", i, out.IP)
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
