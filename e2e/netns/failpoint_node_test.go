package netns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// fpNode is a node with a neighbour on it.
type fpNode struct {
	*stage
	pod, other *lab.Namespace // two namespaces that fpPod may have
	near       *lab.Namespace // the neighbour\'s
	neighbour  *answer
	record     []byte // the neighbour's, in the store
	held       []netip.Addr
	others     []netip.Addr // held in the store of another ipam-vmss
	before     lab.Snapshot // without programs
	first      lab.Snapshot // by programs
	rebuilt    bool         // the store may be made again: records are then of another form
	lives      *fpLive      // nil: no other pod lives
	bin        string       // where IPAM plugins are that a test made
	broken     int
}

// newFPNode makes a node whose neighbour talks until the test ends.
func (f *fpSuite) newFPNode(t *testing.T) *fpNode {
	t.Helper()
	n := &fpNode{stage: newStage(t, poolOf(200)), rebuilt: f.rebuilt}
	n.sh("sysctl -qw net.ipv6.conf.default.disable_ipv6=1") // addresses that come some time after their link would be news
	// An ADD that finds its list of addresses too old asks again, and passes more points than it did when they were looked for.
	n.ipam["cooldown"], n.ipam["refresh"] = "1ms", "24h"
	n.settle()
	p, a := n.pathPod(fpNeighbour)
	n.near, n.neighbour, n.record = p, a, n.records()[a.IP]
	n.pod, n.other = n.Pod(t, fpPod), n.Pod(t, "other")
	if f.settle != nil {
		f.settle(n)
	}
	from := n.GW
	if f.fromNode {
		from = n.Node.Namespace
	}
	n.talk(p, from)
	n.pool = slices.DeleteFunc(slices.Clone(n.pool), func(p netip.Addr) bool { return p == a.IP })
	n.before, n.first, n.held, n.others = n.look(), n.snapshot(), n.stage.held(), n.heldIn(fpOtherDir)
	return n
}

// talk pings the neighbour and has a TCP stream with it until the test ends; nothing of both may be lost.
func (n *fpNode) talk(p, from *lab.Namespace) {
	n.t.Helper()
	if _, err := p.EchoTCP(netip.AddrPortFrom(n.neighbour.IP, 9000)); err != nil {
		n.t.Fatal(err)
	}
	st, err := from.StartStream(context.Background(), netip.AddrPortFrom(n.neighbour.IP, 9000), 5*time.Millisecond)
	if err != nil {
		n.t.Fatal(err)
	}
	lossless := n.stream(from, n.neighbour.IP)
	n.t.Cleanup(func() {
		lossless()
		if r := st.Stop(); r.Err != nil || r.Sent == 0 || r.Echoed != r.Sent {
			n.t.Errorf("the neighbour's TCP stream broke: %d of %d echoed: %v", r.Echoed, r.Sent, r.Err)
		}
	})
}

// same wants node, store and pods as they were before.
func (n *fpNode) same(when string) {
	n.t.Helper()
	wrong := n.before.Diff(n.look())
	if held := n.stage.held(); !slices.Equal(held, n.held) {
		wrong = append(wrong, fmt.Sprintf("held in the store: %v, were %v", held, n.held))
	}
	if held := n.heldIn(fpOtherDir); !slices.Equal(held, n.others) {
		wrong = append(wrong, fmt.Sprintf("held in the other store: %v, were %v", held, n.others))
	}
	if !n.rebuilt && !bytes.Equal(n.records()[n.neighbour.IP], n.record) {
		wrong = append(wrong, "the neighbour's record changed")
	}
	for _, p := range []*lab.Namespace{n.pod, n.other} {
		if left := n.podLinksOf(p); len(left) > 0 && n.lives == nil {
			wrong = append(wrong, fmt.Sprintf("left in %s: %v", p.Name, left))
		}
	}
	if len(wrong) == 0 {
		return
	}
	n.broken++
	n.t.Errorf("%s:\n%s", when, strings.Join(wrong, "\n"))
	n.mend()
}

// rest is the node in the end, by other eyes.
func (n *fpNode) rest() {
	n.t.Helper()
	n.check(fpNeighbour, n.near, n.neighbour).ok()
	n.unchanged(n.first)
	n.consistent()
}

// look is a snapshot without the programs, which would take most of the time of a trial; they look at the node in the end.
func (n *fpNode) look() lab.Snapshot {
	n.t.Helper()
	snap, err := n.Node.Snapshot(n.t.Context(), lab.SnapshotOptions{Pool: n.pool, NoPrograms: true})
	if err != nil {
		n.t.Fatal(err)
	}
	return snap
}

// podLinksOf are the links of a pod beside lo.
func (n *fpNode) podLinksOf(p *lab.Namespace) (names []string) {
	n.t.Helper()
	err := p.Do(func() error {
		links, err := net.Interfaces()
		for _, l := range links {
			if l.Flags&net.FlagLoopback == 0 {
				names = append(names, l.Name)
			}
		}
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return names
}

// mend takes away what a failed trial left, so that the next one is judged by itself.
func (n *fpNode) mend() {
	n.t.Helper()
	n.end()
	n.run(n.call("DEL", fpPod, nil))
	n.gc(fpNeighbour)
	n.sweep()
}

// hits are the failpoints that a call passes, in order: "routes.pair-add#1".
func (s *stage) hits(c lab.Call) []string {
	s.t.Helper()
	file := filepath.Join(s.Dir, "trace-"+c.Command+c.ContainerID)
	withEnv("NVT_FAILPOINT_TRACE=" + file)(&c)
	s.runOf(pathFailing, c).ok()
	return s.traced(file)
}

// traced reads the failpoints that a process wrote down, each with its number among those of its name.
func (s *stage) traced(file string) []string {
	s.t.Helper()
	b, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		s.t.Fatal(err)
	}
	count := map[string]int{}
	var out []string
	for _, name := range strings.Fields(string(b)) {
		count[name]++
		out = append(out, fmt.Sprintf("%s#%d", name, count[name]))
	}
	return out
}

// at makes the build fail or die at a point of hits.
func at(point, action string) edit {
	name, n, _ := strings.Cut(point, "#")
	return withEnv("NVT_FAILPOINT=" + name + "=" + action + "#" + n)
}

// podEmpty wants the pod's namespace to have no link but lo.
func (s *stage) podEmpty(p *lab.Namespace, when string) {
	s.t.Helper()
	if out := s.in(p, "ip -o link"); strings.Count(out, "\n") > 0 {
		s.t.Errorf("%s: left in the pod: %s", when, out)
	}
}

// plugin runs a call of the build that fails.
func (n *fpNode) plugin(c lab.Call, env []string) fpEnd {
	n.t.Helper()
	withEnv(env...)(&c)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	o := n.Node.RunPlugin(ctx, program(n.t, pathFailing), c)
	if o.Exit == -1 && ctx.Err() == nil {
		return fpEnd{killed: true, text: fmt.Sprintf("%v", o.Err)}
	}
	a := n.judge(c, o)
	return fpEnd{failed: a.Exit != 0, text: a.Msg, log: string(o.Stderr)}
}

// repairing runs a repair of the build that fails.
func (n *fpNode) repairing(env []string) fpEnd {
	n.t.Helper()
	out, err := n.ctlEnv("failpoint/vmssctl", env, "node", "repair")
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == -1 {
		return fpEnd{killed: true, text: err.Error()}
	}
	return fpEnd{failed: err != nil, text: out, log: out}
}
