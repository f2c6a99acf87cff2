package metadata

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/url"
	"time"

	"github.com/native-vmss/native-vmss/internal/failpoint"
)

const (
	instancePath = "/metadata/instance"
	// apiVersion is on every machine; olderAPIVersion is the one that cilium's agent uses, asked for when apiVersion is refused.
	apiVersion      = "2021-02-01"
	olderAPIVersion = "2019-06-01"
	userAgent       = "native-vmss"
	// excerptBytes is how much of an error answer goes into our error text.
	excerptBytes = 200
	// defaultDeadline is that of a context without one.
	defaultDeadline = 30 * time.Second
)

// timing holds the waits; tests shorten them.
type timing struct {
	attempt time.Duration // for one request with its answer
	first   time.Duration // longest first wait
	max     time.Duration // longest wait
}

// defaultTiming: the service allows 5 requests per second and machine, and may answer 410 for up to 70 s (IMDS reference, "Errors").
var defaultTiming = timing{attempt: 5 * time.Second, first: 200 * time.Millisecond, max: 4 * time.Second}

type httpSource struct {
	host   string // as in the URL
	addr   string // with a port
	dial   dialer // directly: a proxy would answer for itself, and IMDS is link-local
	timing timing
	log    *slog.Logger
}

func newHTTPSource(u *url.URL, log *slog.Logger) *httpSource {
	port := u.Port()
	if port == "" {
		port = "80"
	}
	return &httpSource{
		host: u.Host, addr: net.JoinHostPort(u.Hostname(), port),
		dial: (&net.Dialer{}).DialContext, timing: defaultTiming, log: log,
	}
}

func (s *httpSource) String() string { return s.url(apiVersion) }

func (s *httpSource) url(version string) string { return "http://" + s.host + uri(version) }

func uri(version string) string { return instancePath + "?api-version=" + version }

// fetch is the state of one read: what was asked, and how often.
type fetch struct {
	*httpSource
	version  string
	attempts int
	started  time.Time
	deadline time.Time
}

// read asks until there is an answer that counts, or no time for another attempt.
func (s *httpSource) read(ctx context.Context) ([]byte, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultDeadline)
		defer cancel()
	}
	f := &fetch{httpSource: s, version: apiVersion, started: time.Now()}
	f.deadline, _ = ctx.Deadline()
	var last *failure
	for {
		body, fail := f.attempt(ctx)
		if fail == nil {
			return body, nil
		}
		if last != nil && ctx.Err() != nil && errors.Is(fail.kind, ErrUnreachable) {
			fail = last // an attempt that the deadline cut off says less than the one before
		}
		last = fail
		wait, err := f.next(ctx, fail)
		if err != nil {
			return nil, err
		}
		s.log.Warn("metadata request failed, will retry", "url", f.url(f.version), "err", fail, "wait", wait)
		if err := sleep(ctx, wait); err != nil {
			return nil, f.final(ctx, fail)
		}
	}
}

// next decides what follows a failed attempt: a wait, or the error that ends the fetch.
func (f *fetch) next(ctx context.Context, fail *failure) (time.Duration, error) {
	if ctx.Err() != nil {
		return 0, f.final(ctx, fail)
	}
	if fail.apiVersion && f.version == apiVersion {
		f.version = olderAPIVersion
		return 0, nil
	}
	if !fail.retry {
		return 0, f.final(ctx, fail)
	}
	wait := fail.retryAfter
	if wait <= 0 {
		wait = f.timing.backoff(f.attempts)
	}
	if left := time.Until(f.deadline); wait >= left {
		if fail.retryAfter > 0 {
			fail.detail += fmt.Sprintf(", Retry-After asks for %s and %s are left", seconds(wait), seconds(left))
		}
		return 0, f.final(ctx, fail)
	}
	return wait, nil
}

// final words the end. The context's error is in the chain if the context ended it.
func (f *fetch) final(ctx context.Context, fail *failure) error {
	noun := "attempts"
	if f.attempts == 1 {
		noun = "attempt"
	}
	err := fmt.Errorf("fetch %s: %w: %s (%d %s in %s)",
		f.url(f.version), fail.kind, fail.detail, f.attempts, noun, seconds(time.Since(f.started)))
	if ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", err, ctx.Err())
	}
	return err
}

// attempt sends one request. The failure is nil if body is the answer.
func (f *fetch) attempt(ctx context.Context) ([]byte, *failure) {
	f.attempts++
	ctx, cancel := context.WithTimeout(ctx, f.timing.attempt)
	defer cancel()
	began := time.Now()
	a, done, err := f.send(ctx)
	if err != nil {
		return nil, broken(ctx, err, time.Since(began))
	}
	defer done()
	if a.code != statusOK {
		return nil, answered(a)
	}
	body, err := readAll(a.body, a.length)
	switch {
	case errors.Is(err, ErrMalformed):
		return nil, &failure{kind: ErrMalformed, detail: fmt.Sprintf("200 OK, answer longer than %d bytes", maxBody)}
	case err != nil:
		return nil, broken(ctx, fmt.Errorf("200 OK, then %w", err), time.Since(began))
	}
	return body, nil
}

// send is the only place that talks to the network. It follows no redirect.
func (f *fetch) send(ctx context.Context) (a *answer, done func(), err error) {
	if err := failpoint.Hit("metadata.request"); err != nil {
		return nil, nil, err
	}
	return get(ctx, f.dial, f.addr, requestHead(f.host, uri(f.version)))
}

// backoff is the wait after attempt n, which counts from 1: a random half of first·2^(n-1) on top of the other half, so that
// the pods of a node that start together don't ask together.
func (t timing) backoff(n int) time.Duration {
	d := t.max
	if n < 16 {
		d = min(t.first<<(n-1), t.max)
	}
	return d/2 + rand.N(d/2+1)
}

// sleep waits for d or for the end of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// seconds never says more than what has passed: attempts that end before 20 s take 19.9s.
func seconds(d time.Duration) string {
	return fmt.Sprintf("%.1fs", max(d, 0).Truncate(100*time.Millisecond).Seconds())
}
