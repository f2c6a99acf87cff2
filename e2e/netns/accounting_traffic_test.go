package netns

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	acctPort  = 8080 // where everybody echoes TCP and UDP
	acctBytes = 200_000
	// acctLarge is a datagram that goes in three pieces.
	acctLarge = 4000
	acctCount = 5 // datagrams and echo requests of a path
)

// acctKind is a kind of traffic; each goes both ways.
type acctKind struct {
	name string
	run  func(from *lab.Namespace, to netip.AddrPort) error
}

var (
	acctTCP   = acctKind{"tcp", acctSendTCP}
	acctUDP   = acctKind{"udp", func(from *lab.Namespace, to netip.AddrPort) error { return acctSendUDP(from, to, 700) }}
	acctFrag  = acctKind{"fragments", func(from *lab.Namespace, to netip.AddrPort) error { return acctSendUDP(from, to, acctLarge) }}
	acctICMP  = acctKind{"icmp", acctPing}
	acctEach  = []acctKind{acctTCP, acctUDP, acctFrag, acctICMP}
	acctPorts = []acctKind{acctTCP, acctUDP, acctFrag} // what has a port
)

// acctSendTCP sends some and wants it back; both ends close.
func acctSendTCP(from *lab.Namespace, to netip.AddrPort) error {
	c, err := from.DialTCP(context.Background(), netip.Addr{}, to, echoWait)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, acctBytes))
		if err == nil {
			err = c.(*net.TCPConn).CloseWrite()
		}
		sent <- err
	}()
	got, err := io.Copy(io.Discard, c)
	if err == nil && got != acctBytes {
		err = fmt.Errorf("%d of %d bytes came back", got, acctBytes)
	}
	if serr := <-sent; err == nil {
		err = serr
	}
	return err
}

// acctSendUDP sends datagrams of a size, each after the answer to the one before.
func acctSendUDP(from *lab.Namespace, to netip.AddrPort, size int) error {
	c, err := from.DialUDP(to)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	data, buf := bytes.Repeat([]byte{7}, size), make([]byte, 65536)
	for range acctCount {
		if _, err := c.Write(data); err != nil {
			return err
		}
		if n, err := c.Read(buf); err != nil || n != size {
			return fmt.Errorf("datagram of %d came back with %d: %w", size, n, err)
		}
	}
	return nil
}

func acctPing(from *lab.Namespace, to netip.AddrPort) error {
	r, err := from.Ping(context.Background(), to.Addr(), lab.PingOptions{Count: acctCount, Interval: time.Millisecond, Timeout: patience, Size: 333})
	if err == nil && r.Lost() > 0 {
		err = fmt.Errorf("%d of %d lost", r.Lost(), r.Sent)
	}
	return err
}

// echoes has a namespace answer on a port.
func (l *acctLab) echoes(n *lab.Namespace, at netip.AddrPort) {
	l.t.Helper()
	if _, err := n.EchoTCP(at); err != nil {
		l.t.Fatal(err)
	}
	if _, err := n.EchoUDP(at); err != nil {
		l.t.Fatal(err)
	}
}

// sends has a namespace send datagrams to which nobody answers.
func (l *acctLab) sends(from *lab.Namespace, to netip.AddrPort, count int) {
	l.t.Helper()
	c, err := from.DialUDP(to)
	if err != nil {
		l.t.Fatal(err)
	}
	defer c.Close()
	data := make([]byte, acctDropSize-28) // IP's header and UDP's
	for range count {
		// An ICMP error about one of them is reported by the next.
		if _, err := c.Write(data); err != nil {
			_, _ = c.Write(data)
		}
	}
}
