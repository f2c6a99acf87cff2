package routes

import (
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A dump that a change disturbed comes with what was read so far, which may lack anything.
func TestDump_interrupted(t *testing.T) {
	for _, disturbed := range []error{netlink.ErrDumpInterrupted, unix.EINTR} {
		asked := 0
		got, err := dump(t.Context(), rtnetlink{}, "test", func(*netlink.Handle) ([]int, error) {
			if asked++; asked < 3 {
				return []int{1}, disturbed
			}
			return []int{1, 2}, nil
		})
		if err != nil || !slices.Equal(got, []int{1, 2}) {
			t.Errorf("%v twice: %v, %v", disturbed, got, err)
		}
		got, err = dump(t.Context(), rtnetlink{}, "test", func(*netlink.Handle) ([]int, error) { return []int{1}, disturbed })
		if !errors.Is(err, disturbed) || got != nil {
			t.Errorf("%v for ever: %v, %v", disturbed, got, err)
		}
	}
}
