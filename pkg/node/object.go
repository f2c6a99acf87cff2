package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// object is a JSON object whose keys are taken one by one; what is left at the end is unknown.
type object struct {
	path   string // "" or "ipam." and so on: how errors name its keys
	fields map[string]json.RawMessage
	taken  []string
	how    Strictness
	errs   *problems // shared with the objects inside
}

// problems keeps the first error; the ones after it are often its consequence.
type problems struct{ err error }

func (p *problems) first() error { return p.err }

func (p *problems) add(err error) {
	if p.err == nil {
		p.err = err
	}
}

func newObject(path string, data []byte, how Strictness) (*object, error) {
	o := &object{path: path, how: how, errs: &problems{}}
	if err := json.Unmarshal(data, &o.fields); err != nil {
		return nil, fmt.Errorf("%w: not a JSON object%s", ErrConfig, JSONFault(err))
	}
	if o.fields == nil {
		return nil, fmt.Errorf("%w: null where an object is due", ErrConfig)
	}
	return o, nil
}

// fatal is a mistake that no verb can work with; wrong is one that only the strict ones refuse.
func (o *object) fatal(key, format string, args ...any) {
	o.errs.add(keyError(ErrConfig, o.path+key, format, args...))
}

func (o *object) wrong(key, want string) {
	if o.how == Strict {
		o.fatal(key, "%s is not %s", short(o.fields[key]), want)
	}
}

// take marks the key as known and tells whether it is there; null counts as absent, as encoding/json has it.
func (o *object) take(key string) (json.RawMessage, bool) {
	o.taken = append(o.taken, key)
	raw, ok := o.fields[key]
	return raw, ok && !bytes.Equal(bytes.TrimSpace(raw), []byte("null"))
}

func (o *object) must(key string, dst *string) {
	raw, ok := o.take(key)
	switch {
	case !ok:
		o.fatal(key, "missing")
	case json.Unmarshal(raw, dst) != nil:
		o.fatal(key, "%s is not a string", short(raw))
	case *dst == "":
		o.fatal(key, "empty")
	}
}

func (o *object) sub(key string, required bool) *object {
	raw, ok := o.take(key)
	if !ok {
		if required {
			o.fatal(key, "missing")
		}
		return nil
	}
	s := &object{path: o.path + key + ".", how: o.how, errs: o.errs}
	if err := json.Unmarshal(raw, &s.fields); err != nil {
		if required {
			o.fatal(key, "%s is not an object", short(raw))
		} else {
			o.wrong(key, "an object")
		}
		return nil
	}
	return s
}

func (o *object) value(key string, dst any, want string) {
	if raw, ok := o.take(key); ok && json.Unmarshal(raw, dst) != nil {
		o.wrong(key, want)
	}
}

func (o *object) text(key string, dst *string, valid func(string) bool, want string) {
	raw, ok := o.take(key)
	if !ok {
		return
	}
	var v string
	if json.Unmarshal(raw, &v) != nil || !valid(v) {
		o.wrong(key, want)
		return
	}
	*dst = v
}

// essential is text that every verb needs: with another value a DEL would look into another store and leave the lease.
func (o *object) essential(key string, dst *string, valid func(string) bool, want string) {
	strict := *o
	strict.how = Strict
	strict.text(key, dst, valid, want)
	o.taken = strict.taken
}

func (o *object) integer(key string, dst *int, valid func(int) bool, want string) {
	raw, ok := o.take(key)
	if !ok {
		return
	}
	var v int
	if json.Unmarshal(raw, &v) != nil || !valid(v) {
		o.wrong(key, want)
		return
	}
	*dst = v
}

// longest keeps sums of a duration and the boot clock from overflowing: an address would be cool at once.
const longest = 100 * 365 * 24 * time.Hour

func (o *object) duration(key string, dst *time.Duration, least time.Duration) {
	v := dst.String()
	o.text(key, &v, func(s string) bool {
		d, err := time.ParseDuration(s)
		return err == nil && d >= least && d <= longest
	}, fmt.Sprintf("a duration of at least %s (and at most %s), such as %q", least, longest, dst.String()))
	*dst, _ = time.ParseDuration(v)
}

func (o *object) access(key string, dst *bool) {
	v := map[bool]string{true: "allow", false: "deny"}[*dst]
	o.text(key, &v, func(s string) bool { return s == "allow" || s == "deny" }, `"allow" or "deny"`)
	*dst = v == "allow"
}

// mask reads "0x0fff0000", bits in a row, for they hold a number; zero is none. A plain number is taken too.
func (o *object) mask(key string, dst *uint32) {
	raw, ok := o.take(key)
	if !ok {
		return
	}
	v, err := strconv.ParseUint(strings.Trim(string(raw), `"`), 0, 32)
	number := v >> bits.TrailingZeros64(v)
	if err != nil || number&(number+1) != 0 {
		o.wrong(key, "a 32-bit mask of bits in a row such as \"0x0fff0000\"")
		return
	}
	*dst = uint32(v)
}

// maxPrefixes: the kernel takes the elements of a set in one attribute, which ends at 1,638 intervals, and drops the rest without a word.
const maxPrefixes = 1000

// prefixes reads a list of IPv4 prefixes and keeps it sorted, so that order makes no difference.
func (o *object) prefixes(key string, dst *[]netip.Prefix) {
	raw, ok := o.take(key)
	if !ok {
		return
	}
	var list []string
	if json.Unmarshal(raw, &list) != nil {
		o.wrong(key, "a list of prefixes")
		return
	}
	if len(list) > maxPrefixes {
		o.wrong(key, fmt.Sprintf("a list of at most %d prefixes: it has %d", maxPrefixes, len(list)))
		return
	}
	out := make([]netip.Prefix, 0, len(list))
	for i, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil || !p.Addr().Is4() {
			o.wrong(key, fmt.Sprintf("a list of IPv4 prefixes: [%d]: %q", i, s))
			return
		}
		out = append(out, p.Masked())
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	*dst = slices.Compact(out)
}

// finish refuses what nobody took.
func (o *object) finish(foreign ...string) {
	if o.how == Lenient {
		return
	}
	keys := make([]string, 0, len(o.fields))
	for k := range o.fields {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		known := slices.Contains(o.taken, k) || slices.Contains(foreign, k)
		if known || strings.HasPrefix(k, "cni.dev/") || strings.HasPrefix(k, "x-") {
			continue
		}
		o.errs.add(keyError(ErrUnknownKey, o.path+k, "value %s%s", short(o.fields[k]), nearest(k, o.taken)))
	}
}

func (o *object) done(foreign ...string) error {
	o.finish(foreign...)
	return o.errs.first()
}

const shownBytes = 80 // of a value in an error text

func short(raw json.RawMessage) string {
	s := strings.Join(strings.Fields(string(raw)), " ")
	if len(s) > shownBytes {
		return strings.ToValidUTF8(s[:shownBytes], "") + "…"
	}
	return s
}

// JSONFault says, after a colon, where and why a text is no JSON; nothing of a text that is, but doesn't have the shape that was
// asked for: encoding/json names Go types, which say nothing to who wrote it.
func JSONFault(err error) string {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return ""
	}
	return fmt.Sprintf(": %v at byte %d", syntax, syntax.Offset)
}
