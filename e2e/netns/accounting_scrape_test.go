package netns

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// A scrape asks the kernel for one dump of counters and for nothing else of nftables, however many pods there are.
func TestNetnsAccounting_one_dump_per_scrape(t *testing.T) {
	t.Parallel()
	l, n := newAcctSimple(t, 32, "nftables")
	l.pod(0, "first")
	few := n.acctAsked()
	l.more(0, 30)
	many := n.acctAsked()
	l.exact("after being watched")
	if len(few) != 1 || len(many) != 1 || !strings.Contains(many[0], "NLM_F_DUMP") || !strings.Contains(many[0], "NFT_MSG_GETOBJ") {
		t.Errorf("asked with one pod: %q\nwith 31: %q\nwant one dump of objects", few, many)
	}
}

// acctAsked are the requests to nf_tables of one `vmssctl metrics`, as strace saw them.
func (n *acctNode) acctAsked() (asked []string) {
	n.t.Helper()
	file := filepath.Join(n.Dir, "strace")
	cmd := n.Node.Command(context.Background(), "strace", "-f", "-qq", "-s", "64", "-e", "trace=sendto,sendmsg,write", "-o", file,
		program(n.t, "vmssctl"), "--conf", n.ctlConf(), "metrics")
	if out, err := cmd.Output(); err != nil || !strings.Contains(string(out), "native_vmss_pod_network_bytes_total") {
		n.t.Fatalf("strace: %v: %s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		n.t.Fatal(err)
	}
	message := regexp.MustCompile(`NFT_MSG_\w+`)
	for line := range strings.Lines(string(text)) {
		if message.MatchString(line) {
			asked = append(asked, strings.TrimSpace(line))
		}
	}
	return asked
}
