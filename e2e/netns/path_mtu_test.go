package netns

import (
	"strconv"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// The pods' MTU is that of the NIC as it is, or what the configuration says, and a packet of just that size goes out and comes back in
// one piece. A NIC that is given another one later changes nothing for pods that run.
func TestNetnsPath_MTU_is_the_NICs(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{MTU: 3900})
	has := func(p *lab.Namespace, a *answer, want int) {
		t.Helper()
		inPod := s.in(p, "ip -o link show eth0 | grep -o 'mtu [0-9]*' | cut -d' ' -f2")
		onNode := s.sh("cat /sys/class/net/" + a.HostLink + "/mtu")
		if inPod != strconv.Itoa(want) || onNode != inPod {
			t.Errorf("MTU of pod %s is %s and %s, want %d", a.IP, inPod, onNode, want)
		}
		for _, more := range []int{0, 1} { // 28 bytes are headers
			r, err := p.Ping(chainContext(t), lab.SimpleGateway, lab.PingOptions{
				Count: 1, Timeout: echoWait, Size: want - 28 + more, DontFragment: true,
			})
			if fits := err == nil && r.Received == 1; fits != (more == 0) {
				t.Errorf("a packet of %d bytes comes back: %t (%v)", want+more, fits, err)
			}
		}
	}
	one, a := s.pathPod("one")
	has(one, a, 3900)
	s.top["mtu"] = 1280
	two, b := s.pathPod("two")
	has(two, b, 1280)
	delete(s.top, "mtu")
	s.sh("ip link set eth0 mtu 1500")
	three, c := s.pathPod("three")
	has(three, c, 1500)
	for id, p := range map[string]struct {
		pod *lab.Namespace
		*answer
	}{"one": {one, a}, "two": {two, b}, "three": {three, c}} {
		s.check(id, p.pod, p.answer).ok()
		s.reaches(p.pod, p.IP)
	}
	s.in(two, "ip link set eth0 mtu 1400")
	s.check("two", two, b).fails(103, "MTU")
}
