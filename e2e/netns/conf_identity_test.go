package netns

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// The configuration is changed or spoiled while pods live: GC takes what it should, and node and neighbours stay as they are.
func TestNetnsConf_GC_with_another_configuration(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(9))
	s.settle()
	stays, a := s.pathPod("stays")
	s.reaches(stays, a.IP)
	s.sh("conntrack -F 2>/dev/null")
	before := s.snapshot()
	for name, keys := range map[string]struct{ top, ipam map[string]any }{
		"unknown_keys":           {map[string]any{"mtuu": 1400}, map[string]any{"colldown": "1s"}},
		"values_that_are_none":   {map[string]any{"mtu": "big", "log": 7, "nativeCIDRs": "x", "interfacePrefix": "a/b"}, nil},
		"durations_and_URL":      {nil, map[string]any{"cooldown": "soon", "refresh": -1, "lockTimeout": []any{}, "metadataURL": 1}},
		"other_node_wide_values": {map[string]any{"masquerade": false, "remotePods": "off", "nativeCIDRs": []any{"192.0.2.0/24"}}, nil},
		"another_prefix":         {map[string]any{"interfacePrefix": "cali"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := s.pathAs(t)
			collected, _ := s.pathPod("collected")
			now := *s
			now.top, now.ipam = maps.Clone(s.top), maps.Clone(s.ipam)
			maps.Copy(now.top, keys.top)
			maps.Copy(now.ipam, keys.ipam)
			now.gc("stays").ok()
			s.podEmpty(collected, "after GC")
			s.holdsOnly("after GC", a.IP)
			s.sh("conntrack -F 2>/dev/null")
			s.unchanged(before)
			if err := collected.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
	s.check("stays", stays, a).ok()
}

// Where even that which names an attachment was changed, a DEL can't know whose it is. It succeeds, live pods keep what they have, and
// a lease whose pod ended is collected by the second of two repairs 60 s apart.
func TestNetnsConf_changed_identity(t *testing.T) {
	t.Parallel()
	each(t, map[string]struct {
		change func(s *stage)
		// unwired tells that DEL finds the link by its mark all the same; else it goes with its namespace.
		unwired bool
		alive   []string // what a runtime lists of this network
		// reused tells that another store may give the address out before the first one knows that its pod has ended.
		reused bool
	}{
		"network_renamed":  {func(s *stage) { s.top["name"] = "renamed" }, false, nil, false},
		"another_stateDir": {func(s *stage) { s.ipam["stateDir"] = "/run/native-vmss-2" }, true, []string{"stays"}, true},
		"another_IPAM":     {func(s *stage) { s.breakFixedIPAM("10.20.0.11") }, true, []string{"stays"}, true},
	}, func(t *testing.T, c struct {
		change  func(s *stage)
		unwired bool
		alive   []string
		reused  bool
	},
	) {
		s := newStage(t, poolOf(5))
		s.settle()
		ends, e := s.pathPod("ends")
		stays, a := s.pathPod("stays")
		now := *s
		now.top, now.ipam = maps.Clone(s.top), maps.Clone(s.ipam)
		c.change(&now)

		now.del("ends", ends).ok()
		if s.hasLink(e.HostLink) == c.unwired {
			t.Errorf("DEL leaves the link: %t, want %t", !c.unwired, c.unwired)
		}
		s.closed(ends, e)
		now.gc(c.alive...).ok()
		p, next := s.Pod(t, "next"), (*answer)(nil)
		args := withArgs("IgnoreUnknown=1")
		if c.reused {
			args = withArgs("IgnoreUnknown=1;IP=" + e.IP.String())
		}
		// After a rebuild of a new store every address rests first.
		if !pathEventually(patience, func() bool { next = now.add("next", p, args); return next.OK() }) || (next.IP == e.IP) != c.reused {
			t.Fatalf("ADD: %s %s, the address of the pod that ended is %s", next.IP, next.Msg, e.IP)
		}
		if next.IP == a.IP {
			t.Errorf("%s of a live pod was given out again", a.IP)
		}
		s.reaches(p, next.IP)
		s.reaches(stays, a.IP)
		there := &now // a repair goes by the configuration of today, and what of it names the store must name the lease's
		if now.ipam["stateDir"] != nil {
			there = s
		}
		repair := func() {
			t.Helper()
			for _, offset := range []string{"0s", "61s"} {
				out, err := there.ctlEnv("failpoint/vmssctl", []string{"NVT_CLOCK_OFFSET=" + offset}, "node", "repair")
				// The link of the other store's pod is named, not touched.
				if err != nil && !strings.Contains(out, next.HostLink+" has "+next.IP.String()) {
					t.Errorf("repair: %v: %s", err, out)
				}
			}
		}
		repair()
		want := []netip.Addr{a.IP}
		if !c.reused {
			want = append(want, next.IP)
		}
		slices.SortFunc(want, netip.Addr.Compare)
		if held := s.held(); !slices.Equal(held, want) {
			t.Errorf("leased %v after two repairs, want %v and not %s, whose pod has ended", held, want, e.IP)
		}
		now.check("next", p, next).ok()
		s.reaches(p, next.IP)
		s.reaches(stays, a.IP)
		s.check("stays", stays, a).ok() // whoever puts it back finds all as it was
		s.closed(p, next)
		repair() // of the other network too
		if held := s.held(); !slices.Equal(held, []netip.Addr{a.IP}) {
			t.Errorf("leased %v after both pods ended, want %s", held, a.IP)
		}
		s.del("stays", stays).ok()
		now.del("next", nil).ok()
		if left := s.ourState(); len(left) > 0 {
			t.Errorf("left in the kernel: %v", left)
		}
	})
}

// closed ends a pod without a DEL, and waits until the kernel has taken its link away, which it does some time after the namespace.
func (s *stage) closed(p *lab.Namespace, a *answer) {
	s.t.Helper()
	if err := p.Close(); err != nil {
		s.t.Fatal(err)
	}
	if !pathEventually(patience, func() bool { return !s.hasLink(a.HostLink) }) {
		s.t.Fatalf("the link of %s outlives its namespace", a.IP)
	}
}

// A machine that was made from the image of another one, whose state directory is on its disk: it has another boot id, and knows
// nothing of the addresses, NICs and pods of the machine before.
func TestNetnsConf_state_of_another_machine(t *testing.T) {
	t.Parallel()
	one := newStage(t, lab.SimpleOptions{Pool: lab.AddrRange(netip.MustParseAddr("10.20.0.10"), 5)})
	one.pathPod("c1")
	one.pathPod("c2")
	dir := t.TempDir()
	one.sh("cp -a " + stateDir + "/. " + dir)

	two := newStage(t, lab.SimpleOptions{Pool: lab.AddrRange(netip.MustParseAddr("10.20.0.20"), 3), Pool2: nil})
	two.NICs[0].MAC = "02:00:5e:10:00:77"
	two.sh("ip link set eth0 down; ip link set eth0 address " + two.NICs[0].MAC + "; ip link set eth0 up; " +
		"ip route replace default via 10.20.0.1; mkdir -p " + stateDir + "; cp -a " + dir + "/. " + stateDir)
	two.MD.Serving(lab.NetworkDocument(two.NICs...))
	if err := two.Node.SetBootID("77777777-2222-3333-4444-555555555555"); err != nil {
		t.Fatal(err)
	}
	if err := one.Node.SetBootID(""); err != nil {
		t.Fatal(err)
	}
	p, a := two.pathPod("c1") // the same container id, too
	if !slices.Contains(two.pool, a.IP) {
		t.Errorf("the pod got %s, the machine has %v", a.IP, two.pool)
	}
	two.reaches(p, a.IP)
	two.pathPod("c3")
	two.pathPod("c4")
	two.add("c5", two.Pod(t, "c5")).fails(11, "3 leased", two.NICs[0].MAC)
	if held := two.held(); !slices.Equal(held, two.pool) {
		t.Errorf("leased %v, want %v", held, two.pool)
	}
	if left := two.sh("ls " + stateDir + " | grep -c damaged || true"); left != "0" {
		t.Error("another machine's store was taken for damage")
	}
}
