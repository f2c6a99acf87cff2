package node

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// Hash is the digest of a key that store and kernel carry. Everything that is named after an attachment is cut from it, so
// whoever finds one piece (a record, an alias, a link's name) knows the others.
type Hash = [16]byte

// Key names one attachment; nothing else about a pod is its identity.
type Key struct {
	Network     string
	ContainerID string
	IfName      string
}

// Hash is the first half of SHA-256(network NUL container id NUL interface name).
func (k Key) Hash() Hash {
	s := sha256.Sum256([]byte(k.Network + "\x00" + k.ContainerID + "\x00" + k.IfName))
	return Hash(s[:16])
}

// networkHash identifies a network by its name.
func networkHash(name string) Hash {
	s := sha256.Sum256([]byte(name))
	return Hash(s[:16])
}

const linkDigits = 11 // with a prefix of 4 that is the 15 bytes a link's name may have

// linkName is the host end's name.
func linkName(prefix string, h Hash) string {
	return prefix + hex.EncodeToString(h[:6])[:linkDigits]
}

// lockOffset is the byte of containers.lock that an attachment's invocations lock: the 44 bits of its link's name.
func lockOffset(h Hash) int64 {
	return int64(binary.BigEndian.Uint64(h[:8]) >> 20)
}

// lockOffsetOf reads it from a link's name; false when the name isn't of our form.
func lockOffsetOf(link string) (int64, bool) {
	if len(link) <= linkDigits {
		return 0, false
	}
	raw, err := hex.DecodeString("0" + link[len(link)-linkDigits:])
	if err != nil {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(append(make([]byte, 2), raw...))), true
}

// macs are the addresses of the two ends. A MAC that is given at creation is left alone by udev, and one that the key fixes
// can be put back by a repair. Bit 1 of the first byte marks them as locally administered, the last bit tells them apart.
func macs(h Hash) (host, pod [6]byte) {
	host[0], pod[0] = 0x02, 0x02
	copy(host[1:], h[8:13])
	copy(pod[1:], h[8:13])
	host[5] &^= 1
	pod[5] |= 1
	return host, pod
}
