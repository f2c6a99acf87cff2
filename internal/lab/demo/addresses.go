package main

import (
	"context"
	"fmt"
	"net/netip"
)

// The pods that talk: two on node1, two on node2.
const (
	podWeb   = "shop/web-0"
	podCache = "shop/cache-0"
	podDB    = "shop/db-0"
	podJob   = "batch/job-0"
)

func (d *demo) pod(name string) *pod {
	for _, p := range d.pods {
		if p.name == name {
			return p
		}
	}
	return nil
}

func (d *demo) addresses(ctx context.Context) error {
	for _, p := range []struct {
		name string
		node int
	}{{podWeb, 0}, {podCache, 0}, {podDB, 1}, {podJob, 1}} {
		joined, err := d.join(ctx, p.node, p.name, nil)
		if err != nil {
			return err
		}
		if err := d.serve(p.name, joined.space); err != nil {
			return err
		}
	}
	if err := d.owners(ctx); err != nil {
		return err
	}
	for _, p := range d.pods {
		if err := p.runtime.Check(ctx, p.Pod); err != nil {
			return &notOK{"CHECK", "no fault of " + p.name, err.Error()}
		}
	}
	d.report.ok("CHECK", "no fault of any of %s", plural(len(d.pods), "pod"))
	return d.seed(ctx, afterAdd)
}

// owners compares what ADD said with what vmssctl reads back.
func (d *demo) owners(ctx context.Context) error {
	seen := map[netip.Addr]string{}
	var rows []string
	for i, n := range d.cloud.Nodes {
		list, err := d.leases(ctx, i)
		if err != nil {
			return err
		}
		for _, l := range list {
			if l.State != "leased" {
				continue
			}
			who := l.Namespace + "/" + l.Pod
			if seen[l.Address] != "" {
				return &notOK{"addresses", "each address once", fmt.Sprintf("%s for %s and %s", l.Address, seen[l.Address], who)}
			}
			seen[l.Address] = who
			rows = append(rows, fmt.Sprintf("%s|%s|%s|%s|%s", who, n.Name, l.Address, l.NIC, l.Link))
			if l.NIC != n.NICs[0].MAC.String() || !l.Present {
				return &notOK{"addresses", who + " on NIC " + n.NICs[0].MAC.String(), "NIC " + l.NIC}
			}
		}
	}
	for _, p := range d.pods {
		if seen[p.addr] != p.name {
			return &notOK{"addresses", fmt.Sprintf("%s for %s, as ADD said", p.addr, p.name), fmt.Sprintf("it leased to %q", seen[p.addr])}
		}
	}
	d.report.table("POD|NODE|ADDRESS|NIC|LINK", rows)
	return d.report.check(len(seen) == len(d.pods), "addresses", plural(len(d.pods), "lease"),
		fmt.Sprintf("%s, each as ADD said, read back by bin/vmssctl ipam list", plural(len(seen), "lease")))
}
