package metadata

import (
	"context"
	"errors"
	"net"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// expectation is how a script ends.
type expectation struct {
	err      error  // nil: a document
	text     string // a regular expression for all of the error's text
	requests [2]int // how many, from … to
	took     [2]time.Duration
	gaps     [][2]time.Duration // between requests, as far as given
}

const fetchText = `^fetch http://169\.254\.169\.254/metadata/instance\?api-version=2021-02-01: `

// The scripts of the field case BR-09 in literal times, which pass virtually: 20 s is the deadline.
func TestFetch_scripts(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	first, second := [2]time.Duration{100 * ms, 200 * ms}, [2]time.Duration{200 * ms, 400 * ms}
	tests := []struct {
		name  string
		steps []step
		want  expectation
	}{
		{"1: 410, 410, 200", []step{status(410, "Gone"), status(410, "Gone"), good()}, expectation{
			requests: [2]int{3, 3}, took: [2]time.Duration{300 * ms, 600 * ms}, gaps: [][2]time.Duration{first, second},
		}},
		{"2: 429 with Retry-After: 2, then 200", []step{status(429, "", "Retry-After", "2"), good()}, expectation{
			requests: [2]int{2, 2}, took: [2]time.Duration{2 * s, 2 * s}, gaps: [][2]time.Duration{{2 * s, 2 * s}},
		}},
		{"3: 429 always", []step{status(429, "Too many requests")}, expectation{
			err: ErrThrottled, requests: [2]int{6, 12}, took: [2]time.Duration{15 * s, 20 * s},
			text: fetchText + `metadata service throttles this machine: answered 429 Too Many Requests "Too many requests" \(\d+ attempts in 1\d\.\ds\)$`,
		}},
		{"3b: 429 with Retry-After: 60", []step{status(429, "", "Retry-After", "60")}, expectation{
			err: ErrThrottled, requests: [2]int{1, 1}, took: [2]time.Duration{0, 0},
			text: fetchText + `metadata service throttles this machine: answered 429 Too Many Requests, Retry-After asks for 60\.0s and 20\.0s are left \(1 attempt in 0\.0s\)$`,
		}},
		{"4: 500 once", []step{status(500, ""), good()}, expectation{
			requests: [2]int{2, 2}, took: [2]time.Duration{100 * ms, 200 * ms}, gaps: [][2]time.Duration{first},
		}},
		{"5: 400 unsupported api-version always", []step{status(400, "unsupported api-version")}, expectation{
			err: ErrRefused, requests: [2]int{2, 2}, took: [2]time.Duration{0, 0},
			text: `^fetch http://169\.254\.169\.254/metadata/instance\?api-version=2019-06-01: metadata service refused the request: answered 400 Bad Request "unsupported api-version" \(2 attempts in 0\.0s\)$`,
		}},
		{"5b: 400 for the newer api-version", []step{status(400, "api-version is invalid"), good()}, expectation{requests: [2]int{2, 2}}},
		{"5c: 400 for another reason", []step{status(400, "Required metadata header not specified")}, expectation{
			err: ErrRefused, requests: [2]int{1, 1}, text: `Required metadata header not specified" \(1 attempt in 0\.0s\)$`,
		}},
		{"6: 404 once", []step{status(404, "Not found"), good()}, expectation{
			requests: [2]int{2, 2}, took: [2]time.Duration{100 * ms, 200 * ms}, gaps: [][2]time.Duration{first},
		}},
		{"6b: 404 always", []step{status(404, "")}, expectation{
			err: ErrUnavailable, requests: [2]int{6, 12}, took: [2]time.Duration{15 * s, 20 * s},
			text: fetchText + `metadata service not ready: answered 404 Not Found \(\d+ attempts in 1\d\.\ds\)$`,
		}},
		{"7: answers after 8 s", []step{after(8*s, good())}, expectation{
			err: ErrUnreachable, requests: [2]int{4, 4}, took: [2]time.Duration{15 * s, 20 * s},
			text: fetchText + `metadata service unreachable: no complete answer within \d\.\ds \(4 attempts in 20\.0s\): context deadline exceeded$`,
		}},
		{"7b: answers after 8 s, once", []step{after(8*s, good()), good()}, expectation{
			requests: [2]int{2, 2}, took: [2]time.Duration{5100 * ms, 5200 * ms},
		}},
		{"8: one byte per second", []step{drip(s)}, expectation{
			err: ErrUnreachable, requests: [2]int{4, 4}, took: [2]time.Duration{15 * s, 20 * s},
			text: fetchText + `metadata service unreachable: no complete answer within \d\.\ds \(4 attempts in 20\.0s\): context deadline exceeded$`,
		}},
		{"9: connection refused", nil, expectation{
			err: ErrUnreachable, took: [2]time.Duration{15 * s, 20 * s},
			text: fetchText + `metadata service unreachable: connect: connection refused \(\d+ attempts in 1\d\.\ds\)$`,
		}},
		{"10: 302 to another host", []step{status(302, "", "Location", "http://evil.example/x")}, expectation{
			err: ErrRefused, requests: [2]int{1, 1},
			text: fetchText + `metadata service refused the request: answered 302 Found to "http://evil\.example/x", which is not followed \(1 attempt in 0\.0s\)$`,
		}},
		{"500, then cut off by the deadline", []step{status(500, "oops", "Retry-After", "16"), after(time.Minute, good())}, expectation{
			err: ErrUnavailable, requests: [2]int{2, 2}, took: [2]time.Duration{20 * s, 20 * s},
			text: fetchText + `metadata service not ready: answered 500 Internal Server Error "oops" \(2 attempts in 20\.0s\): context deadline exceeded$`,
		}},
		{"answer cut short, then 200", []step{hangUp, good()}, expectation{
			requests: [2]int{2, 2}, gaps: [][2]time.Duration{first},
		}},
		{"503 with a date", []step{dated(3 * s), good()}, expectation{
			requests: [2]int{2, 2}, gaps: [][2]time.Duration{{3 * s, 3 * s}},
		}},
		{"Retry-After: 0 is not at once", []step{status(429, "", "Retry-After", "0"), good()}, expectation{
			requests: [2]int{2, 2}, gaps: [][2]time.Duration{first},
		}},
		{"403", []step{status(403, "Forbidden")}, expectation{err: ErrRefused, requests: [2]int{1, 1}}},
		{"200 without network", []step{status(200, `{"compute":{}}`)}, expectation{
			err: ErrIncomplete, requests: [2]int{1, 1}, text: fetchText + `metadata document is incomplete: it has no network part$`,
		}},
		{"200 with a page", []step{status(200, `<html>`)}, expectation{
			err: ErrMalformed, requests: [2]int{1, 1}, text: fetchText + `metadata document is malformed: invalid character '<' looking for beginning of value$`,
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, c := startVirtual(t, tt.steps...)
				ctx, cancel := context.WithTimeout(t.Context(), 20*s)
				defer cancel()
				began := time.Now()
				_, err := c.Fetch(ctx)
				tt.want.check(t, server, err, time.Since(began))
			})
		})
	}
}

func (e expectation) check(t *testing.T, s *server, err error, took time.Duration) {
	t.Helper()
	if (e.err == nil) != (err == nil) || !errors.Is(err, e.err) {
		t.Fatalf("got %v, want %v", err, e.err)
	}
	if err != nil && !regexp.MustCompile(e.text).MatchString(err.Error()) {
		t.Errorf("text %q doesn't match %q", err, e.text)
	}
	if n := len(s.asked()); n < e.requests[0] || n > e.requests[1] {
		t.Errorf("%d requests, want %v: %v", n, e.requests, s.gaps())
	}
	if e.took[1] > 0 && (took < e.took[0] || took > e.took[1]) {
		t.Errorf("took %s, want %v", took, e.took)
	}
	gaps := s.gaps()
	for i, want := range e.gaps {
		if i < len(gaps) && (gaps[i] < want[0] || gaps[i] > want[1]) {
			t.Errorf("request %d came %s after the one before, want %v", i+2, gaps[i], want)
		}
	}
}

// The same scripts by TCP and in real time: deadline 1.2 s, waits shortened to 40–160 ms, 400 ms per attempt.
func TestFetch_scriptsOverTCP(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		name     string
		steps    []step
		err      error
		requests [2]int
		atLeast  time.Duration // the first wait
	}{
		{"1: 410, 410, 200", []step{status(410, ""), status(410, ""), good()}, nil, [2]int{3, 3}, 20 * ms},
		{"2: 429 with Retry-After: 1, then 200", []step{status(429, "", "Retry-After", "1"), good()}, nil, [2]int{2, 2}, 1000 * ms},
		{"3: 429 always", []step{status(429, "")}, ErrThrottled, [2]int{5, 20}, 20 * ms},
		{"4: 500 once", []step{status(500, ""), good()}, nil, [2]int{2, 2}, 20 * ms},
		{"5: 400 always", []step{status(400, "unsupported api-version")}, ErrRefused, [2]int{2, 2}, 0},
		{"6: 404 once", []step{status(404, ""), good()}, nil, [2]int{2, 2}, 20 * ms},
		{"7: answers late", []step{after(800*ms, good())}, ErrUnreachable, [2]int{2, 3}, 400 * ms},
		{"8: drips", []step{drip(20 * ms)}, ErrUnreachable, [2]int{2, 3}, 400 * ms},
		{"10: 302", []step{status(302, "", "Location", "http://127.0.0.1:1/")}, ErrRefused, [2]int{1, 1}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			server, c := start(t, tt.steps...)
			ctx, cancel := context.WithTimeout(t.Context(), 1200*ms)
			defer cancel()
			began := time.Now()
			_, err := c.Fetch(ctx)
			if (tt.err == nil) != (err == nil) || !errors.Is(err, tt.err) {
				t.Fatalf("got %v, want %v", err, tt.err)
			}
			if took := time.Since(began); took > 1500*ms {
				t.Errorf("took %s, long after the deadline", took)
			}
			gaps := server.gaps()
			if n := len(gaps) + 1; n < tt.requests[0] || n > tt.requests[1] {
				t.Errorf("%d requests, want %v: %v", n, tt.requests, gaps)
			}
			if len(gaps) > 0 && gaps[0] < tt.atLeast {
				t.Errorf("second request after %s, want at least %s", gaps[0], tt.atLeast)
			}
		})
	}
}

// BR-09 (2) word for word: the wait of two seconds is one of two seconds.
func TestFetch_retryAfterTwoSecondsOverTCP(t *testing.T) {
	t.Parallel()
	server, c := start(t, status(429, "", "Retry-After", "2"), good())
	if _, err := c.Fetch(t.Context()); err != nil {
		t.Fatal(err)
	}
	if gaps := server.gaps(); len(gaps) != 1 || gaps[0] < 2*time.Second || gaps[0] > 2500*time.Millisecond {
		t.Errorf("gaps %v, want one of 2 s", gaps)
	}
}

// BR-09 (9): nobody listens.
func TestFetch_connectionRefusedOverTCP(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = ln.Close()
	c := client(t, "http://"+ln.Addr().String(), timing{attempt: time.Second, first: 40 * time.Millisecond, max: 80 * time.Millisecond})
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err = c.Fetch(ctx)
	if !errors.Is(err, ErrUnreachable) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v", err)
	}
}
