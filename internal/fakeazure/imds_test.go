package fakeazure

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/native-vmss/native-vmss/pkg/metadata"
)

const instanceURL = "/metadata/instance?api-version=2021-02-01"

// ask sends one request as the service sees it, from a source.
func ask(h http.Handler, source, method, url string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, url, nil)
	r.RemoteAddr = source + ":40000"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func get(h http.Handler, source, url string) *httptest.ResponseRecorder {
	return ask(h, source, http.MethodGet, url, "Metadata", "true")
}

// TestIMDS_requests holds what the reference of the service says of requests.
func TestIMDS_requests(t *testing.T) {
	tests := []struct {
		name, source, method, url string
		headers                   []string
		want                      int
		body                      string
	}{
		{"good", "10.20.0.4", "GET", instanceURL, []string{"Metadata", "true"}, 200, `"macAddress":"02005E100004"`},
		{"another VM", "10.20.0.5", "GET", instanceURL, []string{"Metadata", "True"}, 200, `"macAddress":"02005E100006"`},
		{"secondary", "10.20.0.10", "GET", instanceURL, []string{"Metadata", "true"}, 403, "Forbidden"},
		{"second NIC", "10.20.1.4", "GET", instanceURL, []string{"Metadata", "true"}, 403, "Forbidden"},
		{"stranger", "192.0.2.1", "GET", instanceURL, []string{"Metadata", "true"}, 403, "Forbidden"},
		{"no header", "10.20.0.4", "GET", instanceURL, nil, 400, "Required metadata header not specified"},
		{"forwarded", "10.20.0.4", "GET", instanceURL, []string{"Metadata", "true", "X-Forwarded-For", "10.0.0.1"}, 400, "X-Forwarded-For"},
		{"POST", "10.20.0.4", "POST", instanceURL, []string{"Metadata", "true"}, 405, "Method"},
		{
			"no api-version", "10.20.0.4", "GET", "/metadata/instance",
			[]string{"Metadata", "true"},
			400,
			`{"error":"Bad request. api-version is invalid or was not specified in the request.","newest-versions":["2025-04-07","2024-07-17","2024-03-15"]}`,
		},
		{"unknown api-version", "10.20.0.4", "GET", "/metadata/instance?api-version=2021-02-02", []string{"Metadata", "true"}, 400, "newest-versions"},
		{"duplicate parameter", "10.20.0.4", "GET", instanceURL + "&api-version=2019-06-01", []string{"Metadata", "true"}, 400, "Duplicate"},
		{"versions", "10.20.0.4", "GET", "/metadata/versions", []string{"Metadata", "true"}, 200, `{"apiVersions":["2017-03-01",`},
		{"elsewhere", "10.20.0.4", "GET", "/metadata/instances", []string{"Metadata", "true"}, 404, "Not found"},
		{
			"part", "10.20.0.4", "GET", "/metadata/instance/network/interface/0/macAddress?api-version=2021-02-01&format=text",
			[]string{"Metadata", "true"},
			200, "02005E100004",
		},
		{"leaf as JSON", "10.20.0.4", "GET", "/metadata/instance/compute/name?api-version=2021-02-01", []string{"Metadata", "true"}, 400, "format=text"},
		{"keys", "10.20.0.4", "GET", instanceURL + "&format=text", []string{"Metadata", "true"}, 200, "compute/\nnetwork/"},
		{"no such index", "10.20.0.4", "GET", "/metadata/instance/network/interface/7?api-version=2021-02-01", []string{"Metadata", "true"}, 404, "Not found"},
		{"no such format", "10.20.0.4", "GET", instanceURL + "&format=xml", []string{"Metadata", "true"}, 400, "xml"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := ask(example(t).IMDS(), tt.source, tt.method, tt.url, tt.headers...)
			if w.Code != tt.want || !strings.Contains(w.Body.String(), tt.body) {
				t.Errorf("%d %s, want %d with %q", w.Code, w.Body, tt.want, tt.body)
			}
		})
	}
}

// All primitives are strings, as in the real document.
func TestIMDS_onlyStrings(t *testing.T) {
	var doc any
	if err := json.Unmarshal(get(example(t).IMDS(), "10.20.0.4", instanceURL).Body.Bytes(), &doc); err != nil {
		t.Fatal(err)
	}
	var walk func(path string, v any)
	walk = func(path string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for key, child := range v {
				walk(path+"/"+key, child)
			}
		case []any:
			for _, child := range v {
				walk(path+"/0", child)
			}
		case string:
		default:
			t.Errorf("%s is %T", path, v)
		}
	}
	walk("", doc)
}

func TestIMDS_rate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := example(t)
		codes := func(source string) (codes []int) {
			for range 6 {
				codes = append(codes, get(c.IMDS(), source, instanceURL).Code)
			}
			return codes
		}
		limited := []int{200, 200, 200, 200, 200, 429}
		for _, source := range []string{"10.20.0.4", "10.20.0.5"} { // a bucket for each VM
			if diff := cmp.Diff(limited, codes(source)); diff != "" {
				t.Errorf("%s (-want +got)\n%s", source, diff)
			}
		}
		time.Sleep(time.Second)
		if diff := cmp.Diff(limited, codes("10.20.0.4")); diff != "" {
			t.Errorf("a second later (-want +got)\n%s", diff)
		}
		if err := c.SetIMDSRate("vmss_0", -1); err != nil {
			t.Fatal(err)
		}
		if slices.Contains(codes("10.20.0.4"), 429) {
			t.Error("limited without a limit")
		}
		want := map[string]map[string]int{"vmss_0": {"imds 200": 16, "imds 429": 2}, "vmss_1": {"imds 200": 5, "imds 429": 1}}
		if diff := cmp.Diff(want, c.Counters()); diff != "" {
			t.Errorf("counters (-want +got)\n%s", diff)
		}
	})
}

// Every shape can be served, alone and after any other.
func TestIMDS_shapes(t *testing.T) {
	c := example(t)
	if err := c.SetIMDSRate("vmss_0", -1); err != nil {
		t.Fatal(err)
	}
	for _, first := range Shapes() {
		for _, second := range Shapes() {
			if err := c.Script("vmss_0", Fault{Shapes: []string{first, second}}); err != nil {
				t.Fatal(err)
			}
			w := get(c.IMDS(), "10.20.0.4", instanceURL)
			if w.Code != 200 || !json.Valid(w.Body.Bytes()) {
				t.Errorf("%s, %s: %d %s", first, second, w.Code, w.Body)
			}
			_, _ = metadata.Parse(w.Body.Bytes()) // must not panic
		}
	}
	if err := c.Script("vmss_0", Fault{Shapes: []string{"no-such"}}); err == nil {
		t.Error("an unknown shape is taken")
	}
}

// What a client is told of each shape: the bytes that field reports know.
func TestIMDS_shapeBytes(t *testing.T) {
	for shape, want := range map[string]string{
		"prefix-number":    `"prefix":24}`,
		"prefix-slash":     `"prefix":"/24"}`,
		"prefix-empty":     `"prefix":""}`,
		"mac-dashes":       `"macAddress":"02-00-5E-10-00-04"`,
		"mac-colons":       `"macAddress":"02:00:5e:10:00:04"`,
		"mac-lower":        `"macAddress":"02005e100004"`,
		"mac-short":        `"macAddress":"02005E10004"`,
		"mac-star":         `"macAddress":"*"`,
		"mac-null":         `"macAddress":null`,
		"null-addresses":   `"ipAddress":null`,
		"empty-interface":  `"network":{"interface":[]}`,
		"null-interface":   `"network":{"interface":null}`,
		"no-interface":     `"network":{}`,
		"null-network":     `"network":null`,
		"second-first":     `"network":{"interface":[{"ipv4":{"ipAddress":[{"privateIpAddress":"10.20.1.4"`,
		"without-primary":  `{"ipAddress":[{"privateIpAddress":"10.20.0.10"`,
		"only-primary":     `{"ipAddress":[{"privateIpAddress":"10.20.0.4","publicIpAddress":""}],`,
		"block":            `{"privateIpAddress":"10.20.0.224/28"`,
		"mapped-addresses": `{"privateIpAddress":"::ffff:10.20.0.4"`,
		"second-no-ipv4":   `{"ipv6":{"ipAddress":[{"privateIpAddress":"fd00::4"}]},"macAddress":"02005E100005"}`,
	} {
		c := example(t)
		if err := c.Script("vmss_0", Fault{Shapes: []string{shape}}); err != nil {
			t.Fatal(err)
		}
		if body := get(c.IMDS(), "10.20.0.4", instanceURL).Body.String(); !strings.Contains(body, want) {
			t.Errorf("%s: %s lacks %s", shape, body, want)
		}
	}
}

// A script goes step by step; requests that are refused anyway use none up.
func TestCloud_Script(t *testing.T) {
	c := example(t)
	h := c.IMDS()
	err := c.Script("vmss_0", Fault{Status: 410, Times: 2}, Fault{Status: 429, Body: "slow", Headers: map[string]string{"Retry-After": "2"}}, Fault{},
		Fault{Status: 500, Times: -1})
	if err != nil {
		t.Fatal(err)
	}
	ask(h, "10.20.0.4", "GET", instanceURL) // without the header
	get(h, "10.20.0.5", instanceURL)        // another VM
	get(h, "10.20.0.4", "/metadata/versions")
	var got []int
	for i := range 8 {
		w := get(h, "10.20.0.4", instanceURL)
		got = append(got, w.Code)
		if i == 2 && (w.Header().Get("Retry-After") != "2" || w.Body.String() != "slow") {
			t.Errorf("%v %s", w.Header(), w.Body)
		}
	}
	if diff := cmp.Diff([]int{410, 410, 429, 200, 500, 500, 500, 500}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if err := c.Script("vmss_0"); err != nil {
		t.Fatal(err)
	}
	if w := get(h, "10.20.0.4", instanceURL); w.Code != 200 {
		t.Errorf("%d after the end of the script", w.Code)
	}
	if err := c.Script("vmss_0", Fault{Status: 99}); err == nil {
		t.Error("status 99 is taken")
	}
}

// Delay, drip, cut and dates, as a client by TCP sees them.
func TestIMDS_slow(t *testing.T) {
	c := example(t)
	web := httptest.NewServer(c.IMDSFor("vmss_0"))
	defer web.Close()
	fetch := func(f Fault) (body string, header http.Header, took time.Duration, err error) {
		t.Helper()
		if err := c.Script("vmss_0", f); err != nil {
			t.Fatal(err)
		}
		req, _ := http.NewRequest(http.MethodGet, web.URL+instanceURL, nil)
		req.Header.Set("Metadata", "true")
		began := time.Now()
		resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		if err != nil {
			return "", nil, time.Since(began), err
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		return string(b), resp.Header, time.Since(began), err
	}
	if _, _, took, err := fetch(Fault{Delay: Duration(150 * time.Millisecond)}); err != nil || took < 150*time.Millisecond {
		t.Errorf("delay: %s, %v", took, err)
	}
	if body, _, took, err := fetch(Fault{Status: 200, Body: "0123456789", Drip: Duration(20 * time.Millisecond)}); err != nil || body != "0123456789" ||
		took < 200*time.Millisecond {
		t.Errorf("drip: %q, %s, %v", body, took, err)
	}
	if _, _, _, err := fetch(Fault{Cut: true}); err == nil {
		t.Error("cut: an answer came")
	}
	if body, _, _, err := fetch(Fault{Cut: true, Status: 200, Body: "half"}); err == nil || body != "half" {
		t.Errorf("cut within: %q, %v", body, err)
	}
	_, header, _, err := fetch(Fault{Status: 503, Headers: map[string]string{"Retry-After": "{now+60s}"}})
	if at, parseErr := http.ParseTime(header.Get("Retry-After")); err != nil || parseErr != nil || time.Until(at) < 55*time.Second || time.Until(at) > time.Minute {
		t.Errorf("date: %q, %v", header.Get("Retry-After"), err)
	}
	want := []string{"200", "200", "cut", "cut", "503"}
	var got []string
	for _, r := range c.Requests("vmss_0") {
		got = append(got, r.Outcome)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("log (-want +got)\n%s", diff)
	}
}

// The product's client against this service: every shape comes to what its reader must see.
func TestIMDS_client(t *testing.T) {
	c := example(t)
	web := httptest.NewServer(c.IMDSFor("vmss_0"))
	defer web.Close()
	client, err := metadata.New(web.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Script("vmss_0", Fault{Status: 410}, Fault{Cut: true}, Fault{Shapes: []string{"shuffle", "mac-colons", "prefix-number"}}, Fault{}); err != nil {
		t.Fatal(err)
	}
	odd, err := client.Fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	plain, err := client.Fetch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if odd.Digest != plain.Digest || len(plain.NICs) != 2 || len(plain.NICs[0].V4) != 6 || len(plain.NICs[1].V6) != 1 {
		t.Errorf("%+v\n%+v", odd, plain)
	}
	if n := len(c.Requests("vmss_0")); n != 4 {
		t.Errorf("%d requests, want 4", n)
	}
}
