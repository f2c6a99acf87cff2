package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
)

// nothingLeft deletes all pods and compares the nodes with what they were before.
func (d *demo) nothingLeft(ctx context.Context) error {
	for _, p := range d.pods {
		if err := p.runtime.Del(ctx, p.Pod); err != nil {
			return &notOK{"DEL", "no fault with " + p.name, err.Error()}
		}
		h, err := p.space.Handle()
		if err != nil {
			return err
		}
		var gone netlink.LinkNotFoundError
		if _, err := h.LinkByName(nic); !errors.As(err, &gone) {
			return &notOK{"DEL", "no eth0 in " + p.name, fmt.Sprintf("one (%v)", err)}
		}
	}
	d.report.ok("DEL", "%s, eth0 gone in each", plural(len(d.pods), "pod"))
	if err := d.seed(ctx, afterDel); err != nil {
		return err
	}
	for i, n := range d.cloud.Nodes {
		if err := d.noLeases(ctx, i); err != nil {
			return err
		}
		after, err := d.snapshot(ctx, i)
		if err != nil {
			return err
		}
		if diff := d.before[i].Diff(after); len(diff) > 0 {
			return &notOK{"nothing left", "all state of " + n.Name + " as before the pods", more(diff)}
		}
		objects := 0
		for _, lines := range after.Sections {
			objects += len(lines)
		}
		d.report.ok("nothing left", "%s: 0 leases; links, addresses, routes, rules, neighbours, nftables, conntrack, sysctls and", n.Name)
		d.report.more("files are what they were before (%d objects)", objects)
	}
	return nil
}

func more(lines []string) string {
	if len(lines) == 1 {
		return lines[0]
	}
	return fmt.Sprintf("%s (and %d more)", lines[0], len(lines)-1)
}

func (d *demo) noLeases(ctx context.Context, node int) error {
	list, err := d.leases(ctx, node)
	if err != nil {
		return err
	}
	for _, l := range list {
		if l.State != "cooling" && l.State != "free" {
			return &notOK{"nothing left", "no lease", fmt.Sprintf("%s %s for %s/%s", l.Address, l.State, l.Namespace, l.Pod)}
		}
	}
	return nil
}
