package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/native-vmss/native-vmss/pkg/accounting"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

var compareConf = cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{})

// mainConf is a native-vmss object with more top-level keys and more keys of "ipam"; both begin with a comma.
func mainConf(top, ipam string) []byte {
	return fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"net1","type":"native-vmss","ipam":{"type":"ipam-vmss"%s}%s}`, ipam, top)
}

func minimal() Conf {
	c := defaultConf()
	c.Name, c.IPAM.Type = "net1", IPAMType
	return c
}

func TestParseMain_Strict_defaults(t *testing.T) {
	want := Conf{
		Name: "net1", InterfacePrefix: "veth",
		Wide: Wide{
			NativeCIDRs: prefixes("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16"),
			Masquerade:  true, RemotePods: routes.RemotePodsPods, MarkMask: 0x0fff0000, Accounting: "nftables",
		},
		IPAM: IPAM{
			Type: "ipam-vmss", StateDir: "/run/native-vmss", MetadataURL: "http://169.254.169.254",
			Refresh: time.Minute, CoolDown: 30 * time.Second, LockTimeout: 10 * time.Second,
		},
		Log: Log{Level: slog.LevelWarn},
	}
	got, err := ParseMain(mainConf("", ""), Strict)
	if diff := cmp.Diff(want, got, compareConf); err != nil || diff != "" {
		t.Errorf("ParseMain = %v (-want +got)\n%s", err, diff)
	}
}

func prefixes(list ...string) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(list))
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// keyTests has each key right and wrong: what a right value changes, and how the error of a wrong one names the key.
var keyTests = []struct {
	top, ipam string // what stands behind the comma, for one of the two
	change    func(*Conf)
	wrong     string // path of the key; "" where the value is right
	always    bool   // wrong to Lenient too
}{
	{top: `"mtu":0`},
	{top: `"mtu":null`},
	{top: `"mtu":576`, change: func(c *Conf) { c.MTU = 576 }},
	{top: `"mtu":65535`, change: func(c *Conf) { c.MTU = 65535 }},
	{top: `"mtu":575`, wrong: "mtu"},
	{top: `"mtu":65536`, wrong: "mtu"},
	{top: `"mtu":-1`, wrong: "mtu"},
	{top: `"mtu":1500.5`, wrong: "mtu"},
	{top: `"mtu":"1500"`, wrong: "mtu"},
	{top: `"interfacePrefix":"e"`, change: func(c *Conf) { c.InterfacePrefix = "e" }},
	{top: `"interfacePrefix":"az01"`, change: func(c *Conf) { c.InterfacePrefix = "az01" }},
	{top: `"interfacePrefix":""`, wrong: "interfacePrefix"},
	{top: `"interfacePrefix":"veth0"`, wrong: "interfacePrefix"},
	{top: `"interfacePrefix":"1az"`, wrong: "interfacePrefix"},
	{top: `"interfacePrefix":"a/b"`, wrong: "interfacePrefix"},
	{top: `"interfacePrefix":7`, wrong: "interfacePrefix"},
	{
		top:    `"nativeCIDRs":["10.9.8.7/16","10.2.0.0/16","10.2.0.0/15","10.9.0.0/16"]`,
		change: func(c *Conf) { c.Wide.NativeCIDRs = prefixes("10.2.0.0/15", "10.2.0.0/16", "10.9.0.0/16") },
	},
	{top: `"nativeCIDRs":[` + strings.Repeat(`"10.0.0.0/8",`, maxPrefixes) + `"10.0.0.0/8"]`, wrong: "nativeCIDRs"},
	{top: `"nativeCIDRs":[]`, change: func(c *Conf) { c.Wide.NativeCIDRs = prefixes() }},
	{top: `"nativeCIDRs":"10.0.0.0/8"`, wrong: "nativeCIDRs"},
	{top: `"nativeCIDRs":["10.0.0.0/8","10.0.0.0"]`, wrong: "nativeCIDRs"},
	{top: `"nativeCIDRs":["10.0.0.0/33"]`, wrong: "nativeCIDRs"},
	{top: `"nativeCIDRs":["fd00::/8"]`, wrong: "nativeCIDRs"},
	{top: `"nativeCIDRs":["::ffff:10.0.0.0/104"]`, wrong: "nativeCIDRs"},
	{top: `"nativeCIDRs":[null]`, wrong: "nativeCIDRs"},
	{top: `"masquerade":true`},
	{top: `"masquerade":false`, change: func(c *Conf) { c.Wide.Masquerade = false }},
	{top: `"masquerade":"yes"`, wrong: "masquerade"},
	{top: `"remotePods":"pods"`},
	{top: `"remotePods":"node"`, change: func(c *Conf) { c.Wide.RemotePods = routes.RemotePodsNode }},
	{top: `"remotePods":"off"`, change: func(c *Conf) { c.Wide.RemotePods = routes.RemotePodsOff }},
	{top: `"remotePods":"Pods"`, wrong: "remotePods"},
	{top: `"remotePods":false`, wrong: "remotePods"},
	{top: `"markMask":"0xff00"`, change: func(c *Conf) { c.Wide.MarkMask = 0xff00 }},
	{top: `"markMask":65280`, change: func(c *Conf) { c.Wide.MarkMask = 0xff00 }},
	{top: `"markMask":"0x1ffffffff"`, wrong: "markMask"},
	{top: `"markMask":"mask"`, wrong: "markMask"},
	{top: `"markMask":[1]`, wrong: "markMask"},
	{top: `"metadataAccess":{}`},
	{top: `"metadataAccess":{"wireserver":"deny","imds":"deny"}`},
	{top: `"metadataAccess":{"wireserver":"allow"}`, change: func(c *Conf) { c.Wide.Wireserver = true }},
	{top: `"metadataAccess":{"imds":"allow"}`, change: func(c *Conf) { c.Wide.IMDS = true }},
	{top: `"metadataAccess":"deny"`, wrong: "metadataAccess"},
	{top: `"metadataAccess":{"imds":true}`, wrong: "metadataAccess.imds"},
	{top: `"metadataAccess":{"wireserver":"no"}`, wrong: "metadataAccess.wireserver"},
	{top: `"accounting":{"backend":"nftables"}`},
	{top: `"accounting":{"backend":"none"}`, change: func(c *Conf) { c.Wide.Accounting = "none" }},
	{top: `"accounting":{"backend":"iptables"}`, change: func(c *Conf) { c.Wide.Accounting = "iptables" }},
	{top: `"accounting":{"backend":"ebpf"}`, wrong: "accounting.backend"},
	{top: `"accounting":"none"`, wrong: "accounting"},
	{top: `"accounting":{"classes":[]}`},
	{
		top: `"accounting":{"classes":[{"name":"storage","cidrs":["10.9.0.0/16","10.1.2.3/32"]},{"name":"hub-1","cidrs":["10.0.0.0/8"]}]}`,
		change: func(c *Conf) {
			c.Wide.Classes = []accounting.Class{
				{Name: "storage", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.1.2.3/32"), netip.MustParsePrefix("10.9.0.0/16")}},
				{Name: "hub-1", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
			}
		},
	},
	{top: `"accounting":{"classes":{}}`, wrong: "accounting.classes"},
	{top: `"accounting":{"classes":[null]}`, wrong: "accounting.classes"},
	{top: `"accounting":{"classes":[{"name":"a"}]}`, wrong: "accounting.classes"},
	{top: `"accounting":{"classes":[{"cidrs":["10.0.0.0/8"]}]}`, wrong: "accounting.classes"},
	{top: `"accounting":{"classes":[{"name":"A","cidrs":["10.0.0.0/8"]}]}`, wrong: "accounting.classes[0].name"},
	{top: `"accounting":{"classes":[{"name":"a b","cidrs":["10.0.0.0/8"]}]}`, wrong: "accounting.classes[0].name"},
	{top: `"accounting":{"classes":[{"name":"cluster","cidrs":["10.0.0.0/8"]}]}`, wrong: "accounting.classes[0].name"},
	{top: `"accounting":{"classes":[{"name":"internet","cidrs":["10.0.0.0/8"]}]}`, wrong: "accounting.classes[0].name"},
	{top: `"accounting":{"classes":[{"name":"a","cidrs":["10.0.0.0/8"]},{"name":"a","cidrs":["10.0.0.0/8"]}]}`, wrong: "accounting.classes[1].name"},
	{top: `"accounting":{"classes":[{"name":"a","cidrs":["fd00::/8"]}]}`, wrong: "accounting.classes[0].cidrs"},
	{top: `"accounting":{"classes":[{"name":"a","cidrs":[]}]}`, wrong: "accounting.classes"},
	{top: `"markMask":"0x0f0f0000"`, wrong: "markMask"},
	{top: `"log":{}`},
	{
		top:    `"log":{"level":"debug","file":"/var/log/nv.log"}`,
		change: func(c *Conf) { c.Log = Log{Level: slog.LevelDebug, File: "/var/log/nv.log"} },
	},
	{top: `"log":{"level":"loud"}`, wrong: "log.level"},
	{top: `"log":{"file":5}`, wrong: "log.file"},
	{top: `"log":"warn"`, wrong: "log"},
	{ipam: `"stateDir":"/var/lib/nv"`, change: func(c *Conf) { c.IPAM.StateDir = "/var/lib/nv" }},
	{ipam: `"stateDir":"run/nv"`, wrong: "ipam.stateDir", always: true},
	{ipam: `"stateDir":""`, wrong: "ipam.stateDir", always: true},
	{ipam: `"stateDir":{}`, wrong: "ipam.stateDir", always: true},
	{ipam: `"metadataURL":"http://imds.test:8080"`, change: func(c *Conf) { c.IPAM.MetadataURL = "http://imds.test:8080" }},
	{ipam: `"metadataURL":"https://imds.test"`, wrong: "ipam.metadataURL"},
	{ipam: `"metadataURL":"http://imds.test/metadata"`, wrong: "ipam.metadataURL"},
	{ipam: `"metadataURL":"file:///etc/nv.json"`, change: func(c *Conf) { c.IPAM.MetadataURL = "file:///etc/nv.json" }},
	{ipam: `"metadataURL":"file://nv.json"`, wrong: "ipam.metadataURL"},
	{ipam: `"metadataURL":"file://host/nv.json"`, wrong: "ipam.metadataURL"},
	{ipam: `"metadataURL":"http://user@host"`, wrong: "ipam.metadataURL"},
	{ipam: `"metadataURL":"http://"`, wrong: "ipam.metadataURL"},
	{ipam: `"metadataURL":"169.254.169.254"`, wrong: "ipam.metadataURL"},
	{ipam: `"metadataURL":1`, wrong: "ipam.metadataURL"},
	{ipam: `"refresh":"2m30s"`, change: func(c *Conf) { c.IPAM.Refresh = 150 * time.Second }},
	{ipam: `"refresh":"1s"`, change: func(c *Conf) { c.IPAM.Refresh = time.Second }},
	{ipam: `"refresh":"999ms"`, wrong: "ipam.refresh"},
	{ipam: `"refresh":60`, wrong: "ipam.refresh"},
	{ipam: `"cooldown":"0s"`, change: func(c *Conf) { c.IPAM.CoolDown = 0 }},
	{ipam: `"cooldown":"-1s"`, wrong: "ipam.cooldown"},
	{ipam: `"cooldown":"2562047h"`, wrong: "ipam.cooldown"}, // with the boot clock's time it would overflow
	{ipam: `"cooldown":"30"`, wrong: "ipam.cooldown"},
	{ipam: `"lockTimeout":"1ms"`, change: func(c *Conf) { c.IPAM.LockTimeout = time.Millisecond }},
	{ipam: `"lockTimeout":"0s"`, wrong: "ipam.lockTimeout"},
	{ipam: `"routes":[{"dst":"0.0.0.0/0"}],"dns":{}`},
}

func TestParseMain_eachKey(t *testing.T) {
	for _, tt := range keyTests {
		t.Run(tt.top+tt.ipam, func(t *testing.T) {
			data := mainConf(comma(tt.top), comma(tt.ipam))
			want := minimal()
			if tt.change != nil {
				tt.change(&want)
			}
			got, err := ParseMain(data, Strict)
			if tt.wrong != "" {
				isKeyError(t, err, ErrConfig, tt.wrong)
			} else if diff := cmp.Diff(want, got, compareConf); err != nil || diff != "" {
				t.Errorf("Strict: %v (-want +got)\n%s", err, diff)
			}
			// What Strict refuses has its default in Lenient, but for what a DEL can't do without.
			got, err = ParseMain(data, Lenient)
			if tt.always {
				isKeyError(t, err, ErrConfig, tt.wrong)
			} else if diff := cmp.Diff(want, got, compareConf); err != nil || diff != "" {
				t.Errorf("Lenient: %v (-want +got)\n%s", err, diff)
			}
		})
	}
}

// ipam-vmss judges what is inside "ipam", and nothing else whatever it looks like.
func TestParseIPAM_eachKey(t *testing.T) {
	for _, tt := range keyTests {
		t.Run(tt.top+tt.ipam, func(t *testing.T) {
			want := minimal()
			if tt.change != nil && tt.ipam != "" {
				tt.change(&want)
			}
			got, err := ParseIPAM(mainConf(comma(tt.top), comma(tt.ipam)), Strict)
			if tt.wrong != "" && tt.ipam != "" {
				isKeyError(t, err, ErrConfig, tt.wrong)
			} else if diff := cmp.Diff(want, got, compareConf); err != nil || diff != "" {
				t.Errorf("Strict: %v (-want +got)\n%s", err, diff)
			}
		})
	}
}

func comma(s string) string {
	if s == "" {
		return ""
	}
	return "," + s
}

// isKeyError checks the kind of the error and that its text names the key.
func isKeyError(t *testing.T, err, kind error, key string) {
	t.Helper()
	if !errors.Is(err, kind) || !strings.Contains(fmt.Sprint(err), " "+key+": ") {
		t.Errorf("error %v, want %q that names %q", err, kind, key)
	}
	if !IsConfig(err) {
		t.Errorf("IsConfig(%v) = false", err)
	}
}

func TestParseMain_unknownKey(t *testing.T) {
	tests := []struct {
		top, ipam, key, value, nearest string
	}{
		{top: `"masqerade":false`, key: "masqerade", value: "false", nearest: "masquerade"},
		{top: `"MTU":9000`, key: "MTU", value: "9000", nearest: "mtu"},
		{top: `"interface_prefix":"az"`, key: "interface_prefix", value: `"az"`, nearest: "interfacePrefix"},
		{top: `"somethingElse":{"a":[1, 2]}`, key: "somethingElse", value: `{"a":[1, 2]}`},
		{top: `"log":{"levl":"warn"}`, key: "log.levl", value: `"warn"`, nearest: "level"},
		{top: `"metadataAccess":{"wire":"deny"}`, key: "metadataAccess.wire", value: `"deny"`},
		{top: `"accounting":{"class":[]}`, key: "accounting.class", value: "[]", nearest: "classes"},
		{top: `"accounting":{"classes":[{"name":"a","cidr":["10.0.0.0/8"]}]}`, key: "accounting.classes[0].cidr", value: `["10.0.0.0/8"]`, nearest: "cidrs"},
		{ipam: `"coolDown":"1s"`, key: "ipam.coolDown", value: `"1s"`, nearest: "cooldown"},
		{ipam: `"statedir":"/x"`, key: "ipam.statedir", value: `"/x"`, nearest: "stateDir"},
		{ipam: `"name":"x"`, key: "ipam.name", value: `"x"`},
	}
	for _, tt := range tests {
		t.Run(tt.key, func(t *testing.T) {
			data := mainConf(comma(tt.top), comma(tt.ipam))
			_, err := ParseMain(data, Strict)
			isKeyError(t, err, ErrUnknownKey, tt.key)
			if !strings.Contains(err.Error(), tt.value) {
				t.Errorf("%q lacks the value %s", err, tt.value)
			}
			hint := fmt.Sprintf("; did you mean %q?", tt.nearest)
			if has := strings.Contains(err.Error(), "; did you mean"); has != (tt.nearest != "") || has && !strings.HasSuffix(err.Error(), hint) {
				t.Errorf("%q: nearest key is %q", err, tt.nearest)
			}
			if got, err := ParseMain(data, Lenient); err != nil || !cmp.Equal(got, minimal(), compareConf) {
				t.Errorf("Lenient: %v, %+v", err, got)
			}
		})
	}
}

// What libcni, runtimes and chained plugins add is nobody's mistake.
func TestParseMain_foreignKeys(t *testing.T) {
	const foreign = `,"cniVersions":["1.0.0"],"dns":{"nameservers":["10.0.0.10"]},"args":{"cni":{"ips":[]}},"ipMasq":true,
		"capabilities":{"ips":true},"runtimeConfig":{"ips":["10.0.0.9"]},"prevResult":{"cniVersion":"1.0.0"},"disableCheck":true,
		"disableGC":true,"loadOnlyInlinedPlugins":true,"deviceID":"0000:00:1f.6","cni.dev/valid-attachments":null,
		"cni.dev/anything":7,"x-note":"mine","x-":1`
	got, err := ParseMain(mainConf(foreign, `,"x-note":[],"cni.dev/a":1`), Strict)
	if diff := cmp.Diff(minimal(), got, compareConf); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

// The ipam object of another plugin is that plugin's to judge, key names that are also ours included.
func TestParseMain_foreignIPAM(t *testing.T) {
	data := `{"name":"net1","ipam":{"type":"host-local","stateDir":5,"refresh":false,"ranges":[[{"subnet":"10.1.0.0/24"}]]}}`
	want := minimal()
	want.IPAM.Type = "host-local"
	got, err := ParseMain([]byte(data), Strict)
	if diff := cmp.Diff(want, got, compareConf); err != nil || diff != "" {
		t.Errorf("%v (-want +got)\n%s", err, diff)
	}
}

// A renamed binary serves the object that it is called with.
func TestParseIPAM_anotherName(t *testing.T) {
	got, err := ParseIPAM([]byte(`{"name":"net1","ipam":{"type":"ipam-vmss-canary","stateDir":"/x"}}`), Strict)
	if err != nil || got.IPAM.StateDir != "/x" || got.IPAM.Type != "ipam-vmss-canary" {
		t.Errorf("%v, %+v", err, got.IPAM)
	}
	_, err = ParseIPAM([]byte(`{"name":"net1","ipam":{"type":"ipam-vmss-canary","statDir":"/x"}}`), Strict)
	isKeyError(t, err, ErrUnknownKey, "ipam.statDir")
}

// Mistakes that no verb can work with.
func TestParse_fatal(t *testing.T) {
	tests := []struct{ name, data, want string }{
		{"empty", ``, "not a JSON object"},
		{"list", `[]`, "not a JSON object"},
		{"text", `"x"`, "not a JSON object"},
		{"null", `null`, "null where an object is due"},
		{"trailing comma", `{"name":"net1",}`, "not a JSON object"},
		{"twice", `{"name":"a","ipam":{"type":"b"}}{}`, "not a JSON object"},
		{"byte order mark", "\xef\xbb\xbf" + `{"name":"a","ipam":{"type":"b"}}`, "not a JSON object"},
		{"no name", `{"ipam":{"type":"ipam-vmss"}}`, " name: missing"},
		{"empty name", `{"name":"","ipam":{"type":"ipam-vmss"}}`, " name: empty"},
		{"name of another kind", `{"name":7,"ipam":{"type":"ipam-vmss"}}`, " name: 7 is not a string"},
		{"no ipam", `{"name":"net1"}`, " ipam: missing"},
		{"null ipam", `{"name":"net1","ipam":null}`, " ipam: missing"},
		{"empty ipam", `{"name":"net1","ipam":{}}`, " ipam.type: missing"},
		{"ipam is a string", `{"name":"net1","ipam":"ipam-vmss"}`, ` ipam: "ipam-vmss" is not an object`},
		{"ipam is a list", `{"name":"net1","ipam":[{"type":"ipam-vmss"}]}`, " ipam: [{"},
		{"type of another kind", `{"name":"net1","ipam":{"type":true}}`, " ipam.type: true is not a string"},
		{"type is empty", `{"name":"net1","ipam":{"type":""}}`, " ipam.type: empty"},
		{"type is a path", `{"name":"net1","ipam":{"type":"../../sbin/reboot"}}`, ` ipam.type: "../../sbin/reboot" is a path`},
		{"type is a directory", `{"name":"net1","ipam":{"type":".."}}`, ` ipam.type: ".." is a path`},
		{"conflist", `{"name":"net1","plugins":[{"type":"native-vmss","ipam":{"type":"ipam-vmss"}}]}`, " plugins: a whole conflist"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for name, parse := range map[string]func([]byte, Strictness) (Conf, error){"ParseMain": ParseMain, "ParseIPAM": ParseIPAM} {
				for _, how := range []Strictness{Strict, Lenient} {
					_, err := parse([]byte(tt.data), how)
					if !errors.Is(err, ErrConfig) || !strings.Contains(fmt.Sprint(err), tt.want) {
						t.Errorf("%s, strictness %d: %v, want %q", name, how, err, tt.want)
					}
				}
			}
		})
	}
}

// A value in an error text is cut short and stays text.
func TestShort(t *testing.T) {
	long := short(json.RawMessage(`"` + strings.Repeat("é", 100) + `"`))
	if len(long) > shownBytes+len("…") || !json.Valid([]byte(`"`+long[1:]+`"`)) || strings.ContainsRune(long, '�') || strings.ToValidUTF8(long, "") != long {
		t.Errorf("short = %q", long)
	}
	if got := short(json.RawMessage("{\n  \"a\":\t1 }")); got != `{ "a": 1 }` {
		t.Errorf("short = %q", got)
	}
}

func FuzzParseMain(f *testing.F) { fuzzParse(f, ParseMain) }

func FuzzParseIPAM(f *testing.F) { fuzzParse(f, ParseIPAM) }

// fuzzParse: no input makes a panic, and what Strict accepts Lenient reads alike. DEL then finds what ADD made.
func fuzzParse(f *testing.F, parse func([]byte, Strictness) (Conf, error)) {
	for _, tt := range keyTests {
		f.Add(mainConf(comma(tt.top), comma(tt.ipam)))
	}
	f.Add([]byte(`{"name":"a","ipam":{"type":"host-local","stateDir":1}}`))
	f.Add([]byte(`{"name":"a","plugins":[null]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		strict, err := parse(data, Strict)
		lenient, lenientErr := parse(data, Lenient)
		if err != nil {
			if !IsConfig(err) {
				t.Errorf("Strict: %v is no error of the configuration", err)
			}
			return
		}
		if diff := cmp.Diff(strict, lenient, compareConf, cmpopts.EquateEmpty()); lenientErr != nil || diff != "" {
			t.Errorf("Lenient: %v (-strict +lenient)\n%s", lenientErr, diff)
		}
		if len(linkName(strict.InterfacePrefix, Hash{})) > 15 {
			t.Errorf("prefix %q makes a name too long for a link", strict.InterfacePrefix)
		}
	})
}
