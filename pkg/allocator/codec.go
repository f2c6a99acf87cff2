package allocator

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
)

var errShort = errors.New("value ends early")

// reader takes a value apart. After the first error every read returns zero, so callers check once, at the end.
type reader struct {
	b   []byte
	err error
}

func (r *reader) take(n uint64) []byte {
	if r.err == nil && n > uint64(len(r.b)) {
		r.err = errShort
	}
	if r.err != nil {
		return nil
	}
	v := r.b[:n:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u16() uint16 {
	if b := r.take(2); b != nil {
		return binary.LittleEndian.Uint16(b)
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.err = errShort
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) hash() (h Hash) {
	copy(h[:], r.take(uint64(len(h))))
	return h
}

// end returns the first error, or one for bytes that nobody asked for.
func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.err = fmt.Errorf("%d bytes too many", len(r.b))
	}
	return r.err
}

// Strings are stored in the shortest of these forms; the form is in the low two bits of the length. Container ids and UUIDs
// make up most of a record, so this halves it.
const (
	formPlain = iota // length bytes
	formHex          // length bytes, whose lower-case hex digits are the string
	formUUID         // length bytes, then 16 bytes that print as a UUID: "/var/run/netns/cni-" + UUID
	formKey          // length bytes, then the first 11 hex digits of the lease's key: how pods' links are named
	formBits  = 2
)

const (
	uuidLen   = 36
	keyDigits = 11
)

// appendString writes s, which may end in digits of key.
func appendString(b []byte, s string, key Hash) []byte {
	head := func(n, form int) { b = binary.AppendUvarint(b, uint64(n)<<formBits|uint64(form)) }
	if prefix, ok := cutKey(s, key); ok {
		head(len(prefix), formKey)
		return append(b, prefix...)
	}
	if raw, ok := parseHex(s); ok && len(s) >= 4 {
		head(len(raw), formHex)
		return append(b, raw...)
	}
	if prefix, raw, ok := cutUUID(s); ok {
		head(len(prefix), formUUID)
		return append(append(b, prefix...), raw...)
	}
	head(len(s), formPlain)
	return append(b, s...)
}

func (r *reader) str(key Hash) string {
	h := r.uvarint()
	v := r.take(h >> formBits)
	switch h & (1<<formBits - 1) {
	case formHex:
		return hex.EncodeToString(v)
	case formUUID:
		prefix := string(v)
		return prefix + printUUID(r.take(uuidLen/2-2))
	case formKey:
		return string(v) + hex.EncodeToString(key[:])[:keyDigits]
	}
	return string(v)
}

func cutKey(s string, key Hash) (prefix string, ok bool) {
	n := len(s) - keyDigits
	if n < 0 || s[n:] != hex.EncodeToString(key[:])[:keyDigits] {
		return "", false
	}
	return s[:n], true
}

// parseHex accepts only what EncodeToString would print, or the string would come back in other letters.
func parseHex(s string) ([]byte, bool) {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return nil, false
		}
	}
	raw, err := hex.DecodeString(s)
	return raw, err == nil
}

func cutUUID(s string) (prefix string, raw []byte, ok bool) {
	n := len(s) - uuidLen
	if n < 0 {
		return "", nil, false
	}
	u := s[n:]
	if u[8] != '-' || u[13] != '-' || u[18] != '-' || u[23] != '-' {
		return "", nil, false
	}
	raw, ok = parseHex(u[:8] + u[9:13] + u[14:18] + u[19:23] + u[24:])
	return s[:n], raw, ok
}

func printUUID(raw []byte) string {
	if len(raw) != 16 {
		return "" // the reader has its error by now
	}
	x := hex.EncodeToString(raw)
	return x[:8] + "-" + x[8:12] + "-" + x[12:16] + "-" + x[16:20] + "-" + x[20:]
}
