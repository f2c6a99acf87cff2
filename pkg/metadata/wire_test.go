package metadata

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

// Answers as they may come: what net/http would take is taken, and what it would refuse is refused.
func TestReadAnswer(t *testing.T) {
	tests := []struct {
		name, text, body string
		code             int
		bad              bool
	}{
		{"length", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef", "abc", 200, false},
		{"until the end", "HTTP/1.0 200 OK\r\n\r\nabc", "abc", 200, false},
		{"no text", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "", 200, false},
		{"bare line feeds", "HTTP/1.1 200 OK\nContent-Length: 1\n\na", "a", 200, false},
		{"chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nT: 1\r\n\r\n", "abc0123456789", 200, false},
		{"chunked in capitals", "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n0\r\n\r\n", "", 200, false},
		{"interim answer", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na", "a", 200, false},
		{"same length twice", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", "a", 200, false},
		{"204 has no body", "HTTP/1.1 204 No Content\r\n\r\nrest", "", 204, false},

		{"nothing", "", "", 0, true},
		{"half a line", "HTTP/1.1 20", "", 0, true},
		{"no header end", "HTTP/1.1 200 OK\r\nA: b\r\n", "", 0, true},
		{"another protocol", "SSH-2.0-OpenSSH_9.2\r\n\r\n", "", 0, true},
		{"HTTP/2", "HTTP/2.0 200 OK\r\n\r\n", "", 0, true},
		{"code with a sign", "HTTP/1.1 +20 OK\r\n\r\n", "", 0, true},
		{"code of four digits", "HTTP/1.1 2000 OK\r\n\r\n", "", 0, true},
		{"code below 100", "HTTP/1.1 099 OK\r\n\r\n", "", 0, true},
		{"interim answers without end", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 100), "", 0, true},
		{"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", "", 0, true},
		{"negative length", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nab", "", 0, true},
		{"another coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "", 0, true},
		{"long header", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", maxHeaderBytes) + "\r\n\r\n", "", 0, true},
		{"cut", "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", "", 200, true},
		{"cut in a chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabc", "", 200, true},
		{"cut before the last chunk", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", "", 200, true},
		{"chunk of no size", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\r\nabc", "", 200, true},
		{"chunk with a sign", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nabc", "", 200, true},
		{"chunk too large", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc", "", 200, true},
		{"chunk longer than it says", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n", "", 200, true},
		{"chunk line without end", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + strings.Repeat("x", 1<<16), "", 200, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, r := range []io.Reader{strings.NewReader(tt.text), iotest.OneByteReader(strings.NewReader(tt.text))} {
				code, body, err := readWhole(r)
				switch {
				case tt.bad && err == nil:
					t.Errorf("%d %q was taken", code, body)
				case tt.bad && errors.Is(err, io.EOF):
					t.Errorf("%v looks like an end that was due", err)
				case !tt.bad && (err != nil || code != tt.code || body != tt.body):
					t.Errorf("%d %q, %v; want %d %q", code, body, err, tt.code, tt.body)
				}
			}
		})
	}
}

func readWhole(r io.Reader) (code int, body string, err error) {
	a, err := readAnswer(r)
	if err != nil {
		return 0, "", err
	}
	b, err := io.ReadAll(a.body)
	return a.code, string(b), err
}

// Real servers chunk what they flush; all of it arrives.
func TestFetch_chunked(t *testing.T) {
	text := document(entry(`"02005E100004"`, list(many(1000)...), `[]`))
	_, c := start(t, func(w http.ResponseWriter, _ *http.Request) {
		for part := range strings.SplitAfterSeq(text, ",") {
			_, _ = io.WriteString(w, part)
			_ = http.NewResponseController(w).Flush()
		}
	})
	doc, err := c.Fetch(t.Context())
	if err != nil || len(doc.NICs) != 1 || len(doc.NICs[0].V4) != 1000 {
		t.Errorf("%d NICs, %v", len(doc.NICs), err)
	}
}

// Whatever a server sends, it is an answer or an error, and the body has an end.
func FuzzReadAnswer(f *testing.F) {
	f.Add("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
	f.Add("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x\r\nabc\r\n0\r\n\r\n")
	f.Add("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 410 Gone\r\nRetry-After: 1\r\n\r\n")
	f.Fuzz(func(t *testing.T, text string) {
		code, body, err := readWhole(strings.NewReader(text))
		if err == nil && (code < 200 || code > 999 || len(body) > len(text)) {
			t.Errorf("%d, %d bytes of body out of %d", code, len(body), len(text))
		}
	})
}
