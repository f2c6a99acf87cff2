package lab

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Server answers traffic inside a namespace and remembers whom it saw.
type Server struct {
	// Addr is where it listens; the port is the kernel's choice where 0 was asked for.
	Addr netip.AddrPort

	closer io.Closer
	wg     sync.WaitGroup

	mu    sync.Mutex
	peers []Peer
	bytes int64
	conns map[net.Conn]struct{}
}

// Peer is one connection or datagram as the server saw it.
type Peer struct{ Remote, Local netip.AddrPort }

// EchoTCP sends back what it receives.
func (n *Namespace) EchoTCP(addr netip.AddrPort) (*Server, error) {
	return n.serveTCP(addr, func(s *Server, c net.Conn) { s.count(io.Copy(c, onlyReader{c})) })
}

// SinkTCP swallows what it receives; Bytes tells how much that was.
func (n *Namespace) SinkTCP(addr netip.AddrPort) (*Server, error) {
	return n.serveTCP(addr, func(s *Server, c net.Conn) {
		buf := make([]byte, bufferSize)
		for {
			size, err := c.Read(buf)
			s.count(int64(size), nil)
			if err != nil {
				return
			}
		}
	})
}

// onlyReader hides the splice path of io.Copy: what is measured is a program that reads and writes.
type onlyReader struct{ io.Reader }

func (n *Namespace) serveTCP(addr netip.AddrPort, serve func(*Server, net.Conn)) (*Server, error) {
	l, err := n.ListenTCP(addr)
	if err != nil {
		return nil, fmt.Errorf("listen on tcp %s in %s: %w", addr, n.Name, err)
	}
	s := &Server{Addr: addrPort(l.Addr()), closer: l, conns: map[net.Conn]struct{}{}}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if !s.hold(c) {
				return
			}
			s.wg.Go(func() {
				defer s.drop(c)
				serve(s, c)
			})
		}
	})
	n.lab.Defer(s.Close)
	return s, nil
}

// EchoUDP sends every datagram back to where it came from.
func (n *Namespace) EchoUDP(addr netip.AddrPort) (*Server, error) {
	c, err := n.ListenUDP(addr)
	if err != nil {
		return nil, fmt.Errorf("listen on udp %s in %s: %w", addr, n.Name, err)
	}
	s := &Server{Addr: addrPort(c.LocalAddr()), closer: c}
	s.wg.Go(func() {
		buf := make([]byte, 65536)
		for {
			size, from, err := c.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // an ICMP error about an earlier answer
			}
			s.see(Peer{Remote: unmap(from), Local: s.Addr}, int64(size))
			_, _ = c.WriteToUDPAddrPort(buf[:size], from)
		}
	})
	n.lab.Defer(s.Close)
	return s, nil
}

// Peers returns all that it saw, in order.
func (s *Server) Peers() []Peer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.peers)
}

// AwaitPeers returns all that it saw as soon as these are n, or when the time is over: a handshake is finished by the kernel,
// before the server gets to know of it.
func (s *Server) AwaitPeers(n int, d time.Duration) []Peer {
	for end := time.Now().Add(d); ; time.Sleep(time.Millisecond) {
		if p := s.Peers(); len(p) >= n || time.Now().After(end) {
			return p
		}
	}
}

// Sources returns the distinct addresses of the peers, sorted.
func (s *Server) Sources() []netip.Addr {
	var list []netip.Addr
	for _, p := range s.Peers() {
		list = append(list, p.Remote.Addr())
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// Bytes returns how much was received.
func (s *Server) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// Close ends the server and its connections.
func (s *Server) Close() error {
	err := s.closer.Close()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (s *Server) see(p Peer, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers = append(s.peers, p)
	s.bytes += bytes
}

func (s *Server) count(bytes int64, _ error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bytes += bytes
}

// hold remembers an open connection; false: the server is closing.
func (s *Server) hold(c net.Conn) bool {
	s.see(Peer{Remote: addrPort(c.RemoteAddr()), Local: addrPort(c.LocalAddr())}, 0)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conns == nil {
		c.Close()
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) drop(c net.Conn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

func addrPort(a net.Addr) netip.AddrPort {
	switch a := a.(type) {
	case *net.TCPAddr:
		return unmap(a.AddrPort())
	case *net.UDPAddr:
		return unmap(a.AddrPort())
	}
	return netip.AddrPort{}
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
