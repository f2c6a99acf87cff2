package netns

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// acctDisturb is what others do to our rules.
type acctDisturb struct {
	name, backend string
	// before the packets that come before it, then the thing itself
	save string
	// right after a fold: then no counter falls
	saveFolded string
	do         string
	// gentle: no byte is lost or doubled by it.
	gentle bool
}

const acctTable = "ip native_vmss_acct"

var acctDisturbs = []acctDisturb{
	{
		name: "nft_list_and_nft_f", backend: "nftables", // the rules are doubled
		do: "nft list table " + acctTable + " >/run/saved; nft -f /run/saved",
	},
	{
		name: "nft_flush_and_an_old_nft_f", backend: "nftables",
		save: "nft list ruleset >/run/saved", do: "nft flush ruleset; nft -f /run/saved",
	},
	{
		name: "nft_f_of_the_state_at_the_last_fold", backend: "nftables",
		saveFolded: "(echo delete table " + acctTable + "; nft list table " + acctTable + ") >/run/saved", do: "nft -f /run/saved",
	},
	{name: "nft_flush_ruleset", backend: "nftables", do: "nft flush ruleset"},
	{name: "nft_delete_table", backend: "nftables", do: "nft delete table " + acctTable},
	{name: "nft_flush_table", backend: "nftables", do: "nft flush table " + acctTable},
	{name: "nft_reset_counters", backend: "nftables", do: "nft reset counters table " + acctTable},
	{name: "nft_flush_maps", backend: "nftables", do: "nft flush map " + acctTable + " tx; nft flush map " + acctTable + " rx"},
	{
		name: "iptables_save_and_restore_beside_nft", backend: "nftables", gentle: true,
		do: "iptables -t mangle -A FORWARD -p tcp; iptables-save -c | iptables-restore -c",
	},
	{name: "iptables_save_and_restore", backend: "iptables", gentle: true, do: "iptables-save -c | iptables-restore -c"},
	{
		name: "iptables_restore_twice_without_flush", backend: "iptables",
		do: "iptables-save -c -t mangle | grep -v '^:' | iptables-restore -c --noflush",
	},
	{
		name: "iptables_restore_of_an_old_state", backend: "iptables",
		save: "iptables-save -c >/run/saved", do: "iptables-restore -c </run/saved",
	},
	{
		name: "iptables_restore_of_the_state_at_the_last_fold", backend: "iptables",
		saveFolded: "iptables-save -c >/run/saved", do: "iptables-restore -c </run/saved",
	},
	{name: "iptables_flush_mangle", backend: "iptables", do: "iptables -t mangle -F"},
	{name: "iptables_zero", backend: "iptables", do: "iptables -t mangle -Z"},
}

// Whatever others do to our rules: no total falls below what was folded, the next repair says what it found, counts it, and all is exact
// from there on. What is gentle costs nothing at all.
func TestNetnsAccounting_others_at_our_rules(t *testing.T) {
	t.Parallel()
	for _, d := range acctDisturbs {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			l, n := newAcctSimple(t, 3, d.backend)
			p, q := l.podIn(0, "team-o", "p"), l.pod(0, "q")
			talk := func() {
				l.says(p)
				l.says(q)
			}
			if d.save != "" {
				n.sh(d.save)
			}
			// More than what comes later: a counter that was set back and has overtaken its old value since is like one that went on.
			for range 3 {
				talk()
			}
			n.mustCtl("node", "repair")
			l.exact("after a repair")
			folded := n.scrape()
			if d.saveFolded != "" {
				n.sh(d.saveFolded)
			}
			talk()
			before := l.sawAll()
			n.sh(d.do)
			if d.gentle {
				l.exact("after it")
				talk()
				l.exact("with packets after it")
				return
			}
			talk()
			scraped := n.scrape()
			if len(n.differences(scraped, l.sawAll())) == 0 {
				t.Error("it did nothing: the test proves nothing")
			}
			for _, line := range scraped.fell(folded) {
				t.Error(line)
			}
			said := n.mustCtl("node", "repair")
			repaired := n.scrape()
			for _, line := range repaired.fell(folded) {
				t.Error(line)
			}
			// A counter that fell was found by the scrape already; rules are repair's to find.
			if scraped.of("accounting_resets_total") == 0 && !strings.Contains(said, "accounting") && !strings.Contains(said, "counters") {
				t.Errorf("the repair said %q", said)
			}
			if repaired.of("accounting_resets_total") == 0 {
				t.Errorf("no reset, the repair said %q", said)
			}
			if said := n.mustCtl("node", "repair"); !strings.Contains(said, "nothing") {
				t.Errorf("a second repair said %q", said)
			}
			// From here on each byte counts once again.
			known := n.differences(n.scrape(), l.sawAll())
			t.Logf("lost or doubled, of %v: %v", before, known)
			talk()
			l.exactBut("with packets after the repair", known...)
			l.del(p)
			l.exactBut("after DEL", slices.DeleteFunc(known, func(d acctDiff) bool { return d.pod == p.name && d.unit == "bytes" })...)
		})
	}
}

// A loop of repairs finds a doubled rule within one period, by itself.
func TestNetnsAccounting_loop_finds_a_doubled_rule(t *testing.T) {
	t.Parallel()
	l, n := newAcctSimple(t, 2, "nftables")
	p := l.pod(0, "p")
	l.says(p)
	_, stop := n.acctLoop()
	defer stop()
	n.sh("nft list table " + acctTable + " >/run/saved; nft -f /run/saved")
	waitFor(t, "the doubled rule is gone and reported", func() bool {
		return n.scrape().of("accounting_resets_total", "reason=rules") == 1 && !strings.Contains(n.sh("nft list chain "+acctTable+" pre"), "vmap @tx\n\t\tiifgroup") &&
			strings.Count(n.sh("nft list chain "+acctTable+" pre"), "vmap @tx") == 1
	})
	known := n.differences(n.scrape(), l.sawAll())
	l.says(p)
	l.exactBut("after the loop's repair", known...)
}

// acctLoop runs `vmssctl node repair --every 1s` as a service does; kill ends one with SIGKILL and starts the next.
func (n *acctNode) acctLoop() (kill, stop func()) {
	n.t.Helper()
	var mu sync.Mutex
	var stopOne func()
	start := func() {
		ctx, cancel := context.WithCancel(context.Background())
		cmd := n.Node.Command(ctx, program(n.t, "vmssctl"), "--conf", n.ctlConf(), "node", "repair", "--every", "1s")
		if err := cmd.Start(); err != nil {
			n.t.Errorf("start the loop: %v", err)
		}
		stopOne = func() {
			_ = cmd.Process.Signal(syscall.SIGKILL)
			var exit *exec.ExitError
			if err := cmd.Wait(); err != nil && !acctAs(err, &exit) {
				n.t.Errorf("the loop ended with %v", err)
			}
			cancel()
		}
	}
	start()
	return func() {
			mu.Lock()
			defer mu.Unlock()
			stopOne()
			start()
		}, func() {
			mu.Lock()
			defer mu.Unlock()
			stopOne()
		}
}

// acctMixTime is how long the mix goes on.
func acctMixTime() time.Duration {
	if soaking() {
		return time.Minute
	}
	return 6 * time.Second
}
