package routes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
)

// HostWant is what the node should hold for one pod. Zero fields aren't checked.
type HostWant struct {
	Name       string // host link
	Key        Hash
	Addr       netip.Addr
	MTU        int
	MAC        [6]byte
	PodMAC     [6]byte
	NICs       []string // the node's NICs: a route to one leads to no pod
	Forward    []string // links that this pod's packets come in by
	PolicyHash string
	Node       *NodeWant // nil: what stands was written by another version or from other facts, and can't be compared
	Proxy      bool      // the pod asks for its gateway, so the host end must answer
}

// NodeWant is what policy table, rules and the NICs' routing tables were written from.
type NodeWant struct {
	Policy     Policy
	NICs       []RuleNIC
	RemotePods RemotePods
}

// CheckHost compares the node with want and says in words what is wrong; nothing is changed.
func (k *Kernel) CheckHost(ctx context.Context, want HostWant) []string {
	f := k.checkHostNode(ctx, want)
	link, found, err := k.rt.linkByName(ctx, want.Name)
	switch {
	case err != nil:
		return append(f, err.Error())
	case !found:
		return append(f, fmt.Sprintf("host link %s is missing", want.Name))
	case link.Attrs().Group != Group:
		return append(f, fmt.Sprintf("link %s belongs to somebody else: it is in group %d", want.Name, link.Attrs().Group))
	}
	f = append(f, checkHostLink(podLink(link.Attrs()), want)...)
	f = append(f, k.checkHostRoute(ctx, link.Attrs(), want)...)
	f = append(f, k.checkHostNeigh(ctx, podLink(link.Attrs()), want)...)
	if want.Proxy {
		f = append(f, k.checkHostProxy(ctx, link.Attrs())...)
	}
	return append(f, k.checkHostSysctls(want)...)
}

// checkHostNode looks at what all pods of the node share.
func (k *Kernel) checkHostNode(ctx context.Context, want HostWant) []string {
	var f []string
	if want.Node != nil {
		f = k.checkWritten(ctx, *want.Node)
	} else if want.PolicyHash != "" {
		has, err := k.HasPolicy(ctx, want.PolicyHash)
		if err != nil {
			f = append(f, err.Error())
		} else if !has {
			f = append(f, fmt.Sprintf("table ip %s is missing or of another configuration", PolicyTable))
		}
	}
	keys := []string{ipForward}
	for _, nic := range want.Forward {
		keys = append(keys, conf4(nic, "forwarding"))
	}
	return append(f, k.checkOne(keys)...)
}

// checkWritten compares what ApplyPolicy and ApplyRules wrote.
func (k *Kernel) checkWritten(ctx context.Context, want NodeWant) []string {
	var f []string
	for _, missing := range []func() ([]string, error){
		func() ([]string, error) { return k.PolicyMissing(ctx, want.Policy) },
		func() ([]string, error) { return k.RulesMissing(ctx, want.NICs, want.RemotePods) },
		func() ([]string, error) { return k.TableRoutesMissing(ctx, want.NICs, want.RemotePods) },
	} {
		found, err := missing()
		if err != nil {
			found = []string{err.Error()}
		}
		f = append(f, found...)
	}
	return f
}

// checkOne names the sysctls that aren't 1.
func (k *Kernel) checkOne(keys []string) []string {
	var f []string
	_ = k.space.do(func() error {
		for _, key := range keys {
			n, err := readSysctl(key)
			if err != nil {
				f = append(f, err.Error())
			} else if n != 1 {
				f = append(f, fmt.Sprintf("sysctl net/%s is %d instead of 1", key, n))
			}
		}
		return nil
	})
	return f
}

func checkHostLink(l PodLink, want HostWant) []string {
	var f []string
	if !l.Marked || l.Alias.Key != want.Key || want.Addr.IsValid() && l.Alias.Addr != want.Addr {
		f = append(f, fmt.Sprintf("host link %s has the wrong alias %q", l.Name, l.AliasText))
	}
	if l.Master != 0 {
		f = append(f, fmt.Sprintf("host link %s is under link #%d", l.Name, l.Master))
	}
	if !l.Up {
		f = append(f, fmt.Sprintf("host link %s is down", l.Name))
	}
	if l.NoARP {
		f = append(f, fmt.Sprintf("host link %s has ARP off", l.Name))
	}
	if want.MTU != 0 && l.MTU != want.MTU {
		f = append(f, fmt.Sprintf("host link %s has MTU %d instead of %d", l.Name, l.MTU, want.MTU))
	}
	if want.MAC != [6]byte{} && l.MAC != want.MAC {
		f = append(f, fmt.Sprintf("host link %s has MAC %s instead of %s", l.Name, macString(l.MAC), macString(want.MAC)))
	}
	return f
}

// checkHostRoute looks at where a packet to the pod goes, and at addresses that would take it away.
func (k *Kernel) checkHostRoute(ctx context.Context, a *netlink.LinkAttrs, want HostWant) []string {
	if !want.Addr.IsValid() {
		return nil
	}
	var f []string
	use, err := k.Who(ctx, want.Addr, want.NICs...)
	switch {
	case err != nil:
		f = append(f, err.Error())
	case use.Kind == HostLink:
		f = append(f, fmt.Sprintf("on-host-link: %s is an address of %s: run 'vmssctl node prepare --force'", want.Addr, use.Link))
	case use.Kind == Nobody:
		f = append(f, fmt.Sprintf("route %s dev %s is missing", hostPrefix(want.Addr), a.Name))
	case use.Index != a.Index:
		f = append(f, fmt.Sprintf("route %s leads to %s instead of %s", hostPrefix(want.Addr), use, a.Name))
	}
	addrs, err := dump(ctx, k.rt, "addr-list", func(h *netlink.Handle) ([]netlink.Addr, error) {
		return h.AddrList(byIndex(a.Index), netlink.FAMILY_V4)
	})
	if err != nil {
		return append(f, fmt.Sprintf("list addresses of %s: %v", a.Name, err))
	}
	for _, x := range addrs {
		f = append(f, fmt.Sprintf("host link %s has the address %s and should have none", a.Name, netPrefix(x.IPNet)))
	}
	return f
}

func (k *Kernel) checkHostProxy(ctx context.Context, a *netlink.LinkAttrs) []string {
	proxies, err := dump(ctx, k.rt, "proxy-list", func(h *netlink.Handle) ([]netlink.Neigh, error) {
		return h.NeighProxyList(a.Index, netlink.FAMILY_V4)
	})
	if err != nil {
		return []string{fmt.Sprintf("list proxy neighbours of %s: %v", a.Name, err)}
	}
	if !slices.ContainsFunc(proxies, func(n netlink.Neigh) bool { return ipAddr(n.IP) == gateway }) {
		return []string{fmt.Sprintf("proxy neighbour %s is missing on host link %s", gateway, a.Name)}
	}
	return nil
}

// checkHostSysctls: any rp_filter that isn't 0 is as good on a link without an address, and how long the link waits with an answer for
// the gateway is no fault. Nor is what stands behind IPv6 being off, while it is: pods of an earlier version don't have it.
func (k *Kernel) checkHostSysctls(want HostWant) []string {
	f := k.hostEndSysctlsWrong(want.Name, func(key string) bool {
		switch key {
		case conf6(want.Name, "accept_ra"), conf6(want.Name, "addr_gen_mode"):
			off, err := readSysctl(ipv6Off(want.Name).key)
			return err == nil && off == 0
		}
		return key != conf4(want.Name, "rp_filter") && key != proxyDelay(want.Name)
	})
	_ = k.space.do(func() error {
		all, err := readSysctl(conf4(allLinks, "rp_filter"))
		if err != nil {
			f = append(f, err.Error())
			return nil
		}
		own, err := readSysctl(conf4(want.Name, "rp_filter"))
		if err != nil {
			f = append(f, err.Error())
		} else if max(all, own) == 0 {
			f = append(f, fmt.Sprintf("sysctl net/%s is 0", conf4(want.Name, "rp_filter")))
		}
		return nil
	})
	return f
}

// hostEndSysctlsWrong says which of a host end's settings that count aren't what HostEndUp writes. A kernel without IPv6 has no
// setting of it, and needs none.
func (k *Kernel) hostEndSysctlsWrong(name string, counts func(key string) bool) []string {
	var f []string
	values := hostEndValues(name)
	v4 := len(values)
	_ = k.space.do(func() error {
		for i, s := range append(values, hostEndIPv6(name)...) {
			have, err := readSysctl(s.key)
			switch {
			case !counts(s.key), i >= v4 && errors.Is(err, fs.ErrNotExist):
			case err != nil:
				f = append(f, err.Error())
			case strconv.Itoa(have) != s.value:
				f = append(f, fmt.Sprintf("sysctl net/%s is %d instead of %s", s.key, have, s.value))
			}
		}
		return nil
	})
	return f
}
