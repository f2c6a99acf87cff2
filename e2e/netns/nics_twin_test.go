package netns

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// twinCycles is how often a NIC's twin goes and comes.
const twinCycles = 24

// accelerate makes the link of a NIC what it is with accelerated networking: a link that has twins under it. The driver there is
// the twin's master itself; of the kinds of link that can be a master, this kernel has the bridge alone (no bond, no team, no
// failover driver), and to others the two look the same: the twin's master is the NIC's link, the MAC is the NIC's. The synthetic
// path below, the cable to the fabric, is a port of it too and stays, as it does there; frames never depend on the twin.
func (s *stage) accelerate(c *pathCloud, i int) {
	s.t.Helper()
	nic := c.Nodes[0].NICs[i]
	s.sh(fmt.Sprintf(`
		ip addr flush dev eth%[1]d; ip link set eth%[1]d name syn%[1]d
		ip link add eth%[1]d address %[2]s type bridge mcast_snooping 0 forward_delay 0
		sysctl -qw net.ipv6.conf.eth%[1]d.disable_ipv6=1
		ip link set syn%[1]d master eth%[1]d; ip link set eth%[1]d up
		ip addr add %[3]s/%[4]d dev eth%[1]d valid_lft 86400 preferred_lft 86400`,
		i, nic.MAC, nic.Primary, nic.Subnet.Bits()))
	if i == 0 {
		s.sh("ip route add default via 10.20.0.1 dev eth0")
	}
}

// twin is one that comes to a NIC.
type twin struct {
	name string // the kernel and udev change it
	come string // $T: the twin, $N: the NIC's link, $P: the NIC's primary with its length
}

// twinWays are the orders in which a twin comes; each ends with it up and under the NIC.
var twinWays = map[string]string{
	"under_the_NIC_at_once":  "ip link set $T master $N; ip link set $T up",
	"up_before":              "ip link set $T up; ip link set $T master $N",
	"on_its_own_for_a_while": `ip link set $T up; sleep 0.15; ip link set $T master $N`,
	"renamed_while_on_its_own": `ip link set $T name eth7; ip link set eth7 up; sleep 0.1; ip link set eth7 name $T
		ip link set $T master $N`,
	"taken_out_and_put_back": "ip link set $T master $N; ip link set $T up; ip link set $T nomaster; sleep 0.1; ip link set $T master $N",
}

func (s *stage) twinComes(c *pathCloud, i int, tw twin, far *lab.Namespace) {
	s.t.Helper()
	nic := c.Nodes[0].NICs[i]
	words := strings.NewReplacer("$T", tw.name, "$N", fmt.Sprintf("eth%d", i), "$P", netip.PrefixFrom(nic.Primary, nic.Subnet.Bits()).String())
	s.sh(fmt.Sprintf(`ip link add %[1]s address %[2]s type veth peer name far netns %[3]s
		ip -n %[3]s link set far up; sysctl -qw net.ipv6.conf.%[1]s.disable_ipv6=1`, tw.name, nic.MAC, far.Name))
	s.sh(words.Replace(tw.come))
}

// twinUnnamed wants nothing of ours to have to do with a twin, in kernel and store.
func (s *stage) twinUnnamed(names ...string) {
	s.t.Helper()
	if got := s.nicsNamed(append(names, "eth7", "syn0", "syn1")...); len(got) > 0 {
		s.t.Errorf("what is made for pods names a twin: %q", got)
	}
}

// twinWork runs ADD, CHECK and DEL of pods, and repair, until it is stopped; the pods reach the network each time.
func (s *stage) twinWork(c *pathCloud, stop *atomic.Bool, ops *atomic.Int64) (wait func()) {
	var wg sync.WaitGroup
	for w, ip := range []string{"10.20.1.12", "10.20.17.12"} {
		p := s.Pod(s.t, fmt.Sprintf("work%d", w))
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				id := fmt.Sprintf("work%d-%d", w, n)
				a := s.add(id, p, withArgs("IgnoreUnknown=1;IP="+ip))
				if a.Exit != 0 && strings.Contains(a.Msg, "cooling") { // its own, of the round before
					time.Sleep(50 * time.Millisecond)
					continue
				}
				if a.Exit != 0 {
					s.t.Errorf("ADD refused: code %d: %s", a.Code, a.Msg)
					return
				}
				if !s.answers(p, lab.CloudHub) || !s.answers(c.Hub, a.IP) {
					s.t.Errorf("a new pod, %s, and the hub don't reach each other", a.IP)
				}
				if b := s.check(id, p, a); b.Exit != 0 {
					s.t.Errorf("CHECK: code %d: %s", b.Code, b.Msg)
				}
				if b := s.del(id, p); b.Exit != 0 {
					s.t.Errorf("DEL: code %d: %s", b.Code, b.Msg)
				}
				ops.Add(1)
			}
		})
	}
	wg.Go(func() {
		for !stop.Load() {
			if out, err := s.ctl("node", "repair"); err != nil {
				s.t.Errorf("repair: %v: %s", err, out)
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	return wg.Wait
}

// The platform takes a NIC's twin away and gives it back at any time, under another name, while pods talk and others come and go:
// not one packet is lost, no ADD is refused, and nothing ever leads to a twin.
func TestNetnsNICs_twins_come_and_go(t *testing.T) {
	t.Parallel()
	c := nicsCloud(t)
	s := c.nodes[0].pathAs(t)
	s.ipam["refresh"], s.ipam["cooldown"] = "1s", "1ms" // each ADD looks at the links again
	for i := range c.Nodes[0].NICs {
		s.accelerate(c, i)
	}
	far := s.Pod(t, "far") // the other end of the twins' cables: nobody
	s.settle()
	s.pool = append(s.pool, c.Nodes[0].NICs[1].Secondaries...)
	before := s.snapshot()
	one, a1 := s.podAt("one", "10.20.1.10")
	two, a2 := s.podAt("two", "10.20.17.10")
	_, r := c.nodes[1].pathAs(t).podAt("remote", "10.20.2.10")
	for _, space := range []*lab.Namespace{c.Hub, one, two} {
		if _, err := space.EchoTCP(netip.AddrPortFrom(netip.IPv4Unspecified(), 9000)); err != nil {
			t.Fatal(err)
		}
	}
	var ends []func()
	for _, p := range []struct {
		from *lab.Namespace
		to   netip.Addr
	}{{one, lab.CloudHub}, {two, lab.CloudHub}, {c.Hub, a1.IP}, {c.Hub, a2.IP}, {one, r.IP}, {two, r.IP}} {
		ends = append(ends, s.stream(p.from, p.to))
	}
	tcp := map[string]*lab.Stream{}
	for _, p := range []struct {
		from *lab.Namespace
		to   netip.Addr
	}{{one, lab.CloudHub}, {two, lab.CloudHub}, {c.Hub, a1.IP}, {c.Hub, a2.IP}} {
		st, err := p.from.StartStream(context.Background(), netip.AddrPortFrom(p.to, 9000), 5*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		tcp[p.from.Name+" to "+p.to.String()] = st
	}
	var stop atomic.Bool
	var ops atomic.Int64
	wait := s.twinWork(c, &stop, &ops)
	names := []string{"enP1s1", "eth9", "enP2p0s2", "rename4"}
	cycle := 0
	for cycle < twinCycles || ops.Load() < twinCycles && cycle < 5*twinCycles {
		for way, come := range twinWays {
			name := names[cycle%len(names)]
			i := cycle % 2
			s.twinComes(c, i, twin{name, come}, far)
			s.twinUnnamed(names...)
			if out := s.sh("ip -o link show " + name); !strings.Contains(out, fmt.Sprintf("master eth%d", i)) || !strings.Contains(out, c.Nodes[0].NICs[i].MAC.String()) {
				t.Fatalf("%s: not a twin: %s", way, out)
			}
			time.Sleep(50 * time.Millisecond)
			s.sh("ip link del " + name)
			s.twinUnnamed(names...)
			cycle++
		}
		if t.Failed() {
			break
		}
	}
	stop.Store(true)
	wait()
	for _, end := range ends {
		end()
	}
	for name, st := range tcp {
		if r := st.Stop(); r.Err != nil || r.Sent != r.Echoed || r.Sent == 0 {
			t.Errorf("TCP %s: %+v", name, r)
		}
	}
	s.check("one", one, a1).ok()
	s.check("two", two, a2).ok()
	s.del("one", one).ok()
	s.del("two", two).ok()
	for _, line := range before.Diff(s.snapshot()) {
		if !strings.Contains(line, `"ifname":"eth`) { // the bridge's own: the ports that it had
			t.Errorf("the node has changed: %s", line)
		}
	}
	s.clean("after the last DEL")
	s.readStore(stateDir+"/ipam.db", func(tx *bolt.Tx) error {
		v := string(tx.Bucket([]byte("state")).Get([]byte("node")))
		for _, name := range names {
			if strings.Contains(v, name) {
				t.Errorf("the node's record names a twin: %s", v)
			}
		}
		return nil
	})
	t.Logf("%d twins came and went during %d ADD, CHECK and DEL", cycle, ops.Load())
	if ops.Load() < twinCycles {
		t.Errorf("%d pods came and went, want %d: the test proves little", ops.Load(), twinCycles)
	}
}

// A DHCP client that is quicker than the platform gives a twin the NIC's own lease. Under the NIC it doesn't count; on its own it
// makes the NIC ambiguous, and what was known goes on.
func TestNetnsNICs_twin_with_the_lease(t *testing.T) {
	t.Parallel()
	c := nicsCloud(t)
	s := c.nodes[0].pathAs(t)
	s.ipam["refresh"] = "1s"
	s.accelerate(c, 0)
	far := s.Pod(t, "far")
	const lease = "ip link set $T up; ip addr add $P dev $T metric 4000 valid_lft 3600 preferred_lft 3600; "
	s.twinComes(c, 0, twin{"enP1s1", lease + "ip link set $T master $N"}, far)
	p, a := s.podAt("one", "10.20.1.10") // the first answer that this node gets
	t.Run("under_the_NIC_it_is_no_second_candidate", func(t *testing.T) {
		s := s.pathAs(t)
		if !s.answers(p, lab.CloudHub) || !s.answers(c.Hub, a.IP) {
			t.Error("the pod and the hub don't reach each other")
		}
		s.twinUnnamed("enP1s1")
		if out := s.mustCtl("node", "repair"); strings.Contains(out, c.Nodes[0].NICs[0].MAC.String()) {
			t.Errorf("the NIC is skipped: %s", out)
		}
	})
	t.Run("on_its_own_what_was_known_goes_on", func(t *testing.T) {
		s := s.pathAs(t)
		s.sh("ip link set enP1s1 nomaster")
		time.Sleep(nicsRefresh)
		s.podAt("second", "10.20.17.11") // the other NIC's answer is taken
		s.twinUnnamed("enP1s1")
		s.check("one", p, a).ok()
		if !s.answers(p, lab.CloudHub) || !s.answers(c.Hub, a.IP) {
			t.Error("the pod and the hub don't reach each other")
		}
		s.sh("ip link set enP1s1 master eth0")
		time.Sleep(nicsRefresh)
		q, b := s.podAt("three", "10.20.1.11")
		if !s.answers(q, lab.CloudHub) || !s.answers(c.Hub, b.IP) {
			t.Error("a new pod and the hub don't reach each other")
		}
	})
}
