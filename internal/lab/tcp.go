package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
)

// bufferSize of reads and writes in throughput runs: large, so that the kernel and not the program is measured.
const bufferSize = 256 << 10

// Verdict is how an attempt to connect ended.
type Verdict string

// What Connect can say.
const (
	Connected   Verdict = "connected"
	Refused     Verdict = "refused"     // a TCP reset, or port unreachable
	Unreachable Verdict = "unreachable" // an ICMP error, or no route
	TimedOut    Verdict = "timeout"
)

// Connect tries one TCP connection from inside the namespace and closes it again.
func (n *Namespace) Connect(ctx context.Context, to netip.AddrPort, timeout time.Duration) (Verdict, error) {
	c, err := n.DialTCP(ctx, netip.Addr{}, to, timeout)
	if err == nil {
		return Connected, c.Close()
	}
	return verdict(err)
}

func verdict(err error) (Verdict, error) {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return Refused, nil
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.ETIMEDOUT):
		return TimedOut, nil
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EACCES):
		return Unreachable, nil
	}
	return "", err
}

// Exchange connects, sends a line and returns what an echo server sends back, with the connection's own address.
func (n *Namespace) Exchange(ctx context.Context, to netip.AddrPort, text string, timeout time.Duration) (answer string, local netip.AddrPort, err error) {
	c, err := n.DialTCP(ctx, netip.Addr{}, to, timeout)
	if err != nil {
		return "", local, err
	}
	defer c.Close()
	local = addrPort(c.LocalAddr())
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", local, err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return "", local, err
	}
	buf := make([]byte, len(text))
	_, err = io.ReadFull(c, buf)
	return string(buf), local, err
}

// Throughput sends one TCP stream from a namespace to a SinkTCP server for a while and returns bytes per second as received.
func (n *Namespace) Throughput(ctx context.Context, sink *Server, to netip.AddrPort, d time.Duration) (float64, error) {
	c, err := n.DialTCP(ctx, netip.Addr{}, to, 5*time.Second)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	buf := make([]byte, bufferSize)
	begin, before := time.Now(), sink.Bytes()
	if err := c.SetDeadline(begin.Add(d)); err != nil {
		return 0, err
	}
	for {
		if _, err := c.Write(buf); errors.Is(err, os.ErrDeadlineExceeded) {
			break
		} else if err != nil {
			return 0, fmt.Errorf("send to %s: %w", to, err)
		}
	}
	return float64(sink.Bytes()-before) / time.Since(begin).Seconds(), nil
}

// RoundTrips sends count single bytes to an echo server, each after the answer to the one before, and returns the median time.
func (n *Namespace) RoundTrips(ctx context.Context, to netip.AddrPort, count int) (time.Duration, error) {
	c, err := n.DialTCP(ctx, netip.Addr{}, to, 5*time.Second)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10*time.Second + time.Duration(count)*time.Millisecond)); err != nil {
		return 0, err
	}
	times := make([]time.Duration, 0, count)
	b := []byte{1}
	for range count {
		begin := time.Now()
		if _, err := c.Write(b); err != nil {
			return 0, err
		}
		if _, err := io.ReadFull(c, b); err != nil {
			return 0, err
		}
		times = append(times, time.Since(begin))
	}
	return median(times), nil
}

// Handshakes connects to every peer once, a few at a time, and returns how many answered and why the others didn't. The peers echo
// one byte: a connection that only this end thinks open is lost to a server whose kernel sees the reset first.
func (n *Namespace) Handshakes(ctx context.Context, peers []netip.AddrPort, parallel int, timeout time.Duration) (done int, failed map[netip.AddrPort]error) {
	work := make(chan netip.AddrPort)
	failed = map[netip.AddrPort]error{}
	var mu sync.Mutex
	one := func(p netip.AddrPort) {
		err := shake(ctx, p, timeout)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			failed[p] = err
			return
		}
		done++
	}
	var wg sync.WaitGroup
	for range max(parallel, 1) {
		wg.Go(func() {
			err := n.Do(func() error {
				for p := range work {
					one(p)
				}
				return nil
			})
			if err != nil {
				n.lab.log.Error("handshakes", "error", err)
			}
		})
	}
	for _, p := range peers {
		work <- p
	}
	close(work)
	wg.Wait()
	return done, failed
}

func shake(ctx context.Context, p netip.AddrPort, timeout time.Duration) error {
	d := net.Dialer{Timeout: timeout}
	c, err := d.DialContext(ctx, "tcp4", p.String())
	if err != nil {
		return err
	}
	defer c.Close()
	// No TIME_WAIT: thousands of closed connections are nobody's interest.
	if err := errors.Join(c.(*net.TCPConn).SetLinger(0), c.SetDeadline(time.Now().Add(timeout))); err != nil {
		return err
	}
	b := []byte{1}
	if _, err := c.Write(b); err != nil {
		return err
	}
	_, err = io.ReadFull(c, b)
	return err
}

// HTTPClient makes requests from inside the namespace: no proxy, no redirects, a connection per request.
func (n *Namespace) HTTPClient(timeout time.Duration) *http.Client {
	return &http.Client{
		Timeout:       timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) {
				to, err := netip.ParseAddrPort(addr)
				if err != nil {
					return nil, err
				}
				return n.DialTCP(ctx, netip.Addr{}, to, timeout)
			},
		},
	}
}

// Stream is a TCP connection that stays open and sends a byte at intervals, to see whether anything breaks it.
type Stream struct {
	stop chan struct{}
	done chan struct{}
	res  StreamResult
}

// StreamResult is what became of a stream.
type StreamResult struct {
	Sent, Echoed int
	// MaxGap is the longest time that an answer took.
	MaxGap time.Duration
	// Err is what broke the stream; nil: it held until Stop.
	Err error
}

// StartStream opens a stream to an echo server.
func (n *Namespace) StartStream(ctx context.Context, to netip.AddrPort, every time.Duration) (*Stream, error) {
	c, err := n.DialTCP(ctx, netip.Addr{}, to, 5*time.Second)
	if err != nil {
		return nil, err
	}
	s := &Stream{stop: make(chan struct{}), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		defer c.Close()
		s.run(c, every)
	}()
	return s, nil
}

func (s *Stream) run(c net.Conn, every time.Duration) {
	b := []byte{1}
	for {
		select {
		case <-s.stop:
			return
		case <-time.After(every):
		}
		begin := time.Now()
		if s.res.Err = c.SetDeadline(begin.Add(time.Minute)); s.res.Err != nil {
			return
		}
		s.res.Sent++
		if _, s.res.Err = c.Write(b); s.res.Err != nil {
			return
		}
		if _, s.res.Err = io.ReadFull(c, b); s.res.Err != nil {
			return
		}
		s.res.Echoed++
		s.res.MaxGap = max(s.res.MaxGap, time.Since(begin))
	}
}

// Stop closes the stream and tells how it went.
func (s *Stream) Stop() StreamResult {
	close(s.stop)
	<-s.done
	return s.res
}
