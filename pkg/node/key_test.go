package node

import (
	"encoding/hex"
	"fmt"
	"testing"
)

func TestKey_Hash(t *testing.T) {
	// SHA-256 of "net1 NUL c1 NUL eth0": links and records of running pods are named by it, so it can't change.
	const want = "451fbda28a818902bd23b54294be484d"
	h := Key{"net1", "c1", "eth0"}.Hash()
	if got := hex.EncodeToString(h[:]); got != want {
		t.Errorf("Hash = %s, want %s", got, want)
	}
	// The border between the parts is part of the key.
	for _, k := range []Key{{"net1c1", "", "eth0"}, {"net1", "c1eth0", ""}, {"net", "1c1", "eth0"}, {"net1", "c1", "eth1"}} {
		if k.Hash() == h {
			t.Errorf("%q has the same hash", k)
		}
	}
}

// All names of an attachment are cut from one hash: whoever finds one of them knows the others.
func TestNames(t *testing.T) {
	seen := map[[6]byte]bool{}
	for i := range 1000 {
		h := Key{"net1", fmt.Sprint("c", i), "eth0"}.Hash()
		for _, prefix := range []string{"veth", "v", "az01"} {
			name := linkName(prefix, h)
			if want := prefix + hex.EncodeToString(h[:])[:11]; name != want {
				t.Fatalf("linkName = %q, want %q", name, want)
			}
			offset, ok := lockOffsetOf(name)
			if !ok || offset != lockOffset(h) || offset < 0 {
				t.Fatalf("lockOffsetOf(%q) = %x, %v; lockOffset = %x", name, offset, ok, lockOffset(h))
			}
		}
		host, pod := macs(h)
		for _, mac := range [][6]byte{host, pod} {
			if mac[0]&3 != 2 {
				t.Fatalf("MAC %x isn't unicast and locally administered", mac)
			}
			if seen[mac] {
				t.Fatalf("MAC %x twice", mac)
			}
			seen[mac] = true
		}
		if again, _ := macs(h); again != host {
			t.Fatalf("macs(%x) changes", h)
		}
	}
}

func TestLockOffsetOf_otherNames(t *testing.T) {
	for _, name := range []string{"", "eth0", "00112233445", "veth0011223344", "vethZ0112233445", "veth-0112233445", "veth_+112233445"} {
		if offset, ok := lockOffsetOf(name); ok {
			t.Errorf("lockOffsetOf(%q) = %x", name, offset)
		}
	}
}
