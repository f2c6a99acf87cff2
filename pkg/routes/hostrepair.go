package routes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// RepairHostEnd puts back what others may have changed on a pod's host end: its MAC, which the pod has as a permanent
// neighbour, its group and sysctls, that it stands alone, has no address and asks the pod by ARP, and that it is up.
func (k *Kernel) RepairHostEnd(ctx context.Context, link PodLink, mac [6]byte) error {
	if link.MAC != mac {
		k.note("MAC of %s set to %s (was %s)", link.Name, macString(mac), macString(link.MAC))
		k.log.Warn("MAC of a host end put back", "dev", link.Name, "was", net.HardwareAddr(link.MAC[:]).String())
		err := k.rt.do(ctx, "mac-set", func(h *netlink.Handle) error {
			return h.LinkSetHardwareAddr(byIndex(link.Index), mac[:])
		})
		if err != nil {
			return fmt.Errorf("set MAC of %s: %w", link.Name, err)
		}
	}
	if link.Group != Group {
		k.note("group of %s set to %d (was %d)", link.Name, Group, link.Group)
		k.log.Warn("group of a host end put back", "dev", link.Name, "was", link.Group)
		err := k.rt.do(ctx, "group-set", func(h *netlink.Handle) error { return h.LinkSetGroup(byIndex(link.Index), Group) })
		if err != nil {
			return fmt.Errorf("set group of %s: %w", link.Name, err)
		}
	}
	if link.Master != 0 {
		k.note("%s taken from under link #%d", link.Name, link.Master)
		k.log.Warn("host end taken from under a master", "dev", link.Name)
		err := k.rt.do(ctx, "master-unset", func(h *netlink.Handle) error { return h.LinkSetNoMaster(byIndex(link.Index)) })
		if err != nil {
			return fmt.Errorf("take %s from under its master: %w", link.Name, err)
		}
	}
	if link.NoARP {
		k.note("ARP of %s turned on", link.Name)
		k.log.Warn("ARP of a host end turned on", "dev", link.Name)
		err := k.rt.do(ctx, "arp-set", func(h *netlink.Handle) error { return h.LinkSetARPOn(byIndex(link.Index)) })
		if err != nil {
			return fmt.Errorf("turn on ARP of %s: %w", link.Name, err)
		}
		link.NoARP = false
	}
	if err := errors.Join(k.dropHostAddrs(ctx, link), k.dropFixedNeigh(ctx, link)); err != nil {
		return err
	}
	if k.noted == nil {
		return k.HostEndUp(ctx, link.Name, link.Index)
	}
	wrong := k.hostEndWrong(ctx, link)
	if err := k.HostEndUp(ctx, link.Name, link.Index); err != nil {
		return err
	}
	for _, w := range wrong {
		k.note("put right: %s", w)
	}
	return nil
}

// hostEndWrong says what HostEndUp is about to change.
func (k *Kernel) hostEndWrong(ctx context.Context, link PodLink) []string {
	var wrong []string
	if !link.Up {
		wrong = append(wrong, fmt.Sprintf("host link %s is down", link.Name))
	}
	wrong = append(wrong, k.hostEndSysctlsWrong(link.Name, func(string) bool { return true })...)
	return append(wrong, k.checkHostProxy(ctx, &netlink.LinkAttrs{Name: link.Name, Index: link.Index})...)
}

// dropHostAddrs takes addresses off a host end, which has none: with one, rp_filter in loose mode lets spoofed sources pass. With the
// last one the kernel drops the link's routes, that of the pod too: AddPodRoute has to follow.
func (k *Kernel) dropHostAddrs(ctx context.Context, link PodLink) error {
	addrs, err := dump(ctx, k.rt, "addr-list", func(h *netlink.Handle) ([]netlink.Addr, error) {
		return h.AddrList(byIndex(link.Index), netlink.FAMILY_V4)
	})
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", link.Name, err)
	}
	for _, a := range addrs {
		err := k.rt.do(ctx, "addr-del", func(h *netlink.Handle) error { return h.AddrDel(byIndex(link.Index), &a) })
		if err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return fmt.Errorf("remove %s from %s: %w", netPrefix(a.IPNet), link.Name, err)
		}
		k.log.Warn("address of a host end removed", "dev", link.Name, "addr", netPrefix(a.IPNet))
		k.note("address %s removed from host link %s, which has none", netPrefix(a.IPNet), link.Name)
	}
	return nil
}

// RenameHostEnd gives a pod's link its name back. Before Linux 6.2 only a link that is down can be renamed; HostEndUp and AddPodRoute
// have to follow.
func (k *Kernel) RenameHostEnd(ctx context.Context, link PodLink, name string) error {
	rename := func(h *netlink.Handle) error { return h.LinkSetName(byIndex(link.Index), name) }
	err := k.rt.do(ctx, "rename", rename)
	if errors.Is(err, unix.EBUSY) {
		err = k.rt.do(ctx, "link-down", func(h *netlink.Handle) error { return h.LinkSetDown(byIndex(link.Index)) })
		if err == nil {
			err = k.rt.do(ctx, "rename", rename)
		}
	}
	if err != nil {
		return fmt.Errorf("rename %s to %s: %w", link.Name, name, err)
	}
	k.log.Warn("name of a host end put back", "dev", name, "was", link.Name)
	k.note("host link %s renamed to %s", link.Name, name)
	return nil
}

// SetHostMTU sets the MTU of a pod's host end.
func (k *Kernel) SetHostMTU(ctx context.Context, link PodLink, mtu int) error {
	err := k.rt.do(ctx, "mtu-set", func(h *netlink.Handle) error { return h.LinkSetMTU(byIndex(link.Index), mtu) })
	if err != nil {
		return fmt.Errorf("set MTU of %s: %w", link.Name, err)
	}
	k.log.Warn("MTU of a host end put back", "dev", link.Name, "was", link.MTU, "mtu", mtu)
	k.note("MTU of %s set to %d (was %d)", link.Name, mtu, link.MTU)
	return nil
}

// MAC reads a link's MAC.
func (k *Kernel) MAC(ctx context.Context, name string) ([6]byte, error) {
	link, found, err := k.rt.linkByName(ctx, name)
	if err == nil && !found {
		err = unix.ENODEV
	}
	if err != nil {
		return [6]byte{}, fmt.Errorf("get link %q: %w", name, err)
	}
	return hardware(link.Attrs().HardwareAddr), nil
}

// MTU reads a link's MTU.
func (k *Kernel) MTU(ctx context.Context, name string) (int, error) {
	link, found, err := k.rt.linkByName(ctx, name)
	if err != nil {
		return 0, err
	}
	if !found {
		return 0, fmt.Errorf("get link %q: %w", name, unix.ENODEV)
	}
	return link.Attrs().MTU, nil
}

// IsNIC tells whether the link of that name still is the one with this index, on its own: it may have been renamed, replaced,
// or put under a bond or bridge, which then has its addresses.
func (k *Kernel) IsNIC(ctx context.Context, name string, index int) (bool, error) {
	link, found, err := k.rt.linkByName(ctx, name)
	if err != nil || !found {
		return false, err
	}
	a := link.Attrs()
	return a.Index == index && a.MasterIndex == 0, nil
}

// HasLink tells whether a link with that index is there, whatever its name is now.
func (k *Kernel) HasLink(ctx context.Context, index int) (bool, error) {
	_, found, err := k.rt.linkByIndex(ctx, index)
	return found, err
}

// Gateway is the next hop of every pod, a link-local address that no link carries.
func Gateway() netip.Addr { return gateway }
