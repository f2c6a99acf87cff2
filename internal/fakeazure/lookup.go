package fakeazure

import (
	"encoding/binary"
	"fmt"
	"net/netip"
)

// find returns a VM by name. The lock is held.
func (c *Cloud) find(name string) (*vm, error) {
	for _, v := range c.vms {
		if v.Name == name {
			return v, nil
		}
	}
	return nil, fmt.Errorf("vm %q: %w", name, ErrNotFound)
}

// nic returns a NIC of a VM by name; "" is the primary one. The lock is held.
func (c *Cloud) nic(vmName, name string) (*vm, *NIC, error) {
	v, err := c.find(vmName)
	if err != nil {
		return nil, nil, err
	}
	for i := range v.NICs {
		if v.NICs[i].Name == name || name == "" {
			return v, &v.NICs[i], nil
		}
	}
	return nil, nil, fmt.Errorf("nic %q: %w", name, ErrNotFound)
}

func (c *Cloud) subnet(name string) (Subnet, error) {
	for _, s := range c.top.Subnets {
		if s.Name == name {
			return s, nil
		}
	}
	return Subnet{}, fmt.Errorf("subnet %q: %w", name, ErrNotFound)
}

// bySource returns the VM whose primary NIC has addr as its primary address: the platform's services answer nobody else. The
// lock is held.
func (c *Cloud) bySource(addr netip.Addr) *vm {
	for _, v := range c.vms {
		if v.NICs[0].Primary == addr.Unmap() {
			return v
		}
	}
	return nil
}

// orDefault is v, or what Azure has if v is zero. Negative values mean "without".
func orDefault[T int | Duration](v, azure T) T {
	if v == 0 {
		return azure
	}
	return v
}

// offset returns the IPv4 address n further.
func offset(addr netip.Addr, n int) netip.Addr {
	b := addr.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}
