package routes

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Pair is a veth pair between the node and a pod.
type Pair struct {
	Name    string // host end
	IfName  string // pod end
	MTU     int
	HostMAC [6]byte
	PodMAC  [6]byte
	Index   int // of the host end; CreatePair sets it
}

// CreatePair makes both ends in one message, each where it belongs. Moving an end into the pod afterwards would cost 15 ms
// and more. Group and MACs are in the message too: from its first moment on the link is known as ours, and udev leaves a MAC
// alone that was set at creation. Both ends are down.
func (k *Kernel) CreatePair(ctx context.Context, pod *Pod, p *Pair) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.Group = p.Name, p.MTU, Group
	attrs.HardwareAddr = p.HostMAC[:]
	veth := &netlink.Veth{
		LinkAttrs: attrs, PeerName: p.IfName, PeerMTU: uint32(p.MTU), PeerHardwareAddr: p.PodMAC[:],
		PeerNamespace: netlink.NsFd(pod.space.fd), PeerTxQLen: -1,
	}
	err := k.rt.do(ctx, "pair-add", func(h *netlink.Handle) error { return h.LinkAdd(veth) })
	if errors.Is(err, unix.EEXIST) {
		err = ErrLinkExists
	}
	if err != nil {
		return fmt.Errorf("create pair %s, %s in the pod: %w", p.Name, p.IfName, err)
	}
	// LinkAdd asks for the index by name and keeps quiet when that fails.
	if veth.Index == 0 {
		return fmt.Errorf("create pair %s: %w", p.Name, unix.ENODEV)
	}
	p.Index = veth.Index
	return nil
}

// SetAlias writes a link's alias. The kernel ignores one in the message that creates a link, so this is a step of its own.
func (k *Kernel) SetAlias(ctx context.Context, index int, alias string) error {
	if len(alias) > aliasMax {
		return fmt.Errorf("set alias of link #%d: %w", index, ErrAliasTooLong)
	}
	err := k.rt.do(ctx, "alias-set", func(h *netlink.Handle) error { return h.LinkSetAlias(byIndex(index), alias) })
	if err != nil {
		return fmt.Errorf("set alias of link #%d: %w", index, err)
	}
	return nil
}

// HostEndUp readies the host end and brings it up. It gets no address, ever: rp_filter on a link without one drops every
// packet whose source isn't routed through that link, in strict and in loose mode alike. IPv6 is off, or the pod would reach
// the node by its link-local address, past policy and accounting.
func (k *Kernel) HostEndUp(ctx context.Context, name string, index int) error {
	if err := k.space.do(func() error { return hostEndSysctls(ctx, name) }); err != nil {
		return err
	}
	err := k.rt.do(ctx, "link-up", func(h *netlink.Handle) error { return h.LinkSetUp(byIndex(index)) })
	if err != nil {
		return fmt.Errorf("bring up %s: %w", name, err)
	}
	// Only now: a proxy entry goes when its link goes down.
	err = k.rt.do(ctx, "proxy-set", func(h *netlink.Handle) error { return h.NeighSet(gatewayProxy(index)) })
	if err != nil {
		return fmt.Errorf("answer for %s on %s: %w", gateway, name, err)
	}
	return nil
}

// gatewayProxy lets the host end answer who asks for the gateway, and for nothing else. A pod has no need to ask, until a
// chained plugin (tuning) changes the MAC of its end: the kernel then drops its neighbours, permanent ones too.
func gatewayProxy(index int) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, Flags: netlink.NTF_PROXY, IP: addrIP(gateway),
	}
}

func hostEndSysctls(ctx context.Context, name string) error {
	if err := writeIPv6(ctx, hostEndIPv6(name)...); err != nil {
		return err
	}
	for _, s := range hostEndValues(name) {
		if err := writeSysctl(ctx, s.key, s.value); err != nil {
			return err
		}
	}
	return nil
}

type sysctlValue struct{ key, value string }

// hostEndIPv6: others turn IPv6 on at every link at once (net.ipv6.conf.all.disable_ipv6=0). Then too the link has no link-local address
// and takes no router advertisement, by which a pod would become the node's default route.
func hostEndIPv6(name string) []sysctlValue {
	return []sysctlValue{ipv6Off(name), {conf6(name, "accept_ra"), "0"}, {conf6(name, "addr_gen_mode"), "1"}}
}

func hostEndValues(name string) []sysctlValue {
	return []sysctlValue{
		{conf4(name, "forwarding"), "1"},
		{conf4(name, "rp_filter"), "1"},
		{conf4(name, "accept_redirects"), "0"},
		// The kernel forwards a source-routed packet under its old destination and writes the next hop in afterwards: past the policy
		// table. It takes such packets only where all and the link allow it; others may set all.
		{conf4(name, "accept_source_route"), "0"},
		{proxyDelay(name), "0"}, // else an answer for the gateway waits up to 0.8 s
	}
}
