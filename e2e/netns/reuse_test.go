package netns

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// reuseFlows is more than what a DEL flushes itself.
const reuseFlows = 21000

// The connection table is so large that DEL leaves the flush of its address for later. The address is not used again before that is
// done: an ADD that can't do it fails, and the one that can leaves no flow of the pod before.
func TestNetnsReuse_behind_a_large_conntrack_table(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(1))
	s.settle()
	time.Sleep(restAfterRebuild)
	p, a := s.pathPod("c1")
	s.sh("sysctl -qw net.netfilter.nf_conntrack_udp_timeout=600") // the node's own: flows outlive a slow test
	packets := make([]pathPacket, reuseFlows)
	for i := range packets {
		to := netip.AddrPortFrom(lab.SimpleInternet, uint16(20000+i))
		packets[i] = pathUDP(netip.AddrPortFrom(a.IP, 4000), to, "x")
	}
	pathSend(t, p, packets...)
	flows := func(when string) int {
		t.Helper()
		n, err := strconv.Atoi(s.sh("conntrack -L -s " + a.IP.String() + " 2>/dev/null | wc -l"))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d flows of %s", when, n, a.IP)
		return n
	}
	if n := flows("before DEL"); n <= 20000 {
		t.Fatalf("%d flows are too few: the test proves nothing", n)
	}
	s.del("c1", p).ok()
	if n := flows("after DEL"); n <= 20000 {
		t.Fatalf("%d flows are left by DEL: the test proves nothing", n)
	}
	time.Sleep(restAfterRebuild)
	q := s.Pod(t, "c2")
	s.runOf(pathFailing, s.call("ADD", "c2", q, at("routes.conntrack-flush#1", "error"))).failsWith([]uint{110, 120}, "routes.conntrack-flush")
	s.podEmpty(q, "after an ADD that could not flush")
	s.clean("after an ADD that could not flush")
	b := s.pathRetried("c2", q).ok()
	if n := flows("after ADD"); n != 0 || b.IP != a.IP {
		t.Errorf("%d flows of the pod before lead to %s", n, b.IP)
	}
	s.reaches(q, b.IP)
}

// Metadata drops the address of a live pod and lists another one in its place, so that nobody who counts sees a difference. The pod keeps
// it, through GC and repair too; once it is released nobody gets it, until metadata lists it again.
func TestNetnsReuse_of_an_address_that_metadata_took_away(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(3))
	s.ipam["refresh"] = "1s"
	live, a := s.pathPod("live")
	ends, e := s.pathPod("ends")
	full := slices.Clone(s.NICs[0].Addrs)
	other := netip.MustParseAddr("10.20.0.99")
	s.NICs[0].Addrs = []netip.Addr{full[0], other, full[3], netip.MustParseAddr("10.20.0.98")}
	if len(s.NICs[0].Addrs) != len(full) || slices.Contains(s.NICs[0].Addrs, a.IP) || slices.Contains(s.NICs[0].Addrs, e.IP) {
		t.Fatalf("%v instead of %v with %s and %s", s.NICs[0].Addrs, full, a.IP, e.IP)
	}
	s.MD.Serving(lab.NetworkDocument(s.NICs...))
	present := func(ip netip.Addr) bool {
		t.Helper()
		for _, r := range pathJSON[[]struct {
			Address string
			Present bool
		}](t, s.mustCtl("ipam", "list", "-a", "-o", "json")) {
			if r.Address == ip.String() {
				return r.Present
			}
		}
		return false
	}
	if !pathEventually(patience, func() bool { // missing twice, 10 s apart
		time.Sleep(time.Second)
		p := s.Pod(t, "asks")
		defer p.Close()
		s.add("asks", p)
		s.del("asks", p).ok()
		return !present(a.IP) && !present(e.IP)
	}) {
		t.Fatal("nobody noticed that metadata lists other addresses")
	}
	s.mustCtl("node", "repair")
	s.gc("live", "ends").ok()
	s.holdsOnly("metadata lists neither", a.IP, e.IP)
	s.check("live", live, a).ok()
	s.add("live", live).fails(4)
	s.reaches(live, a.IP)

	s.del("ends", ends).ok()
	time.Sleep(restAfterRebuild)
	for i := range 4 {
		id := fmt.Sprintf("next%d", i)
		if b := s.add(id, s.Pod(t, id)); b.OK() && slices.Contains([]netip.Addr{a.IP, e.IP}, b.IP) {
			t.Errorf("%s got %s, which metadata doesn't list", id, b.IP)
		} else if !b.OK() {
			b.fails(11)
		}
	}
	s.NICs[0].Addrs = full
	s.MD.Serving(lab.NetworkDocument(s.NICs...))
	back := s.Pod(t, "back")
	s.del("back", back).ok()
	var b *answer
	if !pathEventually(patience, func() bool {
		time.Sleep(time.Second)
		b = s.add("back", back, withArgs("IgnoreUnknown=1;IP="+e.IP.String()))
		return b.OK()
	}) {
		t.Fatalf("the address is back, and nobody gets it: %s", b.Msg)
	}
	s.reaches(back, b.IP)
	s.reaches(live, a.IP)
}

// A GC that was held up after it had listed the leases, while one of its pods was deleted and came again: the lease that it finds is a
// younger one than that of its list, and stays.
func TestNetnsGC_held_up_after_its_list(t *testing.T) {
	t.Parallel()
	for range slowRounds {
		if heldUp(t) || t.Failed() {
			return
		}
	}
	t.Fatalf("this machine is too slow to judge, %d times", slowRounds)
}

// heldUp reports whether the pod came again before the GC went on.
func heldUp(t *testing.T) (judged bool) {
	s := newStage(t, lab.SimpleOptions{})
	s.settle()
	p, _ := s.pathPod("c1")
	trace := s.Dir + "/gc.trace"
	s.sh(": >" + trace)
	stdin := s.conf(func(top map[string]any) { top["cni.dev/valid-attachments"] = json.RawMessage("[]") })
	call := s.call("GC", "", nil, withStdin(stdin), without("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"),
		withEnv("NVT_FAILPOINT=boltfile.lock=5s#3", "NVT_FAILPOINT_TRACE="+trace))
	begin := time.Now()
	cmd, wait := s.Node.StartPlugin(chainContext(t), program(t, pathFailing), call)
	if !lateHas(cmd, trace) {
		t.Fatal("the GC was not held up with its list")
	}
	s.del("c1", p).ok()
	a := s.add("c1", p).ok()
	judged = time.Since(begin) < 5*time.Second
	s.judge(call, wait()).ok()
	if judged {
		s.holdsOnly("the pod came again during the GC", a.IP)
		s.check("c1", p, a).ok()
	}
	s.del("c1", p).ok()
	s.clean("after DEL")
	return judged
}
