//go:build failpoint

package routes

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/nstest"
)

// TestMain records every point of the process: its number of hits decides when a point fails.
func TestMain(m *testing.M) {
	f, err := os.CreateTemp("", "nvt-trace-")
	if err != nil {
		panic(err)
	}
	os.Setenv("NVT_FAILPOINT_TRACE", f.Name())
	code := m.Run()
	os.Remove(f.Name())
	os.Exit(code)
}

func points(t *testing.T) []string {
	t.Helper()
	b, err := os.ReadFile(os.Getenv("NVT_FAILPOINT_TRACE"))
	must(t, err)
	return strings.Fields(strings.ReplaceAll(string(b), "routes.", ""))
}

// failNext makes the next hit of a point fail.
func failNext(t *testing.T, point string) {
	t.Helper()
	hits := 0
	for _, p := range points(t) {
		if p == point {
			hits++
		}
	}
	t.Setenv("NVT_FAILPOINT", fmt.Sprintf("routes.%s=error#%d", point, hits+1))
}

// steps does what an ADD does to the kernel, up to the first error.
func (l *lab) steps(pod *Pod, p *Pair) error {
	ctx, addr := l.t.Context(), netip.MustParseAddr(freeAddr)
	if has, err := pod.HasLink(p.IfName); err != nil || has {
		return errors.Join(err, ErrLinkExists)
	}
	if _, err := l.k.Who(ctx, addr, "eth0"); err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return l.k.CreatePair(ctx, pod, p) },
		func() error { return l.k.SetAlias(ctx, p.Index, testAlias(freeAddr, 1).String()) },
		func() error { return pod.Configure(ctx, p.IfName, addr, p.HostMAC) },
		func() error { return l.k.HostEndUp(ctx, p.Name, p.Index) },
		func() error { return l.k.AddPodRoute(ctx, addr, p.Index) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// addPath are the points that an attachment passes, in their order. There is no dump among them.
var addPath = []string{
	"link-get", // is the interface there?
	"route-get",
	"pair-add", "alias-set",
	"link-get", "sysctl", "pod-addr-add", "pod-link-up", "pod-gateway-add", "pod-default-add", "pod-neigh-set", "pod-lo-up",
	"sysctl", "sysctl", "sysctl", "sysctl", "sysctl", "sysctl", "sysctl", "sysctl", "link-up", "proxy-set",
	"route-add",
}

func TestNetnsFailpoint_addPath(t *testing.T) {
	l := newLab(t)
	p := testPair(1)
	pod := l.open(nstest.Beside(t))
	before := len(points(t))
	must(t, l.steps(pod, &p))
	got := points(t)[before:]
	if !slices.Equal(got, addPath) {
		t.Errorf("points %q, want %q", got, addPath)
	}
}

// At every point of an attachment an error comes out, and Remove leaves nothing of what was there until then.
func TestNetnsFailpoint_eachStep(t *testing.T) {
	l := newLab(t)
	for _, point := range slices.Compact(slices.Sorted(slices.Values(addPath))) {
		t.Run(point, func(t *testing.T) {
			before := l.state()
			pod, p := l.open(nstest.Beside(t)), testPair(1)
			failNext(t, point)
			if err := l.steps(pod, &p); err == nil || !strings.Contains(err.Error(), "failpoint") {
				t.Errorf("error %v", err)
			}
			t.Setenv("NVT_FAILPOINT", "")
			must(t, l.k.Remove(t.Context(), p.Name, Hash{1}, netip.MustParseAddr(freeAddr)))
			if after := l.state(); after != before {
				t.Errorf("left on the node:\n%s", after)
			}
		})
	}
}
