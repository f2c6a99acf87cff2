package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/native-vmss/native-vmss/internal/fakeazure"
	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	nodeLink    = "eth0"          // Docker's name of a container's first NIC
	machineLink = "nvt-kind-host" // the machine's end of its own cable, on Docker's bridge
	nic         = "nic0"
	subnet      = "nodes"
)

// stage is the cloud with the nodes on it.
type stage struct {
	*lab.Cloud
	options
	log     *slog.Logger
	machine *lab.Foreign
	ports   map[string]*fakeazure.Port // by the node's name
}

// node is what a container has by itself.
type node struct {
	container
	space   *lab.Foreign
	mac     net.HardwareAddr
	primary netip.Addr
	peer    int // index of the other end of its cable, in the machine's namespace
}

func (s *stage) build(ctx context.Context) (server *fakeazure.Server, err error) {
	if s.machine, err = s.OpenForeign("/proc/self/ns/net"); err != nil {
		return nil, err
	}
	top := fakeazure.Topology{
		Subnets: []fakeazure.Subnet{{Name: subnet, Prefix: lab.CloudNetwork}},
		DNS:     map[string][]netip.Addr{"hub.example": {lab.CloudHub}, "internet.example": {lab.CloudInternet}},
	}
	for i, c := range s.nodes {
		n, err := s.inspect(c)
		if err == nil {
			err = s.adopt(i, n)
		}
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", c.name, err)
		}
		top.VMs = append(top.VMs, vm(i, n, s.pods))
	}
	if err := s.plugMachine(); err != nil {
		return nil, fmt.Errorf("plug in the machine: %w", err)
	}
	if err := s.answer(ctx); err != nil {
		return nil, err
	}
	return s.serve(top)
}

func vm(i int, n node, pods int) fakeazure.VM {
	return fakeazure.VM{
		Name: fmt.Sprintf("kind_%d", i), ScaleSet: "kind", InstanceID: fmt.Sprint(i), ComputerName: n.name,
		NICs: []fakeazure.NIC{{
			Name: nic, MAC: fakeazure.MAC(n.mac), Subnet: subnet, Primary: n.primary, Secondaries: secondaries(i, pods),
		}},
	}
}

// inspect looks into a container; nobody but Docker has configured it.
func (s *stage) inspect(c container) (node, error) {
	n := node{container: c}
	var err error
	if n.space, err = s.OpenForeign(fmt.Sprintf("/proc/%d/ns/net", c.pid)); err != nil {
		return n, err
	}
	h, err := n.space.Handle()
	if err != nil {
		return n, err
	}
	link, err := h.LinkByName(nodeLink)
	if err != nil {
		return n, err
	}
	addrs, err := h.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return n, err
	}
	if len(addrs) != 1 {
		return n, fmt.Errorf("%s has %d addresses, want one", nodeLink, len(addrs))
	}
	n.mac, n.peer = link.Attrs().HardwareAddr, link.Attrs().ParentIndex
	n.primary, _ = netip.AddrFromSlice(addrs[0].IP.To4())
	return n, nil
}

// adopt moves the other end of a node's cable from Docker's bridge to the fabric.
func (s *stage) adopt(i int, n node) error {
	h, err := s.machine.Handle()
	if err != nil {
		return err
	}
	link, err := h.LinkByIndex(n.peer)
	if err != nil {
		return err
	}
	bridge, err := h.LinkByName(s.network)
	if err != nil {
		return err
	}
	if link.Attrs().MasterIndex != bridge.Attrs().Index {
		return fmt.Errorf("%s is not on bridge %s", link.Attrs().Name, s.network)
	}
	if err := h.LinkSetNoMaster(link); err != nil {
		return err
	}
	if err := h.LinkSetNsFd(link, s.Space.Fd()); err != nil {
		return err
	}
	s.ports[n.name], err = s.Fabric.AddPort(fakeazure.PortConfig{
		Name: fmt.Sprintf("node%d", i), Machine: n.space, Link: nodeLink, MAC: n.mac, Plugged: link.Attrs().Name,
		Subnet: lab.CloudNetwork, Primary: n.primary, Secondaries: secondaries(i, s.pods), PrimaryNIC: true,
	})
	if err != nil {
		return err
	}
	return forgetNeighbours(n)
}

// forgetNeighbours: until now others answered for themselves; the fabric has one MAC for all.
func forgetNeighbours(n node) error {
	h, err := n.space.Handle()
	if err != nil {
		return err
	}
	link, err := h.LinkByName(nodeLink)
	if err != nil {
		return err
	}
	list, err := h.NeighList(link.Attrs().Index, netlink.FAMILY_V4)
	if err != nil {
		return err
	}
	for _, nb := range list {
		if nb.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0 {
			continue
		}
		if err := h.NeighDel(&nb); err != nil {
			return fmt.Errorf("forget %s: %w", nb.IP, err)
		}
	}
	return nil
}

// plugMachine joins Docker's bridge, where the machine's own address is, to the fabric.
func (s *stage) plugMachine() error {
	h, err := s.machine.Handle()
	if err != nil {
		return err
	}
	bridge, err := h.LinkByName(s.network)
	if err != nil {
		return err
	}
	_, err = s.Fabric.AddPort(fakeazure.PortConfig{
		Name: "machine", Machine: s.machine, Link: machineLink, MAC: bridge.Attrs().HardwareAddr,
		Subnet: lab.CloudNetwork, Primary: lab.CloudNetwork.Masked().Addr().Next(), PrimaryNIC: true,
	})
	if err != nil {
		return err
	}
	link, err := h.LinkByName(machineLink)
	if err != nil {
		return err
	}
	return h.LinkSetMaster(link, bridge)
}

// answer starts the probe where pods look for somebody outside.
func (s *stage) answer(ctx context.Context) error {
	for _, space := range []*lab.Namespace{s.Hub, s.Internet} {
		cmd := space.Command(ctx, s.probe, "serve", whoamiPort)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("answer in %s: %w", space.Name, err)
		}
	}
	return nil
}

// serve opens the platform's services on the fabric, and lets the fabric follow what is changed through the admin socket.
func (s *stage) serve(top fakeazure.Topology) (server *fakeazure.Server, err error) {
	cloud, err := fakeazure.New(top)
	if err != nil {
		return nil, err
	}
	cloud.OnChange(s.follow)
	wire := fakeazure.WireServerAddr
	err = s.Space.Do(func() error {
		server, err = cloud.Listen(fakeazure.Services{
			IMDS:       []string{netip.AddrPortFrom(fakeazure.IMDSAddr, 80).String()},
			Wireserver: []string{netip.AddrPortFrom(wire, 80).String(), netip.AddrPortFrom(wire, 32526).String()},
			DNS:        []string{netip.AddrPortFrom(wire, 53).String()},
			Admin:      s.admin,
		})
		return err
	})
	return server, err
}

// follow gives the ports the addresses that the model has.
func (s *stage) follow(top fakeazure.Topology) {
	for _, v := range top.VMs {
		port := s.ports[v.ComputerName]
		if port == nil {
			continue
		}
		wanted := append([]netip.Addr{v.NICs[0].Primary}, v.NICs[0].Secondaries...)
		for _, a := range port.Addrs() {
			if !slices.Contains(wanted, a) {
				s.warn(port.RemoveAddr(a))
			}
		}
		have := port.Addrs()
		for _, a := range wanted {
			if !slices.Contains(have, a) {
				s.warn(port.AddAddr(a))
			}
		}
	}
}

func (s *stage) warn(err error) {
	if err != nil {
		s.log.Warn("follow the cloud", "error", err)
	}
}
