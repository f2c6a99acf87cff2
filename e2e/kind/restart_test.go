//go:build kind

package kind

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"
)

// TestKindRestart: containerd and kubelet restart while pods talk. No connection breaks, no pod changes, and afterwards the node
// starts and ends pods as before.
func TestKindRestart(t *testing.T) {
	ns := namespace(t, "nvt-restart")
	pods := start(t, ns, podSpec{name: "server", node: worker}, podSpec{name: "near", node: worker}, podSpec{name: "far", node: controlPlane})
	server, near, far := pods[0], pods[1], pods[2]
	for _, unit := range []string{"containerd", "kubelet"} {
		t.Run(unit, func(t *testing.T) {
			// The far one's exec session doesn't pass the runtime that restarts; the near one's would end with it.
			talks := []*talk{far.hold(t, server, 20*time.Second), nodeHold(t, near, server, 20*time.Second)}
			onNode(t, worker, "systemctl", "restart", unit)
			for _, h := range talks {
				h.unbroken(t)
			}
			waitFor(t, "the node is ready", ready, func() (bool, string) {
				out, err := tryKubectl(t.Context(), "", "wait", "node/"+worker, "--for=condition=Ready", "--timeout=5s")
				return err == nil, fmt.Sprint(out, err)
			})
			started := start(t, ns, podSpec{name: "new-" + unit, node: worker})[0]
			far.saw(t, started.url(), far.ip)
			kubectl(t, "-n", ns, "delete", "pod", started.name, "--wait", "--timeout="+ready.String())
			for _, now := range podsOf(t, ns) {
				for _, was := range pods {
					if now.name == was.name && now.ip != was.ip {
						t.Errorf("%s was %s and is %s", was.name, was.ip, now.ip)
					}
				}
			}
		})
	}
}

// talk is one "probe hold" in the background.
type talk struct {
	name string
	out  string
	err  error
	done chan struct{}
}

func begin(t *testing.T, name string, run func(context.Context) (string, error)) *talk {
	h := &talk{name: name, done: make(chan struct{})}
	go func() {
		defer close(h.done)
		h.out, h.err = run(t.Context())
	}()
	time.Sleep(2 * time.Second) // it has its connection and talks when something is done to it
	return h
}

func (p pod) hold(t *testing.T, to pod, life time.Duration) *talk {
	return begin(t, p.name, func(ctx context.Context) (string, error) {
		return p.try(ctx, "probe", "hold", fmt.Sprintf("%s:%d", to.ip, podPort), life.String())
	})
}

// nodeHold talks inside the pod's network from its node, which no restart of a runtime ends.
func nodeHold(t *testing.T, p, to pod, life time.Duration) *talk {
	t.Helper()
	// The pause process of the pod is told by the pod's address, seen in its network namespace.
	find := fmt.Sprintf(`for ns in /run/netns/*; do nsenter --net="$ns" ip -4 -o addr show eth0 | grep -q '%s/' && echo "$ns"; done`, p.ip)
	ns := onNode(t, p.node, "sh", "-c", find+"; true")
	if ns == "" {
		t.Fatalf("%s has no namespace on %s", p.name, p.node)
	}
	must(t, "docker", "cp", "-q", probeBin, p.node+":/usr/local/bin/probe")
	return begin(t, p.name, func(ctx context.Context) (string, error) {
		return try(ctx, "", "docker", "exec", p.node, "nsenter", "--net="+ns,
			"probe", "hold", fmt.Sprintf("%s:%d", to.ip, podPort), life.String())
	})
}

func (h *talk) unbroken(t *testing.T) {
	t.Helper()
	<-h.done
	if h.err != nil {
		t.Errorf("%s: %v", h.name, h.err)
		return
	}
	var seen struct {
		Answered int
		Longest  string
	}
	if err := json.Unmarshal([]byte(h.out), &seen); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d answers, longest wait %s", h.name, seen.Answered, seen.Longest)
	if seen.Answered < 100 {
		t.Errorf("%s: only %d answers", h.name, seen.Answered)
	}
}
