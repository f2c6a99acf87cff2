package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/fakeazure"
	"github.com/native-vmss/native-vmss/internal/lab"
)

// talk is a conversation as it must look on the wire, both ways.
type talk struct {
	what     string // for people
	src, dst netip.Addr
	// from and to are the fabric's ports that it passes; an empty to is the fabric itself.
	from, to string
	// full says that each way carries enough data for packets of full size.
	full bool
	// quiet allows a talk without requiring or showing it.
	quiet bool
}

// hop is one kind of frame at one port.
type hop struct {
	link     string
	out      bool // out of the fabric into the machine
	src, dst netip.Addr
}

func (d *demo) hops(t talk) []hop {
	from := d.cloud.Fabric.Port(t.from).Link()
	list := []hop{{from, false, t.src, t.dst}, {from, true, t.dst, t.src}}
	if t.to != "" {
		to := d.cloud.Fabric.Port(t.to).Link()
		list = append(list, hop{to, true, t.src, t.dst}, hop{to, false, t.dst, t.src})
	}
	return list
}

// portNames are the fabric's ports with the address of the machine behind each.
func (d *demo) portNames() map[string]netip.Addr {
	m := map[string]netip.Addr{"hub": lab.CloudHub, "firewall": lab.CloudFirewall, "internet": lab.CloudInternet, "peers": lab.CloudPeers.Addr().Next()}
	for i, n := range d.cloud.Nodes {
		m[n.Name+"-0"] = d.primary(i)
	}
	return m
}

func (d *demo) ports() []string {
	var links []string
	for name := range d.portNames() {
		links = append(links, d.cloud.Fabric.Port(name).Link())
	}
	slices.Sort(links)
	return links
}

// settleTries bounds the wait for the end of earlier connections.
const settleTries = 100

// settle waits until nothing crosses the wire: the last frames of a closed connection would be nobody's in the next capture.
func (d *demo) settle(ctx context.Context) error {
	for range settleTries {
		c, err := d.cloud.Space.Capture(d.ports()...)
		if err != nil {
			return err
		}
		pause(ctx, settleTime)
		r, err := c.Stop()
		if err := errors.Join(err, ctx.Err()); err != nil {
			return err
		}
		if len(r.Flows) == 0 {
			return nil
		}
	}
	return errors.New("the wire doesn't become quiet")
}

// watch captures every frame on every port of the fabric.
func (d *demo) watch(ctx context.Context, during func() error) (lab.Report, error) {
	if err := d.settle(ctx); err != nil {
		return lab.Report{}, err
	}
	c, err := d.cloud.Space.Capture(d.ports()...)
	if err != nil {
		return lab.Report{}, err
	}
	err = during()
	r, cerr := c.Stop()
	if err == nil {
		err = cerr
	}
	return r, err
}

// background is what machines say at any time: nodes ask for their metadata.
func (d *demo) background() []talk {
	var list []talk
	for i, n := range d.cloud.Nodes {
		list = append(list, talk{src: d.primary(i), dst: fakeazure.IMDSAddr, from: n.Name + "-0", quiet: true})
	}
	return list
}

// judge accepts a capture only if it is complete, each frame belongs to a talk, and each talk was seen at each port it passes.
func (d *demo) judge(r lab.Report, talks []talk) error {
	if r.Dropped > 0 {
		return &notOK{"capture", "every frame on the fabric", plural(r.Dropped, "frame") + " missed"}
	}
	if lines := r.Violations(foreignKind); len(lines) > 0 {
		return &notOK{"no encapsulation", "ARP and plain IPv4 only", flowOf(lines[0])}
	}
	return d.judgeSources(r, append(talks, d.background()...))
}

// show writes what a judged capture saw.
func (d *demo) show(r lab.Report, talks []talk) {
	all := r.Sum(func(lab.Flow) bool { return true }).Frames
	arp := r.Sum(func(f lab.Flow) bool { return f.Kind == lab.KindARP }).Frames
	d.report.ok("capture", "%s at the fabric's %d ports, 0 missed", plural(all, "frame"), len(d.ports()))
	d.report.ok("no encapsulation", "%d plain IPv4, %d ARP, nothing else", all-arp, arp)
	d.showTalks(r, talks)
}

// flowOf is a violation without its reason, which the line's name says already.
func flowOf(violation string) string {
	_, flow, _ := strings.Cut(violation, ": ")
	return flow
}

func named(talks []talk) string {
	var names []string
	for _, t := range talks {
		if !t.quiet {
			names = append(names, t.what)
		}
	}
	return "[" + strings.Join(names, ", ") + "]"
}

func foreignKind(f lab.Flow, _ lab.Tally) string {
	if f.Kind == lab.KindARP || f.Kind == lab.KindIPv4 {
		return ""
	}
	return "foreign"
}

func (d *demo) judgeSources(r lab.Report, talks []talk) error {
	allowed := map[hop]bool{}
	for _, t := range talks {
		for _, h := range d.hops(t) {
			allowed[h] = true
		}
	}
	machines := map[string]netip.Addr{}
	for name, a := range d.portNames() {
		machines[d.cloud.Fabric.Port(name).Link()] = a
	}
	strange := r.Violations(func(f lab.Flow, _ lab.Tally) string {
		switch {
		case f.Kind == lab.KindARP && (f.Out || f.Src == machines[f.Link]):
			return ""
		case f.Kind == lab.KindIPv4 && allowed[hop{f.Link, f.Out, f.Src, f.Dst}]:
			return ""
		}
		return "nobody's"
	})
	for _, t := range talks {
		for _, h := range d.hops(t) {
			if t.quiet || sumOf(r, h).Frames > 0 {
				continue
			}
			saw := "no such frame at " + h.link
			if len(strange) > 0 {
				saw = flowOf(strange[0])
			}
			return &notOK{"true sources", fmt.Sprintf("%s as %s > %s", t.what, t.src, t.dst), saw}
		}
	}
	if len(strange) > 0 {
		return &notOK{"true sources", "no frames but those of " + named(talks), flowOf(strange[0])}
	}
	return nil
}

func (d *demo) showTalks(r lab.Report, talks []talk) {
	var rows []string
	for _, t := range talks {
		there, back := sumOf(r, d.hops(t)[0]), sumOf(r, d.hops(t)[1])
		at := t.from
		if t.to != "" {
			at += ", " + t.to
		}
		rows = append(rows, fmt.Sprintf("%s|%s > %s|%s|%d, %d|%d", t.what, t.src, t.dst, at, there.Frames, back.Frames, max(there.MaxPacket, back.MaxPacket)))
	}
	d.report.ok("true sources", "every frame is of one of these:")
	d.report.table("WHO|ON THE WIRE|AT PORTS|FRAMES|LARGEST PACKET", rows)
}

// judgeSize wants packets of full size both ways, at every port: of a super-packet, a segment with its headers.
func (d *demo) judgeSize(r lab.Report, talks []talk) error {
	for _, t := range talks {
		for _, h := range d.hops(t) {
			if size := sumOf(r, h).MaxPacket; t.full && size != fakeazure.DefaultFabricMTU {
				return &notOK{
					"full MTU", fmt.Sprintf("%s with packets of %d bytes", t.what, fakeazure.DefaultFabricMTU),
					fmt.Sprintf("at most %d (%s > %s at %s)", size, h.src, h.dst, h.link),
				}
			}
		}
	}
	return nil
}

func sumOf(r lab.Report, h hop) lab.Tally {
	return r.Sum(func(f lab.Flow) bool {
		return f.Kind == lab.KindIPv4 && hop{f.Link, f.Out, f.Src, f.Dst} == h
	})
}

// tcpTo counts TCP frames to an address, at any port of the fabric.
func tcpTo(r lab.Report, dst netip.Addr) int {
	return r.Sum(func(f lab.Flow) bool { return f.Proto == unix.IPPROTO_TCP && f.Dst == dst }).Frames
}
