package fakeazure

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
)

// maxRange bounds one "first-last" entry, so that a slip of the pen doesn't eat the memory.
const maxRange = 1 << 18

// Topology is everything that the cloud has: the JSON of a config file, and what Snapshot returns. Package documentation
// explains the file.
type Topology struct {
	Location       string   `json:"location,omitempty"`
	SubscriptionID string   `json:"subscriptionId,omitempty"`
	ResourceGroup  string   `json:"resourceGroup,omitempty"`
	Subnets        []Subnet `json:"subnets"`
	VMs            []VM     `json:"vms"`
	// DNS maps names to what the resolver at 168.63.129.16 answers. VMs' names need no entry.
	DNS map[string][]netip.Addr `json:"dns,omitempty"`
	// IMDSLag is how long a VM's metadata takes to show an added or removed address.
	IMDSLag Duration `json:"imdsLag,omitempty"`
	// IMDSRate is how many IMDS requests a VM may send per second; 0: Azure's 5, negative: any number.
	IMDSRate int `json:"imdsRate,omitempty"`
	// AddressLimit is how many addresses a NIC may have; 0: Azure's 256, negative: any number.
	AddressLimit int `json:"addressLimit,omitempty"`
	// ReuseHold is how long a removed address isn't picked again by AssignAddresses; 0: Azure's 8 minutes, negative: no time.
	ReuseHold Duration `json:"reuseHold,omitempty"`
	// Seed makes AssignAddresses pick other addresses.
	Seed uint64 `json:"seed,omitempty"`
}

// Subnet is one subnet of the virtual network, with its route table.
type Subnet struct {
	Name   string       `json:"name"`
	Prefix netip.Prefix `json:"prefix"`
	// Routes are user-defined routes; the longest prefix wins. Without one, packets go where Azure sends them.
	Routes []Route `json:"routes,omitempty"`
}

// Gateway is the subnet's first address; one MAC answers for it and for everybody else.
func (s Subnet) Gateway() netip.Addr { return s.Prefix.Masked().Addr().Next() }

// reserved tells the five addresses of a subnet that Azure keeps: the first four and the last.
func (s Subnet) reserved(addr netip.Addr) bool {
	first := s.Prefix.Masked().Addr()
	for range 4 {
		if addr == first {
			return true
		}
		first = first.Next()
	}
	return addr == netipx.PrefixLastIP(s.Prefix)
}

// Route sends what goes to Prefix to the NIC that has the address NextHop ("virtual appliance").
type Route struct {
	Prefix  netip.Prefix `json:"prefix"`
	NextHop netip.Addr   `json:"nextHop"`
}

// VM is one instance. The first of its NICs is the primary one.
type VM struct {
	Name         string `json:"name"` // <scale set>_<instance id>
	ScaleSet     string `json:"scaleSet,omitempty"`
	InstanceID   string `json:"instanceId,omitempty"`
	ComputerName string `json:"computerName,omitempty"` // default: Name with - for _
	Zone         string `json:"zone,omitempty"`
	NICs         []NIC  `json:"nics"`
}

// NIC is one network interface. Every address below is delivered to it and to no other.
type NIC struct {
	Name        string       `json:"name"`
	MAC         MAC          `json:"mac"`
	Subnet      string       `json:"subnet"` // name
	Primary     netip.Addr   `json:"primary"`
	Secondaries Addrs        `json:"secondaries,omitempty"`
	V6          []netip.Addr `json:"v6,omitempty"`
}

func (v VM) clone() VM {
	v.NICs = slices.Clone(v.NICs)
	for i := range v.NICs {
		v.NICs[i].Secondaries = slices.Clone(v.NICs[i].Secondaries)
		v.NICs[i].V6 = slices.Clone(v.NICs[i].V6)
	}
	return v
}

// MAC is a hardware address. JSON takes any spelling that net.ParseMAC knows, and IMDS's.
type MAC [6]byte

// String returns Linux's spelling, 02:00:5e:10:00:04.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// IMDS returns IMDS's spelling, 02005E100004.
func (m MAC) IMDS() string { return fmt.Sprintf("%X", m[:]) }

// MarshalText implements encoding.TextMarshaler.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MAC) UnmarshalText(b []byte) error {
	s := string(b)
	if len(s) == 12 {
		s = s[:4] + "." + s[4:8] + "." + s[8:]
	}
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != len(m) {
		return fmt.Errorf("mac %q: not six bytes", b)
	}
	copy(m[:], hw)
	return nil
}

// Addrs is a list of addresses. In JSON an entry may also be a range, "10.20.0.10-10.20.0.14".
type Addrs []netip.Addr

// UnmarshalJSON implements json.Unmarshaler.
func (a *Addrs) UnmarshalJSON(b []byte) error {
	var entries []string
	if err := json.Unmarshal(b, &entries); err != nil {
		return err
	}
	*a = nil
	for _, entry := range entries {
		if err := a.parse(entry); err != nil {
			return err
		}
	}
	return nil
}

func (a *Addrs) parse(entry string) error {
	if !strings.Contains(entry, "-") {
		addr, err := netip.ParseAddr(entry)
		*a = append(*a, addr.Unmap())
		return err
	}
	r, err := netipx.ParseIPRange(entry)
	if err != nil {
		return err
	}
	for addr, n := r.From(), 0; addr.Compare(r.To()) <= 0 && addr.IsValid(); addr, n = addr.Next(), n+1 {
		if n == maxRange {
			return fmt.Errorf("range %s has more than %d addresses", entry, maxRange)
		}
		*a = append(*a, addr)
	}
	return nil
}

// Duration is a time.Duration that JSON spells "1.5s".
type Duration time.Duration

// MarshalText implements encoding.TextMarshaler.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = Duration(v)
	return err
}
