package routes

import "errors"

// Errors of OpenPod.
var (
	// ErrNotNetns says that a path exists and is no network namespace.
	ErrNotNetns = errors.New("not a network namespace")
	// ErrOwnNetns says that a path leads to the network namespace of the node itself.
	ErrOwnNetns = errors.New("is the node's own network namespace")
)

// Errors of links and routes.
var (
	// ErrLinkExists says that a link of that name is there, on the node or in the pod.
	ErrLinkExists = errors.New("a link of that name exists")
	// ErrRouteExists says that the main table has a route for exactly that address.
	ErrRouteExists = errors.New("a route for that address exists")
	// ErrForeignLink says that a link of that name isn't the one that was meant: it is left alone.
	ErrForeignLink = errors.New("link belongs to somebody else")
	// ErrNotStale says that a route isn't stale, so it is left alone.
	ErrNotStale = errors.New("route is in use")
	// ErrNotGone says that the kernel still shows what was just removed.
	ErrNotGone = errors.New("still there after removal")
	// ErrAliasTooLong says that a text doesn't fit into a link's alias.
	ErrAliasTooLong = errors.New("link alias longer than 255 bytes")
	// ErrTakesOthers says that the kernel would remove other addresses together with this one.
	ErrTakesOthers = errors.New("other addresses would go with it")
)

// Errors of node-wide state.
var (
	// ErrNoConntrackFilter says that this kernel can filter neither a conntrack flush nor a conntrack dump (before 5.8).
	ErrNoConntrackFilter = errors.New("kernel has no filtered conntrack flush")
	// ErrNoNFTables says that this kernel has no nf_tables.
	ErrNoNFTables = errors.New("kernel has no nf_tables")
	// ErrNICDown says that routes by a NIC could not be made because its link is down; all else was done.
	ErrNICDown = errors.New("link is down")
	// ErrUnsettled says that rules or routes of ours change as fast as we set them.
	ErrUnsettled = errors.New("somebody else changes them at the same time")
)
