package lab_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

func anybody(netip.Addr) bool { return true }

func mustTally(t *testing.T, n *lab.Namespace, link string) *lab.PacketTally {
	t.Helper()
	tally, err := n.TallyPackets(link)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tally.Close() })
	return tally
}

func mustRead(t *testing.T, tally *lab.PacketTally) lab.TallyReport {
	t.Helper()
	r, err := tally.Read()
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// fragment is a piece of a datagram: a frame with this id, this offset in units of eight bytes, and more to come or not.
func fragment(frame []byte, id, offset uint16, more bool) []byte {
	b := append([]byte{}, frame...)
	binary.BigEndian.PutUint16(b[18:], id)
	if more {
		offset |= 0x2000
	}
	binary.BigEndian.PutUint16(b[20:], offset)
	return b
}

func TestNetnsTally_hand_made_frames(t *testing.T) {
	s := lab.NewSimple(t, lab.SimpleOptions{})
	f, err := s.GW.OpenFrames("to-eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mac, err := net.ParseMAC(lab.SimpleMAC)
	if err != nil {
		t.Fatal(err)
	}
	a, b := netip.MustParseAddrPort("203.0.113.10:1000"), netip.MustParseAddrPort("192.0.2.1:2000")
	of := func(size int) []byte { return f.UDP(mac, a, b, make([]byte, size)) }
	tally := mustTally(t, s.Node.Namespace, "eth0")
	v6 := append([]byte{}, of(10)...)
	binary.BigEndian.PutUint16(v6[12:], 0x86dd)
	for _, frame := range [][]byte{
		of(10), of(100), // 38 and 128 bytes
		f.ARPRequest(lab.SimpleGateway, lab.SimpleNode), v6,
		// The headers that f.UDP puts into each piece are 28 bytes long, 8 of them the fragment's payload: 24 + 48 + 16 bytes in it.
		fragment(of(40), 7, 3, true), fragment(of(16), 7, 0, true), fragment(of(8), 7, 9, false),
		// Another one has the same number in the other direction or not at all.
		fragment(of(16), 8, 0, true),
	} {
		if err := f.Send(frame); err != nil {
			t.Fatal(err)
		}
	}
	talk := lab.Talk{Src: a.Addr(), Dst: b.Addr()}
	want := lab.Sum{Packets: 3, Bytes: 38 + 128 + 20 + 24 + 48 + 16}
	var r lab.TallyReport
	for end := time.Now().Add(time.Minute); r.Pieces == 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
		r = mustRead(t, tally)
	}
	if r.Talks[talk] != want || r.Fragmented != 1 || r.Pieces != 1 || r.Strange != 1 || r.Super != 0 {
		t.Errorf("%+v, want %+v for %v", r, want, talk)
	}
	if got := r.Of(b.Addr(), false, anybody); got != want {
		t.Errorf("in: %+v, want %+v", got, want)
	}
	if got := r.Of(a.Addr(), true, anybody); got != (lab.Sum{}) {
		t.Errorf("out: %+v, want nothing", got)
	}
	again := mustTally(t, s.GW, "to-eth0")
	if err := f.Send(of(10)); err != nil {
		t.Fatal(err)
	}
	if got := mustRead(t, again).Of(a.Addr(), true, anybody); got != (lab.Sum{Packets: 1, Bytes: 38}) {
		t.Errorf("out of the link: %+v", got)
	}
}

// A packet that a queue has no room for is an error, not a smaller sum.
func TestNetnsTally_says_that_it_missed_packets(t *testing.T) {
	s := lab.NewSimple(t, lab.SimpleOptions{})
	tally := mustTally(t, s.Node.Namespace, "eth0")
	c, err := s.Node.DialUDP(netip.AddrPortFrom(lab.SimpleGateway, 9))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 10_000 {
		_, _ = c.Write([]byte{1}) // each second one fails with the error that came about the one before
	}
	for range 10_000 {
		_, _ = c.Write([]byte{1})
	}
	if r, err := tally.Read(); err == nil || !strings.Contains(err.Error(), "dropped") {
		t.Errorf("%+v %v", r, err)
	}
}

// With and without offloads the sums are what nft counts in the stack, in both directions and on both ends.
func TestNetnsTally_TCP(t *testing.T) {
	const size = 3 << 20
	for name, on := range map[string]bool{"with_offloads": true, "without_offloads": false} {
		t.Run(name, func(t *testing.T) {
			s := lab.NewSimple(t, lab.SimpleOptions{})
			for n, link := range map[*lab.Namespace]string{s.Node.Namespace: "eth0", s.GW: "to-eth0"} {
				for _, o := range []lab.Offload{lab.TSO, lab.GSO} {
					if err := n.SetOffload(link, o, on); err != nil {
						t.Fatal(err)
					}
				}
			}
			sh := func(script string) string {
				t.Helper()
				out, err := s.Node.Command(context.Background(), "sh", "-ec", script).Output()
				if err != nil {
					t.Fatal(err)
				}
				return string(out)
			}
			sh(`nft add table ip t; nft add counter ip t rx; nft add counter ip t tx
				nft add chain ip t in '{ type filter hook input priority 0; }'; nft add rule ip t in iifname eth0 counter name rx
				nft add chain ip t out '{ type filter hook output priority 0; }'; nft add rule ip t out oifname eth0 counter name tx`)
			node, gw := mustTally(t, s.Node.Namespace, "eth0"), mustTally(t, s.GW, "to-eth0")
			sent := transfer(t, s, size)
			// The last segments are still under way. What one side misses it misses for ever.
			var wrong []string
			for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
				wrong = nil
				here, there := mustRead(t, node), mustRead(t, gw)
				tx, rx := here.Of(lab.SimpleNode, true, anybody), here.Of(lab.SimpleNode, false, anybody)
				same := func(what string, got, want lab.Sum) {
					if got != want || want.Bytes < sent {
						wrong = append(wrong, fmt.Sprintf("%s: %+v, the node's tally says %+v for %d bytes", what, got, want, sent))
					}
				}
				if on { // out of a link that cuts, packets are those of the wire; nft saw them before
					same("nft, sent", counterOf(t, sh("nft list counter ip t tx")), tx)
				}
				same("nft, received", counterOf(t, sh("nft list counter ip t rx")), rx)
				same("sent by the other end", there.Of(lab.SimpleInternet, true, anybody), rx)
				same("received by the other end", there.Of(lab.SimpleInternet, false, anybody), tx)
				if (here.Super > 0) != on {
					t.Fatalf("%d super-packets", here.Super)
				}
				if len(wrong) == 0 {
					return
				}
				if time.Now().After(end) {
					t.Fatal(strings.Join(wrong, "\n"))
				}
			}
		})
	}
}

// transfer sends from the node to the internet and back.
func transfer(t *testing.T, s *lab.Simple, size int) uint64 {
	t.Helper()
	srv := mustEcho(t, s.GW, "203.0.113.10:9")
	c, err := s.Node.DialTCP(context.Background(), netip.Addr{}, srv.Addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	done := make(chan error, 1)
	go func() {
		_, err := c.Write(make([]byte, size))
		done <- err
	}()
	if n, err := io.CopyN(io.Discard, c, int64(size)); err != nil || n != int64(size) {
		t.Fatal(n, err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return uint64(size)
}

// counterOf reads nft's listing of one counter.
func counterOf(t *testing.T, text string) (got lab.Sum) {
	t.Helper()
	fields := strings.Fields(text)
	for i := range fields[:len(fields)-1] {
		n, _ := strconv.ParseUint(fields[i+1], 10, 64)
		switch fields[i] {
		case "packets":
			got.Packets = n
		case "bytes":
			got.Bytes = n
		}
	}
	return got
}
