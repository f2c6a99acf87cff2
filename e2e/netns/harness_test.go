package netns

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	network  = "vmssnet"
	stateDir = "/run/native-vmss"
	// patience is what a runtime would wait; the plugins' own deadlines end well before.
	patience = 60 * time.Second
	// Most of a case is waiting for a deadline or a cool-down, so more of them run at once than there are processors.
	parallel = "6"
)

// TestMain lets more tests run side by side than the default, unless the caller says otherwise.
func TestMain(m *testing.M) {
	flag.Parse()
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == "test.parallel" })
	if !asked {
		if err := flag.Set("test.parallel", parallel); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
	}
	os.Exit(m.Run())
}

// program is a shipped program; the tests don't build it, so that they judge what people install.
func program(t testing.TB, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", "bin", name))
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode()&0o111 == 0 {
		t.Fatalf("%s is missing: run 'hack/build.sh ship bin' in the root of the clone first", path)
	}
	return path
}

// stage is LAB with MD0: one node, one gateway, and CF0 with the keys that a case changes.
type stage struct {
	*lab.Simple
	t    testing.TB
	pool []netip.Addr
	top  map[string]any // keys of CF0 beside the ipam object
	ipam map[string]any // keys of its ipam object
	path string         // CNI_PATH
}

func newStage(t testing.TB, o lab.SimpleOptions) *stage {
	t.Helper()
	if o.Pool == nil {
		o.Pool = lab.AddrRange(netip.MustParseAddr("10.20.0.10"), 5)
	}
	main := program(t, "native-vmss")
	program(t, "ipam-vmss")
	return &stage{
		Simple: lab.NewSimple(t, o), t: t, pool: slices.Concat(o.Pool, o.Pool2), path: filepath.Dir(main),
		top:  map[string]any{"cniVersion": "1.1.0", "name": network, "type": "native-vmss"},
		ipam: map[string]any{"type": "ipam-vmss", "cooldown": "1s"},
	}
}

// poolOf is a fixture with n addresses.
func poolOf(n int) lab.SimpleOptions {
	return lab.SimpleOptions{Pool: lab.AddrRange(netip.MustParseAddr("10.20.0.10"), n)}
}

// conf is CF0 as the case changed it; each edit changes this copy alone.
func (s *stage) conf(edits ...func(top map[string]any)) []byte {
	s.t.Helper()
	top := maps.Clone(s.top)
	if _, set := top["ipam"]; !set && s.ipam != nil {
		top["ipam"] = maps.Clone(s.ipam)
	}
	for _, edit := range edits {
		edit(top)
	}
	b, err := json.Marshal(top)
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// answer is how one command ended; its text is read once, by run.
type answer struct {
	lab.Outcome
	stage   *stage
	Command string
	Code    uint
	Msg     string
	// Of a successful ADD.
	IP               netip.Addr
	HostLink, PodMAC string
	HostMAC          string
}

type edit func(*lab.Call)

func withArgs(s string) edit      { return func(c *lab.Call) { c.Args = s } }
func withStdin(b []byte) edit     { return func(c *lab.Call) { c.Stdin = b } }
func withIfName(name string) edit { return func(c *lab.Call) { c.IfName = name } }
func withNetns(path string) edit  { return func(c *lab.Call) { c.Netns = path } }
func without(vars ...string) edit {
	return func(c *lab.Call) { c.Without = append(c.Without, vars...) }
}

func podNamed(ns, name string) edit {
	return func(c *lab.Call) { c.Args = podArgs(c.ContainerID, ns, name) }
}

func podArgs(id, ns, name string) string {
	return "IgnoreUnknown=1;K8S_POD_NAMESPACE=" + ns + ";K8S_POD_NAME=" + name +
		";K8S_POD_INFRA_CONTAINER_ID=" + id + ";K8S_POD_UID=u1"
}

// call is ENV(c, p) with CF0.
func (s *stage) call(command, id string, pod *lab.Namespace, edits ...edit) lab.Call {
	c := lab.Call{
		Command: command, ContainerID: id, Path: s.path, Stdin: s.conf(), Args: podArgs(id, "team-a", "web-0"),
	}
	if pod != nil {
		c.Netns = pod.Path
	}
	for _, e := range edits {
		e(&c)
	}
	return c
}

func (s *stage) add(id string, pod *lab.Namespace, edits ...edit) *answer {
	s.t.Helper()
	return s.run(s.call("ADD", id, pod, edits...))
}

func (s *stage) del(id string, pod *lab.Namespace, edits ...edit) *answer {
	s.t.Helper()
	return s.run(s.call("DEL", id, pod, edits...))
}

// check passes the result of an ADD as the runtime does.
func (s *stage) check(id string, pod *lab.Namespace, added *answer) *answer {
	s.t.Helper()
	return s.run(s.call("CHECK", id, pod, withStdin(s.prev(added))))
}

func (s *stage) prev(added *answer) []byte {
	return s.conf(func(top map[string]any) { top["prevResult"] = json.RawMessage(added.Stdout) })
}

func (s *stage) status(edits ...edit) *answer {
	s.t.Helper()
	leaveOut := without("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS")
	return s.run(s.call("STATUS", "", nil, append([]edit{leaveOut}, edits...)...))
}

// gc says which containers are alive, all with eth0.
func (s *stage) gc(alive ...string) *answer {
	s.t.Helper()
	valid := []map[string]string{}
	for _, id := range alive {
		valid = append(valid, map[string]string{"containerID": id, "ifname": "eth0"})
	}
	stdin := s.conf(func(top map[string]any) { top["cni.dev/valid-attachments"] = valid })
	return s.run(s.call("GC", "", nil, withStdin(stdin), without("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS")))
}

func (s *stage) run(c lab.Call) *answer {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return s.judge(c, s.Node.RunPlugin(ctx, program(s.t, "native-vmss"), c))
}

// judge holds every run of every case to the form: a success prints one result (ADD) or nothing, a failure prints one error
// object, and nobody ever prints a stack trace.
func (s *stage) judge(c lab.Call, o lab.Outcome) *answer {
	s.t.Helper()
	a := &answer{Outcome: o, stage: s, Command: c.Command}
	if o.Err != nil {
		s.t.Errorf("%s %s did not end by itself: %v\n%s", c.Command, c.ContainerID, o.Err, o.Stderr)
		return a
	}
	if bytes.Contains(o.Stderr, []byte("goroutine ")) {
		s.t.Errorf("%s %s: stack trace:\n%s", c.Command, c.ContainerID, o.Stderr)
	}
	if o.Exit == 0 && c.Command != "ADD" {
		if len(o.Stdout) > 0 {
			s.t.Errorf("%s %s: exit 0 and stdout %q, want none", c.Command, c.ContainerID, o.Stdout)
		}
		return a
	}
	if err := a.read(); err != nil {
		s.t.Errorf("%s %s: exit %d: %v: stdout %q stderr %s", c.Command, c.ContainerID, o.Exit, err, o.Stdout, o.Stderr)
	}
	return a
}

// read takes the one JSON value of stdout apart.
func (a *answer) read() error {
	dec := json.NewDecoder(bytes.NewReader(a.Stdout))
	var doc struct {
		CNIVersion string `json:"cniVersion"`
		Code       uint   `json:"code"`
		Msg        string `json:"msg"`
		Details    string `json:"details"`
		Interfaces []struct{ Name, Mac, Sandbox string }
		IPs        []struct{ Address netip.Prefix }
	}
	if err := dec.Decode(&doc); err != nil {
		return fmt.Errorf("not a JSON object: %w", err)
	}
	if err := dec.Decode(new(json.RawMessage)); !errors.Is(err, io.EOF) {
		return errors.New("more than one JSON value")
	}
	if doc.CNIVersion == "" {
		return errors.New("no cniVersion")
	}
	if a.Exit != 0 {
		a.Code, a.Msg = doc.Code, doc.Msg+doc.Details
		if doc.Code == 0 || doc.Msg == "" {
			return errors.New("an error without code or text")
		}
		return nil
	}
	if len(doc.IPs) != 1 || len(doc.Interfaces) != 2 {
		return errors.New("a result needs one address and two interfaces")
	}
	a.IP = doc.IPs[0].Address.Addr()
	a.HostLink, a.HostMAC, a.PodMAC = doc.Interfaces[0].Name, doc.Interfaces[0].Mac, doc.Interfaces[1].Mac
	return nil
}

// ok wants exit 0.
func (a *answer) ok() *answer {
	a.stage.t.Helper()
	if !a.OK() {
		a.stage.t.Fatalf("%s: exit %d, code %d: %s\nlog: %s", a.Command, a.Exit, a.Code, a.Msg, a.Stderr)
	}
	return a
}

// fails wants an error of this code whose text has all of these.
func (a *answer) fails(code uint, words ...string) *answer {
	a.stage.t.Helper()
	return a.failsWith([]uint{code}, words...)
}

func (a *answer) failsWith(codes []uint, words ...string) *answer {
	a.stage.t.Helper()
	if a.Exit == 0 || !slices.Contains(codes, a.Code) {
		a.stage.t.Errorf("%s: exit %d, code %d (%s), want a failure with code %v", a.Command, a.Exit, a.Code, a.Msg, codes)
	}
	return a.says(words...)
}

// says wants the text to have all of these.
func (a *answer) says(words ...string) *answer {
	a.stage.t.Helper()
	for _, w := range words {
		if !strings.Contains(a.Msg, w) {
			a.stage.t.Errorf("%s: text %q does not name %q", a.Command, a.Msg, w)
		}
	}
	return a
}

// sh runs a shell script on the node and returns its output; the steps of the cases are written in it.
func (s *stage) sh(script string) string {
	s.t.Helper()
	return s.script(s.Node.Command(context.Background(), "sh", "-ec", script))
}

// in runs a shell script in another namespace.
func (s *stage) in(n *lab.Namespace, script string) string {
	s.t.Helper()
	return s.script(n.Command(context.Background(), "sh", "-ec", script))
}

// script returns what a shell script printed, less its complaints: ip has some about namespaces of others that end meanwhile.
func (s *stage) script(cmd *lab.Cmd) string {
	s.t.Helper()
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("%s: %v: %s", cmd.Args[len(cmd.Args)-1], err, out)
	}
	return strings.TrimSpace(string(out))
}

// settle is one ADD and DEL of another container. What stays of it by design is in every snapshot taken afterwards.
func (s *stage) settle() {
	s.t.Helper()
	p := s.Pod(s.t, "settle")
	s.add("settle", p).ok()
	s.del("settle", p).ok()
	if err := p.Close(); err != nil {
		s.t.Fatal(err)
	}
}

// each runs one subtest per case, side by side.
func each[T any](t *testing.T, cases map[string]T, f func(t *testing.T, c T)) {
	t.Helper()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, c)
		})
	}
}
