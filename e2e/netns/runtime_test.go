package netns

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// list makes a conflist of one or more plugin objects.
func (s *stage) list(name, spec string, plugins ...map[string]any) *chain {
	s.t.Helper()
	text, err := json.Marshal(map[string]any{"cniVersion": spec, "name": name, "plugins": plugins})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.chained(string(text))
}

func ours(ipam map[string]any) map[string]any {
	return map[string]any{"type": "native-vmss", "ipam": ipam}
}

func vmss() map[string]any { return map[string]any{"type": "ipam-vmss", "cooldown": "1s"} }

// sandbox is a pod of a runtime.
func (s *stage) sandbox(id string) lab.Pod {
	s.t.Helper()
	return lab.Pod{ID: id, Netns: s.Pod(s.t, id).Path, Namespace: "team-a", Name: id}
}

// STATUS through libcni, ours and the IPAM's.
func TestNetnsSTATUS_by_libcni(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(1))
	c := s.list(network, "1.1.0", ours(vmss()))
	status := func() error { return c.rt.Status(chainContext(t)) }
	if err := status(); err != nil {
		t.Errorf("a new node: %v", err)
	}
	c.add(s.sandbox("p1"))
	if err := status(); err != nil {
		t.Errorf("a full node: %v", err)
	}
	f := newForeign(s, `{}`)
	c = s.list(network, "1.1.0", ours(map[string]any{"type": f.name}))
	c.rt = f.runtime(c)
	if err := status(); err != nil || !strings.Contains(f.calls(), "STATUS") {
		t.Errorf("another IPAM: %v, calls %q", err, f.calls())
	}
	f.says("STATUS", `{"cniVersion":"1.1.0","code":51,"msg":"half dead","details":"x"}`, 1)
	if err := status(); lab.ErrorCode(err) != 51 || !strings.Contains(err.Error(), "half dead") {
		t.Errorf("another IPAM's error: %v", err)
	}
	c = s.list(network, "1.1.0", ours(map[string]any{"type": "nowhere"}))
	if err := status(); lab.ErrorCode(err) != 50 {
		t.Errorf("an IPAM that is missing: %v", err)
	}
}

// Every version in libcni's hands, alone and behind another plugin whose result is passed on.
func TestNetnsVersions_by_libcni(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(8))
	s.settle()
	for _, spec := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		c := s.list(network, spec, ours(vmss()), map[string]any{"type": "tuning", "sysctl": map[string]any{"net.core.somaxconn": "500"}})
		p := s.sandbox("c" + spec)
		before := s.snapshot()
		out, err := c.rt.Add(chainContext(t), p)
		if err != nil {
			t.Fatalf("%s: %v", spec, err)
		}
		if out.Version() != spec {
			t.Errorf("%s: result of version %s", spec, out.Version())
		}
		var doc struct {
			IPs []struct{ Version string }
		}
		raw, err := json.Marshal(out)
		if err != nil || json.Unmarshal(raw, &doc) != nil || len(doc.IPs) != 1 {
			t.Fatalf("%s: %s %v", spec, raw, err)
		}
		if old := strings.HasPrefix(spec, "0."); old != (doc.IPs[0].Version == "4") {
			t.Errorf("%s: version of the address is %q", spec, doc.IPs[0].Version)
		}
		if has := strings.Contains(string(raw), `"mtu"`); has != (spec == "1.1.0") {
			t.Errorf("%s: %s", spec, raw)
		}
		if err := c.rt.Check(chainContext(t), p); (err == nil) != (spec >= "0.4.0") {
			t.Errorf("%s: CHECK: %v", spec, err)
		}
		if !s.answers(s.GW, addrOf(t, out)) {
			t.Errorf("%s: no way to the pod", spec)
		}
		c.del(p)
		c.del(p)
		s.noLeak(before)
	}
}

// Behind another main plugin, what that one made is passed on and ours comes after it.
func TestNetnsChain_prevResult_is_merged(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(8))
	c := s.list(network, "1.0.0",
		map[string]any{"type": "fake-main"},
		ours(vmss()))
	f := newForeign(s, "")
	f.name = "fake-main"
	f.install()
	f.says("ADD", `{"cniVersion":"1.0.0","interfaces":[{"name":"dummy0"},{"name":"net7","sandbox":"/x"}],"ips":[{"interface":1,"address":"192.168.7.7/24"}],"routes":[{"dst":"192.168.8.0/24"}],"dns":{"nameservers":["192.0.2.1"]}}`, 0)
	c.rt = f.runtime(c)
	p := s.sandbox("p1")
	res := c.add(p)
	if len(res.Interfaces) != 4 || res.Interfaces[1].Name != "net7" || res.Interfaces[3].Name != "eth0" || res.Interfaces[3].Sandbox != p.Netns {
		t.Errorf("interfaces %v", res.Interfaces)
	}
	if len(res.IPs) != 2 || *res.IPs[0].Interface != 1 || *res.IPs[1].Interface != 3 {
		t.Errorf("addresses %v", res.IPs)
	}
	if len(res.Routes) != 2 || len(res.DNS.Nameservers) != 1 {
		t.Errorf("routes %v, dns %v", res.Routes, res.DNS)
	}
	c.del(p)
	s.clean("after DEL")
}

// runtimeConfig of callers such as podman and multus: ips and mac are honoured, all or an error.
func TestNetnsCapabilities(t *testing.T) {
	t.Parallel()
	s := newStage(t, poolOf(5))
	plugin := ours(vmss())
	plugin["capabilities"] = map[string]any{"ips": true, "mac": true}
	c := s.list(network, "1.1.0", plugin)
	s.settle()
	before := s.snapshot()
	p := s.sandbox("p1")
	p.Capabilities = map[string]any{"ips": []string{"10.20.0.13/24"}, "mac": chainMAC}
	res := c.add(p)
	if got := addrOf(t, res); got != netip.MustParseAddr("10.20.0.13") {
		t.Errorf("address %s", got)
	}
	if got := res.Interfaces[1].Mac; got != chainMAC {
		t.Errorf("MAC %s", got)
	}
	if !s.answers(s.GW, netip.MustParseAddr("10.20.0.13")) {
		t.Error("no way to the pod")
	}
	for name, caps := range map[string]map[string]any{
		"taken":           {"ips": []string{"10.20.0.13"}},
		"of nobody":       {"ips": []string{"10.20.0.99"}},
		"two":             {"ips": []string{"10.20.0.12", "10.20.0.14"}},
		"IPv6":            {"ips": []string{"fd00::1"}},
		"no address":      {"ips": []string{"x"}},
		"a multicast MAC": {"mac": "01:00:5e:00:00:01"},
		"no MAC":          {"mac": "x"},
	} {
		p := s.sandbox("q" + strings.ReplaceAll(name, " ", ""))
		p.Capabilities = caps
		if out, err := c.rt.Add(chainContext(t), p); err == nil {
			t.Errorf("%s: ADD gave %v", name, out)
		}
		if held := s.held(); len(held) != 1 {
			t.Errorf("%s: leased %v", name, held)
		}
	}
	c.del(p)
	s.noLeak(before)
}
