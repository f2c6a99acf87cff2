package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// pod is an attached pod.
type pod struct {
	lab.Pod
	name    string // namespace/pod
	node    int
	space   *lab.Namespace
	runtime *lab.Runtime
	addr    netip.Addr
}

// attach makes a pod's namespace and runs ADD by libcni, with the shipped conflist or with some keys of it changed.
func (d *demo) attach(ctx context.Context, node int, name string, keys map[string]any) (*pod, error) {
	conflist, err := d.conflist(keys)
	if err != nil {
		return nil, err
	}
	namespace, short, _ := strings.Cut(name, "/")
	n := d.cloud.Nodes[node]
	p := &pod{name: name, node: node}
	if p.runtime, err = n.Runtime(conflist, d.bin); err != nil {
		return nil, err
	}
	id := fmt.Sprintf("%s-%s", n.Name, short)
	if p.space, err = d.cloud.Pod(id); err != nil {
		return nil, err
	}
	p.Pod = lab.Pod{ID: id, Netns: p.space.Path, Namespace: namespace, Name: short, UID: id}
	result, err := p.runtime.Add(ctx, p.Pod)
	if err != nil {
		return nil, fmt.Errorf("ADD %s on %s: %w", name, n.Name, err)
	}
	res, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, fmt.Errorf("result of ADD %s: %w", name, err)
	}
	if len(res.IPs) != 1 {
		return nil, fmt.Errorf("result of ADD %s: %d addresses", name, len(res.IPs))
	}
	a, _ := netip.AddrFromSlice(res.IPs[0].Address.IP)
	p.addr = a.Unmap()
	return p, nil
}

// join attaches a pod that stays until the end.
func (d *demo) join(ctx context.Context, node int, name string, keys map[string]any) (*pod, error) {
	p, err := d.attach(ctx, node, name, keys)
	if err == nil {
		d.pods = append(d.pods, p)
	}
	return p, err
}

// conflist is the shipped one with some keys of its first plugin changed.
func (d *demo) conflist(keys map[string]any) ([]byte, error) {
	if len(keys) == 0 {
		return d.shipped, nil
	}
	var list map[string]any
	if err := json.Unmarshal(d.shipped, &list); err != nil {
		return nil, fmt.Errorf("read %s: %w", conflistFile, err)
	}
	plugins, _ := list["plugins"].([]any)
	if len(plugins) == 0 {
		return nil, fmt.Errorf("%s has no plugins", conflistFile)
	}
	first, _ := plugins[0].(map[string]any)
	for k, v := range keys {
		first[k] = v
	}
	return json.Marshal(list)
}

// lease is a line of `vmssctl ipam list`.
type lease struct {
	Address   netip.Addr `json:"address"`
	State     string     `json:"state"`
	Present   bool       `json:"present"`
	NIC       string     `json:"nic"`
	Namespace string     `json:"namespace"`
	Pod       string     `json:"pod"`
	Link      string     `json:"link"`
}

// leases asks vmssctl on a node.
func (d *demo) leases(ctx context.Context, node int) (list []lease, err error) {
	out, err := d.cloud.Nodes[node].Command(ctx, filepath.Join(d.bin, "vmssctl"), "ipam", "list", "-o", "json", "--conf", d.conflistPath).Output()
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("read output of vmssctl: %w", err)
	}
	return list, nil
}
