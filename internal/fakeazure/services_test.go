package fakeazure

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"
)

// run listens and serves until the end of the test.
func run(t *testing.T, c *Cloud, s Services) *Server {
	t.Helper()
	srv, err := c.Listen(s)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return srv
}

func TestWireserver(t *testing.T) {
	c := example(t)
	h := c.Wireserver()
	for _, url := range []string{"/machine/?comp=goalstate", "/vmSettings"} {
		if w := get(h, "10.20.0.4", url); w.Code != 200 || !strings.Contains(w.Body.String(), WireserverSecret) {
			t.Errorf("%s: %d %s", url, w.Code, w.Body)
		}
		if w := get(h, "10.20.0.10", url); w.Code != 403 || strings.Contains(w.Body.String(), WireserverSecret) {
			t.Errorf("%s from a secondary: %d %s", url, w.Code, w.Body)
		}
	}
	if w := get(h, "10.20.0.4", "/?comp=versions"); !strings.Contains(w.Body.String(), "<Version>2012-11-30</Version>") {
		t.Errorf("%s", w.Body)
	}
	var nics struct {
		Interface []struct {
			MAC     string `xml:"MacAddress,attr"`
			Primary bool   `xml:"IsPrimary,attr"`
			Subnet  struct {
				Prefix  string `xml:"Prefix,attr"`
				Address []struct {
					Address string `xml:"Address,attr"`
					Primary bool   `xml:"IsPrimary,attr"`
				} `xml:"IPAddress"`
			} `xml:"IPSubnet"`
		}
	}
	w := get(h, "10.20.0.4", "/machine/plugins?comp=nmagent&type=getinterfaceinfov1")
	if err := xml.Unmarshal(w.Body.Bytes(), &nics); err != nil {
		t.Fatal(err)
	}
	first, second := nics.Interface[0], nics.Interface[1]
	if first.MAC != "02005E100004" || !first.Primary || second.Primary || first.Subnet.Prefix != "10.20.0.0/24" || len(first.Subnet.Address) != 6 ||
		!first.Subnet.Address[0].Primary || first.Subnet.Address[1].Primary {
		t.Errorf("%s", w.Body)
	}
	want := map[string]map[string]int{"vmss_0": {"wireserver 200": 4}, "": {"wireserver 403": 2}}
	if diff := cmp.Diff(want, c.Counters()); diff != "" {
		t.Errorf("counters (-want +got)\n%s", diff)
	}
}

// question packs one DNS question.
func question(t *testing.T, name string, typ dnsmessage.Type) []byte {
	t.Helper()
	m := dnsmessage.Message{Header: dnsmessage.Header{ID: 7, RecursionDesired: true}, Questions: []dnsmessage.Question{
		{Name: dnsmessage.MustNewName(name), Type: typ, Class: dnsmessage.ClassINET},
	}}
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDNS_reply(t *testing.T) {
	c := example(t)
	tests := []struct {
		name, source, question string
		typ                    dnsmessage.Type
		want                   []netip.Addr
		code                   dnsmessage.RCode
		silent                 bool
	}{
		{"record", "10.20.0.4:53000", "example.test.", dnsmessage.TypeA, ips("203.0.113.10"), dnsmessage.RCodeSuccess, false},
		{"other case", "10.20.0.4:53000", "EXAMPLE.test.", dnsmessage.TypeA, ips("203.0.113.10"), dnsmessage.RCodeSuccess, false},
		{"VM", "10.20.0.4:53000", "vmss000001.internal.cloudapp.net.", dnsmessage.TypeA, ips("10.20.0.5"), dnsmessage.RCodeSuccess, false},
		{"no IPv6", "10.20.0.4:53000", "example.test.", dnsmessage.TypeAAAA, nil, dnsmessage.RCodeSuccess, false},
		{"unknown", "10.20.0.4:53000", "nowhere.test.", dnsmessage.TypeA, nil, dnsmessage.RCodeNameError, false},
		{"secondary", "10.20.0.10:53000", "example.test.", dnsmessage.TypeA, nil, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := c.DNS().reply(tt.source, question(t, tt.question, tt.typ))
			if tt.silent {
				if b != nil {
					t.Fatal("a stranger is answered")
				}
				return
			}
			var m dnsmessage.Message
			if err := m.Unpack(b); err != nil {
				t.Fatal(err)
			}
			var got []netip.Addr
			for _, a := range m.Answers {
				got = append(got, netip.AddrFrom4(a.Body.(*dnsmessage.AResource).A))
			}
			if diff := cmp.Diff(tt.want, got, byValue); diff != "" || m.RCode != tt.code || m.ID != 7 || !m.Response {
				t.Errorf("%+v (-want +got)\n%s", m.Header, diff)
			}
		})
	}
	if b := c.DNS().reply("10.20.0.4:53000", []byte("nonsense")); b != nil {
		t.Error("nonsense is answered")
	}
}

// Go's own resolver asks it by both protocols.
func TestDNS_resolver(t *testing.T) {
	c := example(t)
	srv := run(t, c, Services{DNS: []string{"127.0.0.1:0"}, VM: "vmss_0"})
	for _, network := range []string{"udp", "tcp"} {
		r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, srv.Addr(ServiceDNS, network))
		}}
		got, err := r.LookupNetIP(t.Context(), "ip4", "example.test.")
		if err != nil || len(got) != 1 || got[0].Unmap() != ip("203.0.113.10") {
			t.Errorf("%s: %v, %v", network, got, err)
		}
	}
	if log := c.Requests("vmss_0"); len(log) < 2 || log[0].Line != "TypeA example.test." || log[0].Outcome != "Success" {
		t.Errorf("%+v", log)
	}
}

// adminClient talks to the unix socket.
type adminClient struct {
	t *testing.T
	*http.Client
}

func newAdminClient(t *testing.T, path string) adminClient {
	return adminClient{t, &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}}
}

func (a adminClient) do(method, path, body string, want int) string {
	a.t.Helper()
	req, err := http.NewRequest(method, "http://fake"+path, strings.NewReader(body))
	if err != nil {
		a.t.Fatal(err)
	}
	resp, err := a.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != want {
		a.t.Errorf("%s %s %s: %d %s, %v; want %d", method, path, body, resp.StatusCode, b, err, want)
	}
	return strings.TrimSpace(string(b))
}

func TestAdmin(t *testing.T) {
	c := example(t)
	path := filepath.Join(t.TempDir(), "admin.sock")
	run(t, c, Services{Admin: path})
	a := newAdminClient(t, path)
	if got := a.do("POST", "/addresses/add", `{"vm":"vmss_0","nic":"nic0","addresses":["10.20.0.30-10.20.0.31"]}`, 200); got != `["10.20.0.30","10.20.0.31"]` {
		t.Errorf("add: %s", got)
	}
	var picked []string
	if err := json.Unmarshal([]byte(a.do("POST", "/addresses/add", `{"vm":"vmss_1","count":3}`, 200)), &picked); err != nil || len(picked) != 3 {
		t.Errorf("count: %v, %v", picked, err)
	}
	a.do("POST", "/addresses/remove", `{"vm":"vmss_0","addresses":["10.20.0.30"]}`, 200)
	a.do("POST", "/addresses/remove", `{"vm":"vmss_0","addresses":["10.20.0.30"]}`, 404)
	a.do("POST", "/addresses/add", `{"vm":"vmss_0","addresses":["10.20.0.20"]}`, 409)
	a.do("POST", "/addresses/add", `{"vm":"vmss_0","address":["10.20.0.20"]}`, 400)
	a.do("POST", "/faults", `{"vm":"vmss_0","steps":[{"status":429,"headers":{"Retry-After":"2"}},{"shapes":["no-network"],"delay":"1ms","times":-1}]}`, 200)
	a.do("POST", "/faults", `{"vm":"vmss_0","steps":[{"shapes":["no-such"]}]}`, 404)
	a.do("POST", "/lag", `{"vm":"vmss_0","lag":"5s"}`, 200)
	a.do("POST", "/rate", `{"vm":"vmss_0","perSecond":-1}`, 200)
	a.do("POST", "/vms/add", `{"name":"vmss_2","nics":[{"name":"nic0","mac":"02005E100007","subnet":"nodes","primary":"10.20.0.6"}]}`, 200)
	a.do("POST", "/vms/remove", `{"vm":"vmss_2"}`, 200)
	a.do("GET", "/addresses/add", "", 405)

	codes := []int{get(c.IMDS(), "10.20.0.4", instanceURL).Code, get(c.IMDS(), "10.20.0.4", instanceURL).Code}
	if diff := cmp.Diff([]int{429, 200}, codes); diff != "" {
		t.Errorf("script (-want +got)\n%s", diff)
	}
	if got := a.do("GET", "/counters", "", 200); got != `{"vmss_0":{"imds 200":1,"imds 429":1}}` {
		t.Errorf("counters: %s", got)
	}
	if got := a.do("GET", "/requests?vm=vmss_0", "", 200); !strings.Contains(got, `"line":"GET /metadata/instance?api-version=2021-02-01"`) {
		t.Errorf("requests: %s", got)
	}
	a.do("DELETE", "/requests", "", 200)
	if got := a.do("GET", "/requests?vm=vmss_0", "", 200); got != "[]" {
		t.Errorf("requests after all: %s", got)
	}
	top, err := ParseTopology([]byte(a.do("GET", "/topology", "", 200)))
	if err != nil {
		t.Fatalf("the topology can't be read back: %v", err)
	}
	if diff := cmp.Diff(c.Snapshot(), top, byValue); diff != "" {
		t.Errorf("topology (-want +got)\n%s", diff)
	}
	if _, err := New(top); err != nil {
		t.Errorf("the topology can't be used: %v", err)
	}
}

func TestCloud_Listen(t *testing.T) {
	c := example(t)
	if _, err := c.Listen(Services{VM: "nobody"}); err == nil {
		t.Error("an unknown VM is taken")
	}
	if _, err := c.Listen(Services{IMDS: []string{"127.0.0.1:0", "127.0.0.1:99999"}}); err == nil || !strings.Contains(err.Error(), "imds: listen tcp") {
		t.Errorf("got %v", err)
	}
	path := filepath.Join(t.TempDir(), "admin.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Listen(Services{Admin: path}); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("got %v", err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = ln.Close()
	run(t, c, Services{Admin: path}) // what a killed process left is replaced
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

// A log doesn't grow without end; counters stay right.
func TestCloud_Requests_bounded(t *testing.T) {
	c := example(t)
	for range maxLog + 10 {
		c.close(c.open(Request{Service: ServiceIMDS, VM: "vmss_0"}), "200")
	}
	if n := len(c.Requests("vmss_0")); n > maxLog {
		t.Errorf("%d entries", n)
	}
	if n := c.Counters()["vmss_0"]["imds 200"]; n != maxLog+10 {
		t.Errorf("counted %d", n)
	}
}

// A request that hasn't ended is in the log already, and one whose client has left is closed.
func TestCloud_Requests_pending(t *testing.T) {
	c := example(t)
	srv := run(t, c, Services{IMDS: []string{"127.0.0.1:0"}, VM: "vmss_0"})
	if err := c.Script("vmss_0", Fault{Delay: Duration(time.Minute)}); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", srv.Addr(ServiceIMDS, "tcp"))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(conn, bytes.NewBufferString("GET "+instanceURL+" HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n\r\n"))
	waitFor(t, "the request", func() bool { log := c.Requests("vmss_0"); return len(log) == 1 && log[0].Outcome == "" })
	_ = conn.Close()
	waitFor(t, "its end", func() bool { return c.Requests("vmss_0")[0].Outcome == "cut" })
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s didn't come", what)
		}
	}
}
