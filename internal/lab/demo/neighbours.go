package main

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	peersMany = 2000
	// peersControl is less: the kernel's table is one for all namespaces of a machine and overflows at 1024, which others
	// would feel.
	peersControl      = 600
	neighboursControl = 200
	handshakeParallel = 32
	handshakeTimeout  = 5 * time.Second
	nic               = "eth0"
)

// neighbours counts what a node has to remember while a pod of it talks to thousands of others.
func (d *demo) neighbours(ctx context.Context) error {
	server, err := d.cloud.Peers.EchoTCP(netip.AddrPortFrom(netip.IPv4Unspecified(), portPeers))
	if err != nil {
		return err
	}
	gateway := lab.CloudNetwork.Addr().Next()
	found, err := d.shake(ctx, d.pod(podWeb), server, peersMany)
	if err != nil {
		return err
	}
	if err := d.report.check(slices.Equal(found, []netip.Addr{gateway}), "neighbours", "1 on node1, the gateway "+gateway.String(),
		fmt.Sprintf("%s after %d handshakes of %s with as many peers: %s", neighbourCount(found), peersMany, podWeb, some(found))); err != nil {
		return err
	}
	flat, err := d.join(ctx, 0, "lab/flat-0", map[string]any{"remotePods": "off"})
	if err != nil {
		return err
	}
	if found, err = d.shake(ctx, flat, server, peersControl); err != nil {
		return err
	}
	if err := d.report.check(len(found) >= neighboursControl, "remotePods: off", fmt.Sprintf("%d neighbours or more", neighboursControl),
		fmt.Sprintf("%s after %d handshakes of %s (control)", neighbourCount(found), peersControl, flat.name)); err != nil {
		return err
	}
	return d.back(ctx, "lab/last-0")
}

// neighbourCount says it in words.
func neighbourCount(found []netip.Addr) string { return plural(len(found), "neighbour") }

func some(found []netip.Addr) string {
	const shown = 3
	if len(found) > shown {
		return fmt.Sprintf("%v …", found[:shown])
	}
	return fmt.Sprint(found)
}

// shake connects a pod to count peers and returns the neighbours that its node has on the NIC then.
func (d *demo) shake(ctx context.Context, p *pod, server *lab.Server, count int) ([]netip.Addr, error) {
	if err := d.forgetNeighbours(p.node); err != nil {
		return nil, err
	}
	var peers []netip.AddrPort
	for _, a := range lab.AddrRange(lab.CloudPeers.Addr().Next().Next(), count) {
		peers = append(peers, netip.AddrPortFrom(a, portPeers))
	}
	before := len(server.Peers())
	done, failed := p.space.Handshakes(ctx, peers, handshakeParallel, handshakeTimeout)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if done != count || len(failed) > 0 {
		first := slices.SortedFunc(maps.Keys(failed), netip.AddrPort.Compare)[0]
		return nil, &notOK{
			"handshakes", fmt.Sprintf("%d of %s, 0 failed", count, p.name),
			fmt.Sprintf("%d, %d failed: %v", done, len(failed), failed[first]),
		}
	}
	found, err := d.neighboursOf(p.node)
	if err != nil {
		return nil, err
	}
	return found, sawAll(p, server, before, count)
}

// sawAll wants the peers to have seen the pod under its address, each once.
func sawAll(p *pod, server *lab.Server, before, count int) error {
	seen := map[netip.Addr]bool{}
	for _, s := range server.Peers()[before:] {
		if s.Remote.Addr() != p.addr {
			return &notOK{"true sources", p.addr.String() + " in all handshakes", s.Remote.Addr().String()}
		}
		seen[s.Local.Addr()] = true
	}
	if len(seen) != count {
		return &notOK{"handshakes", fmt.Sprintf("%d distinct peers", count), fmt.Sprint(len(seen))}
	}
	return nil
}

func (d *demo) neighboursOf(node int) ([]netip.Addr, error) {
	var list []netip.Addr
	err := d.eachNeighbour(node, func(_ *netlink.Handle, n netlink.Neigh) error {
		a, _ := netip.AddrFromSlice(n.IP)
		list = append(list, a.Unmap())
		return nil
	})
	slices.SortFunc(list, netip.Addr.Compare)
	return list, err
}

// forgetNeighbours empties the table, so that what is in it afterwards is of one run.
func (d *demo) forgetNeighbours(node int) error {
	return d.eachNeighbour(node, func(h *netlink.Handle, n netlink.Neigh) error { return h.NeighDel(&n) })
}

func (d *demo) eachNeighbour(node int, do func(*netlink.Handle, netlink.Neigh) error) error {
	h, err := d.cloud.Nodes[node].Handle()
	if err != nil {
		return err
	}
	link, err := h.LinkByName(nic)
	if err != nil {
		return err
	}
	list, err := h.NeighList(link.Attrs().Index, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("neighbours of node %d: %w", node, err)
	}
	for _, n := range list {
		if n.State == netlink.NUD_NOARP { // multicast and the like
			continue
		}
		if err := do(h, n); err != nil {
			return fmt.Errorf("neighbour %s: %w", n.IP, err)
		}
	}
	return nil
}
