package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Frames sends and receives hand-made Ethernet frames on a link, past everything that the namespace itself would do.
type Frames struct {
	file *os.File
	mac  net.HardwareAddr
}

// OpenFrames opens a packet socket on a link. It receives what comes in, not what the namespace sends.
func (n *Namespace) OpenFrames(link string) (*Frames, error) {
	mac, err := n.MAC(link)
	if err != nil {
		return nil, err
	}
	file, err := n.packetSocket(link, unix.ETH_P_ALL)
	if err != nil {
		return nil, fmt.Errorf("open frames on %s: %w", link, err)
	}
	err = control(file, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1) })
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &Frames{file: file, mac: mac}, nil
}

// packetSocket opens a non-blocking AF_PACKET socket that is bound to a link.
func (n *Namespace) packetSocket(link string, protocol uint16) (file *os.File, err error) {
	err = n.Do(func() error {
		dev, err := net.InterfaceByName(link)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		file = os.NewFile(uintptr(fd), "packets of "+n.Name+"/"+link)
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol<<8 | protocol>>8, Ifindex: dev.Index})
	})
	if err != nil && file != nil {
		file.Close()
	}
	return file, err
}

// Send puts a frame on the wire as it is.
func (f *Frames) Send(frame []byte) error {
	_, err := f.file.Write(frame)
	return err
}

// Await returns the first frame that arrives within the time and for which match is true, nil if none does.
func (f *Frames) Await(d time.Duration, match func(frame []byte) bool) []byte {
	if err := f.file.SetReadDeadline(time.Now().Add(d)); err != nil {
		return nil
	}
	buf := make([]byte, 65536)
	for {
		size, err := f.file.Read(buf)
		if err != nil {
			return nil
		}
		if match(buf[:size]) {
			return buf[:size]
		}
	}
}

// Close closes the socket.
func (f *Frames) Close() error { return f.file.Close() }

// MAC is the hardware address of the link.
func (f *Frames) MAC() net.HardwareAddr { return f.mac }

// ARPRequest makes a broadcast request by the link's own MAC.
func (f *Frames) ARPRequest(sender, target netip.Addr) []byte {
	b := ethernet([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, f.mac, unix.ETH_P_ARP)
	b = append(b, 0, 1, 8, 0, 6, 4, 0, 1)
	b = append(append(b, f.mac...), sender.AsSlice()...)
	return append(append(b, 0, 0, 0, 0, 0, 0), target.AsSlice()...)
}

// UDP makes an IPv4 datagram in a frame to a MAC.
func (f *Frames) UDP(to net.HardwareAddr, src, dst netip.AddrPort, data []byte) []byte {
	b := ethernet(to, f.mac, unix.ETH_P_IP)
	return append(b, udpPacket(src, dst, data)...)
}

func ethernet(to, from net.HardwareAddr, kind uint16) []byte {
	b := append(append(make([]byte, 0, 128), to...), from...)
	return binary.BigEndian.AppendUint16(b, kind)
}

// udpPacket makes an IPv4 packet without options; a zero UDP checksum means none (RFC 768).
func udpPacket(src, dst netip.AddrPort, data []byte) []byte {
	b := make([]byte, 28, 28+len(data))
	b[0], b[8], b[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(b[2:], uint16(28+len(data)))
	copy(b[12:], src.Addr().AsSlice())
	copy(b[16:], dst.Addr().AsSlice())
	binary.BigEndian.PutUint16(b[10:], checksum(b[:20]))
	binary.BigEndian.PutUint16(b[20:], src.Port())
	binary.BigEndian.PutUint16(b[22:], dst.Port())
	binary.BigEndian.PutUint16(b[24:], uint16(8+len(data)))
	return append(b, data...)
}

// UDPIn takes a frame apart: source, destination and payload of an IPv4 datagram in it.
func UDPIn(frame []byte) (src, dst netip.AddrPort, data []byte, ok bool) {
	if len(frame) < 42 || binary.BigEndian.Uint16(frame[12:]) != unix.ETH_P_IP || frame[23] != unix.IPPROTO_UDP {
		return src, dst, nil, false
	}
	ip := frame[14:]
	head := int(ip[0]&15) * 4
	if len(ip) < head+8 {
		return src, dst, nil, false
	}
	src = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:])), binary.BigEndian.Uint16(ip[head:]))
	dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[16:])), binary.BigEndian.Uint16(ip[head+2:]))
	return src, dst, ip[head+8:], true
}
