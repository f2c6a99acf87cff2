package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/native-vmss/native-vmss/internal/fakeazure"
	"github.com/native-vmss/native-vmss/internal/lab"
)

// Names and ports of the stage.
const (
	portEcho   = 7
	portSink   = 9
	portPeers  = 700
	settleTime = 50 * time.Millisecond // longer than a delayed acknowledgement; what a veth has in flight is through
	dnsName    = "registry.example.com"
)

// demo is the stage and all who are on it.
type demo struct {
	id           string // of the lab
	report       *report
	fault        *fault
	bin          string // directory with the built binaries
	conflistPath string
	shipped      []byte // the shipped conflist

	cloud  *lab.Cloud
	before []lab.Snapshot // per node
	pods   []*pod
	echo   map[string]*lab.Server // by the name of who answers
	sink   map[string]*lab.Server
}

// build makes the cloud and its services. A pod is added to and deleted from each node before anything is compared: what
// belongs to the node and not to a pod is then there.
func (d *demo) build(ctx context.Context) (err error) {
	if d.cloud, err = lab.NewCloud(lab.CloudOptions{ID: d.id}); err != nil {
		return err
	}
	d.report.ok("machines", "node1 %s, node2 %s; peered network: hub %s", d.primary(0), d.primary(1), lab.CloudHub)
	d.report.ok("way out", "internet %s, firewall %s", lab.CloudInternet, lab.CloudFirewall)
	if err := d.startPlatform(ctx); err != nil {
		return err
	}
	d.report.ok("platform", "bin/fake-azure: metadata at %s, DNS and wireserver at %s", fakeazure.IMDSAddr, fakeazure.WireServerAddr)
	d.echo, d.sink = map[string]*lab.Server{}, map[string]*lab.Server{}
	for name, space := range map[string]*lab.Namespace{
		"hub": d.cloud.Hub, "internet": d.cloud.Internet, "node1": d.cloud.Nodes[0].Namespace, "node2": d.cloud.Nodes[1].Namespace,
	} {
		if err := d.serve(name, space); err != nil {
			return err
		}
	}
	return d.warmUp(ctx)
}

func (d *demo) warmUp(ctx context.Context) error {
	for i := range d.cloud.Nodes {
		p, err := d.attach(ctx, i, "lab/first", nil)
		if err != nil {
			return err
		}
		if err := p.runtime.Del(ctx, p.Pod); err != nil {
			return fmt.Errorf("DEL %s: %w", p.name, err)
		}
		snap, err := d.snapshot(ctx, i)
		if err != nil {
			return err
		}
		d.before = append(d.before, snap)
	}
	d.report.ok("before", "one ADD and DEL on each node, then a snapshot of its state")
	return nil
}

func (d *demo) snapshot(ctx context.Context, node int) (lab.Snapshot, error) {
	var pool []netip.Addr
	for _, n := range d.cloud.Nodes {
		pool = append(pool, n.NICs[0].Secondaries...)
	}
	return d.cloud.Nodes[node].Snapshot(ctx, lab.SnapshotOptions{Pool: pool, NoPrograms: true})
}

func (d *demo) close() error {
	if d.cloud == nil {
		return nil
	}
	return d.cloud.Close()
}

func (d *demo) primary(node int) netip.Addr { return d.cloud.Nodes[node].NICs[0].Primary }

// serve answers on the ports of the demo.
func (d *demo) serve(name string, space *lab.Namespace) (err error) {
	any4 := netip.IPv4Unspecified()
	if d.echo[name], err = space.EchoTCP(netip.AddrPortFrom(any4, portEcho)); err != nil {
		return err
	}
	d.sink[name], err = space.SinkTCP(netip.AddrPortFrom(any4, portSink))
	return err
}

// startPlatform starts the fake cloud's services on the fabric and waits until they listen.
func (d *demo) startPlatform(ctx context.Context) error {
	config := filepath.Join(d.cloud.Dir, "cloud.json")
	b, err := json.Marshal(d.topology())
	if err != nil {
		return err
	}
	if err := os.WriteFile(config, b, 0o600); err != nil {
		return err
	}
	wire := fakeazure.WireServerAddr
	var diag bytes.Buffer
	cmd := d.cloud.Space.Command(ctx, filepath.Join(d.bin, "fake-azure"), "-config", config,
		"-imds", netip.AddrPortFrom(fakeazure.IMDSAddr, 80).String(),
		"-wireserver", fmt.Sprintf("%s:80,%s:32526", wire, wire), "-dns", netip.AddrPortFrom(wire, 53).String())
	cmd.Stderr = &diag
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start fake-azure: %w", err)
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "ready" {
			go func() { _ = cmd.Wait() }() // until the lab ends it
			return nil
		}
	}
	return errors.Join(fmt.Errorf("fake-azure ended before it was ready: %s", diag.String()), cmd.Wait())
}

func (d *demo) topology() fakeazure.Topology {
	t := fakeazure.Topology{
		Subnets: []fakeazure.Subnet{{Name: "nodes", Prefix: lab.CloudNetwork}},
		DNS:     map[string][]netip.Addr{dnsName: {lab.CloudInternet}},
	}
	for i, n := range d.cloud.Nodes {
		nic := n.NICs[0]
		t.VMs = append(t.VMs, fakeazure.VM{
			Name: fmt.Sprintf("demo_%d", i), ComputerName: n.Name,
			NICs: []fakeazure.NIC{{
				Name: "nic0", MAC: fakeazure.MAC(nic.MAC), Subnet: "nodes", Primary: nic.Primary, Secondaries: nic.Secondaries,
			}},
		})
	}
	return t
}

// pause lets the kernel finish what a veth has in flight.
func pause(ctx context.Context, t time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(t):
	}
}
