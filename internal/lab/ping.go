package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ICMP types (RFC 792).
const (
	icmpEchoReply    = 0
	icmpUnreachable  = 3
	icmpEcho         = 8
	icmpTimeExceeded = 11
)

// PingOptions of a row of echo requests.
type PingOptions struct {
	Count    int           // 0: until the context ends
	Interval time.Duration // 0: 100 ms
	Timeout  time.Duration // how long a reply may take; 0: 1 s
	From     netip.Addr    // source address; zero: the kernel's choice
	Size     int           // bytes after the ICMP header; at least 8
	// DontFragment makes a request that is larger than the path's MTU fail.
	DontFragment bool
}

// PingResult counts what became of the requests.
type PingResult struct {
	Sent, Received int
	// Unreachable and Expired count ICMP errors about our requests: sent back by whom is in ErrorsFrom.
	Unreachable, Expired int
	ErrorsFrom           []netip.Addr
	// Duplicates counts replies beyond the first for one request.
	Duplicates int
	RTT        []time.Duration // of the received ones, in order of arrival
	SendErrors []error
}

// Lost is how many requests got no reply.
func (r PingResult) Lost() int { return r.Sent - r.Received }

// Median is the middle round-trip time, 0 without any.
func (r PingResult) Median() time.Duration { return median(r.RTT) }

func median(list []time.Duration) time.Duration {
	if len(list) == 0 {
		return 0
	}
	s := slices.Clone(list)
	slices.Sort(s)
	return s[len(s)/2]
}

type pinger struct {
	conn *net.IPConn
	to   netip.Addr
	o    PingOptions
	id   uint16

	mu     sync.Mutex
	sent   map[uint16]time.Time // zero: replied to
	result PingResult
}

// Ping sends echo requests from inside the namespace and waits for the replies.
func (n *Namespace) Ping(ctx context.Context, to netip.Addr, o PingOptions) (PingResult, error) {
	if o.Interval == 0 {
		o.Interval = 100 * time.Millisecond
	}
	if o.Timeout == 0 {
		o.Timeout = time.Second
	}
	conn, err := n.icmpSocket(o)
	if err != nil {
		return PingResult{}, fmt.Errorf("ping %s: %w", to, err)
	}
	defer conn.Close()
	p := &pinger{conn: conn, to: to, o: o, id: uint16(rand.Uint32()), sent: map[uint16]time.Time{}}
	received := make(chan struct{})
	go func() {
		defer close(received)
		p.receive()
	}()
	p.send(ctx)
	p.settle()
	conn.Close()
	<-received
	return p.result, nil
}

func (n *Namespace) icmpSocket(o PingOptions) (conn *net.IPConn, err error) {
	var from *net.IPAddr
	if o.From.IsValid() {
		from = &net.IPAddr{IP: o.From.AsSlice()}
	}
	err = n.Do(func() error {
		conn, err = net.ListenIP("ip4:icmp", from)
		return err
	})
	if err != nil || !o.DontFragment {
		return conn, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	var serr error
	err = raw.Control(func(fd uintptr) {
		serr = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	})
	return conn, errors.Join(err, serr)
}

func (p *pinger) send(ctx context.Context) {
	tick := time.NewTicker(p.o.Interval)
	defer tick.Stop()
	for seq := 0; p.o.Count == 0 || seq < p.o.Count; seq++ {
		if seq > 0 {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		if ctx.Err() != nil {
			return
		}
		p.sendOne(uint16(seq))
	}
}

func (p *pinger) sendOne(seq uint16) {
	p.mu.Lock()
	p.result.Sent++
	p.sent[seq] = time.Now()
	p.mu.Unlock()
	if _, err := p.conn.WriteToIP(echoRequest(p.id, seq, p.o.Size), &net.IPAddr{IP: p.to.AsSlice()}); err != nil {
		p.mu.Lock()
		p.result.SendErrors = append(p.result.SendErrors, err)
		p.mu.Unlock()
	}
}

// settle waits until every request has its reply or has run out of time.
func (p *pinger) settle() {
	end := time.Now().Add(p.o.Timeout)
	for time.Now().Before(end) {
		p.mu.Lock()
		r := p.result
		p.mu.Unlock()
		if r.Received+r.Unreachable+r.Expired+len(r.SendErrors) >= r.Sent {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func (p *pinger) receive() {
	buf := make([]byte, 65536)
	for {
		size, from, err := p.conn.ReadFromIP(buf)
		switch {
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
			return
		case err != nil:
			continue // a queued ICMP error of the socket; the packet itself is read as well
		}
		addr, _ := netip.AddrFromSlice(from.IP)
		p.take(addr.Unmap(), buf[:size])
	}
}

// take judges one ICMP message. An error carries the IP header and 8 bytes of the packet that it is about.
func (p *pinger) take(from netip.Addr, b []byte) {
	if len(b) < 8 {
		return
	}
	kind, echo := b[0], b
	if kind == icmpUnreachable || kind == icmpTimeExceeded {
		inner := b[8:]
		if len(inner) < 28 || len(inner) < int(inner[0]&15)*4+8 {
			return
		}
		echo = inner[int(inner[0]&15)*4:]
	}
	id, seq := binary.BigEndian.Uint16(echo[4:]), binary.BigEndian.Uint16(echo[6:])
	p.mu.Lock()
	defer p.mu.Unlock()
	at, known := p.sent[seq]
	if id != p.id || !known {
		return
	}
	switch kind {
	case icmpUnreachable:
		p.result.Unreachable++
		p.result.ErrorsFrom = append(p.result.ErrorsFrom, from)
	case icmpTimeExceeded:
		p.result.Expired++
		p.result.ErrorsFrom = append(p.result.ErrorsFrom, from)
	case icmpEchoReply:
		if at.IsZero() {
			p.result.Duplicates++
			return
		}
		p.sent[seq] = time.Time{}
		p.result.Received++
		p.result.RTT = append(p.result.RTT, time.Since(at))
	}
}

func echoRequest(id, seq uint16, size int) []byte {
	b := make([]byte, 8+max(size, 8))
	b[0] = icmpEcho
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], seq)
	binary.BigEndian.PutUint16(b[2:], checksum(b))
	return b
}

// checksum is the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
