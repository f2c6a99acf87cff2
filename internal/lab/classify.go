package lab

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Kind of a frame.
type Kind string

// Kinds that a capture tells apart; the tunnels are those that an overlay might use.
const (
	KindARP   Kind = "ARP"
	KindIPv4  Kind = "IPv4"
	KindVXLAN Kind = "VXLAN"
	KindIPIP  Kind = "IPIP"
	KindGRE   Kind = "GRE"
	KindSIT   Kind = "IPv6-in-IPv4"
	KindIPv6  Kind = "IPv6"
	KindOther Kind = "other"
)

// Ports of VXLAN: IANA's, and Linux's own, which flannel uses.
const (
	portVXLAN      = 4789
	portVXLANLinux = 8472
)

// vnetHeader is the length of struct virtio_net_hdr (linux/virtio_net.h): flags, gso_type, hdr_len, gso_size, csum_start,
// csum_offset. Numbers are in the machine's byte order.
const (
	vnetHeader  = 10
	vnetGSOSize = 4
)

// Minimal header lengths.
const (
	ethernetHeader = 14
	arpPayload     = 28
	ipv4Header     = 20
)

type packet struct {
	length int // of the IP packet as the kernel handles it
	onWire int // of one packet after segmentation
}

// classify reads the headers of a captured frame, which begins with a vnet header.
func classify(b []byte) (Flow, packet) {
	if len(b) < vnetHeader+ethernetHeader {
		return Flow{Kind: KindOther}, packet{}
	}
	segment := int(binary.NativeEndian.Uint16(b[vnetGSOSize:]))
	b = b[vnetHeader:]
	kind, b := binary.BigEndian.Uint16(b[12:]), b[ethernetHeader:]
	switch {
	case kind == unix.ETH_P_ARP && len(b) >= arpPayload:
		return Flow{Kind: KindARP, Src: ipv4At(b, 14), Dst: ipv4At(b, 24)}, packet{}
	case kind == unix.ETH_P_IP && len(b) >= ipv4Header && len(b) >= headerLen(b):
		return classifyIPv4(b, segment)
	case kind == unix.ETH_P_IPV6:
		return Flow{Kind: KindIPv6}, packet{}
	}
	return Flow{Kind: KindOther}, packet{}
}

func classifyIPv4(b []byte, segment int) (Flow, packet) {
	f := Flow{Kind: KindIPv4, Src: ipv4At(b, 12), Dst: ipv4At(b, 16), Proto: b[9]}
	p := packet{length: int(binary.BigEndian.Uint16(b[2:]))}
	head, rest := headerLen(b), b[headerLen(b):]
	p.onWire = p.length
	fragment := binary.BigEndian.Uint16(b[6:])&0x1fff != 0
	switch f.Proto {
	case unix.IPPROTO_UDP, unix.IPPROTO_TCP:
		if fragment || len(rest) < 8 {
			break
		}
		port := binary.BigEndian.Uint16(rest[2:])
		if f.Proto == unix.IPPROTO_UDP && (port == portVXLAN || port == portVXLANLinux) {
			f.Kind = KindVXLAN
		}
		if port < 1024 || f.Kind == KindVXLAN {
			f.Service = port
		}
		if segment > 0 {
			p.onWire = min(p.length, head+transportLen(f.Proto, rest)+segment)
		}
	case unix.IPPROTO_IPIP:
		f.Kind = KindIPIP
	case unix.IPPROTO_GRE:
		f.Kind = KindGRE
	case unix.IPPROTO_IPV6:
		f.Kind = KindSIT
	}
	return f, p
}

func headerLen(b []byte) int { return int(b[0]&15) * 4 }

func transportLen(proto uint8, b []byte) int {
	if proto == unix.IPPROTO_TCP && len(b) > 12 {
		return int(b[12]>>4) * 4
	}
	return 8
}

func ipv4At(b []byte, offset int) netip.Addr { return netip.AddrFrom4([4]byte(b[offset:])) }
