package metadata

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// maxProblems bounds the lines about one kind of entry of one NIC: a document may have any number of bad ones.
const maxProblems = 8

// nicParser collects what one interface has.
type nicParser struct {
	nic        NIC
	blocks     []netip.Prefix // entries in prefix form
	badAddrs   []string
	badSubnets []string
}

// family reads one of "ipv4" and "ipv6". An address goes where it belongs, whatever list it stands in.
func (p *nicParser) family(name string, in familyJSON) {
	for i, entry := range in.IPAddress {
		if err := p.address(entry); err != nil {
			p.badAddrs = append(p.badAddrs, fmt.Sprintf("%s.ipAddress[%d]: %v", name, i, err))
		}
	}
	for i, entry := range in.Subnet {
		if err := p.subnet(entry); err != nil {
			p.badSubnets = append(p.badSubnets, fmt.Sprintf("%s.subnet[%d]: %v", name, i, err))
		}
	}
}

func (p *nicParser) address(in addressJSON) error {
	addr, block, err := parseAddress(string(in.Private))
	switch {
	case err != nil:
		return err
	case block.IsValid():
		p.blocks = append(p.blocks, block)
	case addr.Is4():
		p.nic.V4 = append(p.nic.V4, addr)
	default:
		p.nic.V6 = append(p.nic.V6, addr)
	}
	return nil
}

// parseAddress reads one privateIpAddress: an address, or a block such as "10.0.0.16/28". A block of one address is that address.
func parseAddress(s string) (addr netip.Addr, block netip.Prefix, err error) {
	s = strings.TrimSpace(s)
	if prefix, err := netip.ParsePrefix(s); err == nil {
		if !prefix.IsSingleIP() {
			return netip.Addr{}, prefix, nil
		}
		s = prefix.Addr().String()
	}
	addr, err = netip.ParseAddr(s)
	addr = addr.Unmap()
	if err != nil || addr.Zone() != "" || addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() || isBroadcast(addr) {
		return netip.Addr{}, netip.Prefix{}, fmt.Errorf("%q is no address of a NIC", cut(s))
	}
	return addr, netip.Prefix{}, nil
}

func isBroadcast(addr netip.Addr) bool { return addr == netip.AddrFrom4([4]byte{255, 255, 255, 255}) }

// subnet reads {"address":"10.20.0.0","prefix":"24"}, the prefix as text, as a number or as "/24".
func (p *nicParser) subnet(in subnetJSON) error {
	prefix, err := parseSubnet(strings.TrimSpace(string(in.Address)), strings.TrimSpace(string(in.Prefix)))
	if err != nil {
		return err
	}
	if prefix.Addr().Is4() {
		p.nic.Subnets = append(p.nic.Subnets, prefix)
	}
	return nil
}

func parseSubnet(address, length string) (netip.Prefix, error) {
	shown := fmt.Sprintf("address %q with prefix %q is no subnet", cut(address), cut(length))
	if prefix, err := netip.ParsePrefix(address); err == nil && length == "" {
		return checkSubnet(prefix, shown)
	}
	addr, err := netip.ParseAddr(address)
	if err != nil || addr.Zone() != "" {
		return netip.Prefix{}, errors.New(shown)
	}
	bits, err := strconv.ParseUint(strings.TrimPrefix(length, "/"), 10, 8)
	if err != nil {
		return netip.Prefix{}, errors.New(shown)
	}
	return checkSubnet(netip.PrefixFrom(addr.Unmap(), int(bits)), shown)
}

// checkSubnet refuses what is longer than an address, and the prefix of length 0: routing rules are made for a NIC's subnet, and
// that one would catch everything.
func checkSubnet(prefix netip.Prefix, shown string) (netip.Prefix, error) {
	if !prefix.IsValid() || prefix.Bits() == 0 || prefix.Addr().Is4In6() {
		return netip.Prefix{}, errors.New(shown)
	}
	return prefix.Masked(), nil
}

// finish removes duplicates and words the problems.
func (p *nicParser) finish() NIC {
	p.nic.V4, p.nic.V6, p.nic.Subnets = unique(p.nic.V4), unique(p.nic.V6), unique(p.nic.Subnets)
	if len(p.blocks) > 0 {
		p.nic.Problems = append(p.nic.Problems, "address blocks are not supported and skipped: "+brief(p.blocks))
	}
	for _, bad := range [][]string{p.badAddrs, p.badSubnets} {
		p.nic.Problems = append(p.nic.Problems, bad[:min(len(bad), maxProblems)]...)
		if more := len(bad) - maxProblems; more > 0 {
			p.nic.Problems = append(p.nic.Problems, fmt.Sprintf("and %d more like the last", more))
		}
	}
	return p.nic
}

// unique drops repetitions and keeps the order.
func unique[T comparable](list []T) []T {
	seen := make(map[T]struct{}, len(list))
	return slices.DeleteFunc(list, func(v T) bool {
		_, again := seen[v]
		seen[v] = struct{}{}
		return again
	})
}

// brief names the first of a list and how many follow.
func brief[T fmt.Stringer](list []T) string {
	const shown = 4
	var b strings.Builder
	for i, v := range list[:min(len(list), shown)] {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(v.String())
	}
	switch more := len(list) - shown; {
	case len(list) == 0:
		return "no addresses"
	case more > 0:
		fmt.Fprintf(&b, " and %d more", more)
	}
	return b.String()
}
