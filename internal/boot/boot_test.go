package boot

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Clock is the kernel's boot clock, which nobody can set: steps of the wall clock, of hours and either way, aren't seen.
func TestClock_is_the_boot_clock(t *testing.T) {
	read := func(id int32) time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(id, &ts); err != nil {
			t.Fatal(err)
		}
		return time.Duration(ts.Nano())
	}
	before := read(unix.CLOCK_BOOTTIME)
	now := Clock()
	if after := read(unix.CLOCK_BOOTTIME); now < before || now > after {
		t.Errorf("Clock is %s, CLOCK_BOOTTIME was %s and is %s", now, before, after)
	}
}

func TestID(t *testing.T) {
	id, err := ID()
	if err != nil || len(id) != 36 {
		t.Errorf("%q, %v", id, err)
	}
}
