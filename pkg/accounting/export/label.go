package export

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode"
	"unicode/utf8"
)

const (
	// other is the name of what is beyond the limits; nothing else gets it.
	other = "_other"
	// maxLabel is the longest name that Kubernetes allows, in bytes.
	maxLabel = 253
	// hashBytes tell names apart that are alike once they are cleaned.
	hashBytes = 4
)

// label makes a label's value of a name that somebody else chose. What a terminal would obey or a parser stumble over (a NUL ends
// Prometheus's) is a question mark. A name that isn't shown as it is ends with its hash, so that two of them stay two series:
//
//	web-0            web-0
//	web<newline>0    web?0-1f2e3d4c
func label(name string) string {
	clean := strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, name)
	if clean == name && len(name) <= maxLabel && name != other {
		return name
	}
	hash := sha256.Sum256([]byte(name))
	tail := "-" + hex.EncodeToString(hash[:hashBytes])
	if over := len(clean) + len(tail) - maxLabel; over > 0 {
		clean = strings.ToValidUTF8(clean[:len(clean)-over], "")
	}
	return clean + tail
}
