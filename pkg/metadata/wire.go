package metadata

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

// net/http does more than this, and costs every ADD and DEL: with TLS, HTTP/2 and certificates it is 3.4 MB of the binary and a
// fifth of the processor time that the start of the process takes, for one plain GET a minute that most invocations don't send.

const (
	maxHeaderBytes = 64 << 10
	// maxInterim bounds the answers 1xx that may come before the one that counts.
	maxInterim = 5
)

// The statuses that make a difference.
const (
	statusOK              = 200
	statusBadRequest      = 400
	statusNotFound        = 404
	statusGone            = 410
	statusTooManyRequests = 429
)

var errAnswer = errors.New("not an HTTP/1 answer")

// answer is the answer to one request: status line, header, and a body whose end is known.
type answer struct {
	code   int
	header textproto.MIMEHeader
	body   io.Reader
	length int64 // -1: not announced
}

// get sends one GET and reads the answer up to its body; the caller calls done when the body is read. The connection doesn't
// outlive ctx.
func get(ctx context.Context, dial dialer, addr, head string) (a *answer, done func(), err error) {
	conn, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil, nil, err
	}
	// A deadline of long ago is how a blocked read or write is ended.
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	done = func() { stop(); _ = conn.Close() }
	if _, err = io.WriteString(conn, head); err == nil {
		a, err = readAnswer(conn)
	}
	if err != nil {
		done()
		return nil, nil, err
	}
	return a, done, nil
}

type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// requestHead is all of a GET. The version is 1.1 since that is what the service is asked with by everybody; the connection is
// for one request.
func requestHead(host, uri string) string {
	return "GET " + uri + " HTTP/1.1\r\nHost: " + host + "\r\nUser-Agent: " + userAgent +
		"\r\nAccept: application/json\r\nMetadata: true\r\nConnection: close\r\n\r\n"
}

func readAnswer(conn io.Reader) (*answer, error) {
	limit := &io.LimitedReader{R: conn, N: maxHeaderBytes}
	r := bufio.NewReader(limit)
	a, err := readHead(textproto.NewReader(r))
	if err != nil {
		if limit.N <= 0 {
			return nil, fmt.Errorf("%w: header longer than %d bytes", errAnswer, maxHeaderBytes)
		}
		return nil, broke(err)
	}
	limit.N = math.MaxInt64 // from here on the reader of the body counts
	return a, a.readBody(r)
}

// readHead reads status line and header of the first answer that isn't an interim one.
func readHead(r *textproto.Reader) (*answer, error) {
	for range maxInterim + 1 {
		line, err := r.ReadLine()
		if err != nil {
			return nil, err
		}
		a := &answer{length: -1}
		if a.code, err = statusCode(line); err != nil {
			return nil, err
		}
		if a.header, err = r.ReadMIMEHeader(); err != nil {
			return nil, err
		}
		if a.code >= 200 {
			return a, nil
		}
	}
	return nil, fmt.Errorf("%w: more than %d interim answers", errAnswer, maxInterim)
}

// statusCode reads "HTTP/1.1 200 OK"; the text at the end may be missing.
func statusCode(line string) (int, error) {
	version, rest, _ := strings.Cut(line, " ")
	digits, _, _ := strings.Cut(strings.TrimLeft(rest, " "), " ")
	code, err := strconv.ParseUint(digits, 10, 16)
	if !strings.HasPrefix(version, "HTTP/1.") || len(digits) != 3 || err != nil || code < 100 {
		return 0, fmt.Errorf("%w: begins with %q", errAnswer, cut(line))
	}
	return int(code), nil
}

// readBody finds out where the body ends (RFC 9112, 6.3): by chunks, by a length, or with the connection.
func (a *answer) readBody(r *bufio.Reader) error {
	if codings := a.header["Transfer-Encoding"]; len(codings) > 0 {
		if len(codings) > 1 || !strings.EqualFold(strings.TrimSpace(codings[0]), "chunked") {
			return fmt.Errorf("%w: transfer encoding %q", errAnswer, cut(strings.Join(codings, ", ")))
		}
		a.body = &chunks{r: r}
		return nil
	}
	lengths := a.header["Content-Length"]
	switch {
	case a.code == 204 || a.code == 304:
		a.length, a.body = 0, strings.NewReader("")
		return nil
	case len(lengths) == 0:
		a.body = r
		return nil
	}
	for _, l := range lengths {
		n, err := strconv.ParseUint(strings.TrimSpace(l), 10, 63)
		if err != nil || a.length >= 0 && a.length != int64(n) {
			return fmt.Errorf("%w: content length %q", errAnswer, cut(strings.Join(lengths, ", ")))
		}
		a.length = int64(n)
	}
	a.body = &exactly{r: r, left: a.length}
	return nil
}

// exactly ends after so many bytes, and is an error when there are fewer.
type exactly struct {
	r    io.Reader
	left int64
}

func (e *exactly) Read(p []byte) (int, error) {
	if e.left <= 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	if e.left > 0 {
		err = broke(err)
	}
	return n, err
}

// chunks reads a body in chunks (RFC 9112, 7.1). What may follow the last one goes with the connection.
type chunks struct {
	r     *bufio.Reader // its buffer bounds a line
	left  int64         // of the present chunk
	begun bool
	last  bool
}

func (c *chunks) Read(p []byte) (int, error) {
	if c.left == 0 && !c.last {
		if err := c.begin(); err != nil {
			return 0, broke(err)
		}
	}
	if c.last {
		return 0, io.EOF
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, broke(err)
}

// begin reads the line end of the chunk before, and the size of the next.
func (c *chunks) begin() error {
	if c.begun {
		if end, err := c.r.ReadSlice('\n'); err != nil || strings.TrimRight(string(end), "\r\n") != "" {
			return errors.Join(err, fmt.Errorf("%w: chunk without its end", errAnswer))
		}
	}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return err
	}
	size, _, _ := strings.Cut(string(line), ";")
	n, err := strconv.ParseUint(strings.TrimSpace(size), 16, 63)
	if err != nil {
		return fmt.Errorf("%w: chunk of size %q", errAnswer, cut(size))
	}
	c.begun, c.left, c.last = true, int64(n), n == 0
	return nil
}

// broke tells an end that came too soon from one that was due.
func broke(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// texts of the answers that are expected, since the service's own text isn't to be trusted.
var texts = map[int]string{
	301: "Moved Permanently", 302: "Found", 303: "See Other", 307: "Temporary Redirect", 308: "Permanent Redirect",
	400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed", 410: "Gone",
	429: "Too Many Requests", 500: "Internal Server Error", 502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout",
}

// parseDate reads the three forms of a date in a header (RFC 9110, 5.6.7).
func parseDate(v string) (t time.Time, err error) {
	for _, form := range []string{"Mon, 02 Jan 2006 15:04:05 GMT", time.RFC850, time.ANSIC} {
		if t, err = time.Parse(form, v); err == nil {
			return t, nil
		}
	}
	return t, err
}
