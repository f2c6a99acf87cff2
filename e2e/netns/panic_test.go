package netns

import (
	"slices"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// A panic at a step of ADD is undone as a failure is, and one at a step of DEL costs no more than a second DEL; the runtime gets its one
// document, with the code of a fault of ours. Steps inside the store are left out: there a panic is what damage does.
func TestNetnsPanic_is_undone(t *testing.T) {
	t.Parallel()
	one := newStage(t, poolOf(20))
	one.settle()
	p := one.Pod(t, "trace")
	add, del := one.hits(one.call("ADD", "trace", p)), one.hits(one.call("DEL", "trace", p))
	kernel := func(points []string) []string {
		return slices.DeleteFunc(points, func(point string) bool { return !strings.HasPrefix(point, "routes.") })
	}
	panicked := func(s *stage, c lab.Call, point string) {
		at(point, "panic")(&c)
		name, _, _ := strings.Cut(point, "#")
		s.runOf(pathFailing, c).fails(120, "panic: failpoint "+name)
	}
	add, del = kernel(add), kernel(del)
	if len(add) < 15 || len(del) < 5 {
		t.Fatalf("%d and %d points: %v %v", len(add), len(del), add, del)
	}
	t.Run("ADD", func(t *testing.T) {
		t.Parallel()
		s, p := panicStage(t)
		for _, point := range add {
			panicked(s, s.call("ADD", "x", p), point)
			s.clean("ADD panicked at " + point)
			s.podEmpty(p, "ADD panicked at "+point)
		}
	})
	t.Run("ADD_of_ipam-vmss", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, poolOf(20))
		s.settle()
		conf := s.conf(func(top map[string]any) { top["type"] = "ptp" })
		p := s.Pod(t, "x") // ptp would wire it
		reserve := func(env ...string) lab.Outcome {
			return s.Node.RunPlugin(chainContext(t), program(t, "failpoint/ipam-vmss"),
				s.call("ADD", "x", p, withStdin(conf), withEnv(env...)))
		}
		if o := reserve("NVT_FAILPOINT_TRACE=" + s.Dir + "/trace"); !o.OK() {
			t.Fatalf("exit %d %s", o.Exit, o.Stdout)
		}
		points := kernel(s.traced(s.Dir + "/trace"))
		if len(points) < 3 {
			t.Fatalf("points %v", points)
		}
		call := s.call("DEL", "x", nil, withStdin(conf))
		for _, point := range points {
			if o := s.Node.RunPlugin(chainContext(t), program(t, "ipam-vmss"), call); !o.OK() {
				t.Errorf("DEL: %s", o.Stdout)
			}
			name, n, _ := strings.Cut(point, "#")
			o := reserve("NVT_FAILPOINT=" + name + "=panic#" + n)
			if o.Exit != 1 || !strings.Contains(string(o.Stdout), "panic: failpoint "+name) {
				t.Errorf("%s: exit %d %s", point, o.Exit, o.Stdout)
			}
			s.clean("ADD of ipam-vmss panicked at " + point)
			if m := s.markers(); len(m) > 0 {
				t.Errorf("%s: noted in the kernel: %v", point, m)
			}
		}
	})
	t.Run("DEL", func(t *testing.T) {
		t.Parallel()
		s, p := panicStage(t)
		for _, point := range del {
			s.add("x", p).ok()
			panicked(s, s.call("DEL", "x", p), point)
			s.del("x", p).ok()
			s.clean("DEL panicked at " + point + ", then DEL")
			s.podEmpty(p, "DEL panicked at "+point)
		}
	})
}

// panicStage is a node on which addresses hardly rest, and a pod.
func panicStage(t *testing.T) (*stage, *lab.Namespace) {
	t.Helper()
	s := newStage(t, poolOf(20))
	s.ipam["cooldown"] = "1ms"
	s.settle()
	return s, s.Pod(t, "p")
}
