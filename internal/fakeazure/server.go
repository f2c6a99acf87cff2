package fakeazure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// readHeaderTimeout ends connections that never ask.
const readHeaderTimeout = 10 * time.Second

// Services says what to listen on; each entry is host:port, port 0 is any.
type Services struct {
	IMDS, Wireserver []string
	DNS              []string // udp and tcp
	Admin            string   // path of a unix socket; "": none
	// VM is the one that always asks; "": tell VMs apart by the source address.
	VM string
}

// Server has the sockets of a cloud.
type Server struct {
	addrs   []string
	serve   []func(context.Context) error
	closers []func() error
}

// Listen opens all sockets, in the network namespace of the calling thread; Serve may then run anywhere.
func (c *Cloud) Listen(s Services) (_ *Server, err error) {
	if s.VM != "" {
		c.mu.Lock()
		_, err = c.find(s.VM)
		c.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	srv := &Server{}
	defer func() {
		if err != nil {
			srv.Close()
		}
	}()
	web := []struct {
		name    string
		addrs   []string
		handler http.Handler
	}{
		{ServiceIMDS, s.IMDS, c.IMDSFor(s.VM)},
		{ServiceWireserver, s.Wireserver, c.WireserverFor(s.VM)},
	}
	for _, w := range web {
		for _, addr := range w.addrs {
			if err := srv.http(w.name, "tcp", addr, w.handler); err != nil {
				return nil, err
			}
		}
	}
	for _, addr := range s.DNS {
		if err := srv.dns(addr, c.DNSFor(s.VM)); err != nil {
			return nil, err
		}
	}
	if s.Admin != "" {
		if err := srv.admin(s.Admin, c.Admin()); err != nil {
			return nil, err
		}
	}
	return srv, nil
}

func (s *Server) http(name, network, addr string, handler http.Handler) error {
	ln, err := net.Listen(network, addr)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: readHeaderTimeout}
	s.add(name, ln.Addr(), server.Close, func(ctx context.Context) error {
		server.BaseContext = func(net.Listener) context.Context { return ctx }
		return server.Serve(ln)
	})
	s.closers = append(s.closers, ln.Close)
	return nil
}

// dns opens udp, then tcp on the same port.
func (s *Server) dns(addr string, d *DNS) error {
	conn, err := net.ListenPacket("udp", addr)
	if err != nil {
		return fmt.Errorf("%s: %w", ServiceDNS, err)
	}
	s.add(ServiceDNS, conn.LocalAddr(), conn.Close, func(context.Context) error { return d.ServeUDP(conn) })
	ln, err := net.Listen("tcp", conn.LocalAddr().String())
	if err != nil {
		return fmt.Errorf("%s: %w", ServiceDNS, err)
	}
	s.add(ServiceDNS, ln.Addr(), ln.Close, func(ctx context.Context) error { return d.ServeTCP(ctx, ln) })
	return nil
}

// admin replaces a socket that nobody listens on any more.
func (s *Server) admin(path string, handler http.Handler) error {
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		conn, err := net.Dial("unix", path)
		if err == nil {
			_ = conn.Close()
			return fmt.Errorf("admin: %s: %w", path, ErrInUse)
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("admin: %w", err)
		}
	}
	if err := s.http("admin", "unix", path, handler); err != nil {
		return err
	}
	return os.Chmod(path, 0o600)
}

func (s *Server) add(name string, addr net.Addr, closer func() error, serve func(context.Context) error) {
	s.addrs = append(s.addrs, name+" "+addr.Network()+" "+addr.String())
	s.closers = append(s.closers, closer)
	s.serve = append(s.serve, serve)
}

// Addrs lists the sockets in the order of Services: "imds tcp 127.0.0.1:41234".
func (s *Server) Addrs() []string { return s.addrs }

// Addr returns the first address of a service and network, "" if there is none.
func (s *Server) Addr(service, network string) string {
	for _, line := range s.addrs {
		if addr, ok := strings.CutPrefix(line, service+" "+network+" "); ok {
			return addr
		}
	}
	return ""
}

// Serve answers until ctx ends, which is no error, or a socket fails. All sockets are closed then.
func (s *Server) Serve(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, serve := range s.serve {
		group.Go(func() error { return serve(ctx) })
	}
	stop := context.AfterFunc(ctx, s.Close)
	defer stop()
	err := group.Wait()
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Close closes all sockets.
func (s *Server) Close() {
	for _, closer := range s.closers {
		_ = closer() // closed already
	}
}
