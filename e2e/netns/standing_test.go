package netns

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// nodeWide is what all pods of a node share, as ip and nft show it.
func (s *stage) nodeWide() string {
	s.t.Helper()
	return s.sh("nft -s list table ip native_vmss; ip rule; ip route show table 28201; ip route show table 28202")
}

const oursGone = "while ip rule del protocol " + pathProtocol + " 2>/dev/null; do :; done"

// What others delete of the node-wide state is named by CHECK of the pods there, and back when the next ADD has answered; what only a
// longer look sees, with vmssctl node repair.
func TestNetnsStanding_node_wide_state(t *testing.T) {
	t.Parallel()
	s := nicsCloud(t).nodes[0]
	p, a := s.podAt("p1", "10.20.17.10")
	want := s.nodeWide()
	for _, c := range []struct {
		name, damage string
		finding      []string
		repair       bool // ADD doesn't look that closely, vmssctl node repair puts it back
	}{
		{"table_flushed", "nft flush table ip native_vmss", []string{"chain forward lacks", "metadata service", "wireserver", "spoofed source"}, false},
		{"table_deleted", "nft delete table ip native_vmss", []string{"table ip native_vmss is missing"}, false},
		{"one_chain_deleted", "nft delete chain ip native_vmss forward", []string{`chain forward lacks a rule "wireserver"`}, true},
		{"one_chain_emptied", "nft flush chain ip native_vmss prerouting", []string{`chain prerouting lacks a rule "spoofed source"`}, true},
		{"rules_deleted", oursGone, []string{`policy rule "541: from 10.20.16.0/20 lookup 28202"`, `"599: nop"`}, false},
		{"one_rule_deleted", "ip rule del pref 541", []string{`policy rule "541: from 10.20.16.0/20 lookup 28202"`}, false},
		{
			"one_rule_changed", "ip rule del pref 541; ip rule add from 10.20.16.0/20 lookup 28201 pref 541 protocol " + pathProtocol,
			[]string{`policy rule "541: from 10.20.16.0/20 lookup 28202"`},
			false,
		},
		{"table_of_a_NIC_flushed", "ip route flush table 28202", []string{`route "0.0.0.0/0 via 10.20.16.1 dev eth1 table 28202"`}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := s.pathAs(t)
			s.check("p1", p, a).ok()
			s.sh(c.damage)
			if s.nodeWide0() == want {
				t.Fatal("the damage can't be seen")
			}
			s.check("p1", p, a).fails(103, c.finding...)
			if c.repair {
				s.mustCtl("node", "repair")
			} else {
				next := s.Pod(t, c.name)
				s.add(c.name, next).ok()
				s.del(c.name, next).ok()
			}
			if got := s.nodeWide(); got != want {
				t.Errorf("now %s\nbefore %s", got, want)
			}
			s.check("p1", p, a).ok()
		})
	}
}

// nodeWide0 is nodeWide where the table may be gone.
func (s *stage) nodeWide0() string {
	s.t.Helper()
	return s.sh("nft -s list table ip native_vmss 2>/dev/null || true; ip rule; ip route show table 28201; ip route show table 28202 2>/dev/null || true")
}

// A link of our name and group is the attachment's, whatever somebody wrote as its alias.
func TestNetnsStanding_overwritten_alias(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	s.settle()
	before := s.snapshot()
	p, a := s.pathPod("c1")
	wired := s.snapshot()
	overwrite := "ip link set " + a.HostLink + " alias web-frontend"

	t.Run("CHECK_names_it_and_repair_puts_it_back", func(t *testing.T) {
		s := s.pathAs(t)
		s.sh(overwrite)
		s.check("c1", p, a).fails(103, "web-frontend")
		s.mustCtl("node", "repair")
		s.check("c1", p, a).ok()
		s.unchanged(wired)
	})
	t.Run("a_collection_leaves_the_live_pod", func(t *testing.T) {
		s := s.pathAs(t)
		s.sh(overwrite)
		s.run(s.call("GC", "", nil, without("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"))).ok()
		s.reaches(p, a.IP)
		if !strings.Contains(s.mustCtl("ipam", "list"), "leased") {
			t.Error("the lease of a live pod was collected")
		}
	})
	t.Run("repair_names_one_without_a_lease", func(t *testing.T) {
		s := s.pathAs(t)
		s.sh("ip link add veth01234567890 group " + pathGroup + " type veth peer name x1; ip link set veth01234567890 alias uplink")
		if out, err := s.ctl("node", "repair"); err == nil || !strings.Contains(out, "veth01234567890") || !strings.Contains(out, "uplink") {
			t.Errorf("repair ended with %v: %s", err, out)
		}
		if !s.hasLink("veth01234567890") {
			t.Error("the link was removed")
		}
		s.sh("ip link del veth01234567890")
	})
	t.Run("DEL_keeps_the_lease_while_a_route_leads_to_the_link", func(t *testing.T) {
		s := s.pathAs(t)
		s.sh("ip link set " + a.HostLink + " down; ip link set " + a.HostLink + " name lost0; ip link set lost0 alias web-frontend; " +
			"ip link set lost0 up; ip route add " + a.IP.String() + " dev lost0 proto " + pathProtocol + " scope link")
		s.del("c1", p).fails(110, a.IP.String(), "lost0")
		if !strings.Contains(s.mustCtl("ipam", "list"), "releasing") {
			t.Error("the lease was released beside a route to the pod")
		}
		s.sh("ip link set lost0 down; ip link set lost0 name " + a.HostLink + "; ip link set " + a.HostLink + " up")
	})
	t.Run("DEL_removes_it", func(t *testing.T) {
		s := s.pathAs(t)
		s.sh(overwrite)
		s.del("c1", p).ok()
		if s.hasLink(a.HostLink) || strings.Contains(s.sh("ip route"), a.IP.String()) {
			t.Errorf("DEL succeeded and left: %s", s.sh("ip -d link show group "+pathGroup+"; ip route"))
		}
		s.noLeak(before)
	})
}

// An address that another IPAM plugin gives may be somebody's on this node: its own book doesn't know.
func TestNetnsStanding_foreign_IPAM_gives_a_held_address(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	s.settle()
	p, a := s.pathPod("c1")
	s.sh("ip link add other0 type veth peer name other1; " +
		"ip link set other0 addrgenmode none; ip link set other1 addrgenmode none; ip link set other0 up; ip link set other1 up; ip route add 10.20.0.77 dev other0")
	for _, c := range []struct {
		name, id, addr string
		code           uint
	}{
		{"address_of_the_node", "c2", lab.SimpleNode.String(), 7},
		{"address_of_another_pod", "c3", a.IP.String(), 11},
		{"address_of_another_CNI's_pod", "c4", "10.20.0.77", 11},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := s.pathAs(t)
			f := newForeign(s, `{"cniVersion":"1.1.0","ips":[{"address":"`+c.addr+`/24"}]}`)
			next := s.Pod(t, c.id)
			before := s.snapshot()
			conf := s.conf(func(top map[string]any) { top["ipam"] = map[string]any{"type": f.name} })
			s.add(c.id, next, withStdin(conf), func(c *lab.Call) { c.Path = f.path() }).fails(c.code, c.addr)
			if f.calls() != "ADD DEL" {
				t.Errorf("the IPAM plugin was called with %s, want ADD DEL", f.calls())
			}
			s.unchanged(before)
			s.reaches(p, a.IP)
		})
	}
	s.check("c1", p, a).ok()
}

// DEL, CHECK and GC work with a broken configuration, but not on another store than the ADD's.
func TestNetnsStanding_unusable_stateDir(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{})
	p, a := s.pathPod("c1")
	records := s.records()
	for name, dir := range map[string]any{"relative": "run/native-vmss", "empty": "", "number": 5} {
		t.Run(name, func(t *testing.T) {
			s := s.pathAs(t)
			conf := s.conf(func(top map[string]any) {
				ipam, _ := top["ipam"].(map[string]any)
				if ipam == nil {
					ipam = map[string]any{"type": "ipam-vmss"}
				}
				ipam["stateDir"] = dir
				top["ipam"], top["prevResult"] = ipam, json.RawMessage(a.Stdout)
			})
			for _, verb := range []string{"DEL", "CHECK", "GC"} {
				var edits []edit
				if verb == "GC" {
					edits = append(edits, without("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS"))
				}
				s.run(s.call(verb, "c1", p, append(edits, withStdin(conf))...)).fails(7, "ipam.stateDir")
			}
		})
	}
	s.sameRecords(records)
	s.reaches(p, a.IP)
	s.check("c1", p, a).ok()
}
