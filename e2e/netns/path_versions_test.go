package netns

import (
	"encoding/json"
	"testing"
)

// ADD, CHECK, traffic, DEL, DEL again in every version of the specification: each result is of the version asked for, and after
// it the node is what it was.
func TestNetnsPath_every_version_leaves_nothing(t *testing.T) {
	t.Parallel()
	versions := []struct {
		version string
		check   bool // CHECK came with 0.4.0
	}{{"0.3.0", false}, {"0.3.1", false}, {"0.4.0", true}, {"1.0.0", true}, {"1.1.0", true}}
	s := newStage(t, poolOf(8))
	s.settle()
	for _, v := range versions {
		t.Run(v.version, func(t *testing.T) {
			s := s.pathAs(t)
			s.top["cniVersion"] = v.version
			before := s.snapshot()
			p, a := s.pathPod("c" + v.version)
			var doc struct{ CNIVersion string }
			if err := json.Unmarshal(a.Stdout, &doc); err != nil || doc.CNIVersion != v.version {
				t.Errorf("result of version %q %v", doc.CNIVersion, err)
			}
			if len(before.Diff(s.snapshot())) == 0 {
				t.Error("the comparer does not see a pod")
			}
			if v.check {
				s.check("c"+v.version, p, a).ok()
			} else {
				stdin := s.conf(func(top map[string]any) { top["prevResult"] = json.RawMessage(a.Stdout) })
				s.run(s.call("CHECK", "c"+v.version, p, withStdin(stdin))).fails(1)
			}
			s.reaches(p, a.IP)
			s.del("c"+v.version, p).ok()
			s.noLeak(before)
			s.del("c"+v.version, p).ok()
			s.noLeak(before)
			s.podEmpty(p, "after DEL")
			if err := p.Close(); err != nil {
				t.Fatal(err)
			}
			s.del("c"+v.version, nil, withNetns("")).ok()
			s.noLeak(before)
		})
	}
}
