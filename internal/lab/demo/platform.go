package main

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/native-vmss/native-vmss/internal/fakeazure"
	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	deniedTimeout = 400 * time.Millisecond
	askTimeout    = 2 * time.Second
)

// door is a TCP port of the platform that answers the node and not its pods.
type door struct {
	name string
	to   netip.AddrPort
	path string
}

var doors = []door{
	{"wireserver", netip.AddrPortFrom(fakeazure.WireServerAddr, 80), "/?comp=versions"},
	{"wireserver", netip.AddrPortFrom(fakeazure.WireServerAddr, 32526), "/vmSettings"},
	{"metadata", netip.AddrPortFrom(fakeazure.IMDSAddr, 80), "/metadata/instance?api-version=2021-02-01"},
}

func (d *demo) platform(ctx context.Context) error {
	if err := d.dns(ctx); err != nil {
		return err
	}
	for _, door := range doors {
		if err := d.closed(ctx, door); err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) dns(ctx context.Context) error {
	web := d.pod(podWeb)
	server := netip.AddrPortFrom(fakeazure.WireServerAddr, 53)
	var got []netip.Addr
	r, err := d.watch(ctx, func() (err error) {
		got, err = web.space.LookupA(ctx, server, dnsName+".", askTimeout)
		return err
	})
	if err != nil {
		return &notOK{"DNS", fmt.Sprintf("%s to answer %s", server, web.name), err.Error()}
	}
	if !slices.Equal(got, []netip.Addr{lab.CloudInternet}) {
		return &notOK{"DNS", fmt.Sprintf("%s for %s", lab.CloudInternet, dnsName), fmt.Sprint(got)}
	}
	if err := d.judge(r, []talk{{what: web.name + " > DNS", src: d.primary(0), dst: fakeazure.WireServerAddr, from: "node1-0"}}); err != nil {
		return err
	}
	d.report.ok("DNS", "%s gets %s for %s from %s; on the wire it is %s", web.name, got[0], dnsName, server, d.primary(0))
	return nil
}

// closed shows that a pod doesn't get through, not even with one frame, while the node does.
func (d *demo) closed(ctx context.Context, o door) error {
	web := d.pod(podWeb)
	var verdict lab.Verdict
	r, err := d.watch(ctx, func() (err error) {
		verdict, err = web.space.Connect(ctx, o.to, deniedTimeout)
		return err
	})
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s tcp %d", o.name, o.to.Port())
	if frames := tcpTo(r, o.to.Addr()); verdict == lab.Connected || frames > 0 {
		return &notOK{name, fmt.Sprintf("%s to get nothing from %s", web.name, o.to), fmt.Sprintf("%s, %s on the fabric", verdict, plural(frames, "frame"))}
	}
	if err := d.judge(r, nil); err != nil {
		return err
	}
	status, err := d.nodeAsks(ctx, o)
	if err != nil {
		return &notOK{name, fmt.Sprintf("an answer of %s to the node", o.to), err.Error()}
	}
	return d.report.check(status == http.StatusOK, name, "200 for the node",
		fmt.Sprintf("%s: %s, no frame left the node; node1: HTTP %d", web.name, verdict, status))
}

func (d *demo) nodeAsks(ctx context.Context, o door) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+o.to.String()+o.path, nil)
	if err != nil {
		return 0, err
	}
	req.Header.Set("Metadata", "true")
	resp, err := d.cloud.Nodes[0].HTTPClient(askTimeout).Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}
