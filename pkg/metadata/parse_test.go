package metadata

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var (
	mac4 = [6]byte{0x02, 0x00, 0x5e, 0x10, 0x00, 0x04}
	mac5 = [6]byte{0x02, 0x00, 0x5e, 0x10, 0x00, 0x05}
	// byValue compares documents without their digest, nil like empty.
	byValue = cmp.Options{
		cmpopts.IgnoreFields(Document{}, "Digest"), cmpopts.EquateEmpty(),
		cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}),
	}
)

func addrs(list ...string) (out []netip.Addr) {
	for _, s := range list {
		out = append(out, netip.MustParseAddr(s))
	}
	return out
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// entry spells one interface of a document; parts are raw JSON.
func entry(mac, ipAddress, subnet string) string {
	return fmt.Sprintf(`{"ipv4":{"ipAddress":%s,"subnet":%s},"ipv6":{"ipAddress":[]},"macAddress":%s}`, ipAddress, subnet, mac)
}

func list(addrs ...string) string {
	var parts []string
	for _, a := range addrs {
		parts = append(parts, fmt.Sprintf(`{"privateIpAddress":%q,"publicIpAddress":""}`, a))
	}
	return "[" + strings.Join(parts, ",") + "]"
}

func document(entries ...string) string { return `{"interface":[` + strings.Join(entries, ",") + `]}` }

const subnet24 = `[{"address":"10.20.0.0","prefix":"24"}]`

// healthy is what every odd form of the same NIC must come to.
var healthy = NIC{MAC: mac4, V4: addrs("10.20.0.4", "10.20.0.10"), Subnets: prefixes("10.20.0.0/24")}

func TestParse_reference(t *testing.T) {
	b, err := os.ReadFile("testdata/instance.json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	want := Document{NICs: []NIC{
		{
			MAC: [6]byte{0x00, 0x11, 0xaa, 0xff, 0xbb, 0x22}, V4: addrs("10.144.133.132", "10.144.133.140"),
			V6: addrs("fd00::4"), Subnets: prefixes("10.144.133.128/26"),
		},
		{MAC: [6]byte{0x00, 0x11, 0xaa, 0xff, 0xbb, 0x23}, V4: addrs("10.145.0.4"), Subnets: prefixes("10.145.0.0/16")},
	}}
	if diff := cmp.Diff(want, got, byValue); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestParse_odd(t *testing.T) {
	const mac = `"02005E100004"`
	two := list("10.20.0.4", "10.20.0.10")
	tests := []struct {
		name string
		in   string
		want []NIC
	}{
		{"instance document", `{"compute":{"name":"x"},"network":` + document(entry(mac, two, subnet24)) + `}`, []NIC{healthy}},
		{"byte order mark", "\xef\xbb\xbf" + document(entry(mac, two, subnet24)), []NIC{healthy}},
		{"null network beside interface", `{"network":null,` + document(entry(mac, two, subnet24))[1:], []NIC{healthy}},
		{"other case of keys", strings.ToLower(document(entry(mac, two, subnet24))), []NIC{healthy}},
		{"unknown keys", `{"interface":[{"new":{},` + entry(mac, two, subnet24)[1:] + `],"more":1}`, []NIC{healthy}},
		{"mac with dashes", document(entry(`"02-00-5E-10-00-04"`, two, subnet24)), []NIC{healthy}},
		{"mac with colons", document(entry(`"02:00:5e:10:00:04"`, two, subnet24)), []NIC{healthy}},
		{"mac in lower case", document(entry(`"02005e100004"`, two, subnet24)), []NIC{healthy}},
		{"prefix as number", document(entry(mac, two, `[{"address":"10.20.0.0","prefix":24}]`)), []NIC{healthy}},
		{"prefix with slash", document(entry(mac, two, `[{"address":"10.20.0.0","prefix":"/24"}]`)), []NIC{healthy}},
		{"prefix in the address", document(entry(mac, two, `[{"address":"10.20.0.0/24"}]`)), []NIC{healthy}},
		{"subnet with host bits", document(entry(mac, two, `[{"address":"10.20.0.9","prefix":"24"}]`)), []NIC{healthy}},
		{"duplicate address and subnet", document(entry(mac, list("10.20.0.4", "10.20.0.10", "10.20.0.4"),
			subnet24[:len(subnet24)-1]+","+subnet24[1:])), []NIC{healthy}},
		{"mapped addresses", document(entry(mac, list("::ffff:10.20.0.4", "::ffff:10.20.0.10"), subnet24)), []NIC{healthy}},
		{"blanks and /32", document(entry(mac, list(" 10.20.0.4", "10.20.0.10/32"), subnet24)), []NIC{healthy}},
		{
			"two subnets", document(entry(mac, two, `[{"address":"10.20.0.0","prefix":"24"},{"address":"10.21.0.0","prefix":"16"}]`)),
			[]NIC{{MAC: mac4, V4: healthy.V4, Subnets: prefixes("10.20.0.0/24", "10.21.0.0/16")}},
		},
		{"subnet null", document(entry(mac, two, `null`)), []NIC{{MAC: mac4, V4: healthy.V4}}},
		{"subnet empty", document(entry(mac, two, `[]`)), []NIC{{MAC: mac4, V4: healthy.V4}}},
		{
			"subnet absent", document(`{"ipv4":{"ipAddress":` + two + `},"macAddress":` + mac + `}`),
			[]NIC{{MAC: mac4, V4: healthy.V4}},
		},
		{"addresses null", document(entry(mac, `null`, subnet24)), []NIC{{MAC: mac4, Subnets: healthy.Subnets}}},
		{"addresses empty", document(entry(mac, `[]`, subnet24)), []NIC{{MAC: mac4, Subnets: healthy.Subnets}}},
		{"ipv4 absent", document(`{"macAddress":` + mac + `}`), []NIC{{MAC: mac4}}},
		{"ipv4 null", document(`{"ipv4":null,"ipv6":null,"macAddress":` + mac + `}`), []NIC{{MAC: mac4}}},
		{
			"second without ipv4", document(entry(mac, two, subnet24), `{"macAddress":"02005E100005"}`),
			[]NIC{healthy, {MAC: mac5}},
		},
		{
			"second first", document(entry(`"02005E100005"`, list("10.20.1.4"), `[]`), entry(mac, two, subnet24)),
			[]NIC{{MAC: mac5, V4: addrs("10.20.1.4")}, healthy},
		},
		{
			"only ipv6", document(`{"ipv4":{"ipAddress":[]},"ipv6":{"ipAddress":` + list("fd00::4", "fd00::10") + `},"macAddress":` + mac + `}`),
			[]NIC{{MAC: mac4, V6: addrs("fd00::4", "fd00::10")}},
		},
		{
			"families mixed up", document(`{"ipv4":{"ipAddress":` + list("fd00::4") + `},"ipv6":{"ipAddress":` + list("10.20.0.4") + `},"macAddress":` + mac + `}`),
			[]NIC{{MAC: mac4, V4: addrs("10.20.0.4"), V6: addrs("fd00::4")}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse([]byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(Document{NICs: tt.want}, got, byValue); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// What is left out is told, with the value quoted, and costs nothing else.
func TestParse_problems(t *testing.T) {
	const mac = `"02005E100004"`
	good := entry(mac, list("10.20.0.4", "10.20.0.10"), subnet24)
	other := func(mac string) string { return document(good, entry(mac, list("10.20.1.4", "10.20.1.50"), `[]`)) }
	tests := []struct {
		name string
		in   string
		want []string // of the document
		nic  []string // of its first NIC
	}{
		{"mac of 11 digits", other(`"02005E10005"`), []string{
			`interface[1]: macAddress "02005E10005" is not 12 hexadecimal digits, so the NIC is left out (10.20.1.4, 10.20.1.50)`,
		}, nil},
		{"mac empty", other(`""`), []string{
			`interface[1]: macAddress "" is not 12 hexadecimal digits, so the NIC is left out (10.20.1.4, 10.20.1.50)`,
		}, nil},
		{"mac null", other(`null`), []string{
			`interface[1]: macAddress "" is not 12 hexadecimal digits, so the NIC is left out (10.20.1.4, 10.20.1.50)`,
		}, nil},
		{"mac star", other(`"*"`), []string{
			`interface[1]: macAddress "*" is not 12 hexadecimal digits, so the NIC is left out (10.20.1.4, 10.20.1.50)`,
		}, nil},
		{"mac absent", document(good, `{}`), []string{
			`interface[1]: macAddress "" is not 12 hexadecimal digits, so the NIC is left out (no addresses)`,
		}, nil},
		{"mac zero", other(`"000000000000"`), []string{
			`interface[1]: macAddress "000000000000" is not the address of a NIC, so the NIC is left out (10.20.1.4, 10.20.1.50)`,
		}, nil},
		{"interface null", document(good, `null`), []string{`interface[1]: is null`}, nil},
		{"same mac twice", document(good, good), []string{`MAC 02005e100004 is listed twice; the entries are taken as one NIC`}, nil},
		{"bad address", document(entry(mac, list("10.20.0.4", "10.20.0.300", "10.20.0.10", "", "0.0.0.0", "fe80::1%eth0"), subnet24)), nil, []string{
			`ipv4.ipAddress[1]: "10.20.0.300" is no address of a NIC`,
			`ipv4.ipAddress[3]: "" is no address of a NIC`,
			`ipv4.ipAddress[4]: "0.0.0.0" is no address of a NIC`,
			`ipv4.ipAddress[5]: "fe80::1%eth0" is no address of a NIC`,
		}},
		{"addresses as plain texts", document(good[:len(good)-1] + `,"ipv6":{"ipAddress":["fd00::4"]}}`), []string{
			"\"interface.ipv6.ipAddress\" is a JSON string and skipped",
		}, []string{
			`ipv6.ipAddress[0]: "" is no address of a NIC`,
		}},
		{"ipv6 a list", document(good[:len(good)-1] + `,"ipv6":[7]}`), []string{
			"\"interface.ipv6\" is a JSON array and skipped",
		}, nil},
		{"address an object", document(entry(mac, strings.TrimSuffix(list("10.20.0.4"), "]")+`,{"privateIpAddress":{"x":[1]}},{"privateIpAddress":"10.20.0.10"}]`, subnet24)), nil, []string{
			`ipv4.ipAddress[1]: "{\"x\":[1]}" is no address of a NIC`,
		}},
		{"blocks", document(entry(mac, list("10.20.0.4", "10.20.0.16/28", "10.20.0.10", "10.20.0.32/28"), subnet24)), nil, []string{
			`address blocks are not supported and skipped: 10.20.0.16/28, 10.20.0.32/28`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse([]byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got.Problems, byValue); diff != "" {
				t.Errorf("document (-want +got)\n%s", diff)
			}
			want := healthy
			want.Problems = tt.nic
			if diff := cmp.Diff([]NIC{want}, got.NICs, byValue); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// A subnet that can't be read is told and leaves the addresses alone.
func TestParse_badSubnet(t *testing.T) {
	for _, subnet := range []string{
		`{"address":"10.20.0.0","prefix":""}`, `{"address":"10.20.0.0"}`, `{"address":"10.20.0.0","prefix":"33"}`,
		`{"address":"10.20.0.0","prefix":"0"}`, `{"address":"10.20.0.0","prefix":-1}`, `{"address":"","prefix":"24"}`, `{}`, `null`, `7`,
		`{"address":"10.20.0.0","prefix":24.0}`, `{"address":"10.20.0.0","prefix":[24]}`,
	} {
		got, err := Parse([]byte(document(entry(`"02005E100004"`, list("10.20.0.4"), "["+subnet+"]"))))
		if err != nil || len(got.NICs) != 1 {
			t.Errorf("%s: %+v, %v", subnet, got, err)
			continue
		}
		nic := got.NICs[0]
		if len(nic.V4) != 1 || len(nic.Subnets) != 0 || len(nic.Problems) != 1 || !strings.HasPrefix(nic.Problems[0], "ipv4.subnet[0]: ") {
			t.Errorf("%s: %+v", subnet, nic)
		}
	}
}

// An address on two NICs is on neither: the document can't say which.
func TestParse_sharedAddress(t *testing.T) {
	got, err := Parse([]byte(document(
		entry(`"02005E100004"`, list("10.20.0.4", "10.20.0.10"), `[]`),
		entry(`"02005E100005"`, list("10.20.1.4", "10.20.0.10"), `[]`))))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"address 10.20.0.10 is listed on 2 NICs and left out"}
	for i, primary := range []string{"10.20.0.4", "10.20.1.4"} {
		if diff := cmp.Diff(addrs(primary), got.NICs[i].V4, byValue); diff != "" {
			t.Errorf("nic %d (-want +got)\n%s", i, diff)
		}
		if diff := cmp.Diff(want, got.NICs[i].Problems); diff != "" {
			t.Errorf("nic %d (-want +got)\n%s", i, diff)
		}
	}
}

func TestParse_boundedProblems(t *testing.T) {
	bad := make([]string, 1000)
	for i := range bad {
		bad[i] = strings.Repeat("x", 5000)
	}
	got, err := Parse([]byte(document(entry(`"02005E100004"`, list(bad...), `[]`))))
	if err != nil {
		t.Fatal(err)
	}
	problems := got.NICs[0].Problems
	if len(problems) != maxProblems+1 || problems[maxProblems] != "and 992 more like the last" || len(strings.Join(problems, "")) > 4000 {
		t.Errorf("%d problems of %d bytes: last %q", len(problems), len(strings.Join(problems, "")), problems[len(problems)-1])
	}
}

func TestParse_rejected(t *testing.T) {
	tests := []struct {
		name, in string
		want     error
		text     string
	}{
		{"no network", `{"compute":{"name":"x"}}`, ErrIncomplete, "metadata document is incomplete: it has no network part"},
		{"network null", `{"compute":{},"network":null}`, ErrIncomplete, "it has no network part"},
		{"null", `null`, ErrIncomplete, "it has no network part"},
		{"network empty", `{"network":{}}`, ErrIncomplete, "it lists no network interface"},
		{"interface null", `{"network":{"interface":null}}`, ErrIncomplete, "it lists no network interface"},
		{"interface null, bare", `{"interface":null}`, ErrIncomplete, "it has no network part"},
		{"interface empty", `{"network":{"interface":[]}}`, ErrIncomplete, "it lists no network interface"},
		{"interface object", `{"network":{"interface":{}}}`, ErrMalformed, `"network.interface" is a JSON object`},
		{"network text", `{"network":"x"}`, ErrMalformed, `"network" is a JSON string`},
		{"empty", ``, ErrMalformed, "unexpected end of JSON input"},
		{"html", `<html>`, ErrMalformed, "invalid character '<'"},
		{"list", `[]`, ErrMalformed, `"document" is a JSON array`},
		{"cut", `{"network":{"interface":[`, ErrMalformed, "unexpected end"},
		{"twice", `{"interface":[]}{"interface":[]}`, ErrMalformed, "after top-level value"},
		{"deep", strings.Repeat(`{"network":`, 20000), ErrMalformed, "max depth"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Parse([]byte(tt.in))
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, want %v with %q", err, tt.want, tt.text)
			}
			if diff := cmp.Diff(Document{}, got, byValue); diff != "" {
				t.Errorf("document of a failure (-want +got)\n%s", diff)
			}
		})
	}
}

// The digest tells whether anything changed that an allocator cares about, and nothing else.
func TestParse_digest(t *testing.T) {
	nic4 := entry(`"02005E100004"`, list("10.20.0.4", "10.20.0.10"), subnet24)
	nic5 := entry(`"02005E100005"`, list("10.20.1.4"), `[]`)
	digest := func(in string) [32]byte {
		t.Helper()
		doc, err := Parse([]byte(in))
		if err != nil {
			t.Fatal(err)
		}
		return doc.Digest
	}
	base := digest(document(nic4, nic5))
	for name, in := range map[string]string{
		"order of NICs":      document(nic5, nic4),
		"order of addresses": document(entry(`"02-00-5e-10-00-04"`, list("10.20.0.10", "10.20.0.4"), subnet24), nic5),
		"instance document":  `{"compute":{"tags":"new"},"network":` + document(nic4, nic5) + `}`,
		"a new problem":      document(nic4, nic5, `{"macAddress":"*"}`),
	} {
		if digest(in) != base {
			t.Errorf("%s changes the digest", name)
		}
	}
	for name, in := range map[string]string{
		"an address less":     document(entry(`"02005E100004"`, list("10.20.0.4"), subnet24), nic5),
		"an address more":     document(entry(`"02005E100004"`, list("10.20.0.4", "10.20.0.10", "10.20.0.11"), subnet24), nic5),
		"an address moved":    document(entry(`"02005E100004"`, list("10.20.0.4"), subnet24), entry(`"02005E100005"`, list("10.20.1.4", "10.20.0.10"), `[]`)),
		"another MAC":         document(nic4, entry(`"02005E100006"`, list("10.20.1.4"), `[]`)),
		"another prefix":      document(entry(`"02005E100004"`, list("10.20.0.4", "10.20.0.10"), `[{"address":"10.20.0.0","prefix":"25"}]`), nic5),
		"a NIC less":          document(nic4),
		"an IPv6 address new": document(nic4, `{"ipv4":{"ipAddress":`+list("10.20.1.4")+`},"ipv6":{"ipAddress":`+list("fd00::4")+`},"macAddress":"02005E100005"}`),
	} {
		if digest(in) == base {
			t.Errorf("%s doesn't change the digest", name)
		}
	}
}

func FuzzParse(f *testing.F) {
	if b, err := os.ReadFile("testdata/instance.json"); err == nil {
		f.Add(b)
	}
	f.Add([]byte(document(entry(`"02-00-5E-10-00-04"`, list("::ffff:10.20.0.4", "10.0.0.16/28", "x"), `[{"address":"10.20.0.0","prefix":24}]`))))
	f.Add([]byte(`{"network":{"interface":[null,{"ipv4":[],"ipv6":"","macAddress":7},{"ipv4":{"ipAddress":{},"subnet":7}}]}}`))
	f.Add([]byte(document(entry(`"02005E100004"`, list("10.20.0.4"), `[]`), entry(`"02005E100004"`, list("10.20.0.4"), `null`))))
	f.Fuzz(func(t *testing.T, b []byte) {
		doc, err := Parse(b)
		if err != nil {
			if !errors.Is(err, ErrIncomplete) && !errors.Is(err, ErrMalformed) {
				t.Fatalf("error without a sentinel: %v", err)
			}
			return
		}
		checkDocument(t, doc)
		again, err := Parse(respell(t, doc))
		if err == nil && again.Digest != doc.Digest {
			t.Fatalf("digest changed:\n%+v\n%+v", doc, again)
		}
		if err != nil && len(doc.NICs) > 0 {
			t.Fatal(err)
		}
	})
}

// checkDocument holds what callers rely on.
func checkDocument(t *testing.T, doc Document) {
	t.Helper()
	macs, seen := map[[6]byte]bool{}, map[netip.Addr]bool{}
	for _, nic := range doc.NICs {
		if macs[nic.MAC] || nic.MAC == [6]byte{} {
			t.Fatalf("MAC %x twice or zero", nic.MAC)
		}
		macs[nic.MAC] = true
		for i, addr := range append(nic.V4[:len(nic.V4):len(nic.V4)], nic.V6...) {
			if seen[addr] || !addr.IsValid() || addr.Is4() != (i < len(nic.V4)) || addr.Is4In6() || addr.Zone() != "" {
				t.Fatalf("address %s twice or of a wrong form", addr)
			}
			seen[addr] = true
		}
		for _, subnet := range nic.Subnets {
			if !subnet.IsValid() || subnet != subnet.Masked() || !subnet.Addr().Is4() || subnet.Bits() == 0 {
				t.Fatalf("subnet %s", subnet)
			}
		}
	}
}

// respell writes a document as IMDS would.
func respell(t *testing.T, doc Document) []byte {
	t.Helper()
	var nics []any
	for _, nic := range doc.NICs {
		family := func(addrs []netip.Addr) map[string]any {
			var out, subnets []any
			for _, a := range addrs {
				out = append(out, map[string]any{"privateIpAddress": a.String()})
			}
			for _, s := range nic.Subnets {
				subnets = append(subnets, map[string]any{"address": s.Addr().String(), "prefix": fmt.Sprint(s.Bits())})
			}
			return map[string]any{"ipAddress": out, "subnet": subnets}
		}
		nics = append(nics, map[string]any{
			"ipv4": family(nic.V4), "ipv6": map[string]any{"ipAddress": family(nic.V6)["ipAddress"]},
			"macAddress": fmt.Sprintf("%X", nic.MAC),
		})
	}
	b, err := json.Marshal(map[string]any{"network": map[string]any{"interface": nics}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}
