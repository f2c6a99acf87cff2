package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/native-vmss/native-vmss/pkg/node"
)

var specs = []string{"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

func printed(t *testing.T, spec string) string {
	t.Helper()
	r := node.Reservation{Addr: netip.MustParsePrefix("10.20.0.10/24"), Gateway: netip.MustParseAddr("10.20.0.2")}
	var out bytes.Buffer
	if err := printResult(&out, r, spec); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// An IPAM's result is abbreviated: no interfaces, no index.
func TestPrintResult(t *testing.T) {
	for _, spec := range specs {
		version, dns := "", ""
		if spec < "1" {
			version, dns = `"version":"4",`, `,"dns":{}`
		}
		var got, want any
		text := fmt.Sprintf(`{"cniVersion":%q,"ips":[{%s"address":"10.20.0.10/24","gateway":"10.20.0.2"}],"routes":[{"dst":"0.0.0.0/0"}]%s}`, spec, version, dns)
		if err := errors.Join(json.Unmarshal([]byte(printed(t, spec)), &got), json.Unmarshal([]byte(text), &want)); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", spec, diff)
		}
	}
	if err := printResult(&bytes.Buffer{}, node.Reservation{}, "9.9.9"); !errors.Is(err, node.ErrConfig) {
		t.Errorf("unknown version: %v", err)
	}
}

func TestPreviousAddress(t *testing.T) {
	for _, spec := range specs {
		got, err := previousAddress(fmt.Appendf(nil, `{"cniVersion":%q,"dns":7,"prevResult":%s}`, spec, printed(t, spec)))
		if err != nil || got.String() != "10.20.0.10" {
			t.Errorf("%s: %s, %v", spec, got, err)
		}
	}
	for _, prev := range []string{
		``, `,"prevResult":null`, `,"prevResult":{}`, `,"prevResult":7`, `,"prevResult":{"ips":[null]}`,
		`,"prevResult":{"ips":[{"address":"fd00::1/64"}]}`, `,"prevResult":{"cniVersion":"9.9.9"}`,
	} {
		if got, err := previousAddress([]byte(`{"cniVersion":"1.0.0"` + prev + `}`)); !errors.Is(err, node.ErrConfig) || !strings.Contains(err.Error(), "prevResult") {
			t.Errorf("%s: %s, %v", prev, got, err)
		}
	}
}

func TestMainPlugin(t *testing.T) {
	got, err := mainPlugin([]byte(`{"cniVersion":"1.0.0","type":"ptp","mtu":"any","dns":7}`))
	if err != nil || got != (caller{"1.0.0", "ptp"}) {
		t.Errorf("mainPlugin = %+v, %v", got, err)
	}
}
