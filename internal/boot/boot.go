// Package boot tells which boot of the machine this is and how long it has lasted.
//
// Leases live as long as the boot does, so their times are taken from CLOCK_BOOTTIME: it never steps and runs on through a
// suspend. Wall time is kept for people only.
package boot

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/procfile"
)

// idFile holds a UUID that the kernel draws once per boot (random(4)).
const idFile = "/proc/sys/kernel/random/boot_id"

// ID returns the kernel's id of this boot.
func ID() (string, error) {
	b, err := procfile.Read(idFile)
	if err != nil {
		return "", fmt.Errorf("read boot id: %w", err)
	}
	id := strings.TrimSpace(string(b))
	if id == "" {
		return "", fmt.Errorf("read boot id: %s is empty", idFile)
	}
	return id, nil
}

// Clock returns the time since the machine booted.
func Clock() time.Duration {
	var ts unix.Timespec
	// clock_gettime fails only for a clock id that the kernel doesn't know; CLOCK_BOOTTIME is as old as Linux 2.6.39.
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts)
	return time.Duration(ts.Nano()) + offset()
}
