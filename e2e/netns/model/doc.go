// Package model says what a node may do with its pods' addresses, as whoever calls the plugins can judge it.
//
// It is written from the design's invariants alone and knows nothing of the store: it sees when an operation began, how it ended,
// and what its result says. What an operation that was killed has done is unknown, and the model takes every possibility for right.
//
//	no address is given to two live pods
//	an address rests for the cool-down before another attachment gets it; the one that had it last may ask for it at once
//	an attachment that has an address gets no second one
//	the NICs' own addresses and their gateways are nobody's
//	what has been missing from metadata for long is not handed out anew, and stays with the pod that has it
//	only a DEL, a GC or the end of a boot frees an address
//
// Times are those of the boot clock. An operation takes effect between its beginning and its end, so the cool-down is counted from
// the beginning of the first DEL to the end of the ADD: a slow machine hides a fault but never invents one.
package model
