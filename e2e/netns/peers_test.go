package netns

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// peer is a plugin of containernetworking/plugins.
func peer(t testing.TB, name string) string {
	t.Helper()
	return peerOf(t, "plugins", name)
}

// peerOf is a program of a module of e2e/peers.
func peerOf(t testing.TB, module, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "bin", "peers", module, name))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode()&0o111 == 0 {
		t.Fatalf("%s is missing: run 'hack/peers.sh' in the root of the clone first", path)
	}
	return path
}

// caller is what drives a conflist on a node: libcni of this module, or a program with another one.
type caller interface {
	Add(context.Context, lab.Pod) (types.Result, error)
	Check(context.Context, lab.Pod) error
	Del(context.Context, lab.Pod) error
	GC(ctx context.Context, alive ...lab.Pod) error
	Status(context.Context) error
}

// chain drives a conflist on a stage's node.
type chain struct {
	*stage
	rt       caller
	conflist string
	fault    fault // of another's plugin in the list; the zero value: none
}

// fault is what a release of another's plugin does wrong under any main plugin.
type fault struct{ verb, words string }

const (
	faultyCheck    = "CHECK"
	faultyDelAgain = "DEL again"
)

// judge wants success, or exactly the fault that the list's plugin has.
func (c *chain) judge(verb string, p lab.Pod, err error) {
	c.t.Helper()
	switch {
	case verb != c.fault.verb && err != nil:
		c.t.Errorf("%s %s: %v", verb, p.ID, err)
	case verb == c.fault.verb && (err == nil || !strings.Contains(err.Error(), c.fault.words)):
		c.t.Errorf("%s %s: %v, but another main plugin got %q", verb, p.ID, err, c.fault.words)
	}
}

// chained makes a runtime of a conflist; plugins are ours, then the peers.
func (s *stage) chained(conflist string) *chain {
	s.t.Helper()
	rt, err := s.Node.Runtime([]byte(conflist), s.path, filepath.Dir(peer(s.t, "portmap")))
	if err != nil {
		s.t.Fatal(err)
	}
	return &chain{stage: s, rt: rt, conflist: conflist}
}

// shipped is a list of cni-conf.
func (s *stage) shipped(name string) *chain {
	s.t.Helper()
	return s.chained(shippedConf(s.t, name))
}

// shippedConf is a file of cni-conf; the tests' cool-down is the only thing that differs.
func shippedConf(t testing.TB, name string) string {
	t.Helper()
	return strings.ReplaceAll(shippedText(t, name), `"ipam": { "type": "ipam-vmss" }`, `"ipam": { "type": "ipam-vmss", "cooldown": "1s" }`)
}

// shippedText is a file of cni-conf as it is.
func shippedText(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "cni-conf", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func chainContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// add wants ADD and the CHECK directly after it (as CRI-O does) to succeed.
func (c *chain) add(p lab.Pod) *current.Result {
	c.t.Helper()
	out, err := c.rt.Add(chainContext(c.t), p)
	if err != nil {
		c.t.Fatalf("ADD %s: %v", p.ID, err)
	}
	res, err := current.NewResultFromResult(out)
	if err != nil {
		c.t.Fatal(err)
	}
	c.check(p)
	return res
}

func (c *chain) check(p lab.Pod) {
	c.t.Helper()
	c.judge(faultyCheck, p, c.rt.Check(chainContext(c.t), p))
}

func (c *chain) del(p lab.Pod) {
	c.t.Helper()
	c.judge("DEL", p, c.rt.Del(chainContext(c.t), p))
}

// delAgain is what kubelet does two or three times.
func (c *chain) delAgain(p lab.Pod) {
	c.t.Helper()
	c.judge(faultyDelAgain, p, c.rt.Del(chainContext(c.t), p))
}

// settle is one ADD and DEL: what chained plugins leave behind by design (chains of iptables) is in later snapshots.
func (c *chain) settle(capabilities map[string]any) {
	c.t.Helper()
	space := c.Pod(c.t, "settle")
	p := lab.Pod{ID: "settle", Netns: space.Path, Namespace: "team-a", Name: "settle", Capabilities: capabilities}
	c.add(p)
	c.del(p)
	if err := space.Close(); err != nil {
		c.t.Fatal(err)
	}
}

// addrOf is the pod's address in a result.
func addrOf(t testing.TB, res types.Result) netip.Addr {
	t.Helper()
	r, err := current.NewResultFromResult(res)
	if err != nil || len(r.IPs) == 0 {
		t.Fatalf("no address in %v %v", res, err)
	}
	a, _ := netip.AddrFromSlice(r.IPs[0].Address.IP)
	return a.Unmap()
}
