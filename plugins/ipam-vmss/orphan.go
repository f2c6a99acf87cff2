package main

import "golang.org/x/sys/unix"

// orphaned reports whether nobody reads our standard output any more. A main plugin that its runtime killed leaves us behind,
// and a lease that is committed after the runtime's DEL would never be freed. The kernel tells POLLERR of a pipe whose last
// reader is gone, and needs nothing from the main plugin for it.
func orphaned() bool {
	fds := []unix.PollFd{{Fd: int32(unix.Stdout)}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 && fds[0].Revents&unix.POLLERR != 0
}
