package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	vxlanLink = "vx0"
	vxlanID   = 42
	vxlanPort = 4789
	vxlanMTU  = 1450
	smallMTU  = 1400
	leakTable = 28299
	// The product's table and the chain in it that drops spoofed sources.
	policyTable = "native_vmss"
	spoofChain  = "prerouting"
)

// seedVXLAN joins the nodes by a tunnel and routes each one's pods into the other's end.
func (d *demo) seedVXLAN() error {
	for i := range d.cloud.Nodes {
		if err := d.tunnel(i, 1-i); err != nil {
			return err
		}
	}
	return nil
}

func tunnelMAC(node int) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, byte(node + 1)} }

func (d *demo) tunnel(here, there int) error {
	n := d.cloud.Nodes[here]
	h, err := n.Handle()
	if err != nil {
		return err
	}
	link := &netlink.Vxlan{
		LinkAttrs: netlink.LinkAttrs{Name: vxlanLink, MTU: vxlanMTU, HardwareAddr: tunnelMAC(here)},
		VxlanId:   vxlanID, Port: vxlanPort, SrcAddr: d.primary(here).AsSlice(), Group: d.primary(there).AsSlice(),
	}
	if err := h.LinkAdd(link); err != nil {
		return fmt.Errorf("add %s: %w", vxlanLink, err)
	}
	if err := errors.Join(n.SetUp(vxlanLink), n.Sysctl("net.ipv4.conf."+vxlanLink+".forwarding", "1")); err != nil {
		return err
	}
	for _, p := range d.pods {
		if p.node != there {
			continue
		}
		err := h.NeighSet(&netlink.Neigh{
			LinkIndex: link.Index, State: netlink.NUD_PERMANENT, IP: p.addr.AsSlice(), HardwareAddr: tunnelMAC(there),
		})
		if err := errors.Join(err, n.AddRoute(netip.PrefixFrom(p.addr, 32), netip.Addr{}, vxlanLink)); err != nil {
			return err
		}
	}
	return nil
}

// seedMasquerade adds: oifname eth0 ip daddr 10.0.0.0/8 masquerade.
func (d *demo) seedMasquerade() error {
	c, err := nftables.New(nftables.WithNetNSFd(d.cloud.Nodes[0].Fd()))
	if err != nil {
		return err
	}
	table := c.AddTable(&nftables.Table{Name: "fault", Family: nftables.TableFamilyIPv4})
	chain := c.AddChain(&nftables.Chain{
		Name: "post", Table: table, Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityNATSource - 1),
	})
	name := make([]byte, unix.IFNAMSIZ)
	copy(name, nic)
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: name},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{10}},
		&expr.Masq{},
	}})
	return c.Flush()
}

func (d *demo) seedMTU() error {
	return withLink(d.pod(podWeb).space, nic, func(h *netlink.Handle, l netlink.Link) error { return h.LinkSetMTU(l, smallMTU) })
}

func (d *demo) seedNoRoute() error { return d.cloud.Fabric.Port("node2-0").Pull(d.pod(podDB).addr) }

// seedSpoof empties the chain that drops spoofed sources and switches the reverse path filter off.
func (d *demo) seedSpoof() error {
	n := d.cloud.Nodes[0]
	list, err := d.hostLinks()
	if err != nil {
		return err
	}
	for _, link := range append(list, "all") {
		if err := n.Sysctl("net.ipv4.conf."+link+".rp_filter", "0"); err != nil {
			return err
		}
	}
	c, err := nftables.New(nftables.WithNetNSFd(n.Fd()))
	if err != nil {
		return err
	}
	table := &nftables.Table{Name: policyTable, Family: nftables.TableFamilyIPv4}
	c.FlushChain(&nftables.Chain{Name: spoofChain, Table: table})
	return c.Flush()
}

// hostLinks are the host ends of node1's pods.
func (d *demo) hostLinks() ([]string, error) {
	h, err := d.cloud.Nodes[0].Handle()
	if err != nil {
		return nil, err
	}
	links, err := h.LinkList()
	var names []string
	for _, l := range links {
		if l.Type() == "veth" && l.Attrs().Name != nic {
			names = append(names, l.Attrs().Name)
		}
	}
	return names, err
}

// seedLeak leaves what a plugin could: an address that leads nowhere, in a table of its own.
func (d *demo) seedLeak() error {
	h, err := d.cloud.Nodes[0].Handle()
	if err != nil {
		return err
	}
	a := d.pod(podWeb).addr
	return h.RouteAdd(&netlink.Route{
		Dst: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(32, 32)}, Table: leakTable, Type: unix.RTN_UNREACHABLE,
	})
}

func withLink(space *lab.Namespace, name string, do func(*netlink.Handle, netlink.Link) error) error {
	h, err := space.Handle()
	if err != nil {
		return err
	}
	l, err := h.LinkByName(name)
	if err != nil {
		return fmt.Errorf("link %s in %s: %w", name, space.Name, err)
	}
	return do(h, l)
}
