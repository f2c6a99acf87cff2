package metadata

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func dated(d time.Duration) step {
	return func(w http.ResponseWriter, r *http.Request) {
		now := time.Now().UTC()
		status(503, "", "Date", now.Format(http.TimeFormat), "Retry-After", now.Add(d).Format(http.TimeFormat))(w, r)
	}
}

// What the service insists on.
func TestFetch_request(t *testing.T) {
	server, c := start(t, good())
	if _, err := c.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := server.asked()[0]
	got := []string{r.Method, r.URL.RequestURI(), r.Header.Get("Metadata"), r.Header.Get("X-Forwarded-For"), r.Header.Get("Accept-Encoding")}
	want := []string{"GET", "/metadata/instance?api-version=2021-02-01", "true", "", ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestFetch_olderVersion(t *testing.T) {
	server, c := start(t, status(400, `{"error":"Bad request. api-version is invalid"}`), status(410, ""), good())
	if _, err := c.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := versions(server.asked()), "2021-02-01 2019-06-01 2019-06-01"; got != want {
		t.Errorf("asked for %q, want %q", got, want)
	}
}

// A proxy of the environment isn't used. The control shows that the environment would send other programs there: a target on
// loopback, which Go never sends by a proxy, would show nothing.
func TestFetch_noProxy(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	c := client(t, "http://169.254.169.254", timing{attempt: time.Second, first: time.Second, max: time.Second})
	var dialed []string
	refused := errors.New("refused by the test")
	c.source.(*httpSource).dial = func(_ context.Context, _, addr string) (net.Conn, error) {
		dialed = append(dialed, addr)
		return nil, refused
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := c.Fetch(ctx)
	if !errors.Is(err, ErrUnreachable) {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"169.254.169.254:80"}, dialed); diff != "" {
		t.Errorf("connections (-want +got)\n%s", diff)
	}
	req, _ := http.NewRequest(http.MethodGet, "http://169.254.169.254/", nil)
	if proxy, err := http.ProxyFromEnvironment(req); err != nil || proxy == nil {
		t.Errorf("control: the environment names no proxy: %v", err)
	}
}

// The other host of a redirect isn't asked, however it is put.
func TestFetch_redirects(t *testing.T) {
	other, otherClient := start(t, good())
	base := "http://" + otherClient.source.(*httpSource).host
	for _, code := range []int{301, 302, 303, 307, 308} {
		_, c := start(t, status(code, "", "Location", base+"/metadata/instance?api-version=2021-02-01"))
		if _, err := c.Fetch(t.Context()); !errors.Is(err, ErrRefused) {
			t.Errorf("%d: %v", code, err)
		}
	}
	if n := len(other.asked()); n != 0 {
		t.Errorf("%d redirects were followed", n)
	}
}

func TestFetch_canceled(t *testing.T) {
	_, c := start(t, after(time.Minute, good()))
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	began := time.Now()
	_, err := c.Fetch(ctx)
	if !errors.Is(err, context.Canceled) || time.Since(began) > 300*time.Millisecond {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}

func TestFetch_withoutDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, c := startVirtual(t)
		began := time.Now()
		_, err := c.Fetch(context.Background())
		if took := time.Since(began); !errors.Is(err, ErrUnreachable) || took > 30*time.Second {
			t.Errorf("%v after %s", err, took)
		}
	})
}

// Retries of many nodes, or many processes, must not fall together, and must not exceed what a machine is allowed.
func TestTiming_backoff(t *testing.T) {
	for n := 1; n < 100; n++ {
		top := min(200*time.Millisecond*time.Duration(math.Pow(2, float64(min(n, 10)-1))), 4*time.Second)
		seen := map[time.Duration]bool{}
		for range 50 {
			d := defaultTiming.backoff(n)
			if d < top/2 || d > top {
				t.Fatalf("wait %d is %s, want %s to %s", n, d, top/2, top)
			}
			seen[d] = true
		}
		if len(seen) < 10 {
			t.Errorf("wait %d has %d values in 50", n, len(seen))
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)
	at := func(d time.Duration) string { return now.Add(d).Format(http.TimeFormat) }
	tests := []struct {
		name, value, date string
		want              time.Duration
	}{
		{"none", "", "", 0},
		{"seconds", "2", "", 2 * time.Second},
		{"blanks", " 2 ", "", 2 * time.Second},
		{"zero", "0", "", 0},
		{"negative", "-2", "", 0},
		{"fraction", "1.5", "", 0},
		{"words", "soon", "", 0},
		{"too large for a duration", "99999999999", "", math.MaxInt64 / time.Second * time.Second},
		{"too large for a number", "99999999999999999999999", "", math.MaxInt64},
		{"date by our clock", at(3 * time.Second), "", 3 * time.Second},
		{"date by the server's clock, an hour ahead", at(time.Hour + 3*time.Second), at(time.Hour), 3 * time.Second},
		{"date in the past", at(-time.Second), "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := http.Header{}
			h.Set("Retry-After", tt.value)
			if tt.date != "" {
				h.Set("Date", tt.date)
			}
			if got := retryAfter(textproto.MIMEHeader(h), now); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// 200,000 addresses pass; an answer without end doesn't.
func TestFetch_size(t *testing.T) {
	const (
		count    = 200_000
		patience = 2 * time.Minute // the race detector on a busy machine takes its time
	)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, c := start(t, status(200, document(entry(`"02005E100004"`, list(many(count)...), `[]`))))
	c.source.(*httpSource).timing.attempt = patience
	doc, err := c.Fetch(ctx)
	if err != nil || len(doc.NICs) != 1 || len(doc.NICs[0].V4) != count {
		t.Fatalf("%d NICs, %v", len(doc.NICs), err)
	}
	endless := func(w http.ResponseWriter, _ *http.Request) {
		for page := make([]byte, 1<<16); ; {
			if _, err := w.Write(page); err != nil {
				return
			}
		}
	}
	server, c := start(t, endless)
	c.source.(*httpSource).timing.attempt = patience
	_, err = c.Fetch(ctx)
	if !errors.Is(err, ErrMalformed) || !strings.Contains(err.Error(), "answer longer than 33554432 bytes") || len(server.asked()) != 1 {
		t.Errorf("%d requests, %v", len(server.asked()), err)
	}
}

// Long error pages don't become long errors.
func TestFetch_longErrorPage(t *testing.T) {
	_, c := start(t, status(403, strings.Repeat("no\nway \x00\xff ", 100_000)))
	_, err := c.Fetch(t.Context())
	if !errors.Is(err, ErrRefused) || len(err.Error()) > 600 || strings.ContainsAny(err.Error(), "\n\x00") {
		t.Errorf("%d bytes: %.200q", len(fmt.Sprint(err)), err)
	}
}

// No connection and no goroutine stays behind.
func TestFetch_leavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("fetches", func(t *testing.T) {
		_, c := start(t, good(), status(500, "x"), hangUp, status(410, ""), good())
		for range 5 {
			if _, err := c.Fetch(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
	for deadline := time.Now().Add(2 * time.Second); runtime.NumGoroutine() > before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}

func TestNew_errors(t *testing.T) {
	for in, want := range map[string]string{
		"":                              `ipam.metadataURL: "" must begin with http:// or file:///`,
		"169.254.169.254":               `ipam.metadataURL: "169.254.169.254" must begin with`,
		"ftp://169.254.169.254":         `must begin with`,
		"https://169.254.169.254":       `must begin with`,
		"http://h/metadata/instance":    `ipam.metadataURL: "http://h/metadata/instance" has a path`,
		"http://":                       `ipam.metadataURL: "http://" names no host`,
		"http://:80":                    `names no host`,
		"http://h:port":                 `ipam.metadataURL: parse "http://h:port": invalid port`,
		"http://h/?api-version=1":       `must be a plain base URL`,
		"http://user:secret@h":          `ipam.metadataURL: "http://user:xxxxx@h" must be a plain base URL`,
		"http://h/#x":                   `must be a plain base URL`,
		"file://host/x.json":            `must have the form file:///absolute/path.json`,
		"file:x.json":                   `must have the form file:///absolute/path.json`,
		"file://":                       `must have the form file:///absolute/path.json`,
		"http://169.254.169.254\x7f/ab": `ipam.metadataURL: `,
	} {
		if _, err := New(in, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New(%q): %v, want %q", in, err, want)
		}
	}
}

func TestNew_base(t *testing.T) {
	for in, want := range map[string]string{
		"http://169.254.169.254":  "http://169.254.169.254/metadata/instance?api-version=2021-02-01",
		"http://169.254.169.254/": "http://169.254.169.254/metadata/instance?api-version=2021-02-01",
		"http://[fd00::1]:8080/":  "http://[fd00::1]:8080/metadata/instance?api-version=2021-02-01",
	} {
		c, err := New(in, nil)
		if err != nil || c.source.String() != want {
			t.Errorf("New(%q) asks %v, %v; want %s", in, c, err, want)
		}
	}
}

func TestFetch_file(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	fifo, large := filepath.Join(dir, "fifo"), write("large", "")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.Truncate(large, maxBody+1)); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, path string
		want       error
		text       string
	}{
		{"good", write("good.json", document(entry(`"02005E100004"`, list("10.20.0.4"), `[]`))), nil, ""},
		{"missing", filepath.Join(dir, "missing"), ErrUnreachable, "no such file or directory"},
		{"directory", dir, ErrUnreachable, "not a regular file"},
		{"named pipe", fifo, ErrUnreachable, "not a regular file"},
		{"too long", large, ErrMalformed, "longer than 33554432 bytes"},
		{"empty", write("empty", ""), ErrMalformed, "unexpected end of JSON input"},
		{"incomplete", write("incomplete", `{"compute":{}}`), ErrIncomplete, "no network part"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := New("file://"+tt.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.Fetch(t.Context())
			if (tt.want == nil) != (err == nil) || !errors.Is(err, tt.want) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if err != nil && (!strings.Contains(err.Error(), tt.text) || !strings.Contains(err.Error(), "file://"+tt.path)) {
				t.Errorf("text %q lacks %q or the path", err, tt.text)
			}
		})
	}
}
