package metadata

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	// configKey is what users know the URL by; errors about it name it.
	configKey = "ipam.metadataURL"
	// maxBody bounds an answer, in bytes. 200,000 addresses are 12 MiB; a machine has at most 256 per NIC.
	maxBody = 32 << 20
)

// Client fetches the document. It may be used by several goroutines.
type Client struct {
	source source
}

// source is where the bytes come from: the service or a file.
type source interface {
	read(ctx context.Context) ([]byte, error)
	String() string
}

var (
	_ source = (*httpSource)(nil)
	_ source = fileSource("")
)

// New returns a client for http://host or file:///path.json, nothing else: the service has neither TLS nor another path, and a
// URL that looks right and never answers would be found out by the first pod. It does no I/O. A nil log discards.
func New(rawURL string, log *slog.Logger) (*Client, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	u, err := url.Parse(rawURL)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", configKey, err)
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%s: %q must be a plain base URL, without user, query or fragment", configKey, u.Redacted())
	}
	switch u.Scheme {
	case "http":
		if u.Hostname() == "" {
			return nil, fmt.Errorf("%s: %q names no host", configKey, rawURL)
		}
		if strings.Trim(u.Path, "/") != "" {
			return nil, fmt.Errorf("%s: %q has a path, which is ours to add", configKey, rawURL)
		}
		return &Client{source: newHTTPSource(u, log)}, nil
	case "file":
		if (u.Host != "" && u.Host != "localhost") || !filepath.IsAbs(u.Path) {
			return nil, fmt.Errorf("%s: %q must have the form file:///absolute/path.json", configKey, rawURL)
		}
		return &Client{source: fileSource(u.Path)}, nil
	}
	return nil, fmt.Errorf("%s: %q must begin with http:// or file:///", configKey, rawURL)
}

// Fetch returns the present document. It tries again as the package comment says and returns before the deadline of ctx.
// A document that the service gave but that can't be used is not asked for again: the caller has an older one.
func (c *Client) Fetch(ctx context.Context) (Document, error) {
	body, err := c.source.read(ctx)
	if err != nil {
		return Document{}, err
	}
	doc, err := Parse(body)
	if err != nil {
		return Document{}, fmt.Errorf("fetch %s: %w", c.source, err)
	}
	return doc, nil
}

// fileSource is a path of a document on disk, for machines whose addresses somebody else lists.
type fileSource string

func (f fileSource) String() string { return "file://" + string(f) }

func (f fileSource) read(context.Context) ([]byte, error) {
	body, err := f.slurp()
	if errors.Is(err, ErrMalformed) {
		return nil, fmt.Errorf("read %s: %w", f, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w: %w", f, ErrUnreachable, err)
	}
	return body, nil
}

// slurp opens without blocking, so that a named pipe can't hold up an ADD.
func (f fileSource) slurp() ([]byte, error) {
	file, err := os.OpenFile(string(f), os.O_RDONLY|syscall.O_NONBLOCK, 0) //nolint:forbidigo // it only reads
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	return readAll(file, info.Size())
}

// readAll reads r to its end, at most maxBody bytes. size is what r announces, negative or 0 if unknown.
func readAll(r io.Reader, size int64) ([]byte, error) {
	tooLong := fmt.Errorf("%w: longer than %d bytes", ErrMalformed, maxBody)
	if size > maxBody {
		return nil, tooLong
	}
	var b bytes.Buffer
	b.Grow(int(max(size, 0)) + bytes.MinRead)
	n, err := b.ReadFrom(io.LimitReader(r, maxBody+1))
	switch {
	case err != nil:
		return nil, err
	case n > maxBody:
		return nil, tooLong
	}
	return b.Bytes(), nil
}
