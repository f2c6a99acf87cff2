//go:build !failpoint

package boot

import "time"

func offset() time.Duration { return 0 }
