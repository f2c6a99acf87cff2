package metadata

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"strings"
)

// text is a JSON string, or any other value by its spelling: the service writes "24", some stand-ins 24. null and a missing key
// are "". It takes everything, because an error here would end the decoding of the whole document.
type text string

// UnmarshalJSON implements json.Unmarshaler.
func (t *text) UnmarshalJSON(b []byte) error {
	switch b[0] {
	case '"':
		if bytes.IndexByte(b, '\\') < 0 {
			*t = text(b[1 : len(b)-1]) // the usual case, and most of the time of a large document
			return nil
		}
		return json.Unmarshal(b, (*string)(t))
	case 'n':
		*t = ""
	default:
		*t = text(b)
	}
	return nil
}

// ParseMAC reads the spellings in use: 02005E100004 (IMDS), 02-00-5E-10-00-04 (ARM), 02:00:5e:10:00:04 (Linux), in upper or lower
// case. Anything else is an error that quotes it, and so are the all-zero and group addresses: no NIC has one, and lo and
// others would match them.
func ParseMAC(s string) (mac [6]byte, err error) {
	b, err := hex.DecodeString(strings.TrimSpace(s))
	if err != nil {
		b, err = net.ParseMAC(strings.TrimSpace(s))
	}
	if err != nil || len(b) != len(mac) {
		return mac, fmt.Errorf("%q is not 12 hexadecimal digits", cut(s))
	}
	copy(mac[:], b)
	if mac == ([6]byte{}) || mac[0]&1 != 0 {
		return [6]byte{}, fmt.Errorf("%q is not the address of a NIC", cut(s))
	}
	return mac, nil
}
