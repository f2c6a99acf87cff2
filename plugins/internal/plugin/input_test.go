package plugin

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

func TestCheckEnv(t *testing.T) {
	good := map[string]string{
		"CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin",
	}
	tests := []struct {
		command string
		change  map[string]string
		bad     []string // variables that the message names; the others it doesn't
	}{
		{"ADD", nil, nil},
		{"CHECK", nil, nil},
		{"DEL", map[string]string{"CNI_NETNS": ""}, nil},
		{"GC", map[string]string{"CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": ""}, nil},
		{"STATUS", map[string]string{"CNI_CONTAINERID": "../x", "CNI_NETNS": "", "CNI_IFNAME": ""}, nil},
		{"ADD", map[string]string{"CNI_NETNS": ""}, []string{"CNI_NETNS"}},
		{"ADD", map[string]string{"CNI_CONTAINERID": "../x", "CNI_NETNS": "", "CNI_IFNAME": "a/b"}, []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"}},
		{"ADD", map[string]string{"CNI_IFNAME": "e\xff"}, []string{"CNI_IFNAME"}},
		{"DEL", map[string]string{"CNI_IFNAME": "e\xff"}, nil},
		{"CHECK", map[string]string{"CNI_IFNAME": strings.Repeat("e", 16), "CNI_PATH": ""}, []string{"CNI_IFNAME", "CNI_PATH"}},
		{"DEL", map[string]string{"CNI_CONTAINERID": "", "CNI_IFNAME": ".."}, []string{"CNI_CONTAINERID", "CNI_IFNAME"}},
		{"GC", map[string]string{"CNI_PATH": ""}, []string{"CNI_PATH"}},
		{"add", nil, []string{"CNI_COMMAND"}},
	}
	for _, tt := range tests {
		t.Run(tt.command, func(t *testing.T) {
			env := map[string]string{"CNI_COMMAND": tt.command}
			for k, v := range good {
				env[k] = v
			}
			for k, v := range tt.change {
				env[k] = v
			}
			err := checkEnv(func(k string) string { return env[k] })
			if err == nil {
				if tt.bad != nil {
					t.Errorf("accepted %v", tt.change)
				}
				return
			}
			if err.Code != 4 {
				t.Errorf("code %d", err.Code)
			}
			for name := range env {
				named, want := strings.Contains(err.Msg, name+": "), strings.Contains(strings.Join(tt.bad, " "), name)
				if named != want {
					t.Errorf("%q: %s named %v, want %v", err.Msg, name, named, want)
				}
			}
		})
	}
}

func TestCheckVersion(t *testing.T) {
	tests := []struct {
		stdin, spec string
		code        uint
		text        string
	}{
		{`{"cniVersion":"0.3.0"}`, "0.3.0", 0, ""},
		{`{"cniVersion":"1.1.0","name":"n"}`, "1.1.0", 0, ""},
		{`{"CNIVERSION":"1.0.0","name":null}`, "1.0.0", 0, ""},
		{`{"cniVersion":"1.1"}`, "1.1.0", 1, "1.1"},
		{`{"cniVersion":"abc"}`, "1.1.0", 1, "abc"},
		{`{"cniVersion":"0.2.0"}`, "1.1.0", 1, "0.2.0"},
		{`{"cniVersion":"9.9.9"}`, "1.1.0", 1, "9.9.9"},
		{`{}`, "1.1.0", 1, "cniVersion: missing"},
		{`{"cniVersion":""}`, "1.1.0", 1, "cniVersion: missing"},
		{`{"cniVersion":null}`, "1.1.0", 1, "cniVersion: missing"},
		{`{"cniVersion":7}`, "1.1.0", 7, "cniVersion: 7 is not a string"},
		{`{"cniVersion":"1.0.0","name":7}`, "1.0.0", 7, "name: 7 is not a string"},
		{`{`, "1.1.0", 6, "stdin is no JSON object: unexpected end of JSON input at byte 1"},
		{``, "1.1.0", 6, "stdin is no JSON object: unexpected end of JSON input at byte 0"},
		{`[]`, "1.1.0", 6, "stdin is no JSON object"},
		{` null `, "1.1.0", 6, "stdin is no JSON object"},
		{`"x"`, "1.1.0", 6, "stdin is no JSON object"},
	}
	for _, tt := range tests {
		spec, err := checkVersion([]byte(tt.stdin))
		if err == nil {
			err = &types.Error{}
		}
		if spec != tt.spec || err.Code != tt.code {
			t.Errorf("checkVersion(%s) = %q, %+v", tt.stdin, spec, err)
		}
		if text := err.Msg + err.Details; !strings.Contains(text, tt.text) || strings.Contains(text, "Go ") || strings.Contains(text, "0.1.0") {
			t.Errorf("checkVersion(%s) says %q, want %q", tt.stdin, text, tt.text)
		}
	}
}
