package fakeazure

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"go4.org/netipx"
)

// What Azure has where a Topology says nothing.
const (
	defaultIMDSRate     = 5
	defaultAddressLimit = 256
	defaultReuseHold    = 8 * time.Minute
)

// What the methods that change the cloud fail with.
var (
	ErrNotFound   = errors.New("not found")
	ErrInUse      = errors.New("in use")
	ErrSubnetFull = errors.New("subnet is full") // Azure: SubnetIsFull
	ErrLimit      = errors.New("limit of addresses of one NIC reached")
)

// Cloud is the fake cloud. All methods may be called by several goroutines.
type Cloud struct {
	// notify is held through a change and its hooks, so that hooks see the changes in their order. Taken before mu.
	notify sync.Mutex
	hooks  map[int]func(Topology)
	nextID int

	mu    sync.Mutex
	top   Topology // VMs is left empty; vms has them
	vms   []*vm
	owner map[netip.Addr]string    // address -> name of the VM that has it
	freed map[netip.Addr]time.Time // removed address -> when
	rand  *rand.Rand
	books books
}

// vm is one VM with what only this package knows about it.
type vm struct {
	VM
	lag    Duration
	views  map[MAC]*view
	rate   int
	recent []time.Time // answered IMDS requests of the last second
	script []Fault
}

// New builds a cloud. It refuses a topology that Azure would refuse: addresses outside of the subnet or twice, MACs twice.
func New(t Topology) (*Cloud, error) {
	c := &Cloud{
		hooks: map[int]func(Topology){},
		top:   t,
		owner: map[netip.Addr]string{},
		freed: map[netip.Addr]time.Time{},
		rand:  rand.New(rand.NewPCG(t.Seed, 0)),
	}
	c.top.VMs = nil
	for _, s := range t.Subnets {
		if !s.Prefix.IsValid() || s.Prefix != s.Prefix.Masked() || !s.Prefix.Addr().Is4() {
			return nil, fmt.Errorf("subnet %q: prefix %s is not an IPv4 prefix without host bits", s.Name, s.Prefix)
		}
	}
	for _, v := range t.VMs {
		if err := c.AddVM(v); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// OnChange calls hook with the new state after every change, before the method that made it returns; at once for the present
// state. The hook must not change the cloud. The function returned ends it.
func (c *Cloud) OnChange(hook func(Topology)) (remove func()) {
	c.notify.Lock()
	defer c.notify.Unlock()
	id := c.nextID
	c.nextID++
	c.hooks[id] = hook
	hook(c.Snapshot())
	return func() {
		c.notify.Lock()
		defer c.notify.Unlock()
		delete(c.hooks, id)
	}
}

// change runs fn under the lock and tells the hooks if it succeeds.
func (c *Cloud) change(fn func() error) error {
	c.notify.Lock()
	defer c.notify.Unlock()
	c.mu.Lock()
	err := fn()
	c.mu.Unlock()
	if err != nil {
		return err
	}
	if len(c.hooks) > 0 {
		t := c.Snapshot()
		for _, hook := range c.hooks {
			hook(t)
		}
	}
	return nil
}

// Snapshot returns a copy of the present state, in which lag plays no part.
func (c *Cloud) Snapshot() Topology {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.top
	t.Subnets = slices.Clone(t.Subnets)
	for _, v := range c.vms {
		t.VMs = append(t.VMs, v.VM.clone())
	}
	return t
}

// Owner returns the VM and the NIC that an address is delivered to.
func (c *Cloud) Owner(addr netip.Addr) (VM, NIC, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(c.owner[addr])
	if err != nil {
		return VM{}, NIC{}, false
	}
	owned := v.VM.clone()
	for _, nic := range owned.NICs {
		if nic.has(addr) {
			return owned, nic, true
		}
	}
	return VM{}, NIC{}, false
}

func (n NIC) has(addr netip.Addr) bool {
	return n.Primary == addr || slices.Contains(n.Secondaries, addr) || slices.Contains(n.V6, addr)
}

// addresses are all of the NIC, the primary first.
func (n NIC) addresses() []netip.Addr {
	return slices.Concat([]netip.Addr{n.Primary}, n.Secondaries, n.V6)
}

// AddVM starts a VM. Its metadata shows it at once.
func (c *Cloud) AddVM(v VM) error {
	return c.change(func() error {
		if err := c.checkVM(v); err != nil {
			return fmt.Errorf("add vm %q: %w", v.Name, err)
		}
		added := &vm{VM: v.clone(), lag: c.top.IMDSLag, rate: orDefault(c.top.IMDSRate, defaultIMDSRate), views: map[MAC]*view{}}
		for _, nic := range v.NICs {
			added.views[nic.MAC] = newView(nic)
			for _, addr := range nic.addresses() {
				c.owner[addr] = v.Name
			}
		}
		c.vms = append(c.vms, added)
		return nil
	})
}

func (c *Cloud) checkVM(v VM) error {
	if v.Name == "" || len(v.NICs) == 0 {
		return errors.New("a VM needs a name and a NIC")
	}
	if _, err := c.find(v.Name); err == nil {
		return fmt.Errorf("name: %w", ErrInUse)
	}
	macs, addrs := map[MAC]bool{}, map[netip.Addr]bool{}
	for _, other := range c.vms {
		for _, nic := range other.NICs {
			macs[nic.MAC] = true
		}
	}
	for _, nic := range v.NICs {
		if nic.MAC == (MAC{}) || macs[nic.MAC] {
			return fmt.Errorf("nic %q: mac %s missing or %w", nic.Name, nic.MAC, ErrInUse)
		}
		macs[nic.MAC] = true
		if err := c.checkAddresses(nic, slices.Concat([]netip.Addr{nic.Primary}, nic.Secondaries), addrs); err != nil {
			return fmt.Errorf("nic %q: %w", nic.Name, err)
		}
		for _, addr := range nic.V6 {
			if _, used := c.owner[addr]; used || addrs[addr] || !addr.Is6() {
				return fmt.Errorf("nic %q: v6 address %s is not IPv6 or %w", nic.Name, addr, ErrInUse)
			}
			addrs[addr] = true
		}
	}
	return nil
}

// checkAddresses tells whether nic may have the IPv4 addresses; seen holds those of the same request.
func (c *Cloud) checkAddresses(nic NIC, addrs []netip.Addr, seen map[netip.Addr]bool) error {
	subnet, err := c.subnet(nic.Subnet)
	if err != nil {
		return err
	}
	if limit := orDefault(c.top.AddressLimit, defaultAddressLimit); limit > 0 && len(addrs) > limit {
		return fmt.Errorf("%d addresses: %w (%d)", len(addrs), ErrLimit, limit)
	}
	for _, addr := range addrs {
		switch _, used := c.owner[addr]; {
		case used || seen[addr]:
			return fmt.Errorf("address %s: %w", addr, ErrInUse)
		case !subnet.Prefix.Contains(addr):
			return fmt.Errorf("address %s is outside of subnet %q, %s", addr, subnet.Name, subnet.Prefix)
		case subnet.reserved(addr):
			return fmt.Errorf("address %s is kept by Azure", addr)
		}
		seen[addr] = true
	}
	return nil
}

// RemoveVM deletes a VM and frees its addresses.
func (c *Cloud) RemoveVM(name string) error {
	return c.change(func() error {
		v, err := c.find(name)
		if err != nil {
			return fmt.Errorf("remove vm: %w", err)
		}
		for _, nic := range v.NICs {
			c.free(nic.addresses())
		}
		c.vms = slices.DeleteFunc(c.vms, func(o *vm) bool { return o == v })
		return nil
	})
}

func (c *Cloud) free(addrs []netip.Addr) {
	for _, addr := range addrs {
		delete(c.owner, addr)
		c.freed[addr] = time.Now()
	}
}

// AddAddresses gives a NIC the named secondaries: delivered at once, in the VM's metadata after its lag. An empty nic is the
// primary one.
func (c *Cloud) AddAddresses(vmName, nic string, addrs ...netip.Addr) error {
	return c.change(func() error {
		v, n, err := c.nic(vmName, nic)
		if err == nil {
			err = c.add(v, n, addrs)
		}
		if err != nil {
			return fmt.Errorf("add addresses to %q: %w", vmName, err)
		}
		return nil
	})
}

func (c *Cloud) add(v *vm, n *NIC, addrs []netip.Addr) error {
	if limit := orDefault(c.top.AddressLimit, defaultAddressLimit); limit > 0 && 1+len(n.Secondaries)+len(addrs) > limit {
		return fmt.Errorf("%w: %d + %d of %d", ErrLimit, 1+len(n.Secondaries), len(addrs), limit)
	}
	if err := c.checkAddresses(*n, addrs, map[netip.Addr]bool{}); err != nil {
		return err
	}
	n.Secondaries = append(n.Secondaries, addrs...)
	for _, addr := range addrs {
		c.owner[addr] = v.Name
		delete(c.freed, addr)
	}
	v.views[n.MAC].add(addrs, time.Now().Add(time.Duration(v.lag)))
	return nil
}

// AssignAddresses gives a NIC count secondaries that the cloud picks, as Azure does: anywhere in the subnet, none that was removed a
// short time ago.
func (c *Cloud) AssignAddresses(vmName, nic string, count int) (picked []netip.Addr, err error) {
	err = c.change(func() error {
		v, n, err := c.nic(vmName, nic)
		if err == nil {
			picked, err = c.pick(n.Subnet, count)
		}
		if err == nil {
			err = c.add(v, n, picked)
		}
		if err != nil {
			return fmt.Errorf("assign %d addresses to %q: %w", count, vmName, err)
		}
		return nil
	})
	return picked, err
}

// pick walks the subnet from a random address on.
func (c *Cloud) pick(subnetName string, count int) ([]netip.Addr, error) {
	subnet, err := c.subnet(subnetName)
	if err != nil {
		return nil, err
	}
	if count < 1 {
		return nil, fmt.Errorf("count %d is not positive", count)
	}
	r := netipx.RangeOfPrefix(subnet.Prefix)
	size := 1 << (subnet.Prefix.Addr().BitLen() - subnet.Prefix.Bits())
	addr := offset(r.From(), c.rand.IntN(size))
	var picked []netip.Addr
	for range size {
		if c.pickable(subnet, addr) {
			picked = append(picked, addr)
		}
		if len(picked) == count {
			return picked, nil
		}
		if addr = addr.Next(); !r.Contains(addr) {
			addr = r.From()
		}
	}
	return nil, fmt.Errorf("subnet %q: %w: %d free", subnet.Name, ErrSubnetFull, len(picked))
}

func (c *Cloud) pickable(subnet Subnet, addr netip.Addr) bool {
	_, used := c.owner[addr]
	hold := time.Duration(orDefault(c.top.ReuseHold, Duration(defaultReuseHold)))
	at, held := c.freed[addr]
	return !used && !subnet.reserved(addr) && (!held || time.Since(at) >= hold)
}

// RemoveAddresses takes secondaries from a NIC: no longer delivered at once, out of the VM's metadata after its lag.
func (c *Cloud) RemoveAddresses(vmName, nic string, addrs ...netip.Addr) error {
	return c.change(func() error {
		v, n, err := c.nic(vmName, nic)
		if err != nil {
			return fmt.Errorf("remove addresses from %q: %w", vmName, err)
		}
		for _, addr := range addrs {
			if !slices.Contains(n.Secondaries, addr) {
				return fmt.Errorf("remove address %s from %q: secondary %w", addr, vmName, ErrNotFound)
			}
		}
		n.Secondaries = slices.DeleteFunc(n.Secondaries, func(a netip.Addr) bool { return slices.Contains(addrs, a) })
		c.free(addrs)
		v.views[n.MAC].remove(addrs, time.Now().Add(time.Duration(v.lag)))
		return nil
	})
}
