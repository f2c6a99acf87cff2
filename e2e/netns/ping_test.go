package netns

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	// An answer inside one machine takes well under a millisecond; a busy machine may take long to let us read it.
	echoWait = 5 * time.Second
	// Nothing came back in this time: nothing will.
	silence = time.Second
)

// answers sends one echo and tells whether it came back.
func (s *stage) answers(from *lab.Namespace, to netip.Addr) bool {
	s.t.Helper()
	return s.echo(from, netip.Addr{}, to, echoWait)
}

// echo is answers with a source address and a time limit of its own.
func (s *stage) echo(from *lab.Namespace, source, to netip.Addr, wait time.Duration) bool {
	s.t.Helper()
	r, err := from.Ping(context.Background(), to, lab.PingOptions{Count: 1, Timeout: wait, From: source})
	if err != nil {
		s.t.Fatalf("ping %s from %s: %v", to, from.Name, err)
	}
	return r.Received == 1
}

// reaches wants pod and gateway to reach each other.
func (s *stage) reaches(pod *lab.Namespace, ip netip.Addr) {
	s.t.Helper()
	if !s.answers(pod, lab.SimpleGateway) {
		s.t.Errorf("%s does not reach the gateway", pod.Name)
	}
	if !s.answers(s.GW, ip) {
		s.t.Errorf("the gateway does not reach %s", ip)
	}
}

// stream pings all the time, every 5 ms; the returned function ends it and wants all of it answered.
func (s *stage) stream(from *lab.Namespace, to netip.Addr) (lossless func()) {
	s.t.Helper()
	name := fmt.Sprintf("%s to %s", from.Name, to)
	p := from.StartPing(to, lab.PingOptions{Interval: 5 * time.Millisecond, Timeout: echoWait})
	return func() {
		s.t.Helper()
		r, err := p.Stop()
		if err != nil || r.Sent == 0 || r.Lost() > 0 || len(r.SendErrors) > 0 {
			s.t.Errorf("%s: %d of %d packets lost, errors %v %v", name, r.Lost(), r.Sent, err, r.SendErrors)
		}
	}
}
