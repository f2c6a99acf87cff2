package fakeazure

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	// internalDomain is where VMs have names, as Azure's default "<random>.internal.cloudapp.net".
	internalDomain = ".internal.cloudapp.net"
	dnsTTL         = 10 // seconds
	dnsTCPIdle     = 10 * time.Second
	maxUDPQuery    = 4096 // bytes
)

// DNS is the resolver at 168.63.129.16 for A questions: Topology.DNS and <computer name>.internal.cloudapp.net. A stranger (see
// IMDS) gets no answer.
type DNS struct {
	cloud *Cloud
	vm    string
}

// DNS returns the resolver, which tells VMs apart as IMDS does.
func (c *Cloud) DNS() *DNS { return &DNS{cloud: c} }

// DNSFor returns the resolver of one VM, whoever asks.
func (c *Cloud) DNSFor(vmName string) *DNS { return &DNS{cloud: c, vm: vmName} }

// ServeUDP answers until conn is closed.
func (d *DNS) ServeUDP(conn net.PacketConn) error {
	buf := make([]byte, maxUDPQuery)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return err
		}
		if reply := d.reply(from.String(), buf[:n]); reply != nil {
			_, _ = conn.WriteTo(reply, from) // a lost reply is the asker's to repeat
		}
	}
}

// ServeTCP answers until ln is closed. Connections end with ctx.
func (d *DNS) ServeTCP(ctx context.Context, ln net.Listener) error {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return err
		}
		go d.stream(ctx, conn)
	}
}

// stream answers the questions of one connection, each behind its length (RFC 1035, 4.2.2).
func (d *DNS) stream(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	for {
		_ = conn.SetDeadline(time.Now().Add(dnsTCPIdle))
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		reply := d.reply(conn.RemoteAddr().String(), query)
		if reply == nil {
			return
		}
		reply = append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)
		if _, err := conn.Write(reply); err != nil {
			return
		}
	}
}

// reply returns the answer to one message; nil for none.
func (d *DNS) reply(source string, query []byte) []byte {
	var p dnsmessage.Parser
	head, err := p.Start(query)
	if err != nil || head.Response {
		return nil
	}
	q, err := p.Question()
	if err != nil {
		return nil
	}
	v := d.cloud.asker(d.vm, source)
	entry := d.cloud.open(Request{Service: ServiceDNS, VM: v.name(), Source: source, Line: q.Type.String() + " " + q.Name.String()})
	if v == nil {
		d.cloud.close(entry, "dropped")
		return nil
	}
	addrs, known := d.cloud.resolve(q.Name.String())
	head = dnsmessage.Header{ID: head.ID, Response: true, RecursionDesired: head.RecursionDesired, RecursionAvailable: true}
	if !known {
		head.RCode = dnsmessage.RCodeNameError
	}
	reply, err := build(head, q, addrs)
	if err != nil {
		d.cloud.close(entry, "failed")
		return nil
	}
	d.cloud.close(entry, strings.TrimPrefix(head.RCode.String(), "RCode"))
	return reply
}

func build(head dnsmessage.Header, q dnsmessage.Question, addrs []netip.Addr) ([]byte, error) {
	b := dnsmessage.NewBuilder(nil, head)
	err := errors.Join(b.StartQuestions(), b.Question(q), b.StartAnswers())
	for _, addr := range addrs {
		if q.Type == dnsmessage.TypeA && addr.Is4() {
			rh := dnsmessage.ResourceHeader{Name: q.Name, Class: dnsmessage.ClassINET, TTL: dnsTTL}
			err = errors.Join(err, b.AResource(rh, dnsmessage.AResource{A: addr.As4()}))
		}
	}
	if err != nil {
		return nil, err
	}
	return b.Finish()
}

// resolve looks a name up, in any case and with or without the last dot.
func (c *Cloud) resolve(name string) ([]netip.Addr, bool) {
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	c.mu.Lock()
	defer c.mu.Unlock()
	for known, addrs := range c.top.DNS {
		if strings.ToLower(strings.TrimSuffix(known, ".")) == name {
			return addrs, true
		}
	}
	host, internal := strings.CutSuffix(name, internalDomain)
	for _, v := range c.vms {
		if internal && strings.ToLower(v.computerName()) == host {
			return []netip.Addr{v.NICs[0].Primary}, true
		}
	}
	return nil, false
}
