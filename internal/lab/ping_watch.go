package lab

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"
)

// Pinging is a row of echo requests in the background.
type Pinging struct {
	cancel context.CancelFunc
	done   chan struct{}
	result PingResult
	err    error
}

// StartPing pings until Stop.
func (n *Namespace) StartPing(to netip.Addr, o PingOptions) *Pinging {
	ctx, cancel := context.WithCancel(context.Background())
	p := &Pinging{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.result, p.err = n.Ping(ctx, to, o)
	}()
	return p
}

// Stop ends the row and returns its counts.
func (p *Pinging) Stop() (PingResult, error) {
	p.cancel()
	<-p.done
	return p.result, p.err
}

// EchoWatch remembers who sent echo requests to a namespace. The kernel answers them as ever.
type EchoWatch struct {
	conn *net.IPConn
	done chan struct{}

	mu      sync.Mutex
	sources []netip.Addr
}

// WatchEchoes starts to watch.
func (n *Namespace) WatchEchoes() (*EchoWatch, error) {
	conn, err := n.icmpSocket(PingOptions{})
	if err != nil {
		return nil, err
	}
	w := &EchoWatch{conn: conn, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.watch()
	}()
	return w, nil
}

func (w *EchoWatch) watch() {
	buf := make([]byte, 65536)
	for {
		size, from, err := w.conn.ReadFromIP(buf)
		if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil || size < 8 || buf[0] != icmpEcho {
			continue
		}
		a, _ := netip.AddrFromSlice(from.IP)
		w.mu.Lock()
		w.sources = append(w.sources, a.Unmap())
		w.mu.Unlock()
	}
}

// Stop ends the watch and returns the source of every request, in order.
func (w *EchoWatch) Stop() []netip.Addr {
	_ = w.conn.SetReadDeadline(time.Now().Add(quiet)) // what is queued is read first
	<-w.done
	w.conn.Close()
	return slices.Clone(w.sources)
}
