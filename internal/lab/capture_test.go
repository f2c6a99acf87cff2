package lab_test

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// onlyEnds is the policy of the tests: ARP, and IPv4 between known ends.
func onlyEnds(ends ...netip.Addr) func(lab.Flow, lab.Tally) string {
	known := map[netip.Addr]bool{}
	for _, a := range ends {
		known[a] = true
	}
	return func(f lab.Flow, _ lab.Tally) string {
		switch {
		case f.Kind == lab.KindARP:
			return ""
		case f.Kind != lab.KindIPv4:
			return "encapsulated"
		case !known[f.Src] || !known[f.Dst]:
			return "unexpected end"
		}
		return ""
	}
}

func TestNetnsCapture_sees_every_frame(t *testing.T) {
	s := lab.NewSimple(t, lab.SimpleOptions{})
	ctx := context.Background()
	sink, err := s.GW.SinkTCP(netip.MustParseAddrPort("203.0.113.10:9"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := s.GW.Capture("to-eth0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Node.Throughput(ctx, sink, sink.Addr, 300*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if r, err := s.Node.Ping(ctx, lab.SimpleInternet, lab.PingOptions{Count: 7, Interval: time.Millisecond}); err != nil || r.Lost() > 0 {
		t.Fatal(r, err)
	}
	report, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	if v := report.Violations(onlyEnds(lab.SimpleNode, lab.SimpleInternet)); len(v) > 0 {
		t.Errorf("violations: %v", v)
	}
	tcp := report.Sum(func(f lab.Flow) bool { return f.Proto == 6 && !f.Out && f.Service == 9 })
	if tcp.MaxPacket != 1500 || tcp.Bytes < sink.Bytes() {
		t.Errorf("tcp %+v for %d bytes", tcp, sink.Bytes())
	}
	icmp := report.Flows[lab.Flow{Link: "to-eth0", Out: true, Kind: lab.KindIPv4, Src: lab.SimpleInternet, Dst: lab.SimpleNode, Proto: 1}]
	if icmp.Frames != 7 {
		t.Errorf("echo replies %+v", icmp)
	}
}

// frame makes an Ethernet frame with a payload of a protocol.
func frame(f *lab.Frames, to net.HardwareAddr, kind uint16, payload []byte) []byte {
	b := append(append([]byte{}, to...), f.MAC()...)
	return append(binary.BigEndian.AppendUint16(b, kind), payload...)
}

func TestNetnsCapture_and_counter_name_what_is_foreign(t *testing.T) {
	s := lab.NewSimple(t, lab.SimpleOptions{})
	f, err := s.Node.OpenFrames("eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	to, err := s.GW.MAC("to-eth0")
	if err != nil {
		t.Fatal(err)
	}
	src, dst := netip.MustParseAddrPort("10.20.0.4:5000"), netip.MustParseAddrPort("10.20.0.1:4789")
	ipip := f.UDP(to, src, dst, nil)
	ipip[14+9] = 4
	frames := map[lab.Kind][]byte{
		lab.KindVXLAN: f.UDP(to, src, dst, []byte("inner")),
		lab.KindIPIP:  ipip,
		lab.KindIPv6:  frame(f, to, 0x86dd, make([]byte, 40)),
		lab.KindOther: frame(f, to, 0x88b5, make([]byte, 40)),
		lab.KindARP:   f.ARPRequest(lab.SimpleNode, lab.SimpleGateway),
	}
	c, err := s.GW.Capture("to-eth0")
	if err != nil {
		t.Fatal(err)
	}
	count, err := s.GW.CountUnexpected("to-eth0")
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range frames {
		if err := f.Send(b); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(50 * time.Millisecond)
	report, err := c.Stop()
	if err != nil {
		t.Fatal(err)
	}
	all, unexpected, err := count.Stop()
	if err != nil || all < 5 || unexpected != 4 {
		t.Errorf("counter: %d of %d, %v", unexpected, all, err)
	}
	got := strings.Join(report.Violations(onlyEnds()), "\n")
	for kind := range frames {
		if kind != lab.KindARP && !strings.Contains(got, string(kind)+" into to-eth0") {
			t.Errorf("%s not named in:\n%s", kind, got)
		}
	}
	if strings.Contains(got, "ARP") {
		t.Errorf("ARP named in:\n%s", got)
	}
}
