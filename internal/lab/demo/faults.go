package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
)

// moment is when a fault is seeded.
type moment int

const (
	afterAdd    moment = iota // all pods are attached, nothing was measured
	beforeSpoof               // the spoofed packets are the next
	afterDel                  // all pods are deleted, nothing was compared
)

// fault is something wrong that the demo has to find, made from outside: by netlink and nftables, as somebody with a shell on
// the machine could.
type fault struct {
	what string // for people
	line string // the line that must not hold
	when moment
	seed func(*demo) error
}

var faults = map[string]fault{
	"vxlan":   {"pods of the two nodes talk through a VXLAN", "no encapsulation", afterAdd, (*demo).seedVXLAN},
	"masq":    {"node1 masquerades inside the network", "true sources", afterAdd, (*demo).seedMasquerade},
	"mtu":     {"a pod's link has a smaller MTU", "full MTU", afterAdd, (*demo).seedMTU},
	"noroute": {"the fabric has no route to a pod's address", "ping across nodes", afterAdd, (*demo).seedNoRoute},
	"spoof":   {"node1 lacks the protections against spoofed sources", "spoofed source", beforeSpoof, (*demo).seedSpoof},
	"leak":    {"a route stays behind after DEL", "nothing left", afterDel, (*demo).seedLeak},
}

func faultNames() []string { return slices.Sorted(maps.Keys(faults)) }

// seed makes the fault that was asked for when its moment has come.
func (d *demo) seed(ctx context.Context, now moment) error {
	if d.fault == nil || d.fault.when != now || ctx.Err() != nil {
		return ctx.Err()
	}
	if err := d.fault.seed(d); err != nil {
		return fmt.Errorf("seed fault: %w", err)
	}
	return nil
}
