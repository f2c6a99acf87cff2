package routes

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

const (
	// aliasMark begins every alias of ours; the digit is the version of the form.
	aliasMark = "nvm1"
	// aliasFamily begins the aliases of all versions.
	aliasFamily = "nvm"
	// aliasMax is the longest alias that the kernel takes (include/uapi/linux/if.h: IFALIASZ 256, with the final zero byte).
	aliasMax = 255
	// noPod stands for an empty Pod, so that an alias always has seven fields.
	noPod = "-"
	// cutHash is the number of hex digits that stand for what was cut off a pod's name.
	cutHash = 8
)

// Alias is the kernel's own copy of a lease, kept as the alias of the host link:
//
//	nvm1 10.20.0.10 00000a3f5c11e2b4 <hash of network> <hash of network, container, ifname> 4026532281 shop/web-0
type Alias struct {
	Addr       netip.Addr
	Generation uint64
	Network    Hash
	Key        Hash
	NetnsInode uint64
	Pod        string // "namespace/pod", printable ASCII; String cuts it to fit
}

// String writes the alias in at most 255 bytes. A pod's name that doesn't fit is cut, and ends in a hash of the whole name.
func (a Alias) String() string {
	fixed := fmt.Sprintf("%s %s %016x %x %x %d ", aliasMark, a.Addr, a.Generation, a.Network, a.Key, a.NetnsInode)
	return fixed + fitPod(a.Pod, aliasMax-len(fixed))
}

// fitPod makes one word of at most limit bytes out of a pod's name.
func fitPod(pod string, limit int) string {
	if pod == "" {
		return noPod
	}
	word := strings.Map(func(r rune) rune {
		if r <= ' ' || r > '~' {
			return '?'
		}
		return r
	}, pod)
	if len(word) <= limit {
		return word
	}
	sum := sha256.Sum256([]byte(pod))
	return word[:limit-cutHash-1] + "~" + hex.EncodeToString(sum[:])[:cutHash]
}

// ParseAlias reads what String wrote, and nothing else: an alias that String would write differently is not ours.
func ParseAlias(s string) (Alias, error) {
	a, err := parseAlias(s)
	if err != nil {
		return Alias{}, fmt.Errorf("parse link alias %q: %w", s, err)
	}
	if a.String() != s {
		return Alias{}, fmt.Errorf("parse link alias %q: not in its canonical form", s)
	}
	return a, nil
}

func parseAlias(s string) (a Alias, err error) {
	f := strings.Split(s, " ")
	if len(f) != 7 || f[0] != aliasMark {
		return a, fmt.Errorf("not seven fields after %s", aliasMark)
	}
	if a.Addr, err = netip.ParseAddr(f[1]); err != nil {
		return a, err
	}
	if a.Generation, err = strconv.ParseUint(f[2], 16, 64); err != nil {
		return a, err
	}
	if a.Network, err = parseHash(f[3]); err != nil {
		return a, err
	}
	if a.Key, err = parseHash(f[4]); err != nil {
		return a, err
	}
	if a.NetnsInode, err = strconv.ParseUint(f[5], 10, 64); err != nil {
		return a, err
	}
	if f[6] != noPod {
		a.Pod = f[6]
	}
	return a, nil
}

func parseHash(s string) (h Hash, err error) {
	if len(s) != 2*len(h) {
		return h, fmt.Errorf("hash %q has not %d digits", s, 2*len(h))
	}
	_, err = hex.Decode(h[:], []byte(s))
	return h, err
}
