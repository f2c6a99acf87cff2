package netns

import (
	"bytes"
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// badInput is what a plugin finds on its stdin, the code it owes and the words that name the fault.
type badInput struct {
	make  func(s *stage) []byte
	code  uint
	words []string
}

func named(name string) func(*stage) []byte {
	return func(s *stage) []byte { return s.conf(func(top map[string]any) { top["name"] = name }) }
}

func ipamOf(v any) func(*stage) []byte {
	return func(s *stage) []byte { return s.conf(func(top map[string]any) { top["ipam"] = v }) }
}

// BR-03: stdin that isn't the JSON of one plugin. 6 for what can't be decoded, 7 for what is decodable and wrong, the field
// named, nothing changed.
func TestNetnsBR03_stdin(t *testing.T) {
	t.Parallel()
	each(t, map[string]badInput{
		"1_byte_order_mark": {func(s *stage) []byte { return append([]byte("\xef\xbb\xbf"), s.conf()...) }, 6, nil},
		"2_empty_input":     {func(*stage) []byte { return nil }, 6, nil},
		"3_trailing_brace":  {func(s *stage) []byte { return append(s.conf(), ",}"...) }, 6, nil},
		"4_two_objects":     {func(s *stage) []byte { return bytes.Repeat(s.conf(), 2) }, 6, nil},
		"5_whole_conflist_is_told_apart_from_a_plugin": {func(s *stage) []byte {
			return []byte(`{"cniVersion":"1.1.0","name":"vmssnet","plugins":[` + string(s.conf()) + `]}`)
		}, 7, []string{"plugins"}},
		"6_missing_ipam_is_named":       {func(s *stage) []byte { return s.conf(func(top map[string]any) { delete(top, "ipam") }) }, 7, []string{"ipam"}},
		"7_missing_ipam_type_is_named":  {ipamOf(map[string]any{}), 7, []string{"ipam.type"}},
		"8_ipam_of_another_shape":       {ipamOf("ipam-vmss"), 7, []string{"ipam"}},
		"9_name_with_a_blank_is_named":  {named("a b"), 7, []string{"name"}},
		"9_name_that_is_a_path":         {named(".."), 7, []string{"name"}},
		"9_empty_name_is_named_missing": {named(""), 7, []string{"name"}},
	}, func(t *testing.T, c badInput) {
		s := newStage(t, lab.SimpleOptions{})
		p := s.Pod(t, "p1")
		added := s.add("c1", p).ok()
		before, records := s.snapshot(), s.records()
		stdin := c.make(s)
		p2 := s.Pod(t, "p2")
		s.add("c2", p2, withStdin(stdin)).fails(c.code, c.words...)
		s.del("c1", p, withStdin(stdin)).fails(c.code, c.words...)

		s.unchanged(before)
		s.sameRecords(records)
		s.reaches(p, added.IP)
	})
	t.Run("9_name_of_300_characters_overflows_nothing", func(t *testing.T) {
		t.Parallel()
		s := newStage(t, lab.SimpleOptions{})
		s.top["name"] = strings.Repeat("a", 300)
		s.settle()
		before := s.snapshot()
		p := s.Pod(t, "p1")
		added := s.add("c1", p).ok()
		s.reaches(p, added.IP)
		if len(added.HostLink) > 15 {
			t.Errorf("host link %q is longer than the kernel takes", added.HostLink)
		}
		s.check("c1", p, added).ok()
		s.del("c1", p).ok()
		s.noLeak(before)
	})
}
