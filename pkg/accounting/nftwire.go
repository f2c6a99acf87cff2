package accounting

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// nfgenmsgSize is the size of the header of every message of netfilter (include/uapi/linux/netfilter/nfnetlink.h).
const nfgenmsgSize = 4

// Layout of an attribute (include/uapi/linux/netlink.h): two bytes of length, two of type with flags in the highest two bits.
const (
	attrHeader   = 4
	attrTypeMask = 1<<14 - 1
)

// attributes walks through attributes, type -> value.
func attributes(b []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for len(b) >= attrHeader {
			size := int(binary.NativeEndian.Uint16(b))
			if size < attrHeader || size > len(b) {
				return
			}
			if !yield(int(binary.NativeEndian.Uint16(b[2:]))&attrTypeMask, b[attrHeader:size]) {
				return
			}
			b = b[min((size+3)&^3, len(b)):]
		}
	}
}

// attribute finds the value at a path of types; nil where there is none.
func attribute(b []byte, path ...int) []byte {
	for _, want := range path {
		var found []byte
		for kind, value := range attributes(b) {
			if kind == want {
				found = value
			}
		}
		b = found
	}
	return b
}

func text(b []byte) string { return string(bytes.TrimRight(b, "\x00")) }

func number(b []byte) uint64 {
	switch len(b) {
	case 4:
		return uint64(binary.BigEndian.Uint32(b))
	case 8:
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// What of an expression holds further attributes (include/uapi/linux/netfilter/nf_tables.h), and what is a name, with or without a
// zero at its end.
var (
	exprNested = map[string][]int{
		"bitwise":   {unix.NFTA_BITWISE_MASK, unix.NFTA_BITWISE_XOR},
		"cmp":       {unix.NFTA_CMP_DATA},
		"immediate": {unix.NFTA_IMMEDIATE_DATA},
	}
	exprNames = map[string]int{"lookup": unix.NFTA_LOOKUP_SET, "objref": unix.NFTA_OBJREF_IMM_NAME}
)

// ruleText has all that a rule does: the kernel says it in more words than it was told, so what is zero is left out on both sides, and
// so are numbers that only count within a batch. Two texts are equal where the rules are.
func ruleText(exprs []byte) string {
	var b strings.Builder
	for _, e := range attributes(exprs) {
		exprText(&b, text(attribute(e, unix.NFTA_EXPR_NAME)), attribute(e, unix.NFTA_EXPR_DATA))
	}
	return b.String()
}

func exprText(b *strings.Builder, name string, data []byte) {
	b.WriteString(name)
	attrsText(b, data, func(b *strings.Builder, kind int, value []byte) bool {
		switch {
		case slices.Contains(exprNested[name], kind):
			attrsText(b, value, dataText)
			return true
		case exprNames[name] == kind && kind != 0:
			b.WriteString(text(value))
			return true
		}
		return name == "lookup" && kind == unix.NFTA_LOOKUP_SET_ID
	})
	b.WriteByte('\n')
}

// dataText writes a verdict: its code and its chain. A value is written by attrsText.
func dataText(b *strings.Builder, kind int, value []byte) bool {
	if kind != unix.NFTA_DATA_VERDICT {
		return false
	}
	fmt.Fprintf(b, "verdict %x %s", attribute(value, unix.NFTA_VERDICT_CODE), text(attribute(value, unix.NFTA_VERDICT_CHAIN)))
	return true
}

// verdictText is what an element of a map leads to.
func verdictText(verdict []byte) string {
	return string(attribute(verdict, unix.NFTA_VERDICT_CODE)) + text(attribute(verdict, unix.NFTA_VERDICT_CHAIN))
}

// attrsText writes attributes in the order of their types; special writes those that it knows and returns true.
func attrsText(b *strings.Builder, data []byte, special func(*strings.Builder, int, []byte) bool) {
	const most = 16
	var values [most][]byte
	for kind, value := range attributes(data) {
		values[min(kind, most-1)] = value
	}
	for kind, value := range values {
		if !slices.ContainsFunc(value, func(c byte) bool { return c != 0 }) {
			continue
		}
		b.WriteByte(' ')
		b.WriteByte(byte('a' + kind))
		if !special(b, kind, value) {
			b.WriteString(hex.EncodeToString(value))
		}
	}
}

// exprsText is ruleText of a rule that we would write.
func exprsText(exprs []expr.Any) (string, error) {
	var b strings.Builder
	for _, e := range exprs {
		raw, err := expr.Marshal(unix.NFPROTO_IPV4, e)
		if err != nil {
			return "", err
		}
		exprText(&b, text(attribute(raw, unix.NFTA_EXPR_NAME)), attribute(raw, unix.NFTA_EXPR_DATA))
	}
	return b.String(), nil
}
