package accounting

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/native-vmss/native-vmss/internal/nstest"
)

const (
	nftNode   = "10.20.0.4"
	nftPodA   = "10.20.0.10"
	nftPodB   = "10.20.0.11"
	nftRemote = "10.20.0.1"   // a host in the network
	nftWorld  = "203.0.113.1" // one outside of it
)

// nftLab is a node with one NIC, eth0, on a fabric that has nftWorld too, and two pods with permanent neighbours.
type nftLab struct {
	t            testing.TB
	node, fabric *nstest.NS
	a, b         *nstest.NS
	n            *NFT
	conf         Config
	subjects     []Subject
}

func newNFTLab(t *testing.T) *nftLab {
	t.Helper()
	l := &nftLab{t: t, node: nstest.New(t), fabric: nstest.Beside(t), conf: nftConf(), subjects: []Subject{nftSubject(nftPodA, 1), nftSubject(nftPodB, 2)}}
	l.node.Run("sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.default.send_redirects=0")
	l.node.Run("ip link set lo up")
	l.fabric.Run("ip link set lo up")
	l.node.Run("ip link add eth0 type veth peer name port netns " + l.fabric.Path())
	l.join(l.node, "eth0", nftNode+"/16", l.fabric, "port", nftRemote+"/16")
	l.node.Run("ip route add default via " + nftRemote)
	l.fabric.Run("ip addr add " + nftWorld + "/32 dev lo")
	l.a, l.b = l.pod("veth1", nftPodA), l.pod("veth2", nftPodB)
	l.n = newNFT(t)
	return l
}

// join gives the two ends of a link addresses and permanent neighbours.
func (l *nftLab) join(x *nstest.NS, xDev, xAddr string, y *nstest.NS, yDev, yAddr string) {
	l.t.Helper()
	x.Run("ip link set " + xDev + " address 02:00:00:00:00:01")
	y.Run("ip link set " + yDev + " address 02:00:00:00:00:02")
	x.Run("ip addr add " + xAddr + " dev " + xDev)
	y.Run("ip addr add " + yAddr + " dev " + yDev)
	x.Run("ip link set " + xDev + " up")
	y.Run("ip link set " + yDev + " up")
	x.Run("ip neigh replace " + strings.Split(yAddr, "/")[0] + " lladdr 02:00:00:00:00:02 dev " + xDev + " nud permanent")
	y.Run("ip neigh replace " + strings.Split(xAddr, "/")[0] + " lladdr 02:00:00:00:00:01 dev " + yDev + " nud permanent")
}

func (l *nftLab) pod(dev, addr string) *nstest.NS {
	l.t.Helper()
	pod := nstest.Beside(l.t)
	pod.Run("ip link set lo up")
	l.node.Run("ip link add " + dev + " group 28278 type veth peer name eth0 netns " + pod.Path())
	l.join(l.node, dev, "169.254.1.1/32", pod, "eth0", addr+"/32")
	l.node.Run("ip neigh replace " + addr + " lladdr 02:00:00:00:00:02 dev " + dev + " nud permanent")
	l.node.Run("ip route add " + addr + "/32 dev " + dev)
	pod.Run("ip route add 169.254.1.1 dev eth0")
	pod.Run("ip neigh replace 169.254.1.1 lladdr 02:00:00:00:00:01 dev eth0 nud permanent")
	pod.Run("ip route add default via 169.254.1.1 src " + addr)
	l.fabric.Run("ip route add " + addr + "/32 via " + nftNode)
	return pod
}

func newNFT(t testing.TB) *NFT {
	t.Helper()
	b, err := NewNFTables(nil)
	nftMust(t, err)
	t.Cleanup(b.Close)
	nftMust(t, b.(*NFT).openBatch()) // here: a test may use it on another thread, in another namespace
	return b.(*NFT)
}

func nftConf() Config {
	return Config{
		Hash: "0123456789abcdef", NICs: []string{"eth0"}, MarkMask: 0x0fff0000,
		Classes: []Class{{Name: Cluster, Prefixes: []netip.Prefix{
			netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.20.0.0/16"), netip.MustParsePrefix("168.63.129.16/32"),
		}}},
	}
}

func nftSubject(addr string, slot uint16) Subject {
	return Subject{Addr: netip.MustParseAddr(addr), Slot: slot}
}

func nftMust(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// apply wants lines that contain these texts, in this order, as changed; those that begin with "!" as doubted too.
func (l *nftLab) apply(want ...string) {
	l.t.Helper()
	changed, doubted, err := l.n.Apply(l.t.Context(), l.conf, l.subjects)
	nftMust(l.t, err)
	var wantDoubted []string
	for i, w := range want {
		if d, found := strings.CutPrefix(w, "!"); found {
			wantDoubted, want[i] = append(wantDoubted, d), d
		}
	}
	for what, lists := range map[string][2][]string{"changed": {changed, want}, "doubted": {doubted, wantDoubted}} {
		if !slices.EqualFunc(lists[0], lists[1], strings.Contains) {
			l.t.Errorf("%s %q, want %q", what, lists[0], lists[1])
		}
	}
}

// values is the reading in words, without zeros: "10.20.0.10 tx cluster" -> "1128 1".
func (l *nftLab) values() map[string]string {
	l.t.Helper()
	r, err := l.n.Read(l.t.Context())
	if !errors.Is(err, ErrNotApplied) { // nothing counts: no values
		nftMust(l.t, err)
	}
	got := map[string]string{}
	put := func(who string, samples []Sample) {
		for _, s := range samples {
			if s.Bytes != 0 || s.Packets != 0 {
				got[who+" "+s.Direction+" "+s.Class] = fmt.Sprintf("%d %d", s.Bytes, s.Packets)
			}
		}
	}
	put("node", r.Node)
	for addr, samples := range r.Pods {
		put(addr.String(), samples)
	}
	return got
}

func (l *nftLab) want(want map[string]string) {
	l.t.Helper()
	if diff := cmp.Diff(want, l.values()); diff != "" {
		l.t.Errorf("counters (-want +got):\n%s", diff)
	}
}

// send sends datagrams of 100 bytes, which are packets of 128, and returns when all have arrived.
func (l *nftLab) send(from *nstest.NS, fromAddr string, to *nstest.NS, toAddr string, packets int) {
	l.t.Helper()
	var in net.PacketConn
	var out net.Conn
	nftMust(l.t, to.Do(func() (err error) {
		in, err = net.ListenPacket("udp4", toAddr+":7")
		return err
	}))
	defer in.Close()
	nftMust(l.t, from.Do(func() (err error) {
		out, err = (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(fromAddr)}}).Dial("udp4", toAddr+":7")
		return err
	}))
	defer out.Close()
	buf := make([]byte, 100)
	_ = in.SetReadDeadline(time.Now().Add(20 * time.Second))
	for i := range packets {
		_, err := out.Write(buf)
		nftMust(l.t, err)
		if _, _, err := in.ReadFrom(buf); err != nil {
			l.t.Fatalf("%s to %s: datagram %d: %v", fromAddr, toAddr, i, err)
		}
	}
}
