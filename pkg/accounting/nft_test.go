package accounting

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestNetnsNFT_directions(t *testing.T) {
	l := newNFTLab(t)
	l.apply("!table made")
	l.apply()
	paths := []struct {
		name string
		send func()
		want map[string]string
	}{
		{"pod to remote", func() { l.send(l.a, nftPodA, l.fabric, nftRemote, 3) }, map[string]string{nftPodA + " tx cluster": "384 3"}},
		{"remote to pod", func() { l.send(l.fabric, nftRemote, l.a, nftPodA, 4) }, map[string]string{nftPodA + " rx cluster": "512 4"}},
		{"pod to world", func() { l.send(l.a, nftPodA, l.fabric, nftWorld, 5) }, map[string]string{nftPodA + " tx internet": "640 5"}},
		{"world to pod", func() { l.send(l.fabric, nftWorld, l.b, nftPodB, 6) }, map[string]string{nftPodB + " rx internet": "768 6"}},
		{"pod to pod", func() { l.send(l.a, nftPodA, l.b, nftPodB, 7) }, map[string]string{
			nftPodA + " tx cluster": "896 7", nftPodB + " rx cluster": "896 7",
		}},
		{"pod to node", func() { l.send(l.b, nftPodB, l.node, nftNode, 8) }, map[string]string{nftPodB + " tx cluster": "1024 8"}},
		{"node to pod", func() { l.send(l.node, nftNode, l.b, nftPodB, 9) }, map[string]string{nftPodB + " rx cluster": "1152 9"}},
		{"node to remote", func() { l.send(l.node, nftNode, l.fabric, nftRemote, 10) }, map[string]string{"node tx cluster": "1280 10"}},
		{"remote to node", func() { l.send(l.fabric, nftRemote, l.node, nftNode, 11) }, map[string]string{"node rx cluster": "1408 11"}},
		{"node to world", func() { l.send(l.node, nftNode, l.fabric, nftWorld, 12) }, map[string]string{"node tx internet": "1536 12"}},
		{"world to node", func() { l.send(l.fabric, nftWorld, l.node, nftNode, 13) }, map[string]string{"node rx internet": "1664 13"}},
		{"ping", func() { l.a.Run("ping -c 2 -i 0.01 -s 100 " + nftRemote) }, map[string]string{
			nftPodA + " tx cluster": "256 2", nftPodA + " rx cluster": "256 2",
		}},
	}
	for _, p := range paths {
		t.Run(p.name, func(t *testing.T) {
			l.t = t
			l.node.Run("nft reset counters table ip " + NFTTable)
			p.send()
			l.want(p.want)
			l.apply()
			l.want(p.want)
		})
	}
}

// A peer counts under the first class that holds it.
func TestNetnsNFT_classOrder(t *testing.T) {
	l := newNFTLab(t)
	l.conf.Classes = append([]Class{
		{Name: "near", Prefixes: []netip.Prefix{netip.MustParsePrefix(nftRemote + "/32")}},
		{Name: "outside", Prefixes: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/1"), netip.MustParsePrefix("192.0.0.0/2")}},
	}, l.conf.Classes...)
	l.apply("!table made")
	l.send(l.a, nftPodA, l.fabric, nftRemote, 1)
	l.send(l.a, nftPodA, l.fabric, nftWorld, 2)
	l.send(l.a, nftPodA, l.b, nftPodB, 3)
	l.want(map[string]string{
		nftPodA + " tx near": "128 1", nftPodA + " tx outside": "640 5", nftPodB + " rx outside": "384 3",
	})
}

// What a filter drops is no packet that a pod gets, and a Service's packets count under their real peer.
func TestNetnsNFT_realPeer(t *testing.T) {
	l := newNFTLab(t)
	l.apply("!table made")
	for _, line := range []string{
		"add table ip other",
		"add chain ip other dn { type nat hook prerouting priority -100 ; }",
		"add rule ip other dn ip daddr 198.51.100.1 dnat to " + nftPodB,
		"add chain ip other drops { type filter hook postrouting priority 95 ; }",
		"add rule ip other drops udp dport 9 drop",
		"add chain ip other sn { type nat hook postrouting priority 100 ; }",
		"add rule ip other sn ip saddr " + nftPodA + " ip daddr " + nftPodB + " snat to 169.254.1.1",
	} {
		l.node.Run("nft " + line)
	}
	l.a.Run("ping -c 1 -s 100 198.51.100.1")
	l.want(map[string]string{
		nftPodA + " tx cluster": "128 1", nftPodB + " rx cluster": "128 1", nftPodB + " tx cluster": "128 1", nftPodA + " rx cluster": "128 1",
	})
	l.node.Run("nft reset counters table ip " + NFTTable)
	nftMust(t, l.b.Do(func() error { return nftDatagram(nftPodA + ":9") }))
	l.want(map[string]string{nftPodB + " tx cluster": "128 1"})
}

// Packets carry the sender's number from before routing to the last hook, and every foreign bit stays.
func TestNetnsNFT_marks(t *testing.T) {
	l := newNFTLab(t)
	l.subjects = append(l.subjects, nftSubject("10.20.0.12", 0))
	l.apply("!table made")
	for _, line := range []string{
		"add table ip other",
		"add chain ip other before { type filter hook prerouting priority -95 ; }",
		"add rule ip other before meta mark set 0xf123ffff", // all foreign bits, and three of ours
		"add chain ip other routed { type filter hook prerouting priority -50 ; }",
		"add rule ip other routed meta mark 0xf001ffff counter",
		"add chain ip other late { type filter hook postrouting priority 98 ; }",
		"add rule ip other late meta mark 0xf001ffff counter",
		"add chain ip other link { type filter hook postrouting priority 150 ; }",
		"add rule ip other link meta mark 0xf002ffff counter",
	} {
		l.node.Run("nft " + line)
	}
	l.send(l.a, nftPodA, l.b, nftPodB, 5)
	for _, chain := range []string{"routed", "late", "link"} {
		if out := l.node.Run("nft list chain ip other " + chain); !strings.Contains(out, "packets 5 bytes 640") {
			t.Errorf("%s: %s", chain, out)
		}
	}
	if out := l.node.Run("nft list chain ip " + NFTTable + " t_10.20.0.12"); strings.Contains(out, "mark") {
		t.Errorf("a mark without a number: %s", out)
	}
	l.conf.MarkMask, l.conf.Hash = 0, "other"
	l.apply("set up for configuration other")
	if out := l.node.Run("nft list table ip " + NFTTable); strings.Contains(out, "mark") {
		t.Errorf("a mark without a mask: %s", out)
	}
}

func TestNetnsNFT_golden(t *testing.T) {
	l := newNFTLab(t)
	l.apply("!table made")
	got := l.node.Run("nft list table ip " + NFTTable)
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		nftMust(t, os.WriteFile("testdata/nft-table.golden", []byte(got), 0o644))
	}
	want, err := os.ReadFile("testdata/nft-table.golden")
	nftMust(t, err)
	if got != string(want) {
		t.Errorf("table:\n%s", got)
	}
}

func TestNetnsNFT_start(t *testing.T) {
	l := newNFTLab(t)
	ctx, s := t.Context(), nftSubject(nftPodA, 1)
	l.subjects = nil
	zero := []Sample{{Direction: RX, Class: Cluster}, {Direction: RX, Class: Internet}, {Direction: TX, Class: Cluster}, {Direction: TX, Class: Internet}}
	if _, err := l.n.Start(ctx, l.conf, s); !errors.Is(err, ErrNotApplied) {
		t.Errorf("without a table: %v", err)
	}
	if got, err := l.n.Stop(ctx, s); got != nil || err != nil {
		t.Errorf("stop without a table: %v, %v", got, err)
	}
	l.apply("table made")
	if got, err := l.n.Stop(ctx, s); got != nil || err != nil {
		t.Errorf("stop without counters: %v, %v", got, err)
	}
	other := l.conf
	other.Hash = "other"
	if _, err := l.n.Start(ctx, other, s); !errors.Is(err, ErrNotApplied) {
		t.Errorf("other configuration: %v", err)
	}
	got, err := l.n.Start(ctx, l.conf, s)
	if err != nil || !slices.Equal(got, zero) {
		t.Errorf("first: %v, %v", got, err)
	}
	l.subjects = []Subject{s}
	l.apply() // Start and Apply make the same
	l.send(l.a, nftPodA, l.fabric, nftWorld, 2)
	values := []Sample{zero[0], zero[1], zero[2], {Direction: TX, Class: Internet, Bytes: 256, Packets: 2}}
	if got, err = l.n.Start(ctx, l.conf, s); err != nil || !slices.Equal(got, values) {
		t.Errorf("again: %v, %v", got, err)
	}
	if got, err = l.n.Stop(ctx, s); err != nil || !slices.Equal(got, values) {
		t.Errorf("stop: %v, %v", got, err)
	}
	// One counter of four is gone with the rules: those that stand keep their values.
	l.node.Run("nft flush chain ip " + NFTTable + " t_" + nftPodA)
	l.node.Run("nft flush chain ip " + NFTTable + " r_" + nftPodA)
	l.node.Run("nft delete counter ip " + NFTTable + " c_" + nftPodA + "_rx_cluster")
	if got, err = l.n.Stop(ctx, s); err != nil || !slices.Equal(got, values[1:]) {
		t.Errorf("stop without rules: %v, %v", got, err)
	}
	if got, err = l.n.Start(ctx, l.conf, s); err != nil || !slices.Equal(got, values) {
		t.Errorf("with a counter less: %v, %v", got, err)
	}
	l.apply()
	l.send(l.a, nftPodA, l.fabric, nftWorld, 1)
	l.want(map[string]string{nftPodA + " tx internet": "384 3"})
}

func TestNetnsNFT_drop(t *testing.T) {
	l := newNFTLab(t)
	l.node.Run("nft add table ip other")
	nftMust(t, l.n.Drop(t.Context()))
	l.apply("!table made")
	nftMust(t, l.n.Drop(t.Context()))
	if out := l.node.Run("nft list ruleset"); strings.TrimSpace(out) != "table ip other {\n}" {
		t.Errorf("left: %s", out)
	}
	if r, err := l.n.Read(t.Context()); !errors.Is(err, ErrNotApplied) {
		t.Errorf("read %v, %v", r, err)
	}
}

// nftDatagram sends 100 bytes to whoever may listen.
func nftDatagram(to string) error {
	conn, err := net.Dial("udp4", to)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Write(make([]byte, 100))
	return err
}

// What a kernel without nf_tables answers, which this one can't show.
func TestNFT_unavailable(t *testing.T) {
	for err, want := range map[error]bool{
		unix.EPROTONOSUPPORT: true, unix.EINVAL: true, unix.EOPNOTSUPP: true, unix.EPERM: false, unix.EMFILE: false,
	} {
		if got := nftUnavailable(err); errors.Is(got, ErrUnavailable) != want || !errors.Is(got, err) {
			t.Errorf("%v: %v", err, got)
		}
	}
}
