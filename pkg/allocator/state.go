package allocator

import (
	"encoding/binary"
	"time"
)

// Keys of bucket state.
var (
	keyGeneration = []byte("generation")
	keySnapshot   = []byte("snapshot")
	keyRebuilt    = []byte("rebuilt")
	keyNode       = []byte("node")
	keyNICs       = []byte("nics")
	keyBooks      = []byte("books")
)

// generation draws the next generation. It is never below the boot clock, so it rises within a boot even across the loss of
// the store.
func (t *txn) generation() (uint64, error) {
	v, found, err := t.get(bucketState, keyGeneration)
	if err != nil {
		return 0, err
	}
	next := uint64(t.now)
	if found {
		rd := reader{b: v}
		last := rd.u64()
		if err := rd.end(); err != nil {
			return 0, damaged("generation: %w", err)
		}
		next = max(next, last+1)
	}
	return next, t.putGeneration(next)
}

func (t *txn) putGeneration(g uint64) error {
	return t.put(bucketState, keyGeneration, binary.LittleEndian.AppendUint64(nil, g))
}

// nicID draws the id of a new NIC.
func (t *txn) nicID() (uint16, error) {
	v, found, err := t.get(bucketState, keyNICs)
	if err != nil {
		return 0, err
	}
	id := uint16(0)
	if found {
		rd := reader{b: v}
		id = rd.u16()
		if err := rd.end(); err != nil {
			return 0, damaged("last NIC id: %w", err)
		}
	}
	if id++; id == 0 {
		return 0, damaged("NIC ids are used up")
	}
	return id, t.put(bucketState, keyNICs, binary.LittleEndian.AppendUint16(nil, id))
}

// snapshotState is what is kept of the last snapshot.
type snapshotState struct {
	known  bool // a snapshot was taken; only everKnown counts otherwise
	ever   bool // some pod address was known at some time
	at     time.Duration
	digest [32]byte // as it was given
	mark   [32]byte // over all that Sync compares; zero: compare next time whatever the digest says
}

func (t *txn) snapshot() (s snapshotState, err error) {
	v, found, err := t.get(bucketState, keySnapshot)
	if err != nil || !found {
		return snapshotState{}, err
	}
	rd := reader{b: v}
	flags := rd.u8()
	s.known, s.ever = flags&1 != 0, flags&2 != 0
	s.at = time.Duration(rd.u64())
	copy(s.digest[:], rd.take(32))
	copy(s.mark[:], rd.take(32))
	if err := rd.end(); err != nil {
		return snapshotState{}, damaged("snapshot: %w", err)
	}
	return s, nil
}

func (t *txn) putSnapshot(s snapshotState) error {
	var flags byte
	if s.known {
		flags |= 1
	}
	if s.ever {
		flags |= 2
	}
	v := binary.LittleEndian.AppendUint64([]byte{flags}, uint64(s.at))
	return t.put(bucketState, keySnapshot, append(append(v, s.digest[:]...), s.mark[:]...))
}

// coolingSince returns since when addresses that are new to the store have to be taken as cooling: since the rebuild, as long
// as that is less than a cool-down ago and pods may have ended in this boot before it.
func (t *txn) coolingSince() (since time.Duration, cooling bool, err error) {
	v, found, err := t.get(bucketState, keyRebuilt)
	if err != nil || !found {
		return 0, false, err
	}
	rd := reader{b: v}
	ran := rd.u8() != 0
	since = time.Duration(rd.u64())
	if err := rd.end(); err != nil {
		return 0, false, damaged("time of rebuild: %w", err)
	}
	return since, ran && t.now < since+t.cool, nil
}

func (t *txn) putRebuilt(ran bool) error {
	v := []byte{0}
	if ran {
		v[0] = 1
	}
	return t.put(bucketState, keyRebuilt, binary.LittleEndian.AppendUint64(v, uint64(t.now)))
}
