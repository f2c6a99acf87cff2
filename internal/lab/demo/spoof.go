package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const spoofedEach = 5

var podGateway = netip.MustParseAddr("169.254.1.1")

// spoof has a pod send frames with the addresses of others. One with its own shows that they are well made.
func (d *demo) spoof(ctx context.Context) error {
	if err := d.seed(ctx, beforeSpoof); err != nil {
		return err
	}
	web, cache, db := d.pod(podWeb), d.pod(podCache), d.pod(podDB)
	pool := d.cloud.Nodes[0].NICs[0].Secondaries
	sources := []netip.Addr{cache.addr, db.addr, d.primary(0), lab.CloudHub, pool[len(pool)-1]}
	sent := 0
	local, err := cache.space.Capture("eth0")
	if err != nil {
		return err
	}
	r, err := d.watch(ctx, func() error {
		frames, gateway, err := podFrames(web.space)
		if err != nil {
			return err
		}
		defer frames.Close()
		for _, src := range append([]netip.Addr{web.addr}, sources...) {
			for _, dst := range []netip.Addr{lab.CloudHub, db.addr, cache.addr} {
				for range spoofedEach {
					sent++
					b := frames.UDP(gateway, netip.AddrPortFrom(src, 4000), netip.AddrPortFrom(dst, 4000), []byte("spoofed"))
					if err := frames.Send(b); err != nil {
						return err
					}
				}
			}
		}
		pause(ctx, settleTime)
		return nil
	})
	atCache, lerr := local.Stop()
	if err := errors.Join(err, lerr); err != nil {
		return err
	}
	if err := d.judgeSpoof(web.addr, sources, sent, r, atCache); err != nil {
		return err
	}
	// The rest of the frames: those under the pod's own address, and port unreachable in return.
	return d.judge(r, []talk{
		{what: web.name + " > hub", src: web.addr, dst: lab.CloudHub, from: "node1-0", to: "hub"},
		{what: web.name + " > " + db.name, src: web.addr, dst: db.addr, from: "node1-0", to: "node2-0"},
	})
}

// judgeSpoof counts what left the node, and what reached the other pod on it.
func (d *demo) judgeSpoof(own netip.Addr, sources []netip.Addr, sent int, wire, atCache lab.Report) error {
	udp := func(src netip.Addr) func(lab.Flow) bool {
		return func(f lab.Flow) bool {
			return f.Kind == lab.KindIPv4 && f.Proto == unix.IPPROTO_UDP && f.Src == src && !f.Out
		}
	}
	isOwn := wire.Sum(udp(own)).Frames + atCache.Sum(udp(own)).Frames
	if want := 3 * spoofedEach; isOwn != want {
		return &notOK{"spoofed source", fmt.Sprintf("%d frames under the pod's own address to arrive", want), fmt.Sprint(isOwn)}
	}
	for _, src := range sources {
		if n := wire.Sum(udp(src)).Frames; n > 0 {
			return &notOK{"spoofed source", "no frame to leave the node under " + src.String(), fmt.Sprintf("%d on the fabric", n)}
		}
		if n := atCache.Sum(udp(src)).Frames; n > 0 {
			return &notOK{"spoofed source", "no frame to reach " + podCache + " under " + src.String(), fmt.Sprint(n)}
		}
	}
	if wire.Dropped+atCache.Dropped > 0 {
		return &notOK{"capture", "none missed", plural(wire.Dropped+atCache.Dropped, "missed frame")}
	}
	d.report.ok("spoofed source", "%d frames under %d others' addresses: 0 left the node, 0 reached %s", sent-isOwn, len(sources), podCache)
	d.report.ok("own source", "%d of %d such frames arrived", isOwn, isOwn)
	return nil
}

// podFrames opens a pod's link for hand-made frames and finds the MAC of its gateway.
func podFrames(space *lab.Namespace) (*lab.Frames, net.HardwareAddr, error) {
	h, err := space.Handle()
	if err != nil {
		return nil, nil, err
	}
	list, err := h.NeighList(0, netlink.FAMILY_V4)
	if err != nil {
		return nil, nil, fmt.Errorf("neighbours of %s: %w", space.Name, err)
	}
	for _, n := range list {
		if n.IP.Equal(podGateway.AsSlice()) {
			f, err := space.OpenFrames("eth0")
			return f, n.HardwareAddr, err
		}
	}
	return nil, nil, fmt.Errorf("%s has no neighbour %s", space.Name, podGateway)
}
