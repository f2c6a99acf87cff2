package netns

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// says has a pod and the gateway talk a little, in numbers that no two calls have in common.
func (l *acctLab) says(p *acctPod) {
	l.t.Helper()
	p.at.said++
	r, err := p.space.Ping(context.Background(), lab.SimpleGateway, lab.PingOptions{
		Count: 2, Interval: time.Millisecond, Timeout: patience, Size: 8 + p.at.said%1000,
	})
	if err != nil || r.Lost() > 0 {
		l.t.Fatalf("%s: %+v %v", p.name, r, err)
	}
	if r, err := p.space.Ping(context.Background(), lab.SimpleInternet, lab.PingOptions{Count: 1, Timeout: patience, Size: 30}); err != nil || r.Lost() > 0 {
		l.t.Fatalf("%s: %+v %v", p.name, r, err)
	}
}

// acctPoints are the steps of a run that have to do with counters or books, or all of them in a soak.
func acctPoints(hits []string) []string {
	if soaking() {
		return hits
	}
	return slices.DeleteFunc(slices.Clone(hits), func(h string) bool {
		return !strings.HasPrefix(h, "accounting.") && !strings.HasPrefix(h, "boltfile.") && !strings.HasPrefix(h, "routes.link-")
	})
}

// kills runs a plugin's verb that dies at a point.
func (l *acctLab) kills(c lab.Call, point string) {
	l.t.Helper()
	at(point, "kill")(&c)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	o := l.nodes[0].Node.RunPlugin(ctx, program(l.t, pathFailing), c)
	if ctx.Err() != nil {
		l.t.Fatalf("%s hung at %s", c.Command, point)
	}
	if o.Exit != -1 {
		l.t.Logf("%s was not killed at %s", c.Command, point)
	}
}

// A DEL that is killed at any step and made again has its pod's bytes in the namespace's total once: before it is made again and after.
func TestNetnsAccounting_killed_DEL(t *testing.T) {
	t.Parallel()
	l, n := newAcctSimple(t, 1, "nftables")
	first := l.podIn(0, "team-k", "first")
	l.says(first)
	l.exact("before DEL")
	l.says(first)
	call := n.call("DEL", first.name, first.space)
	points := acctPoints(n.hits(call))
	l.ended(first)
	l.exact("after DEL")
	acctWantPoints(t, points, "accounting.")
	for _, point := range points {
		p := l.podIn(0, "team-k", "p"+strings.NewReplacer(".", "-", "#", "-").Replace(point))
		l.says(p)
		l.exact("before DEL at " + point)
		l.says(p) // no reader has folded these
		l.kills(n.call("DEL", p.name, p.space), point)
		l.ended(p) // what it had is its namespace's, whatever the page still says of the pod
		l.exact("after a DEL that was killed at " + point)
		n.del(p.name, p.space).ok()
		l.exact("after DEL again, at first killed at " + point)
		p.space.Close()
	}
}

func acctWantPoints(t *testing.T, points []string, prefix string) {
	t.Helper()
	if !slices.ContainsFunc(points, func(p string) bool { return strings.HasPrefix(p, prefix) }) {
		t.Fatalf("no step of %s among %v", prefix, points)
	}
	t.Logf("%d steps", len(points))
}

// An ADD that is killed and made again begins at nothing, whatever the address's earlier pods had.
func TestNetnsAccounting_killed_ADD(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"nftables", "iptables"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			acctKilledADD(t, backend)
		})
	}
}

func acctKilledADD(t *testing.T, backend string) {
	t.Helper()
	l, n := newAcctSimple(t, 1, backend)
	first := l.podIn(0, "team-a", "first")
	l.says(first)
	l.exact("first")
	l.del(first)
	space := n.Pod(t, "trace")
	points := acctPoints(n.hits(n.call("ADD", "trace", space)))
	n.del("trace", space).ok()
	acctWantPoints(t, points, "accounting.")
	for i, point := range points {
		ns := fmt.Sprintf("team-%c", 'a'+i%3)
		name := "p" + strings.NewReplacer(".", "-", "#", "-").Replace(point)
		space := n.Pod(t, name)
		l.kills(n.call("ADD", name, space, podNamed(ns, name)), point)
		space.Close()
		// The runtime's next try has a new namespace.
		p := &acctPod{name: name, ns: ns, at: n, space: n.Pod(t, name+"-again")}
		p.added = n.add(name, p.space, podNamed(ns, name))
		l.adopt(p)
		l.exact("after ADD, at first killed at " + point)
		l.says(p)
		l.exact("with packets, ADD at first killed at " + point)
		l.del(p)
		l.exact("after DEL, ADD at first killed at " + point)
	}
}

// A repair that is killed at any step of its fold loses and doubles nothing, and the next one neither.
func TestNetnsAccounting_killed_fold(t *testing.T) {
	t.Parallel()
	l, n := newAcctSimple(t, 3, "nftables")
	p, q := l.podIn(0, "team-k", "p"), l.podIn(0, "team-k", "q")
	trace := filepath.Join(n.Dir, "trace-repair")
	repair := func(env ...string) {
		t.Helper()
		if out, err := n.ctlEnv("failpoint/vmssctl", env, "node", "repair"); err != nil && len(env) == 0 {
			t.Fatalf("repair: %v: %s", err, out)
		}
	}
	l.says(p)
	repair("NVT_FAILPOINT_TRACE=" + trace)
	points := acctPoints(n.traced(trace))
	acctWantPoints(t, points, "accounting.")
	l.exact("after a repair")
	for _, point := range points {
		name, nth, _ := strings.Cut(point, "#")
		l.says(p)
		l.says(q)
		repair("NVT_FAILPOINT=" + name + "=kill#" + nth)
		l.exact("after a repair that was killed at " + point)
		l.says(p)
		l.exact("with packets after a repair that was killed at " + point)
		repair()
		l.exact("after the next repair, one killed at " + point)
	}
	if sum := n.scrape().of("accounting_resets_total"); sum != 0 {
		t.Errorf("%d resets", sum)
	}
}

// A reader that is held up at any of its steps, while a pod ends and the next one has its address, shows neither too much nor less than
// before.
func TestNetnsAccounting_reader_held_up(t *testing.T) {
	t.Parallel()
	l, n := newAcctSimple(t, 1, "nftables")
	read := func(env ...string) (wait func() acctPage) {
		t.Helper()
		wait1 := n.starts(env, "metrics")
		return func() acctPage {
			t.Helper()
			page, err := acctParse(wait1())
			if err != nil {
				t.Fatal(err)
			}
			return page
		}
	}
	p := l.podIn(0, "team-0", "p0")
	l.says(p)
	read()()
	points := n.traced(n.acctTrace())
	acctWantPoints(t, points, "accounting.")
	for i, point := range points {
		name, nth, _ := strings.Cut(point, "#")
		before := n.scrape()
		wait := read("NVT_FAILPOINT=" + name + "=1s#" + nth)
		waitFor(t, "the reader at "+point, func() bool { return slices.Contains(n.traced(n.acctTrace()), point) })
		l.says(p)
		l.del(p)
		p = l.podIn(0, fmt.Sprintf("team-%d", i+1), fmt.Sprintf("p%d", i+1))
		l.says(p)
		page := wait()
		l.exact("after a reader was held up at " + point)
		for _, line := range page.fell(before) {
			t.Errorf("a reader held up at %s: %s", point, line)
		}
		for _, line := range n.scrape().fell(page) {
			t.Errorf("after a reader was held up at %s: %s", point, line)
		}
	}
}

func (n *acctNode) acctTrace() string { return filepath.Join(n.Dir, "trace-ctl") }

// starts runs vmssctl of the build that fails, and notes its steps; wait returns what it printed.
func (n *acctNode) starts(env []string, args ...string) (wait func() string) {
	n.t.Helper()
	_ = os.Remove(n.acctTrace())
	var out, diag bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	cmd := n.Node.Command(ctx, program(n.t, "failpoint/vmssctl"), append([]string{"--conf", n.ctlConf()}, args...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), append(env, "NVT_FAILPOINT_TRACE="+n.acctTrace())...), &out, &diag
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	return func() string {
		n.t.Helper()
		defer cancel()
		if err := cmd.Wait(); err != nil {
			n.t.Fatalf("vmssctl %v: %v: %s", args, err, diag.String())
		}
		return out.String()
	}
}

// A repair that is held up at any of its steps takes nothing from pods that come and go meanwhile.
func TestNetnsAccounting_repair_held_up(t *testing.T) {
	t.Parallel()
	l, n := newAcctSimple(t, 60, "nftables")
	first := l.pod(0, "first")
	l.says(first)
	n.starts(nil, "node", "repair")()
	points := acctPoints(n.traced(n.acctTrace()))
	acctWantPoints(t, points, "accounting.")
	old := l.pod(0, "old")
	for i, point := range points {
		name, nth, _ := strings.Cut(point, "#")
		l.says(old)
		wait := n.starts([]string{"NVT_FAILPOINT=" + name + "=1s#" + nth}, "node", "repair")
		waitFor(t, "the repair at "+point, func() bool { return slices.Contains(n.traced(n.acctTrace()), point) })
		l.says(old)
		first := old
		// Whichever comes first may have to wait for the repair. While it looks at the counters that is an ADD, which it has not on its list.
		addFirst := strings.HasPrefix(point, "accounting.")
		if !addFirst {
			l.del(first)
		}
		old = l.pod(0, fmt.Sprintf("p%d", i)) // at an address that no pod has had
		l.says(old)
		if addFirst {
			l.del(first)
		}
		wait()
		l.says(old)
		l.exact("after a repair was held up at " + point)
	}
	if resets := n.scrape().of("accounting_resets_total"); resets != 0 {
		t.Errorf("%d resets, but nobody touched the counters", resets)
	}
}
