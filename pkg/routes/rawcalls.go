//go:build rawcalls

package routes

// rawCalls is what internal/failpoint/rawcalls is, for the socket that only this package has.
var rawCalls = []any{
	new(Kernel).rt.handle.LinkDel,
	new(Pod).rt.handle.RouteAdd,
}
