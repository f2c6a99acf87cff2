package fakeazure

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Ethernet and ARP for IPv4 (RFC 826): lengths and offsets in a frame.
const (
	arpFrame     = 42
	arpOperation = 20
	arpSender    = 22 // hardware address, then IPv4 address
	arpTarget    = 32
	arpRequest   = 1
	arpReply     = 2
)

// arpResponder answers ARP requests that come in by one port.
type arpResponder struct {
	file *os.File
	done chan struct{}
}

// respond starts the port's responder. Proxy ARP of the kernel won't do: it answers only for addresses that it has a unicast
// route to.
func (p *Port) respond() error {
	var file *os.File
	err := p.fabric.space.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(bigEndian(unix.ETH_P_ARP)))
		if err != nil {
			return err
		}
		file = os.NewFile(uintptr(fd), "arp responder of "+p.cfg.Name)
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ARP), Ifindex: p.index})
	})
	if err != nil {
		return fmt.Errorf("open arp responder: %w", err)
	}
	p.arp = &arpResponder{file: file, done: make(chan struct{})}
	go func() {
		defer close(p.arp.done)
		p.answerARP()
	}()
	return nil
}

func (p *Port) answerARP() {
	buf := make([]byte, 2048)
	for {
		size, err := p.arp.file.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil {
			if errors.Is(err, unix.ENETDOWN) {
				continue // the link was down for a moment
			}
			p.fabric.log.Warn("arp responder ended", "port", p.cfg.Name, "error", err)
			return
		}
		if reply := arpAnswer(buf[:size], p.fabric.mac, p.owns); reply != nil {
			_, _ = p.arp.file.Write(reply) // a lost answer is asked for again
		}
	}
}

// arpAnswer returns the reply to a request frame, nil if it deserves none: the fabric doesn't answer for an address of the
// asker, or its duplicate address detection would fail.
func arpAnswer(frame []byte, mac net.HardwareAddr, own func(netip.Addr) bool) []byte {
	if len(frame) < arpFrame || binary.BigEndian.Uint16(frame[arpOperation:]) != arpRequest {
		return nil
	}
	sender, target := frame[arpSender:arpSender+10], frame[arpTarget:arpTarget+10]
	asked := netip.AddrFrom4([4]byte(target[6:]))
	if own(asked) || [4]byte(sender[6:]) == [4]byte(target[6:]) {
		return nil
	}
	reply := make([]byte, arpFrame)
	copy(reply, frame[:arpFrame])
	copy(reply[0:], sender[:6])
	copy(reply[6:], mac)
	binary.BigEndian.PutUint16(reply[arpOperation:], arpReply)
	copy(reply[arpSender:], mac)
	copy(reply[arpSender+6:], target[6:])
	copy(reply[arpTarget:], sender)
	return reply
}

func (a *arpResponder) close() error {
	if a == nil {
		return nil
	}
	err := a.file.Close()
	<-a.done
	return err
}

func bigEndian(v uint16) uint16 { return v<<8 | v>>8 }
