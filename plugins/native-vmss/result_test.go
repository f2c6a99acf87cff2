package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/native-vmss/native-vmss/pkg/node"
)

const podNetns = "/run/netns/pod"

var specs = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

func made() (node.Result, node.Attachment) {
	res := node.Result{
		Addr: netip.MustParseAddr("10.20.0.10"), HostLink: "veth00112233445", MTU: 1500,
		HostMAC: [6]byte{2, 1, 2, 3, 4, 4}, PodMAC: [6]byte{2, 1, 2, 3, 4, 5},
	}
	return res, node.Attachment{Key: node.Key{Network: "net1", ContainerID: "c1", IfName: "eth0"}, Netns: podNetns}
}

// conf is a configuration in a version of the specification, with more keys that begin with a comma.
func conf(spec, more string) []byte {
	return fmt.Appendf(nil, `{"cniVersion":%q,"name":"net1","type":"native-vmss","ipam":{"type":"ipam-vmss"}%s}`, spec, more)
}

// printed is the document that ADD prints for a configuration.
func printed(t *testing.T, stdin []byte, ipam *delegate) map[string]any {
	t.Helper()
	a, err := newAnswer(stdin)
	if err != nil {
		t.Fatal(err)
	}
	a.add(made())
	a.addIPAM(ipam)
	var out bytes.Buffer
	if err := a.print(&out); err != nil {
		t.Fatal(err)
	}
	return decoded(t, out.String())
}

func decoded(t *testing.T, text string) map[string]any {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	return doc
}

func TestAnswer_everyVersion(t *testing.T) {
	for _, spec := range specs {
		t.Run(spec, func(t *testing.T) {
			version, mtu, dns := `"version":"4",`, ``, `,"dns":{}`
			if spec >= "1" {
				version, dns = "", ""
			}
			if spec == "1.1.0" {
				mtu = `"mtu":1500,`
			}
			want := decoded(t, fmt.Sprintf(`{"cniVersion":%q,"interfaces":[
				{"name":"veth00112233445",%[2]s"mac":"02:01:02:03:04:04"},
				{"name":"eth0",%[2]s"mac":"02:01:02:03:04:05","sandbox":"/run/netns/pod"}],
				"ips":[{%[3]s"interface":1,"address":"10.20.0.10/32","gateway":"169.254.1.1"}],
				"routes":[{"dst":"0.0.0.0/0","gw":"169.254.1.1"}]%[4]s}`, spec, mtu, version, dns))
			if diff := cmp.Diff(want, printed(t, conf(spec, ""), nil)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// What earlier plugins of the chain made comes first and unchanged; ours follows, its index counted from theirs.
func TestAnswer_prevResult(t *testing.T) {
	for _, spec := range specs {
		t.Run(spec, func(t *testing.T) {
			version := ""
			if spec < "1" {
				version = `"version":"4",`
			}
			earlier := fmt.Sprintf(`"interfaces":[{"name":"dummy0"},{"name":"net0","sandbox":"/run/netns/pod"},{"name":"net1"}],
				"ips":[{%s"interface":1,"address":"192.168.7.2/24"}],"routes":[{"dst":"192.168.0.0/16"}],
				"dns":{"nameservers":["10.0.0.10"]}`, version)
			prev := fmt.Sprintf(`,"prevResult":{"cniVersion":%q,%s}`, spec, earlier)
			got := printed(t, conf(spec, prev), nil)
			alone := printed(t, conf(spec, ""), nil)
			was := decoded(t, "{"+earlier+"}")
			for _, list := range []string{"interfaces", "ips", "routes"} {
				ours := alone[list].([]any)
				if list == "ips" {
					ours[0].(map[string]any)["interface"] = 4.0
				}
				if diff := cmp.Diff(append(was[list].([]any), ours...), got[list]); diff != "" {
					t.Errorf("%s (-want +got)\n%s", list, diff)
				}
			}
			if diff := cmp.Diff(was["dns"], got["dns"]); diff != "" {
				t.Errorf("dns (-want +got)\n%s", diff)
			}
		})
	}
}

// The library copies fields of 1.1.0 into older results.
func TestAnswer_newFields(t *testing.T) {
	const prev = `,"prevResult":{"interfaces":[{"name":"a","mtu":9000,"socketPath":"/s","pciID":"0000:00:02.0"}],
		"routes":[{"dst":"10.0.0.0/8","gw":"10.1.0.1","mtu":1400,"advmss":1360,"priority":5,"table":100,"scope":253}]}` // without cniVersion it is the configuration's
	for _, spec := range specs {
		doc := printed(t, conf(spec, prev), nil)
		text, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, field := range []string{"mtu", "socketPath", "pciID", "advmss", "priority", "table", "scope"} {
			if has := strings.Contains(string(text), `"`+field+`"`); has != (spec == "1.1.0") {
				t.Errorf("%s: %s is there: %v\n%s", spec, field, has, text)
			}
		}
		if route := doc["routes"].([]any)[0].(map[string]any); route["gw"] != "10.1.0.1" {
			t.Errorf("%s: route %v", spec, route)
		}
	}
}

// ptp's rule: the configuration's own dns, empty lists included, replaces the IPAM's whole.
func TestAnswer_dns(t *testing.T) {
	ipam := &delegate{result: &current.Result{DNS: types.DNS{Nameservers: []string{"10.0.0.53"}, Search: []string{"ipam"}}}}
	const own, prev = `,"dns":{"nameservers":["10.0.0.10"]}`, `,"prevResult":{"cniVersion":"1.0.0","dns":{"nameservers":["10.0.0.11"]}}`
	const ofIPAM = `{"nameservers":["10.0.0.53"],"search":["ipam"]}`
	tests := []struct {
		name, more string
		ipam       *delegate
		want       string // "" for no dns
	}{
		{"none", ``, nil, ``},
		{"IPAM's", ``, ipam, ofIPAM},
		{"own", own, ipam, `{"nameservers":["10.0.0.10"]}`},
		{"own without an IPAM", own, nil, `{"nameservers":["10.0.0.10"]}`},
		{"own, empty list", `,"dns":{"nameservers":[]}`, ipam, ``},
		{"own, no list", `,"dns":{}`, ipam, ofIPAM},
		{"prevResult's", prev, nil, `{"nameservers":["10.0.0.11"]}`},
		{"prevResult's, the IPAM has none", prev, &delegate{result: &current.Result{}}, `{"nameservers":["10.0.0.11"]}`},
		{"prevResult's and the IPAM's", prev, ipam, ofIPAM},
		{"prevResult's and own", prev + own, ipam, `{"nameservers":["10.0.0.10"]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var want any
			if tt.want != "" {
				want = decoded(t, tt.want)
			}
			if diff := cmp.Diff(want, printed(t, conf("1.0.0", tt.more), tt.ipam)["dns"]); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// A prevResult that can't be passed on is refused before anything is made.
func TestNewAnswer_badPrevResult(t *testing.T) {
	for _, prev := range []string{
		`"x"`, `[]`, `{"cniVersion":"9.9.9"}`, `{"cniVersion":"1.0.0","ips":"x"}`, `{"cniVersion":"1.0.0","interfaces":[null]}`,
		`{"cniVersion":"1.0.0","ips":[null]}`, `{"cniVersion":"1.0.0","routes":[null]}`,
	} {
		if _, err := newAnswer(conf("1.0.0", `,"prevResult":`+prev)); !errors.Is(err, node.ErrConfig) || !strings.Contains(fmt.Sprint(err), "prevResult") {
			t.Errorf("prevResult %s: %v", prev, err)
		}
	}
	for _, version := range []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"} {
		for _, prev := range []string{`{"ips":[null]}`, `{"routes":[null]}`, `{"ips":[{}]}`, `{"routes":[{"gw":"10.0.0.1"}]}`} {
			if _, err := newAnswer(conf(version, `,"prevResult":`+prev)); !errors.Is(err, node.ErrConfig) || !strings.Contains(fmt.Sprint(err), "prevResult") {
				t.Errorf("%s: prevResult %s: %v", version, prev, err)
			}
		}
	}
	for _, more := range []string{``, `,"prevResult":null`, `,"prevResult":{}`} {
		if _, err := newAnswer(conf("1.0.0", more)); err != nil {
			t.Errorf("%s: %v", more, err)
		}
	}
}

// CHECK reads from prevResult what ADD printed, in each version that has CHECK, and what later plugins changed.
func TestExpected(t *testing.T) {
	mac := func(last byte) *[6]byte { return &[6]byte{2, 1, 2, 3, 4, last} }
	addr := netip.MustParseAddr("10.20.0.10")
	for _, spec := range specs[2:] {
		doc := printed(t, conf(spec, ""), nil)
		prev, err := json.Marshal(doc)
		if err != nil {
			t.Fatal(err)
		}
		want := node.Expect{Addr: addr, PodMAC: mac(5)}
		if spec == "1.1.0" {
			want.MTU = 1500
		}
		got, err := expected(&skel.CmdArgs{IfName: "eth0", Netns: podNetns, StdinData: conf(spec, `,"prevResult":`+string(prev))})
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got)\n%s", spec, err, diff)
		}
	}
}

func TestExpected_chain(t *testing.T) {
	tests := []struct {
		name, prev string // interfaces and ips
		want       node.Expect
		bad        bool
	}{
		{
			"tuning changed the MAC, bandwidth added a link",
			`"interfaces":[{"name":"veth1","mtu":1500},{"name":"eth0","mac":"02:aa:aa:aa:aa:aa","mtu":1400,"sandbox":"/run/netns/pod"},{"name":"ifb1"}],
			"ips":[{"interface":1,"address":"10.20.0.10/32"}]`,
			node.Expect{Addr: netip.MustParseAddr("10.20.0.10"), MTU: 1500, PodMAC: &[6]byte{2, 0xaa, 0xaa, 0xaa, 0xaa, 0xaa}},
			false,
		},
		{
			"another plugin's interface and addresses around ours",
			`"interfaces":[{"name":"eth0"},{"name":"eth0","sandbox":"/run/netns/pod"},{"name":"net1","sandbox":"/run/netns/pod"}],
			"ips":[{"address":"10.1.0.1/24"},{"interface":2,"address":"10.2.0.2/24"},{"interface":1,"address":"fd00::1/64"},{"interface":1,"address":"10.20.0.11/32"}]`,
			node.Expect{Addr: netip.MustParseAddr("10.20.0.11")},
			false,
		},
		{
			"a MAC that isn't one", `"interfaces":[{"name":"eth0","mac":"?","sandbox":"/run/netns/pod"}],"ips":[{"interface":0,"address":"10.20.0.10/32"}]`,
			node.Expect{Addr: netip.MustParseAddr("10.20.0.10")},
			false,
		},
		{"nothing", ``, node.Expect{}, true},
		{"no address of ours", `"interfaces":[{"name":"eth0","sandbox":"/run/netns/pod"}],"ips":[{"interface":5,"address":"10.20.0.10/32"}]`, node.Expect{}, true},
		{"IPv6 only", `"interfaces":[{"name":"eth0","sandbox":"/run/netns/pod"}],"ips":[{"interface":0,"address":"fd00::1/64"}]`, node.Expect{}, true},
		{"another sandbox", `"interfaces":[{"name":"eth0","sandbox":"/run/netns/b"}],"ips":[{"interface":0,"address":"10.20.0.10/32"}]`, node.Expect{}, true},
		{"null", `"interfaces":[null],"ips":[null]`, node.Expect{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			sep := ","
			if tt.prev == "" {
				sep = ""
			}
			stdin := conf("1.1.0", `,"prevResult":{"cniVersion":"1.1.0"`+sep+tt.prev+`}`)
			got, err := expected(&skel.CmdArgs{IfName: "eth0", Netns: podNetns, StdinData: stdin})
			if tt.bad {
				if !errors.Is(err, node.ErrConfig) || !strings.Contains(err.Error(), "prevResult") {
					t.Errorf("expected = %+v, %v", got, err)
				}
			} else if diff := cmp.Diff(tt.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); err != nil || diff != "" {
				t.Errorf("%v (-want +got)\n%s", err, diff)
			}
		})
	}
	if _, err := expected(&skel.CmdArgs{IfName: "eth0", StdinData: conf("1.0.0", "")}); !errors.Is(err, node.ErrConfig) || !strings.Contains(err.Error(), "prevResult: missing") {
		t.Errorf("without prevResult: %v", err)
	}
}
