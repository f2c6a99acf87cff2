package netns

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// stockCloudInit is what cloud-init does at a boot: every secondary of the NIC goes onto its link, unless a drop-in under root
// says otherwise.
func (s *stage) stockCloudInit(root string) {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "etc/cloud/cloud.cfg.d/*.cfg"))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			s.t.Fatal(err)
		}
		if strings.Contains(string(b), "apply_network_config_for_secondary_ips: false") {
			return
		}
	}
	for _, a := range s.pool {
		if err := s.Node.AddAddr("eth0", netip.PrefixFrom(a, lab.SimpleSubnet.Bits())); err != nil {
			s.t.Fatal(err)
		}
	}
}

// reboot ends the boot: pods' links, /run, rules, tables and conntrack are gone; the NIC is made again and set up by DHCP and
// cloud-init.
func (s *stage) reboot(root string) {
	s.t.Helper()
	for _, l := range s.podLinks() {
		s.sh("ip link del " + l)
	}
	if err := s.Node.SetBootID("11111111-2222-4333-8444-" + s.ID + "000000"); err != nil {
		s.t.Fatal(err)
	}
	s.sh("rm -rf " + stateDir + "/* /var/lib/cni/*; nft flush ruleset; ip rule flush; ip rule add pref 32766 lookup main" +
		"; ip rule add pref 32767 lookup default; ip route flush proto " + pathProtocol + " table all; ip link del eth0" +
		"; sysctl -qw net.ipv4.ip_forward=0; conntrack -F 2>/dev/null")
	mac, err := net.ParseMAC(lab.SimpleMAC)
	if err != nil {
		s.t.Fatal(err)
	}
	err = lab.Cable(lab.End{Space: s.Node.Namespace, Name: "eth0", MAC: mac}, lab.End{Space: s.GW, Name: "to-eth0"}, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := s.Node.AddDynamicAddr("eth0", netip.PrefixFrom(lab.SimpleNode, lab.SimpleSubnet.Bits())); err != nil {
		s.t.Fatal(err)
	}
	s.sh("ip route add default via " + lab.SimpleGateway.String() + " dev eth0")
	script := fmt.Sprintf("ip addr add %s/24 dev to-eth0", lab.SimpleGateway)
	for _, a := range s.pool {
		script += fmt.Sprintf("; ip route add %s via %s", a, lab.SimpleNode)
	}
	s.in(s.GW, script)
	s.stockCloudInit(root)
}

// newPreparing is a node as stock cloud-init leaves it, with a root for drop-ins.
func newPreparing(t *testing.T) (s *stage, root string) {
	t.Helper()
	s = newStage(t, poolOf(3))
	root = filepath.Join(s.Dir, "root")
	s.stockCloudInit(root)
	return s, root
}

// refusedOnHost wants ADD to name the fault, the addresses and the way out.
func (s *stage) refusedOnHost(id string) {
	s.t.Helper()
	words := []string{"on-host-link", "vmssctl node prepare"}
	for _, a := range s.pool {
		words = append(words, a.String())
	}
	s.add(id, s.Pod(s.t, id)).fails(11, words...)
}

// onEth0 tells whether ip shows the address on the NIC.
func (s *stage) onEth0(a netip.Addr) bool {
	s.t.Helper()
	return strings.Contains(s.sh("ip -o addr show dev eth0"), " "+a.String()+"/")
}

// A node as stock cloud-init leaves it says what is wrong, is mended by one command and stays mended over a reboot.
func TestNetnsPath_prepare(t *testing.T) {
	t.Parallel()
	t.Run("secondaries_on_the_link_are_named_and_removed_and_stay_away", func(t *testing.T) {
		t.Parallel()
		s, root := newPreparing(t)
		s.refusedOnHost("c1")
		out := s.mustCtl("node", "prepare", "--root", root)
		for _, a := range s.pool {
			if !strings.Contains(out, "done: remove "+a.String()+" from eth0") || s.onEth0(a) {
				t.Errorf("prepare did not remove %s, or did not say so: %s", a, out)
			}
		}
		for _, file := range []string{"etc/cloud/cloud.cfg.d/99-native-vmss.cfg", "etc/systemd/networkd.conf.d/10-native-vmss.conf"} {
			if !strings.Contains(out, "done: write "+filepath.Join(root, file)) {
				t.Errorf("prepare did not name %s: %s", file, out)
			}
		}
		if !s.onEth0(lab.SimpleNode) {
			t.Error("prepare removed the primary address")
		}
		p, a := s.pathPod("c2")
		s.reaches(p, a.IP)

		if out := s.mustCtl("node", "prepare", "--root", root, "--force"); !strings.Contains(out, "nothing to do") {
			t.Errorf("second prepare: %s", out)
		}
		s.reboot(root)
		p, a = s.pathPod("c3")
		s.reaches(p, a.IP)
	})
	t.Run("without_the_drop_in_a_reboot_undoes_it", func(t *testing.T) {
		t.Parallel()
		s, root := newPreparing(t)
		s.mustCtl("node", "prepare", "--root", root)
		s.pathPod("c1")
		s.reboot(t.TempDir())
		s.refusedOnHost("c2")
	})
	t.Run("a_node_with_pods_is_only_told_unless_forced", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, poolOf(3))
		root := filepath.Join(s.Dir, "root")
		p, a := s.pathPod("c1")
		s.stockCloudInit(root)
		s.check("c1", p, a).fails(103, a.IP.String(), "eth0")
		before := s.snapshot()
		out, err := s.ctl("node", "prepare", "--root", root)
		if err == nil || !strings.Contains(out, "would: remove "+a.IP.String()+" from eth0") ||
			!strings.Contains(out, "nothing was changed: pods have addresses here: 1") || strings.Contains(out, "done:") {
			t.Errorf("prepare on a node with a pod ended with %v and said: %s", err, out)
		}
		s.unchanged(before)
		if _, err := os.Stat(filepath.Join(root, "etc")); err == nil {
			t.Error("prepare on a node with a pod wrote a drop-in")
		}
		out = s.mustCtl("node", "prepare", "--root", root, "--force")
		if !strings.Contains(out, "done: remove "+a.IP.String()+" from eth0") || s.onEth0(a.IP) {
			t.Errorf("prepare --force: %s", out)
		}
		s.check("c1", p, a).ok()
		s.reaches(p, a.IP)
	})
	t.Run("dry_run_changes_nothing", func(t *testing.T) {
		t.Parallel()
		s, root := newPreparing(t)
		s.mustCtl("node", "prepare", "--root", root, "--dry-run") // makes the state directory
		before := s.snapshot()
		out := s.mustCtl("node", "prepare", "--root", root, "--dry-run")
		if !strings.Contains(out, "would: remove "+s.pool[0].String()) {
			t.Errorf("dry run said: %s", out)
		}
		s.unchanged(before)
	})
	t.Run("an_address_put_on_the_NIC_while_a_pod_holds_it_is_named_by_CHECK", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, poolOf(3))
		p, a := s.pathPod("c1")
		s.check("c1", p, a).ok()
		s.sh("ip addr add " + a.IP.String() + "/24 dev eth0")
		s.check("c1", p, a).fails(103, a.IP.String(), "eth0")
		s.sh("ip addr del " + a.IP.String() + "/24 dev eth0")
		s.check("c1", p, a).ok()
	})
	t.Run("without_a_dynamic_address_the_default_route_tells_the_primary", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, poolOf(3))
		s.sh("ip addr flush dev eth0")
		// The primary is neither the first nor the lowest.
		for _, a := range append(s.pool, lab.SimpleNode) {
			s.sh("ip addr add " + a.String() + "/24 dev eth0")
		}
		s.sh("ip route replace default via " + lab.SimpleGateway.String() + " dev eth0 src " + lab.SimpleNode.String())
		s.refusedOnHost("c1")
		// Where the kernel would take the primary along with the first secondary, prepare stops and says what to set.
		root := filepath.Join(s.Dir, "root")
		s.sh("sysctl -qw net.ipv4.conf.all.promote_secondaries=0 net.ipv4.conf.eth0.promote_secondaries=0")
		out, err := s.ctl("node", "prepare", "--root", root)
		if err == nil || !strings.Contains(out, "net.ipv4.conf.eth0.promote_secondaries to 1") || !s.onEth0(lab.SimpleNode) {
			t.Fatalf("prepare without promote_secondaries: %v: %s", err, out)
		}
		s.sh("sysctl -qw net.ipv4.conf.eth0.promote_secondaries=1") // systemd's default for every link
		s.mustCtl("node", "prepare", "--root", root)
		if !s.onEth0(lab.SimpleNode) {
			t.Fatal("prepare removed the primary address")
		}
		// Addresses that were secondary to the kernel take routes along when their first one goes.
		s.sh("ip route replace default via " + lab.SimpleGateway.String() + " dev eth0 src " + lab.SimpleNode.String())
		p, a := s.pathPod("c2")
		s.reaches(p, a.IP)
	})
	t.Run("an_ambiguous_primary_is_not_guessed", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, poolOf(2))
		s.sh("ip addr flush dev eth0")
		words := []string{}
		for _, a := range append(s.pool, lab.SimpleNode) {
			s.sh("ip addr add " + a.String() + "/24 dev eth0")
			words = append(words, a.String())
		}
		s.sh("ip route replace default via " + lab.SimpleGateway.String() + " dev eth0")
		s.add("c1", s.Pod(t, "c1")).fails(11, append(words, "primary", "eth0")...)
		if out, err := s.ctl("node", "prepare", "--root", filepath.Join(s.Dir, "root")); err == nil {
			t.Errorf("prepare guessed: %s", out)
		}
		for _, a := range append(s.pool, lab.SimpleNode) {
			if !s.onEth0(a) {
				t.Errorf("%s was removed", a)
			}
		}
	})
}
