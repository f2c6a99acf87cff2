// Package version tells which build this is.
package version

// String is set by the build (-ldflags -X).
var String = "dev"
