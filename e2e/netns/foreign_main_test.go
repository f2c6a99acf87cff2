package netns

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// mains are other main plugins that ask ipam-vmss for addresses.
func mains() map[string]map[string]any {
	return map[string]map[string]any{
		"ptp":     {"type": "ptp", "ipMasq": false, "mtu": 1400},
		"bridge":  {"type": "bridge", "bridge": "cni0", "isGateway": true, "promiscMode": false},
		"macvlan": {"type": "macvlan", "master": "eth0", "mode": "bridge"},
	}
}

func (s *stage) under(main map[string]any) *chain {
	s.t.Helper()
	main["ipam"], main["capabilities"] = vmss(), map[string]any{"ips": true}
	return s.list("foreign", "1.0.0", main)
}

// markers are the addresses noted in the kernel for pods whose links aren't ours.
func (s *stage) markers() []string {
	s.t.Helper()
	var list []string
	for line := range strings.Lines(s.sh("ip route show table 28299 2>/dev/null || true")) {
		if f := strings.Fields(line); len(f) > 1 {
			list = append(list, f[1])
		}
	}
	slices.Sort(list)
	return list
}

// ipam-vmss under ptp, bridge and macvlan: a pod that gets out, an ADD that is repeated and must not cost it its address, and
// nothing left after DEL. A store that is lost while the pod lives is rebuilt without giving its address out.
func TestNetnsForeignMain(t *testing.T) {
	t.Parallel()
	each(t, mains(), func(t *testing.T, main map[string]any) {
		s := newStage(t, poolOf(4))
		c := s.under(main)
		settle := s.sandbox("settle")
		c.add(settle)
		c.del(settle)
		before := s.snapshot()
		space := s.Pod(t, "p1")
		p := lab.Pod{ID: "p1", Netns: space.Path, Namespace: "team-a", Name: "web-0"}
		res := c.add(p)
		ip := addrOf(t, res)
		if gw := res.IPs[0].Gateway.String(); gw != "10.20.0.2" {
			t.Errorf("gateway %s: .1 is the subnet's own, and some mains put the gateway on the host", gw)
		}
		undo := s.deliver(main, ip)
		s.livesOn(space, ip, "after ADD")
		if out, err := c.rt.Add(chainContext(t), p); err == nil {
			t.Errorf("ADD again gave %v", out)
		}
		s.livesOn(space, ip, "after a repeated ADD")
		undo()
		c.del(p)
		c.del(p)
		if marks := s.markers(); len(marks) > 0 {
			t.Errorf("still noted in the kernel: %v", marks)
		}
		s.foreignLeft(before)

		p.ID, p.Capabilities = "p2", map[string]any{"ips": []string{"10.20.0.13"}}
		if ip = addrOf(t, c.add(p)); ip.String() != "10.20.0.13" {
			t.Errorf("address %s, 10.20.0.13 was asked for", ip)
		}
		undo = s.deliver(main, ip)
		s.sh("rm -f " + stateDir + "/ipam.db")
		if got := s.takeAll(); len(got) != 3 || slices.Contains(got, ip) {
			t.Errorf("after the store was lost %v were given out of 4; %s is a live pod's", got, ip)
		}
		s.livesOn(space, ip, "after the store was lost")
		undo()
		c.del(p)
		c.del(p)
	})
}

// foreignLeft is noLeak but for bridge's own link, which stays and whose state goes with its ports.
func (s *stage) foreignLeft(before lab.Snapshot) {
	s.t.Helper()
	for _, line := range before.Diff(s.snapshot()) {
		if !strings.Contains(line, "cni0") {
			s.t.Errorf("left: %s", line)
		}
	}
	if held := s.held(); len(held) > 0 {
		s.t.Errorf("leased %v", held)
	}
}

// livesOn wants the pod's address to be leased and noted, and the pod to get out.
func (s *stage) livesOn(pod *lab.Namespace, ip netip.Addr, when string) {
	s.t.Helper()
	if held := s.held(); !slices.Contains(held, ip) || !slices.Contains(s.markers(), ip.String()) {
		s.t.Errorf("%s: leased %v, noted in the kernel %v, want %s", when, held, s.markers(), ip)
	}
	if !pathEventually(20*time.Second, func() bool { return s.echo(pod, ip, lab.SimpleInternet, silence) }) {
		s.t.Errorf("%s: the pod does not get out: %s\n%s", when, s.in(pod, "ip addr; ip route; ip neigh"), s.sh("ip addr; ip route"))
	}
}

// deliver does what these mains leave to the administrator where pods' addresses are of the node's own subnet.
func (s *stage) deliver(main map[string]any, ip netip.Addr) (undo func()) {
	s.t.Helper()
	route := "ip route %s " + ip.String() + "/32 "
	do := func(f func(string) string, verb, rest string) {
		f(strings.Replace(route, "%s", verb, 1) + rest)
	}
	onGW := func(script string) string { return s.in(s.GW, script) }
	switch main["type"] {
	case "bridge": // the subnet's route leads to the NIC
		do(s.sh, "add", "dev cni0")
		return func() { do(s.sh, "del", "dev cni0") }
	case "macvlan": // the pod is on the wire itself, and takes the gateway there
		do(onGW, "del", "")
		onGW("ip addr add 10.20.0.2/24 dev to-eth0")
		return func() {
			onGW("ip addr del 10.20.0.2/24 dev to-eth0")
			do(onGW, "add", "via 10.20.0.4 dev to-eth0")
		}
	}
	return func() {}
}

// takeAll adds pods of our own until the pool is empty.
func (s *stage) takeAll() (got []netip.Addr) {
	s.t.Helper()
	c := s.list(network, "1.1.0", ours(vmss()))
	for _, id := range []string{"qa", "qb", "qc", "qd"} {
		p := s.sandbox(id)
		pathEventually(2500*time.Millisecond, func() bool { // cool-down is 1 s
			out, err := c.rt.Add(chainContext(s.t), p)
			if err != nil {
				time.Sleep(200 * time.Millisecond)
				return false
			}
			got = append(got, addrOf(s.t, out))
			return true
		})
	}
	return got
}

// A runtime kills the main plugin and its IPAM child lives on: it leases nothing, or a DEL that overtook it would leave the lease for
// ever.
func TestNetnsForeignMain_killed(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(4))
	s.scripted(reply{after: time.Second})
	conf, err := json.Marshal(map[string]any{"cniVersion": "1.0.0", "name": "foreign", "type": "ptp", "ipam": vmss()})
	if err != nil {
		t.Fatal(err)
	}
	space := s.Pod(t, "p1")
	call := s.call("ADD", "p1", space, withStdin(conf))
	cmd, wait := s.Node.StartPlugin(chainContext(t), peer(t, "ptp"), call)
	if !pathEventually(patience, func() bool { return len(s.MD.Requests()) > 0 }) {
		t.Fatal("metadata was not asked")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	wait()
	time.Sleep(2500 * time.Millisecond) // the child has its answer after one
	if held := s.held(); len(held) > 0 || len(s.markers()) > 0 {
		t.Errorf("leased %v, noted %v: a DEL that came before would never free it", held, s.markers())
	}
	call.Command = "DEL"
	if o := s.Node.RunPlugin(chainContext(t), peer(t, "ptp"), call); !o.OK() {
		t.Errorf("DEL: exit %d %s%s", o.Exit, o.Stdout, o.Stderr)
	}
}

// What others flush of the table of markers is the only copy, beside the store, of addresses under other main plugins: repair puts it
// back, and a store that is lost then knows them.
func TestNetnsForeignMain_markers_flushed(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(1))
	s.ipam["cooldown"] = "1ms"
	p := s.Pod(t, "c1")
	if a := s.foreignCall("ADD", "c1", p); a.Exit != 0 {
		t.Fatal(a.Msg)
	}
	had := s.markers()
	s.sh("ip route flush table 28299")
	if said := s.mustCtl("node", "repair"); !strings.Contains(said, "marker of "+s.pool[0].String()) {
		t.Errorf("repair said %q", said)
	}
	if m := s.markers(); len(m) != 1 || m[0] != had[0] {
		t.Errorf("after repair noted in the kernel: %v, want %v", m, had)
	}
	if said := s.mustCtl("node", "repair"); !strings.Contains(said, "nothing to do") {
		t.Errorf("a second repair said %q", said)
	}
	s.sh("rm " + stateDir + "/ipam.db")
	s.add("q", s.Pod(t, "q")).fails(11)
}
