package lab_test

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

func mustEcho(t *testing.T, n *lab.Namespace, addr string) *lab.Server {
	t.Helper()
	s, err := n.EchoTCP(netip.MustParseAddrPort(addr))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestNetnsTraffic(t *testing.T) {
	s := lab.NewSimple(t, lab.SimpleOptions{})
	ctx, node := context.Background(), s.Node.Namespace

	t.Run("ping", func(t *testing.T) {
		r, err := node.Ping(ctx, lab.SimpleInternet, lab.PingOptions{Count: 5, Interval: time.Millisecond})
		if err != nil || r.Received != 5 || r.Lost() != 0 || r.Median() == 0 {
			t.Errorf("%+v, %v", r, err)
		}
		r, err = node.Ping(ctx, netip.MustParseAddr("10.20.0.99"), lab.PingOptions{Count: 2, Interval: time.Millisecond, Timeout: 50 * time.Millisecond})
		if err != nil || r.Lost() != 2 {
			t.Errorf("%+v, %v", r, err)
		}
		r, err = node.Ping(ctx, lab.SimpleInternet, lab.PingOptions{Count: 1, Size: 1473, DontFragment: true, Timeout: 50 * time.Millisecond})
		if err != nil || len(r.SendErrors) != 1 {
			t.Errorf("too large: %+v, %v", r, err)
		}
		watch, err := s.GW.WatchEchoes()
		if err != nil {
			t.Fatal(err)
		}
		if r, err := node.Ping(ctx, lab.SimpleInternet, lab.PingOptions{Count: 1}); err != nil || r.Lost() > 0 {
			t.Error(r, err)
		}
		if got := watch.Stop(); !slices.Equal(got, []netip.Addr{lab.SimpleNode}) {
			t.Errorf("echo requests from %v", got)
		}
		back := node.StartPing(lab.SimpleInternet, lab.PingOptions{Interval: 5 * time.Millisecond})
		time.Sleep(50 * time.Millisecond)
		if r, err := back.Stop(); err != nil || r.Lost() != 0 || r.Sent < 5 {
			t.Errorf("%+v, %v", r, err)
		}
	})
	t.Run("connect", func(t *testing.T) {
		mustEcho(t, s.GW, "203.0.113.10:7")
		for to, want := range map[string]lab.Verdict{
			"203.0.113.10:7": lab.Connected,
			"203.0.113.10:8": lab.Refused,
			"10.20.0.99:7":   lab.TimedOut,
		} {
			got, err := node.Connect(ctx, netip.MustParseAddrPort(to), 200*time.Millisecond)
			if err != nil || got != want {
				t.Errorf("%s: %s, %v; want %s", to, got, err, want)
			}
		}
	})
	t.Run("echo and sources", func(t *testing.T) {
		echo := mustEcho(t, s.GW, "203.0.113.10:17")
		got, local, err := node.Exchange(ctx, echo.Addr, "hello", time.Second)
		if err != nil || got != "hello" || local.Addr() != lab.SimpleNode {
			t.Errorf("%q %v %v", got, local, err)
		}
		if !slices.Equal(echo.Sources(), []netip.Addr{lab.SimpleNode}) {
			t.Errorf("sources %v", echo.Sources())
		}
		if rtt, err := node.RoundTrips(ctx, echo.Addr, 20); err != nil || rtt == 0 {
			t.Error(rtt, err)
		}
		stream, err := node.StartStream(ctx, echo.Addr, time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Millisecond)
		if r := stream.Stop(); r.Err != nil || r.Echoed < 3 || r.Sent != r.Echoed {
			t.Errorf("%+v", r)
		}
	})
	t.Run("throughput", func(t *testing.T) {
		sink, err := s.GW.SinkTCP(netip.MustParseAddrPort("203.0.113.10:9"))
		if err != nil {
			t.Fatal(err)
		}
		rate, err := node.Throughput(ctx, sink, sink.Addr, 200*time.Millisecond)
		if err != nil || rate < 1e6 {
			t.Errorf("%.0f B/s, %v", rate, err)
		}
	})
	t.Run("udp and dns", func(t *testing.T) {
		echo, err := s.GW.EchoUDP(netip.MustParseAddrPort("203.0.113.10:7"))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := node.SendUDP(echo.Addr, []byte("x"), time.Second); err != nil || string(got) != "x" {
			t.Errorf("%q %v", got, err)
		}
		c, err := s.GW.ListenUDP(netip.MustParseAddrPort("203.0.113.10:53"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		want := netip.MustParseAddr("192.0.2.1")
		go lab.ServeDNS(c, func(name string, _ netip.AddrPort) netip.Addr {
			if name == "example.test." {
				return want
			}
			return netip.Addr{}
		})
		server := netip.MustParseAddrPort("203.0.113.10:53")
		if got, err := node.LookupA(ctx, server, "example.test.", time.Second); err != nil || !slices.Equal(got, []netip.Addr{want}) {
			t.Errorf("%v %v", got, err)
		}
		if _, err := node.LookupA(ctx, server, "other.test.", time.Second); err == nil {
			t.Error("unknown name resolved")
		}
	})
	t.Run("handshakes", func(t *testing.T) {
		if err := s.GW.AnyIP(netip.MustParsePrefix("10.40.0.0/24")); err != nil {
			t.Fatal(err)
		}
		srv := mustEcho(t, s.GW, "0.0.0.0:700")
		var peers []netip.AddrPort
		for _, a := range lab.AddrRange(netip.MustParseAddr("10.40.0.1"), 200) {
			peers = append(peers, netip.AddrPortFrom(a, 700))
		}
		done, failed := node.Handshakes(ctx, append(peers, netip.MustParseAddrPort("203.0.113.10:1")), 8, time.Second)
		if done != 200 || len(failed) != 1 {
			t.Errorf("done %d, failed %v", done, failed)
		}
		locals := map[netip.AddrPort]bool{}
		for _, p := range srv.AwaitPeers(200, 2*time.Second) {
			locals[p.Local] = true
		}
		if len(locals) != 200 {
			t.Errorf("%d distinct peers", len(locals))
		}
	})
}
