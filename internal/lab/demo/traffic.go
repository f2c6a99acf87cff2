package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	pingCount    = 20
	pingInterval = 5 * time.Millisecond
	// Each pair sends for 1.5 s in all.
	throughputRounds = 5
	throughputTime   = 300 * time.Millisecond
)

// pair is who talks to whom.
type pair struct {
	what       string
	from, to   string
	space      *lab.Namespace
	addr       netip.Addr
	throughput bool
}

func (d *demo) pairs() []pair {
	web, cache, db, job := d.pod(podWeb), d.pod(podCache), d.pod(podDB), d.pod(podJob)
	return []pair{
		{"node to node", "node1", "node2", d.cloud.Nodes[0].Namespace, d.primary(1), true},
		{"same node", web.name, cache.name, web.space, cache.addr, true},
		{"across nodes", web.name, db.name, web.space, db.addr, true},
		{"and back", job.name, web.name, job.space, web.addr, false},
		{"to the hub", web.name, "hub", web.space, lab.CloudHub, false},
		{"from the hub", "hub", db.name, d.cloud.Hub, db.addr, false},
		{"to the internet", web.name, "internet", web.space, lab.CloudInternet, false},
	}
}

func (d *demo) pings(ctx context.Context) error {
	for _, p := range d.pairs() {
		r, err := p.space.Ping(ctx, p.addr, lab.PingOptions{Count: pingCount, Interval: pingInterval})
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if r.Received != pingCount || r.Duplicates+r.Unreachable+r.Expired > 0 {
			return &notOK{"ping " + p.what, fmt.Sprintf("%d replies of %s (%s) to %s", pingCount, p.to, p.addr, p.from), said(r) + d.reach(ctx, p)}
		}
		d.report.ok("ping "+p.what, "%-12s > %-12s  %d of %d, median %.3f ms", p.from, p.to, r.Received, r.Sent, r.Median().Seconds()*1000)
	}
	return nil
}

// said tells what came back instead.
func said(r lab.PingResult) string {
	s := fmt.Sprintf("%d of %d", r.Received, r.Sent)
	if r.Duplicates > 0 {
		s += fmt.Sprintf(", %d twice", r.Duplicates)
	}
	if n := r.Unreachable + r.Expired; n > 0 {
		s += fmt.Sprintf(", %s from %s", plural(n, "ICMP error"), r.ErrorsFrom[0])
	}
	if len(r.SendErrors) > 0 {
		s += fmt.Sprintf(", %v", r.SendErrors[0])
	}
	return s
}

// reach tells how far a request gets.
func (d *demo) reach(ctx context.Context, p pair) string {
	r, err := d.watch(ctx, func() error {
		_, err := p.space.Ping(ctx, p.addr, lab.PingOptions{Count: 1, Timeout: settleTime})
		return err
	})
	if err != nil {
		return ""
	}
	var into, out string
	for f := range r.Flows {
		switch {
		case f.Proto != unix.IPPROTO_ICMP || f.Dst != p.addr:
		case f.Out:
			out = f.Link
		default:
			into = f.Link
		}
	}
	switch {
	case out != "":
		return "; requests get through to " + out
	case into != "":
		return "; requests get to " + into + ", the fabric has no route on"
	}
	return "; requests don't get to the fabric"
}

// throughput sends streams; the first pair is the measure of the others. They take turns, so that a busy machine is busy for
// all of them. More frames pass than a program can read: the kernel counts those that are neither ARP nor plain IPv4.
func (d *demo) throughput(ctx context.Context) error {
	counter, err := d.cloud.Space.CountUnexpected(d.ports()...)
	if err != nil {
		return err
	}
	pairs := slices.DeleteFunc(d.pairs(), func(p pair) bool { return !p.throughput })
	rates := make([][]float64, len(pairs))
	for range throughputRounds {
		for i, p := range pairs {
			if err := ctx.Err(); err != nil {
				return err
			}
			rate, err := p.space.Throughput(ctx, d.sink[p.to], netip.AddrPortFrom(p.addr, portSink), throughputTime)
			if err != nil {
				return fmt.Errorf("TCP %s: %w", p.what, err)
			}
			rates[i] = append(rates[i], rate)
		}
	}
	host := median(rates[0])
	for i, p := range pairs {
		rate := median(rates[i])
		if rate == 0 {
			return &notOK{"TCP " + p.what, "bytes from " + p.from + " to " + p.to, "none"}
		}
		d.report.ok("TCP "+p.what, "%-12s > %-12s  %5.1f Gbit/s, %.2f of node to node", p.from, p.to, rate*8/1e9, rate/host)
	}
	all, unexpected, err := counter.Stop()
	if err != nil {
		return err
	}
	return d.report.check(unexpected == 0 && all > 0, "no encapsulation", "0 frames but ARP and plain IPv4",
		fmt.Sprintf("%d others among %d frames, counted by the kernel meanwhile", unexpected, all))
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}
