package allocator

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
)

// nic is a NIC as the store keeps it. Records name it by its id, a small number that is never used twice in a store.
type nic struct {
	id uint16
	NICInfo
}

func (n *nic) encode() []byte {
	b := binary.LittleEndian.AppendUint16(nil, n.id)
	if n.Skipped {
		b = append(b, 1)
	} else {
		b = append(b, 0)
	}
	b = appendString(b, n.Link, Hash{})
	b = appendString(b, text(n.Primary), Hash{})
	b = binary.AppendUvarint(b, uint64(len(n.Subnets)))
	for _, s := range n.Subnets {
		b = appendString(b, s.String(), Hash{})
	}
	return b
}

func text(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func decodeNIC(key, v []byte) (n nic, err error) {
	rd := reader{b: v}
	copy(n.MAC[:], key)
	n.id = rd.u16()
	n.Skipped = rd.u8() != 0
	n.Link = rd.str(Hash{})
	primary := rd.str(Hash{})
	for i := rd.uvarint(); i > 0 && rd.err == nil; i-- {
		s, perr := netip.ParsePrefix(rd.str(Hash{}))
		if rd.err == nil {
			rd.err = perr
		}
		n.Subnets = append(n.Subnets, s)
	}
	if primary != "" && rd.err == nil {
		n.Primary, rd.err = netip.ParseAddr(primary)
	}
	if err := rd.end(); err != nil || n.id == 0 || len(key) != len(n.MAC) {
		return nic{}, damaged("NIC %x: id %d: %v", key, n.id, err)
	}
	return n, nil
}

// nics returns the NICs in the order they were first seen.
func (t *txn) nics() (all []nic, err error) {
	if t.cached != nil {
		return t.cached, nil
	}
	err = t.walk(bucketNICs, nil, func(k, v []byte) (bool, error) {
		n, err := decodeNIC(k, v)
		all = append(all, n)
		return true, err
	})
	slices.SortFunc(all, func(a, b nic) int { return cmp.Compare(a.id, b.id) })
	t.cached = slices.Clip(all)
	return t.cached, err
}

func (t *txn) putNIC(n nic) error {
	t.cached = nil
	return t.put(bucketNICs, n.MAC[:], n.encode())
}

// macs maps NIC ids to MACs; id 0 is nobody's.
func (t *txn) macs() (map[uint16]MAC, error) {
	nics, err := t.nics()
	m := make(map[uint16]MAC, len(nics))
	for _, n := range nics {
		m[n.id] = n.MAC
	}
	return m, err
}
