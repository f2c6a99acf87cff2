package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// patience bounds one process; it is far above anything that is worth a figure.
const patience = 2 * time.Minute

// settle lets what a removed link leaves to the kernel's workers end before the next process starts.
const settle = 15 * time.Millisecond

// fixture owns labs; it stands in for the test that lab.NewSimple wants.
type fixture struct {
	bin  binaries
	undo []func()
}

var _ lab.TB = (*fixture)(nil)

type fatal struct{ error }

// Helper is a test's.
func (f *fixture) Helper() {}

// Cleanup has fn run at the end, last in, first out.
func (f *fixture) Cleanup(fn func()) { f.undo = append(f.undo, fn) }

// Fatalf ends the run.
func (f *fixture) Fatalf(format string, args ...any) { panic(fatal{fmt.Errorf(format, args...)}) }

// Logf reports.
func (f *fixture) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

// install has all that is measured run from copies.
func (f *fixture) install() error {
	dir, err := os.MkdirTemp("", "nvt-bench-")
	if err != nil {
		return err
	}
	f.Cleanup(func() { _ = os.RemoveAll(dir) })
	for name, from := range map[string]*string{"ours": &f.bin.ours, "peers": &f.bin.peers, "against": &f.bin.against} {
		if *from == "" {
			continue
		}
		to := filepath.Join(dir, name)
		if err := install(*from, to); err != nil {
			return err
		}
		*from = to
	}
	f.bin.empty = filepath.Join(f.bin.peers, filepath.Base(f.bin.empty))
	return nil
}

// cleanUp removes the labs and turns what Fatalf threw into an error.
func (f *fixture) cleanUp(err *error) {
	p := recover()
	for _, fn := range slices.Backward(f.undo) {
		fn()
	}
	if p == nil {
		return
	}
	failed, ok := p.(fatal)
	if !ok {
		panic(p)
	}
	*err = errors.Join(*err, failed)
}

// side is one of the two that are compared: a plugin on a node of its own.
type side struct {
	name   string
	node   *lab.Node
	simple *lab.Simple
	binary string
	path   string // CNI_PATH
	conf   []byte
	pod    *lab.Namespace
	calls  int
	// linkFirst has the pod's link go before DEL: the kernel takes 10 to 30 ms for it, and what a DEL does itself is lost in that.
	linkFirst bool
}

// ours is a node with native-vmss and the first plugin of the shipped conflist; change may alter its configuration.
func (f *fixture) ours(o lab.SimpleOptions, change func(conf map[string]any)) (*side, error) {
	text, err := os.ReadFile(filepath.Join(f.bin.root, "cni-conf", "10-native-vmss.conflist"))
	if err != nil {
		return nil, err
	}
	var list struct {
		CNIVersion, Name string
		Plugins          []map[string]any
	}
	if err := json.Unmarshal(text, &list); err != nil || len(list.Plugins) == 0 {
		return nil, fmt.Errorf("shipped conflist: %w", err)
	}
	conf := list.Plugins[0]
	conf["cniVersion"], conf["name"] = list.CNIVersion, list.Name
	if change != nil {
		change(conf)
	}
	return f.side("native-vmss", f.bin.ours, "native-vmss", conf, o)
}

// peer is a node with ptp and host-local. It doesn't masquerade: that would be 20 ms more, for iptables. Its addresses are files
// in /var/lib/cni, which is in memory on a node of the lab, as our store is.
func (f *fixture) peer(o lab.SimpleOptions) (*side, error) {
	if f.bin.against != "" {
		s, err := f.ours(poolOf(burstPool), atOnce)
		if err == nil {
			s.name, s.path, s.binary = "earlier build", f.bin.against, filepath.Join(f.bin.against, "native-vmss")
		}
		return s, err
	}
	conf := map[string]any{
		"cniVersion": "1.0.0", "name": "peer", "type": "ptp", "ipMasq": false,
		"ipam": map[string]any{
			"type":   "host-local",
			"ranges": [][]map[string]string{{{"subnet": peerSubnet}}},
			"routes": []map[string]string{{"dst": "0.0.0.0/0"}},
		},
	}
	return f.side("ptp + host-local", f.bin.peers, "ptp", conf, o)
}

const peerSubnet = "10.30.0.0/16"

func (f *fixture) side(name, dir, plugin string, conf map[string]any, o lab.SimpleOptions) (*side, error) {
	stdin, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	s := lab.NewSimple(f, o)
	return &side{
		name: name, node: s.Node, simple: s, binary: filepath.Join(dir, plugin), path: dir, conf: stdin, pod: s.Pod(f, "pod"),
	}, nil
}

// poolOf is a pool that outlasts the cool-down of its addresses.
func poolOf(n int) lab.SimpleOptions {
	return lab.SimpleOptions{
		Subnet: netip.MustParsePrefix("10.16.0.0/12"),
		Pool:   lab.AddrRange(netip.MustParseAddr("10.24.0.0"), n),
	}
}

// call is what a runtime sends; every container has another id, as long as containerd's.
func (s *side) call(command, container, netns string) lab.Call {
	id := fmt.Sprintf("%x", sha256.Sum256([]byte(container)))
	return lab.Call{
		Command: command, ContainerID: id, Netns: netns, Path: s.path, Stdin: s.conf,
		Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + container + ";K8S_POD_INFRA_CONTAINER_ID=" + id +
			";K8S_POD_UID=6a1b0f2e-0c52-4a35-9c59-3ce0b6f3a7d1",
	}
}

// run measures one process, from its start to its exit, as the lab does for every plugin.
func (s *side) run(ctx context.Context, call lab.Call) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	c, wait := s.node.StartPlugin(ctx, s.binary, call)
	out := wait()
	if !out.OK() {
		return sample{}, s.failed(call.Command, out)
	}
	return sample{wall: out.Took, cpu: c.ProcessState.UserTime() + c.ProcessState.SystemTime()}, nil
}

func (s *side) failed(command string, out lab.Outcome) error {
	return fmt.Errorf("%s %s: exit %d, error %v: %s%s", s.name, command, out.Exit, out.Err, out.Stdout, out.Stderr)
}

// cycle is one pod: ADD, DEL.
func (s *side) cycle(ctx context.Context) (add, del sample, err error) {
	s.calls++
	container := fmt.Sprintf("pod-%d", s.calls)
	if add, err = s.run(ctx, s.call("ADD", container, s.pod.Path)); err != nil {
		return add, del, err
	}
	time.Sleep(settle)
	if s.linkFirst {
		if err = s.pod.DelLink("eth0"); err != nil {
			return add, del, err
		}
		time.Sleep(settle)
	}
	del, err = s.run(ctx, s.call("DEL", container, s.pod.Path))
	time.Sleep(settle)
	return add, del, err
}

// alternate has both sides do their part in every round, the first one another each time.
func alternate(rounds int, part func(i int) error) error {
	for r := range rounds {
		for k := range 2 {
			if err := part((r + k) % 2); err != nil {
				return err
			}
		}
	}
	return nil
}
