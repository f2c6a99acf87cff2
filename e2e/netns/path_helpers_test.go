package netns

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/fakeazure"
	"github.com/native-vmss/native-vmss/internal/lab"
)

// The files path_*_test.go hold what the node's path guarantees beside the field cases.

const (
	// pathProtocol is the protocol number of our routes and rules.
	pathProtocol = "217"
	pathGroup    = "28278"
)

// pathAs is the stage as seen by a subtest.
func (s *stage) pathAs(t testing.TB) *stage {
	c := *s
	c.t = t
	return &c
}

// ctl runs the shipped vmssctl on the node with the stage's configuration.
func (s *stage) ctl(args ...string) (string, error) {
	s.t.Helper()
	return s.ctlEnv("vmssctl", nil, args...)
}

func (s *stage) ctlEnv(binary string, env []string, args ...string) (string, error) {
	s.t.Helper()
	conf := s.ctlConf()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := s.Node.Command(ctx, program(s.t, binary), append([]string{"--conf", conf}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// ctlConf writes the stage's configuration to a file; one for each caller: they run side by side.
func (s *stage) ctlConf() string {
	s.t.Helper()
	file, err := os.CreateTemp(s.Dir, "ctl-*.json")
	if err != nil {
		s.t.Fatal(err)
	}
	_, err = file.Write(s.conf())
	if err := errors.Join(err, file.Close()); err != nil {
		s.t.Fatal(err)
	}
	return file.Name()
}

// mustCtl wants exit 0.
func (s *stage) mustCtl(args ...string) string {
	s.t.Helper()
	out, err := s.ctl(args...)
	if err != nil {
		s.t.Fatalf("vmssctl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// runOf is run with another build of the same main.
func (s *stage) runOf(binary string, c lab.Call) *answer {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.judge(c, s.Node.RunPlugin(ctx, program(s.t, binary), c))
}

func withEnv(env ...string) edit { return func(c *lab.Call) { c.Env = append(c.Env, env...) } }

// ourState lists what the kernel has of attachments: links of our group, our routes to single addresses.
func (s *stage) ourState() []string {
	s.t.Helper()
	lines := s.podLinks()
	for line := range strings.Lines(s.sh("ip route show table main proto " + pathProtocol)) {
		lines = append(lines, "route "+strings.TrimSpace(line))
	}
	return lines
}

// clean wants neither kernel nor store to know an attachment.
func (s *stage) clean(when string) {
	s.t.Helper()
	if left := s.ourState(); len(left) > 0 {
		s.t.Errorf("%s: left in the kernel: %v", when, left)
	}
	if held := s.held(); len(held) > 0 {
		s.t.Errorf("%s: left in the store: %v", when, held)
	}
}

// pathCloud is the cloud lab with the platform's own services, each node a stage.
type pathCloud struct {
	*lab.Cloud
	Azure *fakeazure.Cloud
	nodes []*stage
}

func newPathCloud(t testing.TB, o lab.CloudOptions) *pathCloud {
	t.Helper()
	main := program(t, "native-vmss")
	c := &pathCloud{Cloud: lab.CloudForTest(t, o)}
	c.serve(t)
	for _, n := range c.Nodes {
		c.nodes = append(c.nodes, &stage{
			Simple: &lab.Simple{Lab: c.Lab, Node: n.Node, GW: c.Hub}, t: t, pool: n.NICs[0].Secondaries, path: filepath.Dir(main),
			top:  map[string]any{"cniVersion": "1.1.0", "name": network, "type": "native-vmss"},
			ipam: map[string]any{"type": "ipam-vmss", "cooldown": "1s"},
		})
	}
	return c
}

// serve starts metadata, wireserver and DNS in the fabric.
func (c *pathCloud) serve(t testing.TB) {
	t.Helper()
	top := fakeazure.Topology{
		DNS:      map[string][]netip.Addr{"svc.example.com": {lab.CloudHub}},
		IMDSRate: -1,
	}
	for _, n := range c.Nodes {
		vm := fakeazure.VM{Name: n.Name}
		for i, nic := range n.NICs {
			subnet := fakeazure.Subnet{Name: strings.NewReplacer(".", "-", "/", "-").Replace(nic.Subnet.String()), Prefix: nic.Subnet}
			if !slices.ContainsFunc(top.Subnets, func(s fakeazure.Subnet) bool { return s.Name == subnet.Name }) {
				top.Subnets = append(top.Subnets, subnet)
			}
			vm.NICs = append(vm.NICs, fakeazure.NIC{
				Name: fmt.Sprintf("nic%d", i), MAC: fakeazure.MAC(nic.MAC), Subnet: subnet.Name,
				Primary: nic.Primary, Secondaries: nic.Secondaries,
			})
		}
		top.VMs = append(top.VMs, vm)
	}
	azure, err := fakeazure.New(top)
	if err != nil {
		t.Fatal(err)
	}
	c.Azure = azure
	var srv *fakeazure.Server
	err = c.Space.Do(func() error {
		srv, err = azure.Listen(fakeazure.Services{
			IMDS:       []string{"169.254.169.254:80"},
			Wireserver: []string{"168.63.129.16:80", "168.63.129.16:32526"},
			DNS:        []string{"168.63.129.16:53"},
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { _ = srv.Serve(ctx) }()
	c.Defer(func() error { cancel(); srv.Close(); return nil })
}

// pathPod adds a pod on a node and waits until its ADD has succeeded.
func (s *stage) pathPod(id string) (*lab.Namespace, *answer) {
	s.t.Helper()
	p := s.Pod(s.t, id)
	return p, s.add(id, p).ok()
}

// pathPacket is an IPv4 packet made by hand.
type pathPacket struct {
	src, dst netip.Addr
	proto    byte
	payload  []byte
	options  []byte // of the header; a multiple of 4 bytes
	id, frag uint16 // frag: flags and offset, as in the header
}

func (p pathPacket) bytes() []byte {
	head := 20 + len(p.options)
	b := make([]byte, 20, head+len(p.payload))
	b[0], b[8], b[9] = 0x40|byte(head/4), 64, p.proto
	binary.BigEndian.PutUint16(b[2:], uint16(head+len(p.payload)))
	binary.BigEndian.PutUint16(b[4:], p.id)
	binary.BigEndian.PutUint16(b[6:], p.frag)
	copy(b[12:], p.src.AsSlice())
	copy(b[16:], p.dst.AsSlice())
	return append(append(b, p.options...), p.payload...) // the kernel fills the header's checksum in
}

// pathUDP is a datagram without checksum.
func pathUDP(src, dst netip.AddrPort, text string) pathPacket {
	b := []byte{
		byte(src.Port() >> 8), byte(src.Port()), byte(dst.Port() >> 8), byte(dst.Port()),
		byte((8 + len(text)) >> 8), byte(8 + len(text)), 0, 0,
	}
	return pathPacket{src: src.Addr(), dst: dst.Addr(), proto: unix.IPPROTO_UDP, payload: append(b, text...)}
}

// Flags of TCP.
const (
	tcpSYN = 0x02
	tcpRST = 0x04
)

// pathRST is a reset that belongs to no connection.
func pathRST(src, dst netip.AddrPort) pathPacket { return pathTCP(src, dst, tcpRST) }

// pathTCP is a segment.
func pathTCP(src, dst netip.AddrPort, flags byte, data ...byte) pathPacket {
	b := append(make([]byte, 20), data...)
	b[0], b[1], b[2], b[3] = byte(src.Port()>>8), byte(src.Port()), byte(dst.Port()>>8), byte(dst.Port())
	b[7], b[12], b[13] = 77, 5<<4, flags
	sum := uint32(unix.IPPROTO_TCP) + uint32(len(b))
	for _, part := range [][]byte{src.Addr().AsSlice(), dst.Addr().AsSlice(), b} {
		for i, v := range part {
			sum += uint32(v) << (8 * (1 - i%2))
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	b[16], b[17] = byte(^sum>>8), byte(^sum)
	return pathPacket{src: src.Addr(), dst: dst.Addr(), proto: unix.IPPROTO_TCP, payload: b}
}

// pathSend sends packets by a raw socket inside a namespace, with whatever source they claim.
func pathSend(t testing.TB, from *lab.Namespace, packets ...pathPacket) {
	t.Helper()
	err := from.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, p := range packets {
			if err := unix.Sendto(fd, p.bytes(), 0, &unix.SockaddrInet4{Addr: p.dst.As4()}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("send from %s: %v", from.Name, err)
	}
}

// pathEventually polls, for what other threads of the kernel do late.
func pathEventually(limit time.Duration, f func() bool) bool {
	for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
		if f() {
			return true
		}
		if time.Now().After(end) {
			return false
		}
	}
}

// pathJSON reads what a program printed.
func pathJSON[T any](t testing.TB, text string) (v T) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}
