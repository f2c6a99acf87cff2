//go:build kind

package kind

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	repo       = "../.."
	kubectlBin = repo + "/bin/kind/kubectl"
	probeBin   = repo + "/bin/kind/probe"
	// ready is how long a pod may take; the machine may have two cores and other work.
	ready = 3 * time.Minute
)

// Nodes as kind names them, in the order of their addresses.
var (
	controlPlane = clusterName() + "-control-plane"
	worker       = clusterName() + "-worker"
)

// kubeconfig is where hack/kind/up.sh has it written.
var kubeconfig = fromEnv("KUBECONFIG", "/run/"+clusterName()+"/kubeconfig")

func clusterName() string { return fromEnv("KIND_CLUSTER", "nvt-kind") }

func fromEnv(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

// rounds is how often a burst is repeated.
func rounds(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(fromEnv("ROUNDS", "1"))
	if err != nil || n < 1 {
		t.Fatalf("ROUNDS=%s", os.Getenv("ROUNDS"))
	}
	return n
}

// try runs a program and returns what it printed.
func try(ctx context.Context, stdin, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}

func must(t *testing.T, program string, args ...string) string {
	t.Helper()
	out, err := try(t.Context(), "", program, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tryKubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	return try(ctx, stdin, kubectlBin, append([]string{"--kubeconfig", kubeconfig}, args...)...)
}

func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := tryKubectl(t.Context(), "", args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// get reads an object, or a list, into v.
func get(t *testing.T, v any, args ...string) {
	t.Helper()
	out := kubectl(t, append(append([]string{"get"}, args...), "-o", "json")...)
	if err := json.Unmarshal([]byte(out), v); err != nil {
		t.Fatalf("get %s: %v", strings.Join(args, " "), err)
	}
}

// apply creates objects; they are JSON documents of Go values.
func apply(t *testing.T, objects ...any) {
	t.Helper()
	b, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tryKubectl(t.Context(), string(b), "apply", "-f", "-"); err != nil {
		t.Fatal(err)
	}
}

// namespace makes a namespace that ends, and all its pods with it, when the test does.
func namespace(t *testing.T, name string) string {
	t.Helper()
	remove := func() {
		ctx, cancel := context.WithTimeout(context.Background(), ready)
		defer cancel()
		if _, err := tryKubectl(ctx, "", "delete", "namespace", name, "--ignore-not-found", "--wait"); err != nil {
			t.Errorf("remove namespace %s: %v", name, err)
		}
	}
	remove() // an interrupted run's
	kubectl(t, "create", "namespace", name)
	t.Cleanup(remove)
	return name
}

// onNode runs a program on a node.
func onNode(t *testing.T, node string, args ...string) string {
	t.Helper()
	return must(t, "docker", append([]string{"exec", node}, args...)...)
}

// nodeAddr is a node's own address.
func nodeAddr(t *testing.T, node string) netip.Addr {
	t.Helper()
	var n struct {
		Status struct {
			Addresses []struct{ Type, Address string }
		}
	}
	get(t, &n, "node", node)
	for _, a := range n.Status.Addresses {
		if a.Type == "InternalIP" {
			return netip.MustParseAddr(a.Address)
		}
	}
	t.Fatalf("node %s has no address", node)
	return netip.Addr{}
}

// waitFor asks again until what it asks for holds, and says what was seen last.
func waitFor(t *testing.T, what string, limit time.Duration, ask func() (bool, string)) {
	t.Helper()
	last := ""
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		ok, seen := ask()
		if ok {
			return
		}
		last = seen
	}
	t.Fatalf("%s: not within %s; last seen: %s", what, limit, last)
}

// mustUndo is must for a clean-up, when the test's context has ended.
func mustUndo(t *testing.T, program string, args ...string) {
	t.Helper()
	if _, err := try(context.Background(), "", program, args...); err != nil {
		t.Error(err)
	}
}
