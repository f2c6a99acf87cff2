package netns

import (
	"context"
	"net/netip"
	"sync"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// BR-17: ADD again for the same container and interface. Never two records for one of them.

func TestNetnsBR17_repeated_ADD(t *testing.T) {
	t.Parallel()
	t.Run("1_refused_and_the_live_pod_is_untouched", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		before := s.snapshot()
		p := s.Pod(t, "p1")
		first := s.add("c1", p).ok()
		during, records := s.snapshot(), s.records()
		link := s.in(p, "ip -o link show eth0") // with its index, which the snapshot leaves out: a new link would cut every stream
		if again := s.add("c1", p); again.OK() {
			if again.IP != first.IP {
				t.Errorf("second ADD gave %s, the first %s", again.IP, first.IP)
			}
		} else {
			again.failsWith([]uint{4, 999}, "interface exists")
		}
		if now := s.in(p, "ip -o link show eth0"); now != link {
			t.Errorf("the pod's link became %s, it was %s", now, link)
		}
		s.unchanged(during)
		s.sameRecords(records)
		s.reaches(p, first.IP)
		s.del("c1", p).ok()
		s.noLeak(before)
	})

	t.Run("2_new_netns_takes_the_address_over", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		before := s.snapshot()
		p1 := s.Pod(t, "p1")
		first := s.add("c1", p1).ok()
		if err := p1.Close(); err != nil {
			t.Fatal(err)
		}
		p2 := s.Pod(t, "p2")
		second := s.add("c1", p2).ok()
		if second.IP != first.IP {
			t.Errorf("after the retry the pod has %s, it had %s", second.IP, first.IP)
		}
		s.reaches(p2, second.IP)
		if held := s.held(); len(held) != 1 {
			t.Errorf("%v are leased, want one address", held)
		}
		if links := s.podLinks(); len(links) != 1 || links[0] != second.HostLink {
			t.Errorf("pod links %v, want %s alone", links, second.HostLink)
		}
		s.check("c1", p2, second).ok()
		s.del("c1", p2).ok()
		s.noLeak(before)
	})

	t.Run("3_two_interfaces_are_two_leases", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		before := s.snapshot()
		p := s.Pod(t, "p1")
		one := s.add("c1", p).ok()
		two := s.add("c1", p, withIfName("eth1")).ok()
		if one.IP == two.IP || one.HostLink == two.HostLink {
			t.Errorf("both interfaces share %s or %s", one.IP, one.HostLink)
		}
		if held := s.held(); len(held) != 2 {
			t.Errorf("%v are leased, want two addresses", held)
		}
		s.reaches(p, one.IP)
		s.reaches(p, two.IP)
		if !s.echo(p, two.IP, lab.SimpleGateway, echoWait) {
			t.Error("the pod does not get out with its second address")
		}
		s.check("c1", p, one).ok()
		s.run(s.call("CHECK", "c1", p, withIfName("eth1"), withStdin(s.prev(two)))).ok()
		s.del("c1", p).ok() // one DEL per interface cleans all, in any order
		s.reaches(p, two.IP)
		s.del("c1", p, withIfName("eth1")).ok()
		s.noLeak(before)
	})

	t.Run("4_twenty_at_once_are_one_lease", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		before := s.snapshot()
		p := s.Pod(t, "p1")
		var wg sync.WaitGroup
		// Each takes its time between its look at the pod and the pair: whoever is not kept out by then makes one too.
		call := s.call("ADD", "c1", p, withEnv("NVT_FAILPOINT=routes.pair-add=100ms"))
		outcomes := make([]lab.Outcome, 20)
		for i := range outcomes {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				outcomes[i] = s.Node.RunPlugin(ctx, program(t, "failpoint/native-vmss"), call)
			})
		}
		wg.Wait()
		var got []netip.Addr
		for _, o := range outcomes {
			if a := s.judge(call, o); a.OK() {
				got = append(got, a.IP)
			} else {
				a.failsWith([]uint{4, 11, 999})
			}
		}
		if len(got) == 0 {
			t.Fatal("none of the twenty succeeded")
		}
		held := s.held()
		if len(held) != 1 || held[0] != got[0] {
			t.Errorf("%v are leased, ADD gave %v, want one address in all", held, got)
		}
		s.reaches(p, got[0])
		s.del("c1", p).ok()
		s.noLeak(before)
	})
}
