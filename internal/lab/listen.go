package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// ListenTCP opens a listener inside the namespace; it may be used from anywhere. Plain TCP: Go would offer MPTCP.
func (n *Namespace) ListenTCP(addr netip.AddrPort) (l net.Listener, err error) {
	err = n.Do(func() error {
		var lc net.ListenConfig
		lc.SetMultipathTCP(false)
		l, err = lc.Listen(context.Background(), "tcp4", addr.String())
		return err
	})
	return l, err
}

// ListenUDP opens a UDP socket inside the namespace; it may be used from anywhere.
func (n *Namespace) ListenUDP(addr netip.AddrPort) (c *net.UDPConn, err error) {
	err = n.Do(func() error {
		c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(addr))
		return err
	})
	return c, err
}

// ServeHTTP answers HTTP requests at an address of the namespace until the lab is closed.
func (n *Namespace) ServeHTTP(addr netip.AddrPort, h http.Handler) error {
	l, err := n.ListenTCP(addr)
	if err != nil {
		return fmt.Errorf("listen on %s in %s: %w", addr, n.Name, err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
	n.lab.Defer(srv.Close)
	go func() {
		if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			n.lab.log.Error("http server ended", "addr", addr, "error", err)
		}
	}()
	return nil
}

// DialTCP connects from inside the namespace; a valid from is the source address.
func (n *Namespace) DialTCP(ctx context.Context, from netip.Addr, to netip.AddrPort, timeout time.Duration) (c net.Conn, err error) {
	d := net.Dialer{Timeout: timeout}
	if from.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(from, 0))
	}
	err = n.Do(func() error {
		c, err = d.DialContext(ctx, "tcp4", to.String())
		return err
	})
	return c, err
}

// DialUDP makes a connected UDP socket inside the namespace.
func (n *Namespace) DialUDP(to netip.AddrPort) (c *net.UDPConn, err error) {
	err = n.Do(func() error {
		c, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
		return err
	})
	return c, err
}
