package metadata

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

// failure is one attempt without a document.
type failure struct {
	kind       error         // sentinel
	detail     string        // the last answer, for people
	retry      bool          // another attempt may help
	retryAfter time.Duration // what the service asked for; 0: nothing
	apiVersion bool          // the service doesn't know our version
}

func (f *failure) Error() string { return f.kind.Error() + ": " + f.detail }

// broken is an attempt that ended without a whole answer.
func broken(ctx context.Context, err error, took time.Duration) *failure {
	detail := err.Error()
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
		detail = "no complete answer within " + seconds(took)
	}
	return &failure{kind: ErrUnreachable, detail: detail, retry: true}
}

// answered is an attempt that ended with another status than 200.
func answered(a *answer) *failure {
	text := excerpt(a.body)
	f := &failure{detail: strings.TrimSpace(fmt.Sprintf("answered %d %s", a.code, texts[a.code]))}
	if location := a.header.Get("Location"); location != "" && a.code/100 == 3 {
		f.detail += fmt.Sprintf(" to %q, which is not followed", cut(location))
	}
	if text != "" {
		f.detail += fmt.Sprintf(" %q", text)
	}
	switch {
	case a.code == statusTooManyRequests:
		f.kind, f.retry = ErrThrottled, true
	case a.code == statusNotFound, a.code == statusGone, a.code >= 500:
		f.kind, f.retry = ErrUnavailable, true
	default:
		f.kind = ErrRefused
		f.apiVersion = a.code == statusBadRequest && strings.Contains(strings.ToLower(text), "api-version")
	}
	if f.retry {
		f.retryAfter = retryAfter(a.header, time.Now())
	}
	return f
}

// retryAfter reads the header of that name, seconds or a date (RFC 9110, 10.2.3); 0 if there is none, it is past or unreadable. A
// date is measured against the answer's own Date: the clock of a machine that has just booted may be wrong.
func retryAfter(h textproto.MIMEHeader, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if n, err := strconv.ParseUint(v, 10, 64); err == nil {
		return time.Duration(min(n, math.MaxInt64/uint64(time.Second))) * time.Second
	} else if errors.Is(err, strconv.ErrRange) {
		return math.MaxInt64
	}
	until, err := parseDate(v)
	if err != nil {
		return 0
	}
	if sent, err := parseDate(h.Get("Date")); err == nil {
		now = sent
	}
	return max(until.Sub(now), 0)
}

// excerpt returns the beginning of an error answer on one line.
func excerpt(r io.Reader) string {
	b, _ := io.ReadAll(io.LimitReader(r, 4*excerptBytes)) // what came before an error is as good
	return cut(strings.Join(strings.Fields(string(b)), " "))
}

// cut shortens a foreign text for an error or a problem.
func cut(s string) string {
	if len(s) <= excerptBytes {
		return s
	}
	return strings.ToValidUTF8(s[:excerptBytes], "") + "…"
}
