package allocator

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"time"
)

// Flags of a record: which optional parts follow the header.
const (
	flagPresent    = 1 << iota // metadata lists the address
	flagFlush                  // conntrack flush is due
	flagMissing                // missing since: uint64
	flagBlocked                // reason uint8, blocked since uint64
	flagGeneration             // uint64
	flagOwner                  // the owner
	flagKey                    // a key is stored: the owner's where it isn't derived from its names, or the last holder's
	flagNetwork                // likewise its network
)

// record is the value of one address. The header of a free one is all there is: 12 bytes and the sum.
type record struct {
	State      State
	Present    bool
	FlushDue   bool
	NIC        uint16        // id in bucket nics; 0: not known yet
	Since      time.Duration // boot clock
	Missing    time.Duration // boot clock when metadata first lacked it; zero: it doesn't
	Blocked    Reason
	BlockedAt  time.Duration
	Generation uint64
	Last       Hash  // key of the lease that ended, only while cooling; zero: not known
	Owner      Owner // only while leased or releasing
	LinkName   string
	Time       int64 // wall time of the lease in ms, only while leased or releasing
}

// held reports whether a pod has the address or may still have it.
func (r *record) held() bool { return r.State == Leased || r.State == Releasing }

// pooled reports whether the address would be handed out once it is free and cool.
func (r *record) pooled() bool { return !r.held() && r.Present && r.Blocked == NotBlocked }

// free returns the record without the traces of a lease; an open flush keeps the generation it is noted for.
func (r record) free(state State, since time.Duration) record {
	r.State, r.Since = state, since
	r.Last, r.Owner, r.LinkName, r.Time = Hash{}, Owner{}, "", 0
	if state == Free && !r.FlushDue {
		r.Generation = 0
	}
	return r
}

// encode returns the record's bytes, without the sum.
func (r *record) encode() []byte {
	b := make([]byte, 0, 256)
	b = append(b, byte(r.State), r.flags())
	b = binary.LittleEndian.AppendUint16(b, r.NIC)
	b = binary.LittleEndian.AppendUint64(b, uint64(r.Since))
	if r.Missing != 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(r.Missing))
	}
	if r.Blocked != NotBlocked {
		b = append(b, byte(r.Blocked))
		b = binary.LittleEndian.AppendUint64(b, uint64(r.BlockedAt))
	}
	if r.Generation != 0 {
		b = binary.LittleEndian.AppendUint64(b, r.Generation)
	}
	if r.State == Cooling && r.Last != (Hash{}) {
		b = append(b, r.Last[:]...)
	}
	if r.held() {
		b = r.appendOwner(b)
	}
	return b
}

func (r *record) flags() (f byte) {
	set := func(on bool, bit byte) {
		if on {
			f |= bit
		}
	}
	set(r.Present, flagPresent)
	set(r.FlushDue, flagFlush)
	set(r.Missing != 0, flagMissing)
	set(r.Blocked != NotBlocked, flagBlocked)
	set(r.Generation != 0, flagGeneration)
	set(r.held(), flagOwner)
	set(r.held() && r.Owner.Key != deriveKey(&r.Owner) || r.State == Cooling && r.Last != (Hash{}), flagKey)
	set(r.held() && r.Owner.Network != deriveNetwork(&r.Owner), flagNetwork)
	return f
}

// appendOwner writes the hashes only where they don't follow from the names, which saves 32 bytes of every usual record.
func (r *record) appendOwner(b []byte) []byte {
	o := &r.Owner
	if o.Key != deriveKey(o) {
		b = append(b, o.Key[:]...)
	}
	if o.Network != deriveNetwork(o) {
		b = append(b, o.Network[:]...)
	}
	b = binary.AppendUvarint(b, o.NetnsInode)
	b = binary.AppendUvarint(b, uint64(r.Time))
	for _, s := range []string{o.NetworkName, o.ContainerID, o.IfName, o.Namespace, o.Pod, o.UID, o.Netns, o.Main} {
		b = appendString(b, s, Hash{})
	}
	return appendString(b, r.LinkName, o.Key)
}

func deriveKey(o *Owner) (h Hash) {
	sum := sha256.Sum256([]byte(o.NetworkName + "\x00" + o.ContainerID + "\x00" + o.IfName))
	copy(h[:], sum[:])
	return h
}

func deriveNetwork(o *Owner) (h Hash) {
	sum := sha256.Sum256([]byte(o.NetworkName))
	copy(h[:], sum[:])
	return h
}

// decodeRecord is the reverse of encode. It copies everything, so the result outlives the transaction.
func decodeRecord(b []byte) (record, error) {
	r, rd, flags, err := decodeHead(b)
	if err != nil {
		return record{}, err
	}
	if flags&flagOwner != 0 {
		rd.owner(&r, flags)
	}
	if err := rd.end(); err != nil {
		return record{}, err
	}
	return r, nil
}

// decodeHead reads all but the owner, whose strings a walk over every record has no use for.
func decodeHead(b []byte) (r record, rd reader, flags byte, err error) {
	rd = reader{b: b}
	r.State = State(rd.u8())
	flags = rd.u8()
	r.Present, r.FlushDue = flags&flagPresent != 0, flags&flagFlush != 0
	r.NIC = rd.u16()
	r.Since = time.Duration(rd.u64())
	if flags&flagMissing != 0 {
		r.Missing = time.Duration(rd.u64())
	}
	if flags&flagBlocked != 0 {
		r.Blocked = Reason(rd.u8())
		r.BlockedAt = time.Duration(rd.u64())
	}
	if flags&flagGeneration != 0 {
		r.Generation = rd.u64()
	}
	if r.State == Cooling && flags&flagKey != 0 {
		r.Last = rd.hash()
	}
	if rd.err == nil {
		rd.err = r.check(flags)
	}
	return r, rd, flags, rd.err
}

// check refuses what encode never writes.
func (r *record) check(flags byte) error {
	switch {
	case r.State >= states:
		return fmt.Errorf("state %d", r.State)
	case r.Blocked >= reasons:
		return fmt.Errorf("block reason %d", r.Blocked)
	case flags&flagMissing != 0 && r.Missing == 0,
		flags&flagBlocked != 0 && r.Blocked == NotBlocked,
		flags&flagGeneration != 0 && r.Generation == 0,
		r.held() != (flags&flagOwner != 0),
		r.State == Cooling && (flags&flagKey != 0) != (r.Last != Hash{}),
		r.State == Free && flags&flagKey != 0, !r.held() && flags&flagNetwork != 0:
		return fmt.Errorf("flags %#x of a %s address contradict its parts", flags, r.State)
	}
	return nil
}

func (r *reader) owner(rec *record, flags byte) {
	o := &rec.Owner
	if flags&flagKey != 0 {
		o.Key = r.hash()
	}
	if flags&flagNetwork != 0 {
		o.Network = r.hash()
	}
	o.NetnsInode = r.uvarint()
	rec.Time = int64(r.uvarint())
	for _, s := range []*string{&o.NetworkName, &o.ContainerID, &o.IfName, &o.Namespace, &o.Pod, &o.UID, &o.Netns, &o.Main} {
		*s = r.str(Hash{})
	}
	if flags&flagKey == 0 {
		o.Key = deriveKey(o)
	}
	if flags&flagNetwork == 0 {
		o.Network = deriveNetwork(o)
	}
	rec.LinkName = r.str(o.Key)
}
