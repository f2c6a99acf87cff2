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

// Names of the IPAM plugins that native-vmss execs here: ipam-vmss, which it would not exec under its own name, as the build whose
// points are known, and host-local behind a shell that stops before or after it.
const (
	fpOtherIPAM = "ipam-other"
	fpOtherDir  = "/run/ipam-other"
	fpStops     = "host-local-stops"
)

// fpOther is the other ipam-vmss, with a store of its own.
var fpOther = map[string]any{"type": fpOtherIPAM, "cooldown": "1ms", "stateDir": fpOtherDir}

// fpHostLocal is host-local's configuration under the name it has here.
func fpHostLocal(name string) map[string]any {
	return map[string]any{
		"type": name, "ranges": []any{[]any{map[string]any{"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.220", "rangeEnd": "10.20.0.240"}}},
	}
}

// with is an edit that makes a call one with this IPAM plugin.
func (n *fpNode) with(ipam map[string]any) edit {
	return func(c *lab.Call) {
		c.Path = n.bin + ":" + filepath.Dir(peer(n.t, "host-local")) + ":" + n.path
		c.Stdin = n.conf(func(top map[string]any) {
			top["ipam"] = ipam
			if c.Command == "GC" {
				top["cni.dev/valid-attachments"] = attachments(fpNeighbour)
			}
		})
		if c.Command == "GC" {
			without("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS")(c)
		}
	}
}

// fpUnder is the cases of a main plugin whose addresses are another's: what it execs, and the ways that free them. A sweep can't:
// that plugin's book is its own. Nor can GC where the other plugin has none (host-local 1.9.1).
func fpUnder(ipam map[string]any, hasGC bool) (add, del, gc *fpCase) {
	way := func(name, command string) fpWay {
		return fpWay{name, func(n *fpNode) { n.run(n.call(command, fpPod, n.pod, n.with(ipam))).ok() }}
	}
	verb := func(command string) func(*fpNode, ...string) fpEnd {
		return func(n *fpNode, env ...string) fpEnd {
			return n.plugin(n.call(command, fpPod, n.pod, n.with(ipam)), env)
		}
	}
	adds := func(n *fpNode) { n.run(n.call("ADD", fpPod, n.pod, n.with(ipam))).ok() }
	dels, collects := way("DEL", "DEL"), way("GC", "GC")
	collectsOnly := collects
	last := func(*fpNode) {}
	if !hasGC {
		collects = fpWay{"GC, DEL", func(n *fpNode) { collectsOnly.do(n); dels.do(n) }}
		last = dels.do
	}
	tolerated := map[string]string{
		"routes.conntrack-flush": "logged: connections of a pod that is gone end by themselves",
		"node.write":             fpTolerated(nil)["node.write"],
	}
	name := ipam["type"].(string)
	add = &fpCase{name: "ADD under " + name, run: verb("ADD"), undone: true, success: dels.do, ways: []fpWay{dels, collects}, tolerated: tolerated}
	del = &fpCase{name: "DEL under " + name, run: verb("DEL"), before: adds, ways: []fpWay{dels, collects}, tolerated: tolerated}
	gc = &fpCase{name: "GC under " + name, run: verb("GC"), before: adds, success: last, ways: []fpWay{collects, dels}, tolerated: tolerated}
	return add, del, gc
}

// settleForeign lets host-local make what it keeps.
func (n *fpNode) settleForeign() {
	n.t.Helper()
	n.bin = n.t.TempDir()
	if err := os.Symlink(program(n.t, "failpoint/ipam-vmss"), filepath.Join(n.bin, fpOtherIPAM)); err != nil {
		n.t.Fatal(err)
	}
	script := `#!/bin/sh
there() { echo $$ >$STOP_FILE.new; mv $STOP_FILE.new $STOP_FILE; exec sleep 3600; }
[ "$STOP" != "before $CNI_COMMAND" ] || there
[ "$STOP" = "after $CNI_COMMAND" ] || exec ` + peer(n.t, "host-local") + `
` + peer(n.t, "host-local") + ` && there
`
	if err := os.WriteFile(filepath.Join(n.bin, fpStops), []byte(script), 0o700); err != nil {
		n.t.Fatal(err)
	}
	for _, ipam := range []map[string]any{fpHostLocal("host-local"), fpOther} {
		for _, command := range []string{"ADD", "DEL"} {
			n.run(n.call(command, fpPod, n.pod, n.with(ipam))).ok()
		}
	}
}

// The main plugin's own steps under another IPAM plugin.
func TestNetnsFailpoint_foreign_IPAM(t *testing.T) {
	add, del, gc := fpUnder(fpHostLocal("host-local"), false)
	(&fpSuite{verb: "foreign", cases: []*fpCase{add, del, gc}, settle: (*fpNode).settleForeign}).run(t)
}

// The main plugin is killed while its child is at a point; the child dies with it there. The child is stopped by a wait that never
// ends, so that the kill comes at that point and no other. A child that dies alone is an error of the main plugin.
func TestNetnsFailpoint_child(t *testing.T) {
	t.Parallel()
	s := &fpSuite{settle: (*fpNode).settleForeign}
	n := s.newFPNode(t)
	trials := 0
	add, del, gc := fpUnder(fpOther, true)
	for i, c := range []*fpCase{add, del, gc} {
		command := []string{"ADD", "DEL", "GC"}[i]
		call := func(env ...string) lab.Call { return n.call(command, fpPod, n.pod, n.with(fpOther), withEnv(env...)) }
		c.run = func(n *fpNode, env ...string) fpEnd { // the shipped main plugin has no points
			a := n.stage.run(call(env...))
			return fpEnd{failed: a.Exit != 0, text: a.Msg}
		}
		c.hits = n.trace(c)
		fpCompare(t, "child "+c.name, c.hits)
		for j, point := range c.hits {
			for k, way := range c.ways {
				if k != j%len(c.ways) && !soaking() {
					continue
				}
				trials += 2
				n.orphan(fpTrial{c, point, "death of the main plugin", way}, call, "NVT_FAILPOINT="+strings.Replace(point, "#", "=1h#", 1),
					func() bool { return slices.Contains(n.traced(n.traceFile()), point) })
				n.bereft(fpTrial{c, point, "kill", way})
			}
		}
	}
	stops := fpHostLocal(fpStops)
	add, del, gc = fpUnder(stops, false)
	for i, c := range []*fpCase{add, del, gc} {
		command := []string{"ADD", "DEL", "GC"}[i]
		call := func(env ...string) lab.Call { return n.call(command, fpPod, n.pod, n.with(stops), withEnv(env...)) }
		for _, point := range []string{"before " + command, "after " + command} {
			for _, way := range c.ways {
				trials++
				n.orphan(fpTrial{c, point, "death of the main plugin", way}, call, "STOP="+point, func() bool {
					_, err := os.Stat(n.stopFile())
					return err == nil
				})
			}
		}
	}
	n.rest()
	t.Logf("child: %d trials", trials)
}

func (n *fpNode) stopFile() string { return filepath.Join(n.Dir, "stopped") }

// orphan kills the main plugin once its child is there, sees that the child is gone, recovers and compares.
func (n *fpNode) orphan(tr fpTrial, call func(env ...string) lab.Call, stop string, there func() bool) {
	n.t.Helper()
	if tr.before != nil {
		tr.before(n)
	}
	_, _ = os.Remove(n.traceFile()), os.Remove(n.stopFile())
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, wait := n.Node.StartPlugin(ctx, program(n.t, "native-vmss"),
		call(stop, "NVT_FAILPOINT_TRACE="+n.traceFile(), "STOP_FILE="+n.stopFile()))
	if !pathEventually(patience/4, there) {
		n.t.Errorf("%s: the child never was there", tr)
	}
	children := n.children()
	if c.Process != nil {
		_ = c.Process.Kill()
	}
	if o := wait(); o.Exit != -1 {
		n.t.Errorf("%s: not killed, exit %d: %s", tr, o.Exit, o.Stdout)
	}
	if len(children) != 1 {
		n.t.Errorf("%s: children %v", tr, children)
	}
	if !pathEventually(patience/4, func() bool { return len(n.children()) == 0 }) {
		left := n.children()
		n.endChildren()
		n.t.Fatalf("%s: children outlived the main plugin: %v", tr, left)
	}
	tr.way.do(n)
	n.same(tr.String())
}

// bereft lets the child die alone: the main plugin says so.
func (n *fpNode) bereft(tr fpTrial) {
	n.t.Helper()
	if tr.before != nil {
		tr.before(n)
	}
	end := tr.run(n, "NVT_FAILPOINT="+strings.Replace(tr.point, "#", "="+tr.action+"#", 1))
	if !end.failed || !strings.Contains(end.text, fpOtherIPAM) || !strings.Contains(end.text, "signal: killed") {
		n.t.Errorf("%s of the child: ended with %q", tr, end.text)
	}
	tr.way.do(n)
	n.same(tr.String() + ", of the child")
}

// children are the processes that were given this node's trace file, less the main plugin.
func (n *fpNode) children() (pids []string) {
	n.t.Helper()
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		n.t.Fatal(err)
	}
	for _, file := range environs {
		env, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(env, []byte("NVT_FAILPOINT_TRACE="+n.traceFile()+"\x00")) {
			continue
		}
		pid := strings.Split(file, "/")[2]
		line, err := os.ReadFile("/proc/" + pid + "/cmdline")
		if err == nil && len(line) > 0 && !bytes.HasPrefix(line, []byte(program(n.t, "native-vmss"))) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// endChildren ends what a failed test would leave.
func (n *fpNode) endChildren() {
	for _, pid := range n.children() {
		var p int
		if _, err := fmt.Sscanf(pid, "%d", &p); err == nil {
			if proc, err := os.FindProcess(p); err == nil {
				_ = proc.Kill()
			}
		}
	}
	time.Sleep(10 * time.Millisecond)
}
