package accounting

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/nstest"
)

// nftTraced is the variable that makes the test binary do one thing under strace, after Apply was done by somebody else.
const nftTraced = "NVT_NFT_TRACED"

// TestNFTTraced is no test: strace runs it.
func TestNFTTraced(t *testing.T) {
	what := os.Getenv(nftTraced)
	if what == "" {
		return
	}
	n, err := NewNFTables(nil)
	nftMust(t, err)
	defer n.Close()
	name, addr, _ := strings.Cut(what, " ")
	switch name {
	case "read":
		r, err := n.Read(t.Context())
		if err != nil || len(r.Pods) != 1000 {
			t.Errorf("read %d, %v", len(r.Pods), err)
		}
	case "start":
		_, err = n.Start(t.Context(), nftConf(), nftSubject(addr, 1))
	case "stop":
		_, err = n.Stop(t.Context(), nftSubject(addr, 1))
	}
	nftMust(t, err)
}

// nftMessage is what strace shows of a message to nftables: its type.
var nftMessage = regexp.MustCompile(`NFNL_SUBSYS_NFTABLES<<8\|(NFT_MSG_\w+), nlmsg_flags=([\w|]+)`)

// traced runs one thing in the node and returns the types of its messages, with " dump" for a dump.
func (l *nftLab) traced(what string) []string {
	l.t.Helper()
	file := filepath.Join(l.t.(*testing.T).TempDir(), "trace")
	nftMust(l.t, l.node.Do(func() error {
		cmd := exec.Command("strace", "-f", "-s", "4096", "-v", "-e", "trace=sendto,sendmsg", "-o", file, os.Args[0], "-test.run=^TestNFTTraced$")
		cmd.Env = append(os.Environ(), nftTraced+"="+what)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}))
	b, err := os.ReadFile(file)
	nftMust(l.t, err)
	var messages []string
	for _, m := range nftMessage.FindAllStringSubmatch(string(b), -1) {
		if strings.Contains(m[2], "NLM_F_DUMP") || strings.Contains(m[2], "0x300") {
			m[1] += " dump"
		}
		messages = append(messages, strings.TrimPrefix(m[1], "NFT_MSG_"))
	}
	return messages
}

// At 1,000 pods a read is one dump; what Start and Stop send doesn't depend on how many there are.
func TestNetnsNFT_messages(t *testing.T) {
	l := newNFTLab(t)
	l.subjects = nftSubjects(1)
	l.apply("!table made")
	first, again := l.traced("start 10.30.9.1"), l.traced("start 10.30.0.1")
	l.subjects = nftSubjects(1000)
	_, _, err := l.n.Apply(t.Context(), l.conf, l.subjects)
	nftMust(t, err)
	tests := []struct {
		what string
		want string
	}{
		{"read", "[GETOBJ dump]"},
		{"start 10.30.0.1", "[GETCHAIN GETOBJ GETOBJ GETOBJ GETOBJ]"},
		{"start 10.30.0.1", fmt.Sprint(again)},
		{"start 10.30.9.2", fmt.Sprint(first)},
		{"stop 10.30.0.1", "[GETRULE dump GETOBJ GETOBJ GETOBJ GETOBJ]"},
	}
	for _, tt := range tests {
		if got := fmt.Sprint(l.traced(tt.what)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.what, got, tt.want)
		}
	}
	if s := fmt.Sprint(first); strings.Contains(s, "DELOBJ") || strings.Contains(s, "DELCHAIN") || strings.Contains(s, "DELSETELEM") {
		t.Errorf("a first start deletes: %s", s)
	}
}

// benchNFT is a node with this many addresses that are counted.
func benchNFT(b *testing.B, subjects int) (*NFT, Config) {
	b.Helper()
	nstest.New(b)
	n, conf := newNFT(b), nftConf()
	if _, _, err := n.Apply(b.Context(), conf, nftSubjects(subjects)); err != nil {
		b.Fatal(err)
	}
	return n, conf
}

// Each opens and closes its sockets, as a plugin does.
func BenchmarkNetnsNFT(b *testing.B) {
	for _, size := range []int{1, 250, 1000} {
		subjects := nftSubjects(size)
		run := func(name string, do func(n Backend, conf Config, i int) error) {
			b.Run(fmt.Sprintf("%s/%d", name, size), func(b *testing.B) {
				n, conf := benchNFT(b, size)
				for i := 0; b.Loop(); i++ {
					if name == "StartNew" && i%50 == 49 { // so many addresses are new, not more
						b.StopTimer()
						_, _, err := n.Apply(b.Context(), conf, subjects)
						nftMust(b, err)
						b.StartTimer()
					}
					own, err := NewNFTables(nil)
					nftMust(b, err)
					nftMust(b, do(own, conf, i))
					own.Close()
				}
			})
		}
		last := subjects[size-1]
		run("StartNew", func(n Backend, conf Config, i int) error {
			_, err := n.Start(b.Context(), conf, nftSubject(fmt.Sprintf("10.31.0.%d", i%50+1), 1))
			return err
		})
		run("StartAgain", func(n Backend, conf Config, _ int) error {
			_, err := n.Start(b.Context(), conf, last)
			return err
		})
		run("Stop", func(n Backend, _ Config, _ int) error {
			_, err := n.Stop(b.Context(), last)
			return err
		})
		run("Read", func(n Backend, _ Config, _ int) error {
			r, err := n.Read(b.Context())
			if err == nil && len(r.Pods) != size {
				err = fmt.Errorf("%d pods", len(r.Pods))
			}
			return err
		})
		run("ApplyRight", func(n Backend, conf Config, _ int) error {
			changed, _, err := n.Apply(b.Context(), conf, subjects)
			if err == nil && len(changed) > 0 {
				err = fmt.Errorf("changed %q", changed)
			}
			return err
		})
	}
}
