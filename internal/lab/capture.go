package lab

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// snapLen is what is read of a frame: all headers, no payload.
	snapLen = 256
	// captureBuffer is the socket's queue: a second of GSO frames at 10 Gbit/s, of which the kernel keeps references only.
	captureBuffer = 64 << 20
	// quiet is how long nothing must arrive for a capture to be over: veth delivers by soft interrupts.
	quiet = 20 * time.Millisecond
)

// Flow is a kind of frame at one place: what a policy judges.
type Flow struct {
	Link string
	// Out is true for frames that the captured namespace sent by the link.
	Out      bool
	Kind     Kind
	Src, Dst netip.Addr // of the IPv4 header, or of the ARP payload
	Proto    uint8      // of IPv4
	Service  uint16     // destination port of UDP and TCP where it is below 1024 or that of a tunnel, else 0
}

// Tally is what was seen of a flow.
type Tally struct {
	Frames int
	Bytes  int64 // by the IP header's length
	// MaxPacket is the largest IP packet as it would be on a wire: of a super-packet, one segment with its headers.
	MaxPacket int
}

// Report is what a capture saw.
type Report struct {
	Flows map[Flow]Tally
	// Dropped counts frames that the capture missed: a report with any proves nothing.
	Dropped int
}

// Capture reads every frame on some links of a namespace.
type Capture struct {
	files []*os.File
	links []string
	wg    sync.WaitGroup

	mu     sync.Mutex
	report Report
	err    error
}

// Capture starts reading; every frame from its return to Stop is in the report.
func (n *Namespace) Capture(links ...string) (*Capture, error) {
	c := &Capture{links: links, report: Report{Flows: map[Flow]Tally{}}}
	for _, link := range links {
		file, err := n.captureSocket(link)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("capture on %s in %s: %w", link, n.Name, err), c.closeFiles())
		}
		c.files = append(c.files, file)
	}
	for i, file := range c.files {
		c.wg.Go(func() { c.read(file, links[i]) })
	}
	return c, nil
}

// captureSocket is bound to every protocol only after its options are set: no frame comes without its header.
func (n *Namespace) captureSocket(link string) (*os.File, error) {
	file, err := n.packetSocket(link, 0)
	if err != nil {
		return nil, err
	}
	index, err := n.linkIndex(link)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	err = control(file, func(fd int) error {
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, captureBuffer),
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8, Ifindex: index}),
		)
	})
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func control(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	return errors.Join(raw.Control(func(fd uintptr) { ferr = f(int(fd)) }), ferr)
}

// read takes frames until the deadline that Stop sets.
func (c *Capture) read(file *os.File, link string) {
	raw, err := file.SyscallConn()
	if err != nil {
		c.fail(err)
		return
	}
	buf := make([]byte, vnetHeader+snapLen)
	for {
		var rerr error
		err := raw.Read(func(fd uintptr) bool {
			rerr = c.take(int(fd), link, buf)
			return !errors.Is(rerr, unix.EAGAIN)
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed):
			return
		case errors.Is(rerr, unix.ENETDOWN):
			continue
		case err != nil || rerr != nil:
			c.fail(errors.Join(err, rerr))
			return
		}
	}
}

// take reads one frame, under the lock: nobody then sees a frame gone from the queue that isn't in the report yet. MSG_TRUNC: the
// rest of the frame is nobody's interest.
func (c *Capture) take(fd int, link string, buf []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	size, from, err := unix.Recvfrom(fd, buf, unix.MSG_TRUNC|unix.MSG_DONTWAIT)
	if err != nil {
		return err
	}
	ll, _ := from.(*unix.SockaddrLinklayer)
	c.add(link, ll != nil && ll.Pkttype == unix.PACKET_OUTGOING, buf[:min(size, len(buf))])
	return nil
}

// add is called with the lock held.
func (c *Capture) add(link string, out bool, b []byte) {
	flow, packet := classify(b)
	flow.Link, flow.Out = link, out
	t := c.report.Flows[flow]
	t.Frames++
	t.Bytes += int64(packet.length)
	t.MaxPacket = max(t.MaxPacket, packet.onWire)
	c.report.Flows[flow] = t
}

func (c *Capture) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = errors.Join(c.err, err)
}

// Stop ends the capture and returns what it saw.
func (c *Capture) Stop() (Report, error) {
	for _, file := range c.files {
		_ = file.SetReadDeadline(time.Now().Add(quiet))
	}
	c.wg.Wait()
	for i, file := range c.files {
		if err := c.drain(file, c.links[i]); err != nil {
			c.fail(err)
		}
	}
	return c.report, errors.Join(c.err, c.closeFiles())
}

// Seen returns what was seen until now, without the count of dropped frames.
func (c *Capture) Seen() (map[Flow]Tally, error) {
	time.Sleep(quiet)
	var errs []error
	for i, file := range c.files {
		errs = append(errs, control(file, func(fd int) error { return c.empty(fd, c.links[i]) }))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.report.Flows), errors.Join(errs...)
}

// empty takes what is queued.
func (c *Capture) empty(fd int, link string) error {
	buf := make([]byte, vnetHeader+snapLen)
	var err error
	for err == nil {
		err = c.take(fd, link, buf)
	}
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENETDOWN) {
		return nil
	}
	return err
}

// drain takes what is still queued and adds up what the kernel had to drop, by its own count.
func (c *Capture) drain(file *os.File, link string) error {
	return control(file, func(fd int) error {
		if err := c.empty(fd, link); err != nil {
			return err
		}
		st, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
		if err == nil {
			c.report.Dropped += int(st.Drops)
		}
		return err
	})
}

func (c *Capture) closeFiles() error {
	var errs []error
	for _, f := range c.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// Violations returns a line for every flow that the policy has something against, sorted; a capture that missed frames is one
// as well.
func (r Report) Violations(policy func(Flow, Tally) string) []string {
	var lines []string
	for flow, t := range r.Flows {
		if why := policy(flow, t); why != "" {
			lines = append(lines, fmt.Sprintf("%s: %s, %d frames", why, flow, t.Frames))
		}
	}
	slices.Sort(lines)
	if r.Dropped > 0 {
		lines = append(lines, fmt.Sprintf("capture missed %d frames", r.Dropped))
	}
	return lines
}

// Sum adds up the flows that match.
func (r Report) Sum(match func(Flow) bool) Tally {
	var sum Tally
	for flow, t := range r.Flows {
		if match(flow) {
			sum.Frames += t.Frames
			sum.Bytes += t.Bytes
			sum.MaxPacket = max(sum.MaxPacket, t.MaxPacket)
		}
	}
	return sum
}

// String is one line for people.
func (f Flow) String() string {
	way := "into"
	if f.Out {
		way = "out of"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s", f.Kind, way, f.Link)
	if f.Src.IsValid() {
		fmt.Fprintf(&b, " %s > %s", f.Src, f.Dst)
	}
	if f.Kind == KindIPv4 {
		fmt.Fprintf(&b, " proto %d", f.Proto)
	}
	if f.Service != 0 {
		fmt.Fprintf(&b, " port %d", f.Service)
	}
	return b.String()
}
