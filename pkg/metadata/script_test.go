package metadata

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"
)

// step answers one request of a script.
type step func(w http.ResponseWriter, r *http.Request)

// server answers requests by a script, its last step for ever, and notes when and what was asked.
type server struct {
	mu       sync.Mutex
	steps    []step
	times    []time.Time
	requests []*http.Request
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	n := min(len(s.times), len(s.steps)-1)
	s.times = append(s.times, time.Now())
	s.requests = append(s.requests, r)
	s.mu.Unlock()
	s.steps[n](w, r)
}

// gaps are the times between the arrivals.
func (s *server) gaps() (gaps []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := 1; i < len(s.times); i++ {
		gaps = append(gaps, s.times[i].Sub(s.times[i-1]))
	}
	return gaps
}

func (s *server) asked() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// status answers with a status, a text and headers (key, value, …).
func status(code int, text string, headers ...string) step {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(headers); i += 2 {
			w.Header().Set(headers[i], headers[i+1])
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text)
	}
}

func good() step {
	return status(http.StatusOK, document(entry(`"02005E100004"`, list("10.20.0.4"), `[]`)))
}

// after answers as next does, d later; not at all if the client leaves.
func after(d time.Duration, next step) step {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := sleep(r.Context(), d); err == nil {
			next(w, r)
		}
	}
}

// drip sends a document at one byte per d.
func drip(d time.Duration) step {
	return func(w http.ResponseWriter, r *http.Request) {
		for range 1000 {
			if _, err := io.WriteString(w, " "); err != nil {
				return
			}
			if err := http.NewResponseController(w).Flush(); err != nil {
				return
			}
			if err := sleep(r.Context(), d); err != nil {
				return
			}
		}
	}
}

// hangUp closes the connection after half an answer.
func hangUp(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "1000")
	_, _ = io.WriteString(w, `{"network":`)
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// start serves the script on 127.0.0.1 and returns a client of it, with short waits.
func start(t *testing.T, steps ...step) (*server, *Client) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &server{steps: steps}
	serve(t, s, ln)
	return s, client(t, "http://"+ln.Addr().String(), timing{attempt: 400 * time.Millisecond, first: 40 * time.Millisecond, max: 160 * time.Millisecond})
}

// serve runs s until the end of the test.
func serve(t *testing.T, s *server, ln net.Listener) {
	t.Helper()
	web := &http.Server{Handler: s}
	done := make(chan struct{})
	go func() {
		_ = web.Serve(ln)
		close(done)
	}()
	t.Cleanup(func() {
		_ = web.Close()
		<-done
	})
}

func client(t *testing.T, base string, waits timing) *Client {
	t.Helper()
	c, err := New(base, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.source.(*httpSource).timing = waits
	return c
}

// pipes is a listener whose connections exist in memory only, so that testing/synctest sees its goroutines wait.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
		return nil, errors.New("connect: connection refused")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// startVirtual serves the script in memory, inside of a bubble of testing/synctest, with the shipped waits.
func startVirtual(t *testing.T, steps ...step) (*server, *Client) {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	s := &server{steps: steps}
	if len(steps) > 0 {
		serve(t, s, p)
	} else {
		_ = p.Close() // nobody listens
	}
	c := client(t, "http://169.254.169.254", defaultTiming)
	c.source.(*httpSource).dial = p.dial
	return s, c
}

// versions lists the api-versions that were asked for.
func versions(requests []*http.Request) string {
	var list []string
	for _, r := range requests {
		v, _ := url.ParseQuery(r.URL.RawQuery)
		list = append(list, v.Get("api-version"))
	}
	return strings.Join(list, " ")
}
