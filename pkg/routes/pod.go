package routes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// loopbackIndex is the index of lo in every namespace (include/linux/netdevice.h: LOOPBACK_IFINDEX).
const loopbackIndex = 1

const (
	runningTries = 50
	runningPause = 2 * time.Millisecond
)

// Pod is the open network namespace of a pod.
type Pod struct {
	space namespace
	rt    rtnetlink
}

// OpenPod opens the network namespace at path. It refuses what is no network namespace, and the node's own one.
func (k *Kernel) OpenPod(path string) (*Pod, error) {
	space, err := openNamespace(path)
	if err != nil {
		return nil, fmt.Errorf("open netns %s: %w", path, err)
	}
	if space.same(k.space) {
		return nil, errors.Join(fmt.Errorf("open netns %s: %w", path, ErrOwnNetns), space.Close())
	}
	rt, err := openRoute(space)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open netns %s: %w", path, err), space.Close())
	}
	return &Pod{space: space, rt: rt}, nil
}

// Close gives back the namespace and its socket.
func (p *Pod) Close() {
	p.rt.close()
	_ = p.space.Close()
}

// Inode is the inode number of the namespace.
func (p *Pod) Inode() uint64 { return p.space.ino }

// HasLink tells whether the pod has a link of that name.
func (p *Pod) HasLink(ifname string) (bool, error) {
	_, found, err := p.rt.linkByName(context.Background(), ifname)
	return found, err
}

// MTU reads that of a link in the pod; 0 if there is no such link.
func (p *Pod) MTU(ctx context.Context, ifname string) (int, error) {
	link, found, err := p.rt.linkByName(ctx, ifname)
	if err != nil || !found {
		return 0, err
	}
	return link.Attrs().MTU, nil
}

// Configure gives the pod end its address, its routes and its neighbour, and brings it up:
//
//	10.20.0.10/32 · 169.254.1.1 dev eth0 · default via 169.254.1.1 dev eth0 · 169.254.1.1 lladdr <gwMAC> PERMANENT
//
// With that neighbour the pod never has to ask for its gateway, whatever arp_ignore says on the node. A pod that has a default
// route already gets other routes (configureSecond).
func (p *Pod) Configure(ctx context.Context, ifname string, addr netip.Addr, gwMAC [6]byte) error {
	link, found, err := p.rt.linkByName(ctx, ifname)
	if err == nil && !found {
		err = unix.ENODEV
	}
	if err != nil {
		return fmt.Errorf("configure %s in the pod: %w", ifname, err)
	}
	index := link.Attrs().Index
	if err := p.space.do(func() error { return podSysctls(ctx, ifname) }); err != nil {
		return err
	}
	steps := []podStep{
		{"pod-addr-add", false, func(h *netlink.Handle) error { return h.AddrAdd(byIndex(index), podAddr(addr)) }},
		{"pod-link-up", false, func(h *netlink.Handle) error { return h.LinkSetUp(byIndex(index)) }},
		{"pod-gateway-add", true, func(h *netlink.Handle) error { return h.RouteAdd(gatewayRoute(index)) }},
		{"pod-default-add", true, func(h *netlink.Handle) error { return h.RouteAdd(defaultRoute(index)) }},
		{"pod-neigh-set", false, func(h *netlink.Handle) error { return h.NeighSet(gatewayNeigh(index, gwMAC)) }},
		{"pod-lo-up", false, func(h *netlink.Handle) error { return h.LinkSetUp(byIndex(loopbackIndex)) }},
	}
	second := false // the pod has a default route already, of ours or of another plugin
	for _, s := range steps {
		if second && s.route {
			continue
		}
		err := p.rt.do(ctx, s.op, s.send)
		if errors.Is(err, unix.EEXIST) && s.route {
			second = true
		} else if err != nil {
			return fmt.Errorf("%s on %s in the pod: %w", s.op, ifname, err)
		}
	}
	if second {
		return p.configureSecond(ctx, index, addr)
	}
	return nil
}

// podStep is one message to the pod's namespace.
type podStep struct {
	op    string
	route bool
	send  func(*netlink.Handle) error
}

// AwaitRunning waits until the pod end can send. It came up before its peer, so its queue is made by the kernel's link watch,
// some time after the peer came up: on a busy machine 1 in 50 pods lost its first packet in between. From Linux 6.8 on
// asking for a link runs the link watch first, and one question is all; before, a few are. Giving up is no error.
func (p *Pod) AwaitRunning(ctx context.Context, ifname string) error {
	for range runningTries {
		link, found, err := p.rt.linkByName(ctx, ifname)
		if err != nil {
			return fmt.Errorf("wait for %s in the pod: %w", ifname, err)
		}
		if !found || link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		time.Sleep(runningPause)
	}
	return nil
}

// podSysctls runs in the pod's namespace. A new namespace copies arp_ignore from the machine, and the larger of the values
// for all and for the link counts: from 2 on the pod answers no one, since no asker shares a subnet with a /32.
func podSysctls(ctx context.Context, ifname string) error {
	if err := writeIPv6(ctx, ipv6Off(ifname)); err != nil {
		return err
	}
	for _, link := range []string{allLinks, ifname} {
		key := conf4(link, "arp_ignore")
		have, err := readSysctl(key)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if have < arpIgnoreStrict {
			continue
		}
		if err := writeSysctl(ctx, key, "0"); err != nil {
			return err
		}
	}
	return nil
}

func podAddr(addr netip.Addr) *netlink.Addr {
	a := &netlink.Addr{IPNet: hostNet(addr)}
	if addr.Is6() {
		a.Flags = unix.IFA_F_NODAD // nobody else can have it, and the check takes seconds
	}
	return a
}

func gatewayRoute(index int) *netlink.Route {
	return &netlink.Route{LinkIndex: index, Scope: netlink.SCOPE_LINK, Dst: hostNet(gateway)}
}

func defaultRoute(index int) *netlink.Route {
	return &netlink.Route{LinkIndex: index, Dst: prefixNet(netip.PrefixFrom(netip.IPv4Unspecified(), 0)), Gw: addrIP(gateway)}
}

func gatewayNeigh(index int, mac [6]byte) *netlink.Neigh {
	return &netlink.Neigh{
		LinkIndex: index, Family: netlink.FAMILY_V4, State: netlink.NUD_PERMANENT, IP: addrIP(gateway), HardwareAddr: mac[:],
	}
}
