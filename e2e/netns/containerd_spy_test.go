package netns

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

const (
	criCalls = "/run/cni/calls"
	criSlow  = "/run/cni/slow"
)

// criSpy stands before a plugin, notes how it is called and becomes it. A verb that is to be slow does not begin. Verbs of
// another plugin than ours have its name before them.
const criSpy = `#!/bin/sh
echo "%[1]s$CNI_COMMAND id=$CNI_CONTAINERID netns=$CNI_NETNS pid=$$" >>` + criCalls + `
while [ -e ` + criSlow + `.%[1]s$CNI_COMMAND ]; do sleep 0.1; done
exec %[2]s
`

// criCall is one call of a plugin as the spy noted it.
type criCall struct {
	verb, id, netns string
	pid             int
}

func (c *cri) calls() (list []criCall) {
	c.t.Helper()
	text, err := os.ReadFile(c.Node.Path(criCalls))
	if err != nil && !os.IsNotExist(err) {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var call criCall
		for i, word := range strings.Fields(line) {
			key, value, _ := strings.Cut(word, "=")
			switch {
			case i == 0:
				call.verb = word
			case key == "id":
				call.id = value
			case key == "netns":
				call.netns = value
			case key == "pid":
				if call.pid, err = strconv.Atoi(value); err != nil {
					c.t.Fatal(err)
				}
			}
		}
		list = append(list, call)
	}
	return list
}

// called counts the calls of a verb, of one container if an id is given.
func (c *cri) called(verb, id string) (n int) {
	c.t.Helper()
	for _, call := range c.calls() {
		if call.verb == verb && (id == "" || call.id == id) {
			n++
		}
	}
	return n
}

// calling holds calls of a verb back and returns the first that came after start; release lets them begin.
func (c *cri) calling(verb string, start func()) (call criCall, release func()) {
	c.t.Helper()
	c.sh("touch " + criSlow + "." + verb)
	release = func() { c.sh("rm -f " + criSlow + "." + verb) }
	before := c.called(verb, "")
	start()
	if !pathEventually(criStart, func() bool { return c.called(verb, "") > before }) {
		release()
		c.t.Fatalf("no further %s: %v", verb, c.calls())
	}
	for _, call = range slices.Backward(c.calls()) {
		if call.verb == verb {
			break
		}
	}
	return call, release
}

// awaitEnd waits until the process of a call is gone.
func (c *cri) awaitEnd(call criCall) {
	c.t.Helper()
	if !pathEventually(patience, func() bool { return !runs(call.pid, "CNI_CONTAINERID="+call.id) }) {
		c.t.Fatalf("it does not end: %+v", call)
	}
}

// runs tells whether a process with this number is there that has a variable so: the number may be another's by now. Inside an exec it
// shows no variables at all, as a dead one does that nobody has waited for; the two differ in their state.
func runs(pid int, variable string) bool {
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
	if err != nil {
		return false
	}
	if len(environ) == 0 {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, state, _ := strings.Cut(string(stat), ") ")
		return err == nil && !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
	}
	return strings.Contains(string(environ), variable+"\x00")
}

// sandboxes counts what containerd still knows, and namespaces what it made and has not removed.
func (c *cri) sandboxes() int {
	c.t.Helper()
	return len(strings.Fields(c.mustCrictl("pods", "-q")))
}

func (c *cri) namespaces() int {
	c.t.Helper()
	list, err := os.ReadDir(c.Node.Path("/run/netns"))
	if err != nil {
		c.t.Fatal(err)
	}
	return len(list)
}
