package netns

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	networkd = "/lib/systemd/systemd-networkd"
	// networkdNIC is what an image's netplan or cloud-init writes, less DHCP.
	networkdNIC = `[Match]\nName=eth0\n[Network]\nAddress=10.20.0.4/24\nGateway=10.20.0.1\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n`
	// networkdKeeps is the same for a NIC that networkd leaves as it finds it, rules and routes too.
	networkdKeeps = networkdNIC + `KeepConfiguration=yes\n`
	// networkdVeth is a file that matches pods' links by mistake.
	networkdVeth = `[Match]\nName=veth*\n[Network]\nLinkLocalAddressing=no\nIPv6AcceptRA=no\n`
)

// startNetworkd starts systemd-networkd on the node, as a restart of the service does, and waits until it has set the NIC up. Udev's
// word that the links are there is forged: no udevd runs in a namespace.
func (s *hostileStage) startNetworkd(files ...string) {
	s.t.Helper()
	script := "mkdir -p /run/systemd/network /run/systemd/netif/links /run/systemd/netif/leases /run/systemd/netif/lldp /run/udev/data; " +
		"chown -R systemd-network /run/systemd/netif; for l in /sys/class/net/*; do : >/run/udev/data/n$(cat $l/ifindex); done"
	for i, f := range files {
		script += "; printf '" + f + "' >/run/systemd/network/1" + string(rune('0'+i)) + ".network"
	}
	s.sh(script)
	file := filepath.Join(s.Dir, "networkd.log")
	log, err := os.Create(file)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cmd := s.Node.Command(ctx, "env", "SYSTEMD_LOG_LEVEL=debug", "SYSTEMD_LOG_TARGET=console", networkd)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { cancel(); _ = cmd.Wait(); log.Close() })
	configured := func() bool {
		b, err := os.ReadFile(file)
		return err == nil && strings.Contains(string(b), "eth0: State changed: configuring -> configured")
	}
	if !pathEventually(patience, configured) {
		s.t.Fatal("networkd does not say that eth0 is configured")
	}
}

// networkdStart is one start of networkd: the files that it finds and what CHECK says afterwards.
type networkdStart struct {
	files    []string
	dropIn   bool
	lossless bool // to a pod beside
	says     []string
}

// systemd-networkd drops foreign routes of its links and all foreign rules whenever it starts. CHECK names what is gone, the next ADD or
// repair puts it back, and with the drop-in that prepare writes it leaves ours alone. But it takes the NIC's address off and on, unless
// its file says otherwise, and with the last address the kernel drops the routes by that NIC, drop-in or not.
func TestNetnsHostile_networkd(t *testing.T) {
	t.Parallel()
	rules := []string{
		`policy rule "500: to 10.20.0.0/24 lookup main suppress_prefixlength 24"`, `"510: to 10.20.0.0/24 lookup 28201"`, `"599: nop"`,
	}
	table := []string{`route "10.20.0.0/24 via 10.20.0.1 dev eth0 table 28201"`}
	pods := []string{"route $IP/32 dev $LINK is missing"}
	nic, both := []string{networkdNIC}, []string{networkdKeeps, networkdVeth}
	each(t, map[string]networkdStart{
		"starts":                               {nic, false, false, slices.Concat(rules, table)},
		"starts_and_has_a_file_for_pods_links": {both, false, false, slices.Concat(rules, pods)},
		"with_the_drop_in":                     {nic, true, false, table},
		"with_the_drop_in_and_pods_links":      {both, true, true, nil},
	}, func(t *testing.T, c networkdStart) { newHostileStage(t).startsNetworkd(c) })
}

func (s *hostileStage) startsNetworkd(c networkdStart) {
	s.t.Helper()
	if c.dropIn {
		root := filepath.Join(s.Dir, "root")
		s.mustCtl("node", "prepare", "--root", root, "--force")
		dropIns := filepath.Join(root, "etc/systemd/networkd.conf.d/*.conf")
		s.sh("mkdir -p /run/systemd/networkd.conf.d; cp " + dropIns + " /run/systemd/networkd.conf.d/")
	}
	ours := func() string { return s.sh("ip rule show protocol 217; ip route show table all proto 217") }
	before := ours()
	mine, theirs := s.keepsOn(s.pod), s.keepsOn(s.other)
	lossless := func() {}
	if c.lossless {
		lossless = s.bothWays(s.other, s.o.IP)
	}
	s.startNetworkd(c.files...)
	if c.says == nil {
		s.check("c1", s.pod, s.a).ok()
		if now := ours(); now != before {
			s.t.Errorf("networkd with the drop-in left\n%s\nof\n%s", now, before)
		}
	} else {
		if !c.dropIn {
			if !pathEventually(patience, func() bool { return !strings.Contains(ours(), "510:") }) {
				s.t.Fatal("networkd leaves our rules: the test proves nothing")
			}
		}
		bad := s.check("c1", s.pod, s.a).fails(103)
		for _, w := range c.says {
			bad.says(s.words(w))
		}
		if !c.dropIn {
			s.newPod("unrepaired")
		}
		s.mustCtl("node", "repair")
	}
	s.allWork()
	lossless()
	mine()
	theirs()
	if now := ours(); now != before {
		s.t.Errorf("now\n%s\nbefore\n%s", now, before)
	}
}

// An address of the pool that somebody put on a link of the node before it was handed out is no pod's: ADD takes the next one, list and
// repair name it, and prepare gives it back to the pods.
func TestNetnsHostile_squatter(t *testing.T) {
	t.Parallel()
	for name, link := range map[string]string{"on_the_NIC": "eth0", "on_loopback": "lo", "on_a_link_of_somebody": "br9"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t, poolOf(2))
			s.podAt("c0", s.pool[0].String())
			s.sh("ip link add br9 type bridge; ip link set br9 up")
			squatted := s.pool[1] // the only one that is free
			s.sh("ip addr add " + squatted.String() + "/32 dev " + link)
			p := s.Pod(t, "c1")
			s.add("c1", p).failsWith([]uint{11}, squatted.String(), "on-host-link")
			if out := s.mustCtl("ipam", "list", "-a"); !strings.Contains(out, "on-host-link") {
				t.Errorf("ipam list -a does not say on-host-link: %s", out)
			}
			s.sh("ip addr del " + squatted.String() + "/32 dev " + link)
			if !pathEventually(patience, func() bool { return s.run(s.call("ADD", "c1", p)).OK() }) {
				t.Error("the address is not handed out although nobody has it any more")
			}
		})
	}
}
