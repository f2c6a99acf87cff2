package netns

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// The files failpoint_*_test.go break every step of every verb. A step is a hit of a failpoint: one run of the verb writes down those
// that it passes, and each of them is then an error once and the process's death once. What follows is one of the ways in which
// this project promises to recover; after it node, store and pods are what they were before. All the while a neighbour lives on.

// pathFailing is the build that reads NVT_FAILPOINT.
const pathFailing = "failpoint/native-vmss"

// fpPod is the container that the verbs are about, fpNeighbour the one that must notice nothing.
const (
	fpPod       = "x"
	fpNeighbour = "neighbour"
	fpWorkers   = 2 // nodes that share the points of a verb
	// fpEach is how many trials one node takes at most: a sweep of 60 s later makes an address cool until then.
	fpEach   = 180
	fpGiveUp = 8 // trials of one node that leave something, until it stops
)

// fpEnd is how one run of a verb ended.
type fpEnd struct {
	killed, failed bool
	text           string
	log            string
}

// uncounted reports whether accounting says that the point failed: that costs no pod its network, so the verb goes on.
func (e fpEnd) uncounted(point string) bool {
	for line := range strings.Lines(e.log) {
		if strings.Contains(line, "task=accounting") && strings.Contains(line, "failpoint "+point) {
			return true
		}
	}
	return false
}

// fpWay is one way to recover.
type fpWay struct {
	name string
	do   func(*fpNode)
}

// fpCase is a verb in a situation in which it takes certain steps.
type fpCase struct {
	name   string
	before func(*fpNode) // makes what the verb finds; nil: nothing
	run    func(n *fpNode, env ...string) fpEnd
	ways   []fpWay
	// undone: what fails has undone itself, and needs no recovery.
	undone bool
	// success takes back what the verb does where it succeeds, after which nothing is left; nil: it leaves nothing.
	success func(*fpNode)
	// last comes after the recovery; nil: nothing.
	last func(*fpNode)
	// tolerated are the points at which an error is none of the verb's, each with the reason.
	tolerated map[string]string
	// known leaves the points of these cases out: they are the same code. Only the soak takes them all the same.
	known []*fpCase
	hits  []string
}

// fpSuite is a verb: all of its cases on the same nodes.
type fpSuite struct {
	verb  string
	cases []*fpCase
	// fromNode lets the node itself talk to the neighbour, for cases that switch forwarding off.
	fromNode bool
	// settle is done once on each node, for what stays by design.
	settle func(*fpNode)
	// rebuilt: the store is made again, so that records are of another form.
	rebuilt bool
}

// fpTrial is one point, what is done there, and how to recover.
type fpTrial struct {
	*fpCase
	point, action string
	way           fpWay
}

func (tr fpTrial) String() string {
	return fmt.Sprintf("%s: %s at %s, then %s", tr.name, tr.action, tr.point, tr.way.name)
}

// run tries every point of every case of a verb.
func (f *fpSuite) run(t *testing.T) {
	t.Helper()
	t.Parallel()
	first := f.newFPNode(t)
	var trials []fpTrial
	for _, c := range f.cases {
		for _, k := range c.known {
			if k.hits == nil {
				k.hits = first.trace(k)
			}
		}
		c.hits = first.trace(c)
		fpCompare(t, f.verb+" "+c.name, c.hits)
		trials = append(trials, c.trials(len(trials))...)
	}
	if t.Failed() {
		return
	}
	t.Logf("%s: %d trials", f.verb, len(trials))
	q := &fpQueue{trials: trials}
	t.Run("each", func(t *testing.T) {
		for i := range max(fpWorkers, (len(trials)+fpEach-1)/fpEach) {
			t.Run(fmt.Sprintf("node%d", i), func(t *testing.T) {
				t.Parallel()
				n := first
				if i > 0 {
					n = f.newFPNode(t)
				} else {
					n.stage = n.pathAs(t)
				}
				for tr, ok := q.next(); ok; tr, ok = q.next() {
					if n.try(tr); n.broken >= fpGiveUp {
						t.Fatalf("%d trials left something on this node", n.broken)
					}
				}
				n.rest()
			})
		}
	})
	if left := len(q.trials); left > 0 {
		t.Errorf("%d trials were not made", left)
	}
	// A point that a wait passes more often at one time than at another isn't always there.
	if len(q.missed) > 0 {
		t.Logf("not reached: %v", q.missed)
	}
	if len(q.missed)*20 > len(trials) {
		t.Errorf("%d of %d points were not reached again", len(q.missed), len(trials))
	}
}

// trials are the points that are to be tried. Each is an error once and a death once, by one way of recovery in turn; the soak takes
// every way for each.
func (c *fpCase) trials(begin int) []fpTrial {
	soak := soaking()
	points := slices.Clone(c.hits)
	if !soak {
		for _, k := range c.known {
			points = slices.DeleteFunc(points, func(p string) bool { return slices.Contains(k.hits, p) })
		}
	}
	var out []fpTrial
	for i, p := range points {
		for j, action := range []string{"error", "kill"} {
			for k, way := range c.ways {
				turn := k == (begin+i+j)%len(c.ways)
				once := action == "error" && c.undone // the way is not used then
				if turn || soak && !once {
					out = append(out, fpTrial{c, p, action, way})
				}
			}
		}
	}
	return out
}

// soaking tells whether tests may take long.
func soaking() bool { return os.Getenv("NVT_SOAK") != "" }

// fpQueue hands trials to the nodes.
type fpQueue struct {
	mu     sync.Mutex
	trials []fpTrial
	missed []string
}

func (q *fpQueue) next() (tr fpTrial, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.trials) == 0 {
		return tr, false
	}
	tr, q.trials = q.trials[0], q.trials[1:]
	return tr, true
}

func (n *fpNode) traceFile() string { return filepath.Join(n.Dir, "trace") }

// trace runs a case once and returns its points.
func (n *fpNode) trace(c *fpCase) []string {
	n.t.Helper()
	if c.before != nil {
		c.before(n)
	}
	_ = os.Remove(n.traceFile())
	if end := c.run(n, "NVT_FAILPOINT_TRACE="+n.traceFile()); end.failed || end.killed {
		n.t.Fatalf("%s: %s", c.name, end.text)
	}
	hits := n.traced(n.traceFile())
	c.finish(n, true)
	n.same(c.name + ", undisturbed")
	return hits
}

// finish takes the success of a verb back and does what comes last.
func (c *fpCase) finish(n *fpNode, succeeded bool) {
	if succeeded && c.success != nil {
		c.success(n)
	}
	if c.last != nil {
		c.last(n)
	}
}

// try breaks one point, recovers and compares.
func (n *fpNode) try(tr fpTrial) {
	n.t.Helper()
	if tr.before != nil {
		tr.before(n)
	}
	name, nth, _ := strings.Cut(tr.point, "#")
	_ = os.Remove(n.traceFile())
	end := tr.run(n, "NVT_FAILPOINT="+name+"="+tr.action+"#"+nth, "NVT_FAILPOINT_TRACE="+n.traceFile())
	switch reached := slices.Contains(n.traced(n.traceFile()), tr.point); {
	case !reached:
		n.missed(tr, end)
	case tr.action == "kill" && !end.killed:
		n.t.Errorf("%s: it was not killed: %s", tr, end.text)
	case tr.action == "error" && end.killed, tr.action == "error" && end.failed && !strings.Contains(end.text, "failpoint "+name):
		n.t.Errorf("%s: ended with %q", tr, end.text)
	case tr.action == "error" && !end.failed && tr.tolerated[name] == "" && !end.uncounted(name):
		n.t.Errorf("%s: it succeeded", tr)
	}
	if !end.failed && !end.killed {
		tr.finish(n, true)
	} else {
		if !tr.undone || !end.failed {
			tr.way.do(n)
		}
		tr.finish(n, false)
	}
	n.same(tr.String())
}

// missed is for a point that a wait passed more often when the points were looked for than it does now.
func (n *fpNode) missed(tr fpTrial, end fpEnd) {
	n.t.Helper()
	if end.killed || end.failed {
		n.t.Errorf("%s: not reached, but ended with %q", tr, end.text)
	}
	n.t.Logf("%s: not reached", tr)
}
