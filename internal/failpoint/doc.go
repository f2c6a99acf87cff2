// Package failpoint names the places where a program may be made to fail or die, for tests.
//
// The shipped binaries are built without the tag "failpoint": Hit is then an empty function that the compiler removes, and
// no environment variable is read. With the tag (bin/failpoint/) two variables steer it:
//
//	NVT_FAILPOINT=routes.pair-add=error      the first hit of the point returns an error
//	NVT_FAILPOINT=boltfile.commit=kill#2     the second hit sends SIGKILL to the process itself
//	NVT_FAILPOINT=routes.pair-add=panic      the first hit panics
//	NVT_FAILPOINT=routes.pair-add=3s         the first hit takes that long
//	NVT_FAILPOINT_TRACE=/tmp/trace           each hit appends its name to the file, so that tests find the points by running
package failpoint
