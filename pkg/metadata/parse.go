package metadata

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Document is what the service says about the NICs of this machine.
type Document struct {
	// NICs in the order of the document, which means nothing. No MAC is in it twice, no address on two NICs.
	NICs []NIC
	// Problems are NICs that were left out, and why, and the first value of a wrong type. One line each, foreign text quoted.
	Problems []string
	// Digest is SHA-256 over NICs without their Problems and without any order.
	Digest [32]byte
}

// NIC is one interface of the document.
type NIC struct {
	MAC [6]byte
	// V4 and V6 are the addresses, the primary among them, in the order of the document; without duplicates.
	V4, V6 []netip.Addr
	// Subnets of the IPv4 addresses, masked; may be empty. Those of IPv6 are not kept: in Azure they always are /64.
	Subnets []netip.Prefix
	// Problems are entries that were left out, and why.
	Problems []string
}

// The document. encoding/json skips a value of the wrong type, goes on and returns the first such error in the end, so that a
// surprise in one place doesn't cost the others. What may be a number or a text is a text; see shape.go.
type (
	instanceJSON struct {
		Network   *networkJSON     `json:"network"`
		Interface []*interfaceJSON `json:"interface"` // a network document
	}
	networkJSON struct {
		Interface []*interfaceJSON `json:"interface"`
	}
	interfaceJSON struct {
		MAC  text       `json:"macAddress"`
		IPv4 familyJSON `json:"ipv4"`
		IPv6 familyJSON `json:"ipv6"`
	}
	familyJSON struct {
		IPAddress []addressJSON `json:"ipAddress"`
		Subnet    []subnetJSON  `json:"subnet"`
	}
	addressJSON struct {
		Private text `json:"privateIpAddress"`
	}
	subnetJSON struct {
		Address text `json:"address"`
		Prefix  text `json:"prefix"`
	}
)

// Parse reads an instance document {"compute":…,"network":{…}} or a network document {"interface":[…]}.
func Parse(b []byte) (Document, error) {
	b = bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")) // a file may begin with a byte order mark
	var in instanceJSON
	err := json.Unmarshal(b, &in)
	var odd *json.UnmarshalTypeError
	if err != nil && !errors.As(err, &odd) {
		return Document{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	interfaces, err := in.interfaces()
	switch {
	case err != nil && odd != nil:
		return Document{}, fmt.Errorf("%w: %q is a JSON %s", ErrMalformed, cmp.Or(odd.Field, "document"), odd.Value)
	case err != nil:
		return Document{}, err
	}
	var doc Document
	if odd != nil {
		doc.problem("%q is a JSON %s and skipped", odd.Field, odd.Value)
	}
	for i, entry := range interfaces {
		nic, err := parseNIC(entry)
		if err != nil {
			doc.problem("interface[%d]: %v", i, err)
			continue
		}
		doc.add(nic)
	}
	doc.dropShared()
	doc.Digest = doc.digest()
	return doc, nil
}

// interfaces returns the elements of the list, at least one.
func (in *instanceJSON) interfaces() ([]*interfaceJSON, error) {
	network := in.Network
	if network == nil {
		network = &networkJSON{Interface: in.Interface}
		if network.Interface == nil {
			return nil, fmt.Errorf("%w: it has no network part", ErrIncomplete)
		}
	}
	if len(network.Interface) == 0 {
		return nil, fmt.Errorf("%w: it lists no network interface", ErrIncomplete)
	}
	return network.Interface, nil
}

// parseNIC fails only if the NIC can't be told apart from others: what is wrong inside it goes to its Problems.
func parseNIC(in *interfaceJSON) (NIC, error) {
	if in == nil {
		return NIC{}, errors.New("is null")
	}
	p := nicParser{}
	families := [...]struct {
		name string
		in   familyJSON
	}{{"ipv4", in.IPv4}, {"ipv6", in.IPv6}}
	for _, family := range families {
		p.family(family.name, family.in)
	}
	nic := p.finish()
	mac, err := ParseMAC(string(in.MAC))
	if err != nil {
		return NIC{}, fmt.Errorf("macAddress %w, so the NIC is left out (%s)", err, brief(append(nic.V4, nic.V6...)))
	}
	nic.MAC = mac
	return nic, nil
}

func (d *Document) problem(format string, args ...any) {
	d.Problems = append(d.Problems, fmt.Sprintf(format, args...))
}

// add appends a NIC; a second entry of the same MAC is added to the first.
func (d *Document) add(nic NIC) {
	i := slices.IndexFunc(d.NICs, func(n NIC) bool { return n.MAC == nic.MAC })
	if i < 0 {
		d.NICs = append(d.NICs, nic)
		return
	}
	d.problem("MAC %x is listed twice; the entries are taken as one NIC", nic.MAC)
	first := &d.NICs[i]
	first.V4 = unique(append(first.V4, nic.V4...))
	first.V6 = unique(append(first.V6, nic.V6...))
	first.Subnets = unique(append(first.Subnets, nic.Subnets...))
	first.Problems = append(first.Problems, nic.Problems...)
}

// dropShared takes an address that two NICs claim from both: Azure has it on one of them, and the document doesn't say on which.
func (d *Document) dropShared() {
	if len(d.NICs) < 2 {
		return
	}
	count := map[netip.Addr]int{}
	for _, nic := range d.NICs {
		for _, addr := range slices.Concat(nic.V4, nic.V6) {
			count[addr]++
		}
	}
	for i := range d.NICs {
		nic := &d.NICs[i]
		shared := func(addr netip.Addr) bool {
			if count[addr] > 1 {
				nic.Problems = append(nic.Problems, fmt.Sprintf("address %s is listed on %d NICs and left out", addr, count[addr]))
			}
			return count[addr] > 1
		}
		nic.V4 = slices.DeleteFunc(nic.V4, shared)
		nic.V6 = slices.DeleteFunc(nic.V6, shared)
	}
}

// digest hashes the NICs by MAC and their addresses and subnets in order, each list behind its length.
func (d *Document) digest() [32]byte {
	nics := slices.Clone(d.NICs)
	slices.SortFunc(nics, func(a, b NIC) int { return bytes.Compare(a.MAC[:], b.MAC[:]) })
	var buf []byte
	for _, nic := range nics {
		buf = append(buf, nic.MAC[:]...)
		for _, addrs := range [][]netip.Addr{nic.V4, nic.V6} {
			addrs = slices.SortedFunc(slices.Values(addrs), netip.Addr.Compare)
			buf = binary.BigEndian.AppendUint32(buf, uint32(len(addrs)))
			for _, addr := range addrs {
				buf = append(buf, addr.AsSlice()...)
			}
		}
		subnets := slices.SortedFunc(slices.Values(nic.Subnets), netip.Prefix.Compare)
		buf = binary.BigEndian.AppendUint32(buf, uint32(len(subnets)))
		for _, subnet := range subnets {
			buf = append(append(buf, subnet.Addr().AsSlice()...), byte(subnet.Bits()))
		}
	}
	return sha256.Sum256(buf)
}
