package netns

import (
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const hostLocalDir = "/run/host-local"

// native-vmss with the IPAM plugins of others: ADD, CHECK, traffic, GC, DEL twice, nothing left on either side.
func TestNetnsForeignIPAM(t *testing.T) {
	t.Parallel()
	ipams := map[string]struct {
		conf map[string]any
		want string
	}{
		"host-local": {map[string]any{
			"type": "host-local", "dataDir": hostLocalDir, "routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
			"ranges": []any{[]any{map[string]any{"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.11", "rangeEnd": "10.20.0.12"}}},
		}, "10.20.0.11"},
		"static": {map[string]any{
			"type": "static", "addresses": []any{map[string]any{"address": "10.20.0.11/24"}},
		}, "10.20.0.11"},
	}
	each(t, ipams, func(t *testing.T, tt struct {
		conf map[string]any
		want string
	},
	) {
		s := newStage(t, poolOf(5))
		c := s.list(network, "1.1.0", ours(tt.conf))
		s.settle()
		before := s.snapshot()
		space := s.Pod(t, "p1")
		p := lab.Pod{ID: "p1", Netns: space.Path, Namespace: "team-a", Name: "p1"}
		ip := addrOf(t, c.add(p))
		if ip.String() != tt.want {
			t.Errorf("address %s, want %s", ip, tt.want)
		}
		s.reaches(space, ip)
		if err := c.rt.Status(chainContext(t)); err != nil {
			t.Errorf("STATUS: %v", err)
		}
		if out, err := c.rt.Add(chainContext(t), p); err == nil {
			t.Errorf("ADD again gave %v", out)
		}
		if err := c.rt.Check(chainContext(t), p); err != nil {
			t.Errorf("CHECK after a refused ADD: %v", err)
		}
		s.reaches(space, ip)
		if err := c.rt.GC(chainContext(t), p); err != nil {
			t.Errorf("GC: %v", err)
		}
		s.reaches(space, ip)
		s.sh("ip route del " + ip.String())
		if err := c.rt.Check(chainContext(t), p); err == nil || !strings.Contains(err.Error(), ip.String()) {
			t.Errorf("CHECK without the route: %v", err)
		}
		c.del(p)
		c.del(p)
		s.noLeak(before)
		if files, _ := filepath.Glob(s.Node.Path(hostLocalDir + "/" + network + "/10.*")); len(files) > 0 {
			t.Errorf("host-local still has %v", files)
		}
		s.podEmpty(space, "after DEL")
	})
}

// A pod whose address another IPAM gives needs nothing of metadata once the NICs are known: an outage, on a node whose own pool
// has nothing to give either, costs it the second that a refresh may take.
func TestNetnsForeignIPAM_metadata_down(t *testing.T) {
	t.Parallel()
	s := newStage(t, lab.SimpleOptions{Pool: []netip.Addr{}})
	hostLocal := map[string]any{
		"type": "host-local", "dataDir": hostLocalDir, "subnet": "10.20.0.0/24", "rangeStart": "10.20.0.11",
	}
	stdin := s.conf(func(top map[string]any) { top["ipam"] = hostLocal })
	beside := func(c *lab.Call) { c.Path += ":" + filepath.Dir(peer(t, "host-local")) }
	add := func(id string, edits ...edit) *answer {
		call := s.call("ADD", id, s.Pod(t, id), append(edits, withStdin(stdin), beside)...)
		return s.judge(call, s.Node.RunPlugin(chainContext(t), program(t, pathFailing), call)).ok()
	}
	add("p1")
	s.scripted(reply{code: 503})
	if a := add("p2", withEnv("NVT_CLOCK_OFFSET=2m")); a.Took > 5*time.Second {
		t.Errorf("ADD took %s", a.Took)
	}
}

// What another IPAM says of its failure reaches the runtime as it is, and nothing is left.
func TestNetnsForeignIPAM_error(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(5))
	s.settle()
	before := s.snapshot()
	f := newForeign(s, "")
	f.says("ADD", `{"cniVersion":"1.1.0","code":107,"msg":"no lease","details":"ask again on Monday"}`, 1)
	p := s.Pod(t, "p1")
	add := func() *answer {
		stdin := s.conf(func(top map[string]any) { top["ipam"] = map[string]any{"type": f.name} })
		return s.run(s.call("ADD", "p1", p, withStdin(stdin), func(c *lab.Call) { c.Path = f.path() }))
	}
	add().fails(107, "no lease", "ask again on Monday")
	if got := f.calls(); got != "ADD DEL" {
		t.Errorf("calls %s", got)
	}
	s.noLeak(before)
	f.says("ADD", `{"cniVersion":"1.1.0","ips":[]}`, 0)
	add().fails(104, f.name)
	f.does("ADD", "echo out of order >&2; exit 3\n")
	add().fails(104, f.name, "out of order")
	if got := f.calls(); got != "ADD DEL ADD DEL ADD DEL" {
		t.Errorf("calls %s", got)
	}
	s.noLeak(before)
	s.podEmpty(p, "after the failures")
}

// An address that can't be a pod's is refused and given back, whatever the other IPAM's ranges say: a route to a pod would take the
// platform's addresses and the gateway away from the node.
func TestNetnsForeignIPAM_unfit_address(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(5))
	s.settle()
	f := newForeign(s, "")
	p := s.Pod(t, "p")
	before := s.snapshot()
	call := s.call("ADD", "c1", p, withStdin(s.conf(func(top map[string]any) {
		top["ipam"] = map[string]any{"type": f.name}
	})), func(c *lab.Call) { c.Path = f.path() })
	for _, addr := range []string{
		"169.254.169.254", "168.63.129.16", "169.254.1.1", lab.SimpleGateway.String(), lab.SimpleNode.String(), "10.20.0.255",
		"127.0.0.1", "0.0.0.0", "224.0.0.1", "255.255.255.255",
	} {
		f.says("ADD", `{"cniVersion":"1.1.0","ips":[{"address":"`+addr+`/24"}]}`, 0)
		f.write("calls", "")
		s.run(call).fails(7, addr)
		if calls := f.calls(); calls != "ADD DEL" {
			t.Errorf("%s: calls %q, want it given back", addr, calls)
		}
		s.podEmpty(p, addr)
		s.unchanged(before)
	}
	f.says("ADD", `{"cniVersion":"1.1.0","ips":[{"address":"10.20.0.12/24"}]}`, 0)
	s.run(call).ok()
	call.Command = "DEL"
	s.run(call).ok()
	s.noLeak(before)
}
