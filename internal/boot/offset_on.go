//go:build failpoint

package boot

import (
	"os"
	"time"
)

// offset moves the clock of a failpoint build, so that tests can let hours pass.
func offset() time.Duration {
	d, _ := time.ParseDuration(os.Getenv("NVT_CLOCK_OFFSET"))
	return d
}
