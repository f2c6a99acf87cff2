package plugin

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

func TestParseArgs(t *testing.T) {
	web := Args{Namespace: "ns", Pod: "web-0", UID: "u"}
	tests := []struct {
		in   string
		want Args
		bad  string // the pair that the error quotes
	}{
		{in: ""},
		{in: ";"},
		{in: " ; ;"},
		{in: "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;K8S_POD_UID=u", want: web},
		{in: "IgnoreUnknown=1;K8S_POD_UID=u;K8S_POD_INFRA_CONTAINER_ID=c;K8S_POD_NAME=web-0;K8S_POD_NAMESPACE=ns", want: web},
		{in: "K8S_POD_NAME=web-0;", want: Args{Pod: "web-0"}},
		{in: "IgnoreUnknown=1;X=a=b;K8S_POD_NAME=web-0", want: Args{Pod: "web-0"}},
		{in: "X=1;IgnoreUnknown=1", want: Args{}},
		{in: "X=1;IgnoreUnknown=TRUE"},
		{in: "IgnoreUnknown=1; K8S_POD_NAME=web-0", want: Args{Pod: "web-0"}},
		{in: "IgnoreUnknown=1;CommonArgs=1"},
		{in: "K8S_POD_NAME=a=b", want: Args{Pod: "a=b"}},
		{in: "K8S_POD_NAME=", want: Args{}},
		{in: "IgnoreUnknown=1;K8S_POD_NAME=web-0;MAC=02:00:00:00:00:99;IP=10.20.0.10", want: Args{
			Pod: "web-0", MAC: "02:00:00:00:00:99", IP: netip.MustParseAddr("10.20.0.10"),
		}},
		{in: "MAC=x", want: Args{MAC: "x"}},
		{in: "IP=10.20.0.10", want: Args{IP: netip.MustParseAddr("10.20.0.10")}},
		{in: "IP=10.20.0.10/24", want: Args{IP: netip.MustParseAddr("10.20.0.10")}},
		{in: "IP=::ffff:10.20.0.10", want: Args{IP: netip.MustParseAddr("10.20.0.10")}},
		{in: "IP="},
		{in: "IP=10.20.0", bad: "IP=10.20.0"},
		{in: "IP=fd00::10", bad: "IP=fd00::10"},
		{in: "IP=fe80::1%eth0", bad: "IP=fe80::1%eth0"},
		{in: "IgnoreUnknown", bad: "IgnoreUnknown"},
		{in: "IgnoreUnknown=1;rubbish;K8S_POD_NAME=a", bad: "rubbish"},
		{in: "IgnoreUnknown=yes", bad: "IgnoreUnknown=yes"},
		{in: "CommonArgs=1", bad: "CommonArgs=1"},
		{in: "X=1;Y=2", bad: "X=1"},
		{in: "IgnoreUnknown=0;k8s_pod_name=a", bad: "k8s_pod_name=a"},
		{in: "=", bad: "="},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			got, err := ParseArgs(tt.in)
			if tt.bad == "" {
				if err != nil || got != tt.want {
					t.Errorf("ParseArgs = %+v, %v; want %+v", got, err, tt.want)
				}
				return
			}
			if !errors.Is(err, errArgs) || !strings.Contains(fmt.Sprint(err), fmt.Sprintf("%q", tt.bad)) {
				t.Errorf("ParseArgs = %v, want an error that quotes %q", err, tt.bad)
			}
		})
	}
}

func FuzzParseArgs(f *testing.F) {
	for _, s := range []string{"", ";", "IgnoreUnknown=1;X=a=b;K8S_POD_NAME=web-0", "IP=10.0.0.1", "IgnoreUnknown", " = ; ="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseArgs(s)
		if err != nil {
			if !errors.Is(err, errArgs) {
				t.Errorf("%v is no errArgs", err)
			}
			return
		}
		if got.IP.IsValid() && !got.IP.Is4() {
			t.Errorf("IP = %s", got.IP)
		}
		// What was accepted is accepted in any order, with blanks and empty pairs.
		if again, err := ParseArgs(" ;" + s + " ; "); err != nil || again != got {
			t.Errorf("%q: %+v, %v; with blanks %+v", s, got, err, again)
		}
	})
}
