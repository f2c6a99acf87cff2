package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Flags and offset of the IPv4 header's fragment field (RFC 791).
const (
	moreFragments  = 0x2000
	fragmentOffset = 0x1fff
	fragmentUnit   = 8 // bytes
)

// The ring of a tally. A plain socket's queue shares the packets' memory with the stack, which rewrites headers there: by the time that
// they are read a fragment may have its translated source. A ring has copies made on arrival.
const (
	ringFrames    = 8192
	ringFrameSize = 128 // the kernel's own header, and of the packet more than its headers up to IPv4's
	ringBlockSize = 64 << 10
	// In a frame, after struct tpacket2_hdr (linux/if_packet.h), aligned to 16 bytes, comes struct sockaddr_ll.
	ringAddr     = 32
	ringPktType  = ringAddr + 10
	ringSnapLen  = 8
	ringMACStart = 12
)

// Talk is who sent to whom on a link, and which way.
type Talk struct {
	// Out is true for what the namespace sent.
	Out      bool
	Src, Dst netip.Addr
}

// Sum is a number of packets and their length, header included.
type Sum struct{ Packets, Bytes uint64 }

// TallyReport is what went over a link.
type TallyReport struct {
	// Talks has IPv4 packets as the namespace's own stack handles them: a super-packet counts once, and so does what was fragmented.
	Talks map[Talk]Sum
	// Super counts the packets that were larger than a wire takes, to be cut by whoever sends them on a wire.
	Super int
	// Fragmented counts the packets that came in pieces; Pieces those whose rest is missing.
	Fragmented, Pieces int
	// Strange counts frames that are neither ARP nor IPv4.
	Strange int
}

// Of adds up one direction, for one address of the namespace.
func (r TallyReport) Of(own netip.Addr, out bool, peer func(netip.Addr) bool) (sum Sum) {
	for t, s := range r.Talks {
		me, other := t.Dst, t.Src
		if out {
			me, other = t.Src, t.Dst
		}
		if t.Out == out && me == own && peer(other) {
			sum.Packets += s.Packets
			sum.Bytes += s.Bytes
		}
	}
	return sum
}

// PacketTally adds up the lengths of all IPv4 packets on a link: the reference for everybody else's counters. It has room for some
// thousand packets and takes from it only in Read.
type PacketTally struct {
	file   *os.File
	ring   []byte
	next   int // frame
	name   string
	report TallyReport
	parts  map[datagram]*parts
}

// datagram names a fragmented packet (RFC 791, section 3.2).
type datagram struct {
	Talk
	proto byte
	id    uint16
}

// parts is what is there of a fragmented packet.
type parts struct{ header, have, want int }

// TallyPackets starts adding up.
func (n *Namespace) TallyPackets(link string) (*PacketTally, error) {
	t, err := n.tallyPackets(link)
	if err != nil {
		return nil, fmt.Errorf("tally on %s in %s: %w", link, n.Name, err)
	}
	return t, nil
}

func (n *Namespace) tallyPackets(link string) (*PacketTally, error) {
	file, err := n.packetSocket(link, 0)
	if err != nil {
		return nil, err
	}
	index, err := n.linkIndex(link)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	t := &PacketTally{file: file, name: n.Name + "/" + link, report: TallyReport{Talks: map[Talk]Sum{}}, parts: map[datagram]*parts{}}
	err = control(file, func(fd int) error {
		const size = ringFrames * ringFrameSize
		err := errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VERSION, unix.TPACKET_V2),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptTpacketReq(fd, unix.SOL_PACKET, unix.PACKET_RX_RING, &unix.TpacketReq{
				Block_size: ringBlockSize, Block_nr: size / ringBlockSize, Frame_size: ringFrameSize, Frame_nr: ringFrames,
			}),
		)
		if err != nil {
			return err
		}
		if t.ring, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8, Ifindex: index})
	})
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// Read returns all that went over the link until now. It fails where the kernel had to leave anything out.
func (t *PacketTally) Read() (TallyReport, error) {
	t.drain()
	err := control(t.file, func(fd int) error {
		st, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err == nil && st.Drops > 0 {
			err = fmt.Errorf("%d packets were dropped", st.Drops)
		}
		return err
	})
	if err != nil {
		return TallyReport{}, fmt.Errorf("tally of %s: %w", t.name, err)
	}
	r := t.report
	r.Pieces = len(t.parts)
	r.Talks = maps.Clone(t.report.Talks)
	return r, nil
}

// drain takes what is in the ring.
func (t *PacketTally) drain() {
	for {
		f := t.ring[t.next*ringFrameSize:][:ringFrameSize]
		status := (*uint32)(unsafe.Pointer(&f[0]))
		if atomic.LoadUint32(status)&unix.TP_STATUS_USER == 0 {
			return
		}
		start := int(binary.NativeEndian.Uint16(f[ringMACStart:]))
		end := min(start+int(binary.NativeEndian.Uint32(f[ringSnapLen:])), ringFrameSize)
		t.add(f[ringPktType] == unix.PACKET_OUTGOING, f[start-vnetHeader:end])
		atomic.StoreUint32(status, unix.TP_STATUS_KERNEL)
		t.next = (t.next + 1) % ringFrames
	}
}

// add takes one frame with its vnet header.
func (t *PacketTally) add(out bool, b []byte) {
	if len(b) < vnetHeader+ethernetHeader {
		t.report.Strange++
		return
	}
	segment := binary.NativeEndian.Uint16(b[vnetGSOSize:])
	b = b[vnetHeader:]
	kind, b := binary.BigEndian.Uint16(b[12:]), b[ethernetHeader:]
	switch {
	case kind == unix.ETH_P_ARP:
	case kind == unix.ETH_P_IP && len(b) >= ipv4Header:
		if segment > 0 {
			t.report.Super++
		}
		t.packet(out, b)
	default:
		t.report.Strange++
	}
}

func (t *PacketTally) packet(out bool, b []byte) {
	talk := Talk{Out: out, Src: ipv4At(b, 12), Dst: ipv4At(b, 16)}
	length, header := int(binary.BigEndian.Uint16(b[2:])), headerLen(b)
	frag := binary.BigEndian.Uint16(b[6:])
	if frag&(moreFragments|fragmentOffset) == 0 {
		t.count(talk, length)
		return
	}
	d := datagram{Talk: talk, proto: b[9], id: binary.BigEndian.Uint16(b[4:])}
	p := t.parts[d]
	if p == nil {
		p = &parts{want: -1}
		t.parts[d] = p
	}
	offset := int(frag&fragmentOffset) * fragmentUnit
	p.have += length - header
	if offset == 0 {
		p.header = header
	}
	if frag&moreFragments == 0 {
		p.want = offset + length - header
	}
	if p.have == p.want {
		t.count(talk, p.header+p.want)
		t.report.Fragmented++
		delete(t.parts, d)
	}
}

func (t *PacketTally) count(talk Talk, length int) {
	s := t.report.Talks[talk]
	s.Packets++
	s.Bytes += uint64(length)
	t.report.Talks[talk] = s
}

// Close ends the tally.
func (t *PacketTally) Close() error {
	var err error
	if t.ring != nil {
		err = unix.Munmap(t.ring)
		t.ring = nil
	}
	return errors.Join(err, t.file.Close())
}
