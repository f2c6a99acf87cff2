package netns

import (
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// BR-01: separators inside CNI_ARGS. ADD works or names the bad pair and leaves nothing; DEL releases by container id and
// interface, whatever CNI_ARGS holds.
func TestNetnsBR01_args(t *testing.T) {
	t.Parallel()
	each(t, map[string]struct{ args, bad string }{
		"trailing_separator_is_no_pair":     {"IgnoreUnknown=1;K8S_POD_NAMESPACE=team-a;K8S_POD_NAME=web-0;", ""},
		"value_may_hold_an_equals_sign":     {"IgnoreUnknown=1;X=a=b;K8S_POD_NAME=web-0", "X=a=b"},
		"separator_alone_is_an_empty_list":  {";", ""},
		"key_without_value_is_named":        {"IgnoreUnknown", "IgnoreUnknown"},
		"blank_before_a_key_is_no_part":     {"IgnoreUnknown=1; K8S_POD_NAME=web-0", "K8S_POD_NAME=web-0"},
		"name_of_an_embedded_struct_is_key": {"IgnoreUnknown=1;CommonArgs=1", "CommonArgs=1"},
		"boolean_in_another_spelling":       {"IgnoreUnknown=yes;K8S_POD_NAME=web-0", "IgnoreUnknown=yes"},
	}, func(t *testing.T, c struct{ args, bad string }) {
		s := newStage(t, lab.SimpleOptions{})
		s.settle()
		before := s.snapshot()

		fresh := s.Pod(t, "p1")
		if a := s.add("fresh", fresh, withArgs(c.args)); a.OK() {
			s.reaches(fresh, a.IP)
			s.del("fresh", fresh).ok()
		} else {
			a.fails(4, c.bad)
		}
		s.noLeak(before)

		good := s.Pod(t, "p2")
		s.add("good", good).ok()
		s.del("good", good, withArgs(c.args)).ok()
		s.noLeak(before)
	})
}
