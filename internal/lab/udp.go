package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// SendUDP sends one datagram from inside the namespace and returns the answer of an echo server.
func (n *Namespace) SendUDP(to netip.AddrPort, data []byte, timeout time.Duration) ([]byte, error) {
	c, err := n.DialUDP(to)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	if _, err := c.Write(data); err != nil {
		return nil, err
	}
	buf := make([]byte, 65536)
	size, err := c.Read(buf)
	return buf[:size], err
}

// LookupA asks a DNS server for the IPv4 addresses of a name, by UDP from inside the namespace.
func (n *Namespace) LookupA(_ context.Context, server netip.AddrPort, name string, timeout time.Duration) ([]netip.Addr, error) {
	qname, err := dnsmessage.NewName(name)
	if err != nil {
		return nil, fmt.Errorf("name %q: %w", name, err)
	}
	id := uint16(rand.Uint32())
	query := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: qname, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	wire, err := query.Pack()
	if err != nil {
		return nil, err
	}
	answer, err := n.SendUDP(server, wire, timeout)
	if err != nil {
		return nil, fmt.Errorf("ask %s for %s: %w", server, name, err)
	}
	var msg dnsmessage.Message
	if err := msg.Unpack(answer); err != nil {
		return nil, fmt.Errorf("read answer of %s: %w", server, err)
	}
	if msg.ID != id || msg.RCode != dnsmessage.RCodeSuccess {
		return nil, fmt.Errorf("answer of %s: id %d for %d, %v", server, msg.ID, id, msg.RCode)
	}
	var list []netip.Addr
	for _, r := range msg.Answers {
		if a, ok := r.Body.(*dnsmessage.AResource); ok {
			list = append(list, netip.AddrFrom4(a.A))
		}
	}
	return list, nil
}

// ServeDNS answers queries for A records on c until it is closed. An invalid address from lookup means no such name.
func ServeDNS(c *net.UDPConn, lookup func(name string, asker netip.AddrPort) netip.Addr) error {
	buf := make([]byte, 1500)
	for {
		size, from, err := c.ReadFromUDPAddrPort(buf)
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		var msg dnsmessage.Message
		if err != nil || msg.Unpack(buf[:size]) != nil || len(msg.Questions) != 1 {
			continue
		}
		answer(&msg, lookup(msg.Questions[0].Name.String(), unmap(from)))
		if wire, err := msg.Pack(); err == nil {
			_, _ = c.WriteToUDPAddrPort(wire, from)
		}
	}
}

func answer(msg *dnsmessage.Message, a netip.Addr) {
	q := msg.Questions[0]
	msg.Header = dnsmessage.Header{ID: msg.ID, Response: true, RecursionDesired: msg.RecursionDesired, RecursionAvailable: true}
	msg.Additionals = nil
	switch {
	case !a.IsValid():
		msg.RCode = dnsmessage.RCodeNameError
	case q.Type == dnsmessage.TypeA:
		msg.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 5},
			Body:   &dnsmessage.AResource{A: a.As4()},
		}}
	}
}
