package routes

import (
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/nstest"
)

// A kernel that filters dumps but no flushes must lose the same entries and no others.
func TestNetnsKernel_pickConntrack_onlyTheNamedAddress(t *testing.T) {
	nstest.New(t)
	k, err := New(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	insert := func(src, dst string) {
		t.Helper()
		out, err := exec.Command("conntrack", "-I", "-p", "udp", "-s", src, "-d", dst, "--sport", "1000", "--dport", "53",
			"--timeout", "60", "-r", dst, "-q", src, "--reply-port-src", "53", "--reply-port-dst", "1000").CombinedOutput()
		if err != nil {
			t.Fatalf("insert conntrack entry: %v: %s", err, out)
		}
	}
	insert("10.20.0.10", "10.20.0.99")
	insert("10.20.0.11", "10.20.0.10")
	insert("10.20.0.11", "10.20.0.99")
	addr := netip.MustParseAddr("10.20.0.10")
	for _, s := range sourcesOf(addr) {
		if err := k.pickConntrack(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	left, err := exec.Command("conntrack", "-L").Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(left), "10.20.0.10 ") || !strings.Contains(string(left), "src=10.20.0.11 dst=10.20.0.99") {
		t.Errorf("entries left:\n%s", left)
	}
}

// A kernel that knows no filter at all dumps every entry; those of others don't match.
func TestNetnsKernel_pickConntrack_unfiltered(t *testing.T) {
	l := newLab(t)
	l.node.Run("conntrack -I -s 10.20.0.11 -d 10.20.0.10 -p udp --sport 9 --dport 9 -t 60")
	l.node.Run("conntrack -I -s 10.20.0.10 -d 10.20.0.11 -p udp --sport 9 --dport 8 -t 60")
	l.node.Run("conntrack -I -s 10.20.0.12 -d 10.20.0.11 -p udp --sport 9 --dport 7 -t 60")
	req := netfilterRequest(unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, familyCounts)
	entries, err := l.k.netfilter(t.Context(), "test", req)
	must(t, err)
	for _, s := range sourcesOf(netip.MustParseAddr("10.20.0.10")) {
		matched := 0
		for _, entry := range entries {
			attrs, err := entryAttrs(entry)
			must(t, err)
			if s.matches(attrs) {
				matched++
			}
		}
		if len(entries) != 3 || matched != 1 {
			t.Errorf("%d of %d entries match in direction %d, want 1 of 3", matched, len(entries), s.tuple)
		}
	}
}
