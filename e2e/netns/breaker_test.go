package netns

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// Faults that a hostile tester found at e837ee8. Each test fails there, and says what is expected instead.

func (s *stage) brkRepair(offset string) string {
	s.t.Helper()
	out, _ := s.ctlEnv("failpoint/vmssctl", []string{"NVT_CLOCK_OFFSET=" + offset}, "node", "repair")
	return out
}

func (s *stage) brkGC() *answer {
	return s.run(s.call("GC", "", nil, without("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS")))
}

// A live pod whose link lost our marks keeps its address: a route of ours leads to a link that is up. It was given to a second pod.
func TestNetnsBreaker_marks_gone(t *testing.T) {
	t.Parallel()
	const lost = "; rm " + stateDir + "/ipam.db"
	repairs := func(s *stage) { s.brkRepair("0s"); s.brkRepair("61s") }
	type row struct {
		act  string
		then func(s *stage)
	}
	each(t, map[string]row{
		"alias_erased_store_lost":                      {"ip link set $L alias ''" + lost, func(*stage) {}},
		"alias_and_group_changed_store_lost":           {"ip link set $L alias x group 0" + lost, func(*stage) {}},
		"alias_and_group_changed_repair_twice":         {"ip link set $L alias x group 0", repairs},
		"alias_and_group_changed_GC_without_list":      {"ip link set $L alias x group 0", func(s *stage) { s.brkGC() }},
		"alias_erased_and_renamed_repair_twice":        {"ip link set $L alias ''; ip link set $L name web0", repairs},
		"alias_erased_and_renamed_GC_without_list":     {"ip link set $L alias ''; ip link set $L name web0", func(s *stage) { s.brkGC() }},
		"alias_erased_and_down_GC_that_lists_the_pod":  {"ip link set $L alias ''; ip link set $L down", func(s *stage) { s.gc("c1") }},
		"alias_erased_and_down_repair_removes_no_link": {"ip link set $L alias ''; ip link set $L down", func(s *stage) { s.brkRepair("0s") }},
	}, func(t *testing.T, c row) {
		s := newStage(t, poolOf(1))
		s.ipam["cooldown"] = "1ms"
		p, a := s.pathPod("c1")
		s.sh(strings.ReplaceAll(c.act, "$L", a.HostLink))
		c.then(s)
		time.Sleep(1500 * time.Millisecond) // what was rebuilt or released has rested
		q := s.Pod(t, "q")
		late := withEnv("NVT_CLOCK_OFFSET=130s") // the second repair was a minute ahead
		if b := s.runOf(pathFailing, s.call("ADD", "q", q, late)); b.OK() {
			t.Errorf("%s of a live pod was given to a second one", b.IP)
		}
		if s.in(p, "ip -o -4 addr show dev eth0 2>/dev/null || true") == "" {
			t.Error("the live pod's link was removed")
		}
	})
}

// What others flush of table 28299 is the only copy, beside the store, of addresses under other main plugins: repair has to put it back.
func TestNetnsBreaker_markers_flushed(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(1))
	s.ipam["cooldown"] = "1ms"
	p := s.Pod(t, "c1")
	if a := s.foreignCall("ADD", "c1", p); a.Exit != 0 {
		t.Fatal(a.Msg)
	}
	s.sh("ip route flush table 28299")
	s.mustCtl("node", "repair")
	if m := s.markers(); len(m) != 1 {
		t.Errorf("after repair noted in the kernel: %v", m)
	}
	s.sh("rm " + stateDir + "/ipam.db")
	for _, id := range []string{"q", "q2"} {
		if b := s.add(id, s.Pod(t, id)); b.OK() {
			t.Errorf("%s of a pod of another main plugin was given out", b.IP)
		}
		time.Sleep(time.Second)
	}
}

// vmssctl or GC in another network namespace that shares /run (a container without the node's network) sees no link of any pod.
func TestNetnsBreaker_another_network_namespace(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(2))
	p, a := s.pathPod("c1")
	conf := s.Dir + "/wrong.json"
	s.sh("cat > " + conf + " <<'X'\n" + string(s.conf()) + "\nX")
	for _, off := range []string{"0s", "61s"} {
		out, err := s.Node.Command(t.Context(), "sh", "-c", "NVT_CLOCK_OFFSET="+off+" nsenter --net="+p.Path+" "+
			program(t, "failpoint/vmssctl")+" --conf "+conf+" node repair").CombinedOutput()
		t.Logf("%v %s", err, out)
	}
	if held := s.held(); len(held) != 1 {
		t.Errorf("held %v, want %s of a live pod", held, a.IP)
	}
	if out := s.in(p, "nft list tables; ip rule show protocol 217"); out != "" {
		t.Errorf("repair wrote the node's policy into another namespace: %s", out)
	}
}

// An ADD that is held up between its look at the node-wide state and its lease isn't counted by those who ask whether pods are here.
func TestNetnsBreaker_node_wide_state_changed_under_an_ADD(t *testing.T) {
	t.Parallel()
	each(t, map[string]func(s *stage){
		"node_clean": func(s *stage) { s.mustCtl("node", "clean") },
		"a_second_network_that_allows_wireserver": func(s *stage) {
			o := *s
			o.top = map[string]any{
				"cniVersion": "1.1.0", "name": "second", "type": "native-vmss", "metadataAccess": map[string]any{"wireserver": "allow", "imds": "allow"},
			}
			o.add("q", s.Pod(s.t, "q")).ok()
		},
	}, func(t *testing.T, meanwhile func(s *stage)) {
		s := newStage(t, poolOf(5))
		s.settle()
		p := s.Pod(t, "c1")
		c := s.call("ADD", "c1", p, withEnv("NVT_FAILPOINT=boltfile.lock=4s#3"))
		_, wait := s.Node.StartPlugin(t.Context(), program(t, pathFailing), c)
		time.Sleep(time.Second)
		meanwhile(s)
		a := s.judge(c, wait())
		if !a.OK() {
			return // as good
		}
		s.sh("nft add table ip cnt; nft 'add chain ip cnt after { type filter hook forward priority 100 ; }'; " +
			"nft add rule ip cnt after ip daddr 168.63.129.16 counter")
		pathSend(t, p, pathTCP(netip.AddrPortFrom(a.IP, 5555), netip.MustParseAddrPort("168.63.129.16:80"), tcpSYN))
		time.Sleep(200 * time.Millisecond)
		if !strings.Contains(s.sh("nft list chain ip cnt after"), "packets 0") {
			t.Errorf("a pod that must not reaches wireserver; CHECK says %q", s.check("c1", p, a).Msg)
		}
	})
}

// Every command ends by its deadline: standard input that nobody closes, and a pipe in the place of a lock file.
func TestNetnsBreaker_no_deadline(t *testing.T) {
	t.Parallel()
	t.Run("stdin_stays_open", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, poolOf(2))
		f := s.Dir + "/in.json"
		s.sh("cat > " + f + " <<'X'\n" + string(s.conf()) + "\nX")
		ctx, cancel := context.WithTimeout(context.Background(), 40*time.Second)
		defer cancel()
		begin := time.Now()
		_, _ = s.Node.Command(ctx, "bash", "-c", "CNI_COMMAND=STATUS CNI_PATH="+s.path+" "+program(t, "native-vmss")+" < <(cat "+f+"; exec sleep 39)").Output()
		if d := time.Since(begin); d > 38*time.Second {
			t.Errorf("STATUS took as long as its standard input was open: %v", d)
		}
	})
	t.Run("metadata_lock_is_a_pipe", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, poolOf(2))
		s.ipam["refresh"] = "1s"
		s.pathPod("c1")
		s.sh("rm " + stateDir + "/metadata.lock; mkfifo " + stateDir + "/metadata.lock")
		time.Sleep(1500 * time.Millisecond)
		s.add("c2", s.Pod(t, "c2"))
	})
}
