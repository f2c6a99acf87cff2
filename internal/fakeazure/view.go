package fakeazure

import (
	"net/netip"
	"slices"
	"time"
)

// view is the list of a NIC's secondaries as the VM's metadata shows it: behind the truth by the VM's lag.
type view struct {
	entries []viewEntry
}

// viewEntry is an address that is shown from one moment on, until another one if that is set.
type viewEntry struct {
	addr        netip.Addr
	from, until time.Time
}

func newView(n NIC) *view {
	v := &view{}
	v.add(n.Secondaries, time.Time{})
	return v
}

// add shows the addresses from then on. One that is still shown, because its removal lags, just stays.
func (v *view) add(addrs []netip.Addr, from time.Time) {
	v.prune()
	shown := make(map[netip.Addr]int, len(v.entries))
	for i, e := range v.entries {
		shown[e.addr] = i
	}
	for _, addr := range addrs {
		if i, ok := shown[addr]; ok {
			v.entries[i].until = time.Time{}
			continue
		}
		v.entries = append(v.entries, viewEntry{addr: addr, from: from})
	}
}

// remove hides the addresses from then on.
func (v *view) remove(addrs []netip.Addr, until time.Time) {
	for i := range v.entries {
		if e := &v.entries[i]; e.until.IsZero() && slices.Contains(addrs, e.addr) {
			e.until = until
		}
	}
	v.prune()
}

// prune forgets what will never be shown again.
func (v *view) prune() {
	now := time.Now()
	v.entries = slices.DeleteFunc(v.entries, func(e viewEntry) bool {
		return !e.until.IsZero() && !now.Before(e.until)
	})
}

// now lists what is shown at present.
func (v *view) now() []netip.Addr {
	v.prune()
	now := time.Now()
	var addrs []netip.Addr
	for _, e := range v.entries {
		if !now.Before(e.from) {
			addrs = append(addrs, e.addr)
		}
	}
	return addrs
}

// SetIMDSLag changes how long a VM's metadata takes to show the changes that follow.
func (c *Cloud) SetIMDSLag(vmName string, lag time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(vmName)
	if err != nil {
		return err
	}
	v.lag = Duration(lag)
	return nil
}

// SetIMDSRate changes how many IMDS requests a VM may send per second; negative is any number.
func (c *Cloud) SetIMDSRate(vmName string, perSecond int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, err := c.find(vmName)
	if err != nil {
		return err
	}
	v.rate = orDefault(perSecond, defaultIMDSRate)
	return nil
}
