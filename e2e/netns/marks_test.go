package netns

import (
	"os"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// late has a program live some time ahead, as long after another one as it takes for a lease to be collected.
func late(offset string) []string { return []string{"NVT_CLOCK_OFFSET=" + offset} }

// A live pod keeps its address and its link though others took our marks off the link: a route of ours leads to something that lives,
// whatever that says of itself.
func TestNetnsMarks_erased(t *testing.T) {
	t.Parallel()
	const lost = "; rm " + stateDir + "/ipam.db"
	repairTwice := func(s *stage) {
		for _, offset := range []string{"0s", "61s"} {
			_, _ = s.ctlEnv("failpoint/vmssctl", late(offset), "node", "repair") // it may name the link, and fails then
		}
	}
	gc := func(s *stage) {
		s.run(s.call("GC", "", nil, without("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"))) // without a list
	}
	type row struct {
		act  string
		then func(s *stage)
	}
	each(t, map[string]row{
		"alias_store_lost":                     {"ip link set $L alias ''" + lost, func(*stage) {}},
		"alias_and_group_store_lost":           {"ip link set $L alias x group 0" + lost, func(*stage) {}},
		"alias_and_group_repair_twice":         {"ip link set $L alias x group 0", repairTwice},
		"alias_and_group_GC_without_a_list":    {"ip link set $L alias x group 0", gc},
		"alias_and_name_repair_twice":          {"ip link set $L alias ''; ip link set $L name web0", repairTwice},
		"alias_and_name_GC_without_a_list":     {"ip link set $L alias ''; ip link set $L name web0", gc},
		"alias_and_down_GC_that_lists_the_pod": {"ip link set $L alias ''; ip link set $L down", func(s *stage) { s.gc("c1").ok() }},
		"alias_and_down_GC_without_a_list":     {"ip link set $L alias ''; ip link set $L down", gc},
		"alias_and_down_repair":                {"ip link set $L alias ''; ip link set $L down", func(s *stage) { s.mustCtl("node", "repair") }},
	}, func(t *testing.T, c row) {
		s := newStage(t, poolOf(1))
		s.ipam["cooldown"] = "1ms"
		p, a := s.pathPod("c1")
		s.sh(strings.ReplaceAll(c.act, "$L", a.HostLink))
		c.then(s)
		q := s.Pod(t, "q")
		if b := s.runOf(pathFailing, s.call("ADD", "q", q, withEnv("NVT_CLOCK_OFFSET=130s"))); b.OK() {
			t.Errorf("%s of a live pod was given to a second one", b.IP)
		}
		if s.in(p, "ip -o -4 addr show dev eth0 2>/dev/null || true") == "" {
			t.Error("the live pod's link was removed")
		}
		// The runtime's word ends it all the same.
		s.del("c1", p).ok()
		p.Close()
		if b := s.runOf(pathFailing, s.call("ADD", "q", q, withEnv("NVT_CLOCK_OFFSET=260s"))); !b.OK() || b.IP != a.IP {
			t.Errorf("the address isn't free after DEL: %s", b.Msg)
		}
	})
}

// In another network namespace that has the node's /run, as in a container without the host's network, no pod has a link: nothing there
// judges pods by that, or writes the node's policy into it.
func TestNetnsMarks_another_network_namespace(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	p, a := s.pathPod("c1")
	conf := s.Dir + "/conf.json"
	if err := os.WriteFile(conf, s.conf(), 0o600); err != nil {
		t.Fatal(err)
	}
	elsewhere := "nsenter --net=" + p.Path + " "
	for _, offset := range []string{"0s", "61s"} {
		for _, verb := range []string{"node repair", "node clean", "metrics", "top -n 1"} {
			out := s.sh("NVT_CLOCK_OFFSET=" + offset + " " + elsewhere + program(t, "failpoint/vmssctl") + " --conf " + conf + " " + verb +
				" 2>&1 || echo failed")
			if !strings.Contains(out, "wrong network namespace") || !strings.Contains(out, "failed") {
				t.Errorf("%s: %s", verb, out)
			}
		}
		out := s.sh("CNI_COMMAND=GC CNI_PATH=" + s.path + " " + elsewhere + program(t, "native-vmss") + " <" + conf + " || echo failed")
		if !strings.Contains(out, `"code":4`) || !strings.Contains(out, "failed") {
			t.Errorf("GC: %s", out)
		}
	}
	s.holdsOnly("after all that", a.IP)
	if out := s.in(p, "nft list tables; ip rule | grep -v -e 'lookup local' -e 'lookup main' -e 'lookup default' || true"); out != "" {
		t.Errorf("the node's policy is in another namespace: %s", out)
	}
	s.reaches(p, a.IP)
}
