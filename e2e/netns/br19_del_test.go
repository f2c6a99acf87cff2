package netns

import (
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// BR-19: DEL without a usable netns, twice, and of what was never there: always exit 0, and the first one takes all.
func TestNetnsBR19_del(t *testing.T) {
	t.Parallel()
	each(t, map[string]edit{
		"netns_unset":                  without("CNI_NETNS"),
		"netns_empty":                  withNetns(""),
		"netns_that_is_not_there":      withNetns("/run/netns/none"),
		"netns_that_is_a_plain_file":   withNetns("/run/plain"),
		"netns_of_a_process_long_gone": withNetns("/proc/999999/ns/net"),
		"netns_of_the_node_itself":     withNetns("/proc/self/ns/net"),
	}, func(t *testing.T, how edit) {
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		s.sh("echo hello >/run/plain")
		before := s.snapshot()
		p := s.Pod(t, "p1")
		s.add("c1", p).ok()
		s.del("c1", p, how).ok()
		s.noLeak(before)

		records := s.records()
		s.del("c1", p, how).ok()
		s.del("never-seen", p, how).ok()
		s.del("c1", p, how, withIfName("eth9")).ok()
		s.noLeak(before)
		s.sameRecords(records)
	})

	t.Run("another_interface_frees_nothing_of_eth0", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		p := s.Pod(t, "p1")
		a := s.add("c1", p).ok()
		before, records := s.snapshot(), s.records()
		s.del("c1", p, withIfName("eth9")).ok()
		s.del("never-seen", p).ok()
		s.unchanged(before)
		s.sameRecords(records)
		s.reaches(p, a.IP)
	})

	each(t, map[string]string{
		"route_and_rules_go_with_a_veth_that_is_gone_already": "ip link del $LINK",
		"link_goes_with_a_route_that_is_gone_already":         "ip route del $IP",
	}, func(t *testing.T, loss string) {
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		before := s.snapshot()
		p := s.Pod(t, "p1")
		a := s.add("c1", p).ok()
		s.sh("LINK=" + a.HostLink + " IP=" + a.IP.String() + "; " + loss)
		s.del("c1", nil, withNetns("")).ok()
		s.noLeak(before)
	})

	t.Run("netns_deleted_with_its_name", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		before := s.snapshot()
		p := s.Pod(t, "p1")
		s.add("c1", p).ok()
		path := p.Path
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		s.del("c1", nil, withNetns(path)).ok()
		s.noLeak(before)
	})

	each(t, map[string]string{
		"store_absent":                    "rm " + stateDir + "/ipam.db",
		"whole_state_directory_is_absent": "rm -r " + stateDir,
		// Nothing but its name says whose link it is: a rebuilt store can't know it.
		"store_and_alias_absent": "ip link set $LINK alias ''; rm " + stateDir + "/ipam.db",
	}, func(t *testing.T, loss string) {
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		before := s.snapshot()
		p1, p2 := s.Pod(t, "p1"), s.Pod(t, "p2")
		gone, stays := s.add("c1", p1).ok(), s.add("c2", p2).ok()
		s.sh("LINK=" + gone.HostLink + "; " + loss)
		s.del("c1", p1).ok()
		if s.hasLink(gone.HostLink) {
			t.Errorf("%s still stands", gone.HostLink)
		}
		s.reaches(p2, stays.IP)
		s.del("c1", p1).ok()
		s.del("c2", p2).ok()
		// The snapshot names the files of metadata, which only an ADD makes again; after a rebuild every address rests first.
		time.Sleep(restAfterRebuild)
		s.settle()
		s.noLeak(before)
	})
}

// restAfterRebuild is longer than the stage's cool-down of 1 s.
const restAfterRebuild = 1500 * time.Millisecond
