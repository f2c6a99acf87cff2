package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/native-vmss/native-vmss/internal/fakeazure"
	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	// bulk fills packets, and fits into the buffers of a connection: the sender reads the echo after all is written.
	bulk            = 64 << 10
	exchangeTimeout = 5 * time.Second
)

// echoed sends bytes to an echo server, and waits until they are back and the server has closed the connection.
func echoed(ctx context.Context, space *lab.Namespace, to netip.AddrPort, size int) error {
	c, err := space.DialTCP(ctx, netip.Addr{}, to, exchangeTimeout)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(exchangeTimeout)); err != nil {
		return err
	}
	if _, err := c.Write(make([]byte, size)); err != nil {
		return err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return err
	}
	back, err := io.Copy(io.Discard, c)
	if err == nil && back != int64(size) {
		err = fmt.Errorf("%d of %d bytes came back", back, size)
	}
	return err
}

// exchange sends data to an echo server and back, and wants the server to have seen the given source.
func (d *demo) exchange(ctx context.Context, from, to string, space *lab.Namespace, addr, source netip.Addr) error {
	before := len(d.echo[to].Peers())
	if err := echoed(ctx, space, netip.AddrPortFrom(addr, portEcho), bulk); err != nil {
		return fmt.Errorf("%s > %s: %w", from, to, err)
	}
	for _, p := range d.echo[to].Peers()[before:] {
		if p.Remote.Addr() != source {
			return &notOK{"true sources", fmt.Sprintf("%s to see %s as %s", to, from, source), p.Remote.Addr().String()}
		}
	}
	return nil
}

// wire shows the frames of pods with the shipped conflist.
func (d *demo) wire(ctx context.Context) error {
	web, cache, db := d.pod(podWeb), d.pod(podCache), d.pod(podDB)
	talks := []talk{
		{what: web.name + " > " + db.name, src: web.addr, dst: db.addr, from: "node1-0", to: "node2-0", full: true},
		{what: web.name + " > hub", src: web.addr, dst: lab.CloudHub, from: "node1-0", to: "hub", full: true},
		{what: "hub > " + db.name, src: lab.CloudHub, dst: db.addr, from: "hub", to: "node2-0", full: true},
		{what: web.name + " > internet", src: d.primary(0), dst: lab.CloudInternet, from: "node1-0", to: "internet", full: true},
	}
	r, err := d.watch(ctx, func() error {
		for _, t := range []struct {
			from, to     string
			space        *lab.Namespace
			addr, source netip.Addr
		}{
			{web.name, db.name, web.space, db.addr, web.addr},
			{web.name, cache.name, web.space, cache.addr, web.addr}, // stays on the node: no frame of it is expected
			{web.name, "hub", web.space, lab.CloudHub, web.addr},
			{"hub", db.name, d.cloud.Hub, db.addr, lab.CloudHub},
			{web.name, "internet", web.space, lab.CloudInternet, d.primary(0)},
		} {
			if err := d.exchange(ctx, t.from, t.to, t.space, t.addr, t.source); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return d.judgeAll(r, talks)
}

func (d *demo) judgeAll(r lab.Report, talks []talk) error {
	if err := d.judge(r, talks); err != nil {
		return err
	}
	if err := d.judgeSize(r, talks); err != nil {
		return err
	}
	d.show(r, talks)
	d.report.ok("full MTU", "packets of %d bytes both ways in each of them, at every port", fakeazure.DefaultFabricMTU)
	return nil
}

// firewall shows pods under their own addresses at a firewall that a route table sends them to.
func (d *demo) firewall(ctx context.Context) error {
	edge, err := d.join(ctx, 0, "edge/proxy-0", map[string]any{"masquerade": false})
	if err != nil {
		return err
	}
	if err := d.cloud.UseFirewall(true); err != nil {
		return err
	}
	talks := []talk{
		{what: edge.name + " > internet", src: edge.addr, dst: lab.CloudInternet, from: "node1-0", to: "firewall", full: true},
		{what: "the firewall for it", src: lab.CloudFirewall, dst: lab.CloudInternet, from: "firewall", to: "internet", full: true},
	}
	r, err := d.watch(ctx, func() error {
		return d.exchange(ctx, edge.name, "internet", edge.space, lab.CloudInternet, lab.CloudFirewall)
	})
	if err != nil {
		return err
	}
	if err := d.judgeAll(r, talks); err != nil {
		return err
	}
	if err := d.cloud.UseFirewall(false); err != nil {
		return err
	}
	return d.back(ctx, "edge/late-0")
}

// back makes the node's configuration the shipped one again, by the ADD of one more pod.
func (d *demo) back(ctx context.Context, name string) error {
	p, err := d.join(ctx, 0, name, nil)
	if err != nil {
		return err
	}
	before := len(d.echo["internet"].Peers())
	if err := echoed(ctx, p.space, netip.AddrPortFrom(lab.CloudInternet, portEcho), 1); err != nil {
		return fmt.Errorf("%s > internet: %w", name, err)
	}
	seen := d.echo["internet"].Peers()[before:]
	return d.report.check(slices.ContainsFunc(seen, func(p lab.Peer) bool { return p.Remote.Addr() == d.primary(0) }),
		"and back", "the internet to see "+name+" as "+d.primary(0).String(),
		fmt.Sprintf("the shipped conflist again with %s, seen as %s", name, seen[0].Remote.Addr()))
}
