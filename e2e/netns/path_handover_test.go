package netns

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vishnetns "github.com/vishvananda/netns"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// An address rests before it is used again, and the one that has rested longest comes first.
func TestNetnsPath_cool_down(t *testing.T) {
	t.Parallel()
	const cool = 4 * time.Second
	s := newStage(t, poolOf(2))
	s.ipam["cooldown"] = cool.String()
	_, a := s.pathPod("c1")
	_, b := s.pathPod("c2")
	s.del("c2", nil, withNetns("")).ok()
	deleted := time.Now()
	s.del("c1", nil, withNetns("")).ok()
	p := s.Pod(t, "c3")
	if again := s.add("c3", p); again.Exit == 0 && time.Since(deleted) < cool {
		t.Fatalf("%s was used again after %s", again.IP, time.Since(deleted))
	} else if again.Exit != 0 {
		again.fails(11, "cooling")
	}
	if st := s.state(b.IP); st != "cooling" {
		t.Errorf("%s is %q", b.IP, st)
	}
	time.Sleep(time.Until(deleted.Add(cool + 500*time.Millisecond)))
	if c := s.pathRetried("c3", p); c.IP != b.IP {
		t.Errorf("%s came before %s, which had been free for longer (first pod had %s)", c.IP, b.IP, a.IP)
	}
}

// Two stores for one node, as after a change of stateDir or a file that was removed while a process had it open: the kernel
// lets one of two pods have an address, however close they come. An ADD that finds too many addresses in a row in the other
// store's hands says "try again later"; each of them is blocked by then, so its next try starts behind them and gets one.
func TestNetnsPath_two_stores(t *testing.T) {
	t.Parallel()
	const rounds, pairs = 3, 8
	s := newStage(t, poolOf(2*rounds*pairs))
	s.settle()
	second := s.pathKeyed(network, nil)
	second.ipam = map[string]any{"type": "ipam-vmss", "cooldown": "1s", "stateDir": "/run/native-vmss-2"}
	p := s.Pod(t, "settle2")
	// It begins with every address cooling: the policy table says that others may have had them in this boot.
	second.pathRetried("settle2", p).ok()
	second.del("settle2", p).ok()
	time.Sleep(1200 * time.Millisecond)
	held := map[netip.Addr]string{}
	got := func(id string, a *answer) {
		if other := held[a.IP]; other != "" {
			t.Errorf("%s was given to %s and to %s", a.IP, other, id)
		}
		held[a.IP] = id
		if route := s.sh("ip route show " + a.IP.String()); !strings.Contains(route, " dev "+linkOf(id, "eth0")+" ") {
			t.Errorf("route of %s (%s): %s", id, a.IP, route)
		}
	}
	type pod struct {
		of    *stage
		id    string
		netns *lab.Namespace
	}
	again := 0
	for round := range rounds {
		b := s.newBarrier()
		var pods []pod
		for i := range pairs {
			for _, st := range []*stage{s, second} {
				id := fmt.Sprintf("r%d-%d-%d", round, i, len(pods))
				pods = append(pods, pod{st, id, s.Pod(t, id)})
				b.start(st.call("ADD", id, pods[len(pods)-1].netns))
			}
		}
		answers, _ := b.release()
		var refused []pod
		for i, a := range answers {
			if a.Exit == 0 {
				got(pods[i].id, a)
				continue
			}
			a.fails(11)
			s.notWired(pods[i].netns, pods[i].id)
			refused = append(refused, pods[i])
		}
		for _, p := range refused {
			got(p.id, p.of.pathRetried(p.id, p.netns).ok())
		}
		again += len(refused)
	}
	t.Logf("%d of %d had to try again", again, len(held))
	if n := len(s.podLinks()); n != len(held) || n != 2*rounds*pairs {
		t.Errorf("%d links and %d addresses for %d pods", n, len(held), 2*rounds*pairs)
	}
}

// A link that is up is known as somebody's: the kernel tells of the alias before it tells that the link is up.
func TestNetnsPath_alias_comes_before_the_link_is_up(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	s.settle()
	updates, done := make(chan netlink.LinkUpdate, 1000), make(chan struct{})
	if err := netlink.LinkSubscribeAt(vishnetns.NsHandle(s.Node.Fd()), updates, done); err != nil {
		t.Fatal(err)
	}
	defer close(done)
	p, a := s.pathPod("c1")
	s.reaches(p, a.IP)
	ups := 0
	for limit := time.After(echoWait); ups == 0; {
		select {
		case <-limit:
			t.Fatal("the kernel told of no link that came up")
		case u := <-updates:
			l := u.Attrs()
			if l.Name != a.HostLink || l.Flags&net.FlagUp == 0 {
				continue
			}
			ups++
			if !strings.HasPrefix(l.Alias, "nvm1 "+a.IP.String()+" ") || l.Group != 28278 {
				t.Errorf("up with alias %q and group %d", l.Alias, l.Group)
			}
		}
	}
}
