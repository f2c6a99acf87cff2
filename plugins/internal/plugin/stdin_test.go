package plugin

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/native-vmss/native-vmss/pkg/node"
)

func TestRequestedAddress(t *testing.T) {
	const env = "10.20.0.99" // CNI_ARGS IP
	tests := []struct {
		name, stdin, want string
		field             string // named by the error
	}{
		{"nothing but CNI_ARGS", `{}`, env, ""},
		{"runtimeConfig", `{"runtimeConfig":{"ips":["10.20.0.10"]}}`, "10.20.0.10", ""},
		{"with a length", `{"runtimeConfig":{"ips":["10.20.0.10/24"]}}`, "10.20.0.10", ""},
		{"IPv4 in IPv6", `{"runtimeConfig":{"ips":["::ffff:10.20.0.10"]}}`, "10.20.0.10", ""},
		{"args", `{"args":{"cni":{"ips":["10.20.0.11"]}}}`, "10.20.0.11", ""},
		{"runtimeConfig before args", `{"runtimeConfig":{"ips":["10.20.0.10"]},"args":{"cni":{"ips":["10.20.0.11"]}}}`, "10.20.0.10", ""},
		{"runtimeConfig hides bad args", `{"runtimeConfig":{"ips":["10.20.0.10"]},"args":{"cni":{"ips":["a","b"]}}}`, "10.20.0.10", ""},
		{"empty lists", `{"runtimeConfig":{"ips":[]},"args":{"cni":{"ips":null}}}`, env, ""},
		{"other shapes around", `{"runtimeConfig":["x"],"args":{"cni":"x"}}`, env, ""},
		{"null around", `{"runtimeConfig":null,"args":{"cni":null}}`, env, ""},
		{"the same twice", `{"runtimeConfig":{"ips":["10.20.0.10","10.20.0.10/32"]}}`, "10.20.0.10", ""},
		{"two in runtimeConfig", `{"runtimeConfig":{"ips":["10.20.0.10","10.20.0.11"]}}`, "", "runtimeConfig.ips"},
		{"two in args", `{"args":{"cni":{"ips":["10.20.0.10","fd00::1"]}}}`, "", "args.cni.ips"},
		{"IPv6", `{"runtimeConfig":{"ips":["fd00::10/64"]}}`, "", "runtimeConfig.ips"},
		{"no address", `{"args":{"cni":{"ips":["web-0"]}}}`, "", "args.cni.ips"},
		{"empty text", `{"runtimeConfig":{"ips":[""]}}`, "", "runtimeConfig.ips"},
		{"not a list", `{"runtimeConfig":{"ips":"10.20.0.10"}}`, "", "runtimeConfig.ips"},
		{"numbers", `{"args":{"cni":{"ips":[10]}}}`, "", "args.cni.ips"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := RequestedAddress([]byte(tt.stdin), Args{IP: netip.MustParseAddr(env)})
			if tt.field != "" {
				if !errors.Is(err, node.ErrConfig) || !strings.Contains(fmt.Sprint(err), tt.field+": ") {
					t.Errorf("error %v, want one that names %s", err, tt.field)
				}
				return
			}
			if err != nil || got != netip.MustParseAddr(tt.want) {
				t.Errorf("RequestedAddress = %s, %v", got, err)
			}
		})
	}
	if got, err := RequestedAddress([]byte(`{}`), Args{}); err != nil || got.IsValid() {
		t.Errorf("nothing asked: %s, %v", got, err)
	}
}

func TestRequestedMAC(t *testing.T) {
	const env = "02:00:00:00:00:99" // CNI_ARGS MAC
	tests := []struct {
		name, stdin, args string
		want              string // "" for none
		bad               string // what the error names
	}{
		{"nobody asks", `{}`, "", "", ""},
		{"CNI_ARGS alone", `{}`, env, "02:00:00:00:00:99", ""},
		{"runtimeConfig", `{"runtimeConfig":{"mac":"02:00:00:00:00:09","ips":7}}`, env, "02:00:00:00:00:09", ""},
		{"with dashes", `{"runtimeConfig":{"mac":"02-00-00-00-00-09"}}`, "", "02:00:00:00:00:09", ""},
		{"args", `{"args":{"cni":{"mac":"02:00:00:00:00:0a"}}}`, env, "02:00:00:00:00:0a", ""},
		{
			"runtimeConfig before args", `{"runtimeConfig":{"mac":"02:00:00:00:00:09"},"args":{"cni":{"mac":5}}}`, env,
			"02:00:00:00:00:09", "",
		},
		{"nulls", `{"runtimeConfig":{"mac":null},"args":{"cni":{"mac":null}}}`, env, "02:00:00:00:00:99", ""},
		{"empty texts", `{"runtimeConfig":{"mac":""},"args":{"cni":{"mac":""}}}`, env, "02:00:00:00:00:99", ""},
		{"null around", `{"runtimeConfig":null}`, "", "", ""},
		{"other shapes around", `{"runtimeConfig":["x"],"args":{"cni":"x"}}`, "", "", ""},
		{"multicast", `{"runtimeConfig":{"mac":"03:00:00:00:00:09"}}`, "", "", "runtimeConfig.mac"},
		{"broadcast", `{"runtimeConfig":{"mac":"ff:ff:ff:ff:ff:ff"}}`, "", "", "runtimeConfig.mac"},
		{"zero", `{"args":{"cni":{"mac":"00:00:00:00:00:00"}}}`, "", "", "args.cni.mac"},
		{"eight bytes", `{"args":{"cni":{"mac":"02:00:00:00:00:09:00:00"}}}`, env, "", "args.cni.mac"},
		{"no MAC", `{"runtimeConfig":{"mac":"eth0"}}`, env, "", "runtimeConfig.mac"},
		{"a number", `{"runtimeConfig":{"mac":5}}`, env, "", "runtimeConfig.mac"},
		{"CNI_ARGS, multicast", `{}`, "01:00:5e:00:00:01", "", `"MAC=01:00:5e:00:00:01"`},
		{"CNI_ARGS, no MAC", `{}`, "x", "", `"MAC=x"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := RequestedMAC([]byte(tt.stdin), Args{MAC: tt.args})
			if tt.bad != "" {
				named := errors.Is(err, node.ErrConfig) || errors.Is(err, errArgs)
				if !named || !strings.Contains(err.Error(), tt.bad) || got != nil {
					t.Errorf("%v, error %v, want one that names %s", got, err, tt.bad)
				}
				return
			}
			text := ""
			if got != nil {
				text = net.HardwareAddr(got[:]).String()
			}
			if err != nil || text != tt.want {
				t.Errorf("MAC %q, %v, want %q", text, err, tt.want)
			}
		})
	}
}

func TestValidAttachments(t *testing.T) {
	const spec, old = "cni.dev/valid-attachments", "cni.dev/attachments"
	a, b := node.Key{Network: "net1", ContainerID: "c1", IfName: "eth0"}, node.Key{Network: "net1", ContainerID: "c2", IfName: "eth1"}
	const jsonA, jsonB = `{"containerID":"c1","ifname":"eth0"}`, `{"containerID":"c2","ifname":"eth1","netns":"x"}`
	tests := []struct {
		name, stdin string
		want        []node.Key
		given       bool
		bad         string
	}{
		{"no key", `{"name":"net1"}`, nil, false, ""},
		{"empty list", `{"` + spec + `":[]}`, nil, true, ""},
		{"null", `{"` + spec + `":null}`, nil, true, ""},
		{"old key, null", `{"` + old + `":null}`, nil, true, ""},
		{"list", `{"` + spec + `":[` + jsonA + `,` + jsonB + `]}`, []node.Key{a, b}, true, ""},
		{"old key", `{"` + old + `":[` + jsonB + `]}`, []node.Key{b}, true, ""},
		{"both keys", `{"` + old + `":[` + jsonB + `],"` + spec + `":[` + jsonA + `]}`, []node.Key{a, b}, true, ""},
		{"both, one of them null", `{"` + old + `":null,"` + spec + `":[` + jsonA + `]}`, []node.Key{a}, true, ""},
		{"a text", `{"` + spec + `":"all"}`, nil, false, spec},
		{"texts", `{"` + spec + `":["c1"]}`, nil, false, spec},
		{"old key, object", `{"` + old + `":{}}`, nil, false, old},
		{"no container id", `{"` + spec + `":[` + jsonA + `,{"id":"c2","ifname":"eth1"}]}`, nil, false, "[1]"},
		{"no ifname", `{"` + spec + `":[{"containerID":"c1"}]}`, nil, false, "[0]"},
		{"null entry", `{"` + spec + `":[null]}`, nil, false, "[0]"},
		{"no object", `[]`, nil, false, "no JSON object"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, given, err := ValidAttachments([]byte(tt.stdin), "net1")
			if tt.bad != "" {
				if !errors.Is(err, node.ErrConfig) || !strings.Contains(fmt.Sprint(err), tt.bad) || given || got != nil {
					t.Errorf("%v, %v, error %v; want one with %q", got, given, err, tt.bad)
				}
				return
			}
			if diff := cmp.Diff(tt.want, got); err != nil || given != tt.given || diff != "" {
				t.Errorf("given %v, error %v (-want +got)\n%s", given, err, diff)
			}
		})
	}
}
