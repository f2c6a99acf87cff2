package boltfile

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"os"
)

// The first two pages of a bbolt file are its meta pages, written in turn; each is a page header and the meta itself (bbolt
// v1.5.0, internal/common/page.go and meta.go).
const (
	pageHeader   = 16
	metaMagic    = 0xED0CDAED
	metaVersion  = 2
	metaSummed   = 56 // bytes of the meta that its checksum covers
	metaSize     = 64
	minPageSize  = 512
	maxPageSize  = 16 << 20
	smallestFile = 4 // pages: two metas, freelist, root
)

// meta is what a meta page says about the file.
type meta struct {
	pageSize uint32
	used     uint64 // pages below the high-water mark
	txid     uint64
}

// checkHeader finds what bbolt doesn't look at. bbolt takes the other meta page when one is bad, which is the state before
// the last transaction: the lease given out in it would be free. And it maps a file that ends before its last page.
func checkHeader(f *os.File, size int64) error {
	first, err := readMeta(f, 0)
	if err != nil {
		return damage("first meta page: %w", err)
	}
	second, err := readMeta(f, int64(first.pageSize))
	if err != nil {
		return damage("second meta page: %w", err)
	}
	if first.pageSize != second.pageSize {
		return damage("meta pages disagree: page sizes %d and %d", first.pageSize, second.pageSize)
	}
	if d := int64(first.txid) - int64(second.txid); d != 1 && d != -1 {
		return damage("meta pages disagree: transactions %d and %d", first.txid, second.txid)
	}
	need := max(first.used, second.used, smallestFile)
	if need > uint64(size)/uint64(first.pageSize) {
		return damage("file has %d bytes, %d pages of %d are in use", size, need, first.pageSize)
	}
	return nil
}

func readMeta(f *os.File, at int64) (meta, error) {
	var b [metaSize]byte
	if _, err := f.ReadAt(b[:], at+pageHeader); err != nil {
		return meta{}, err
	}
	le := binary.LittleEndian
	if m, v := le.Uint32(b[0:]), le.Uint32(b[4:]); m != metaMagic || v != metaVersion {
		return meta{}, fmt.Errorf("magic %#x version %d", m, v)
	}
	h := fnv.New64a()
	_, _ = h.Write(b[:metaSummed])
	if h.Sum64() != le.Uint64(b[metaSummed:]) {
		return meta{}, fmt.Errorf("wrong checksum")
	}
	m := meta{pageSize: le.Uint32(b[8:]), used: le.Uint64(b[40:]), txid: le.Uint64(b[48:])}
	if m.pageSize < minPageSize || m.pageSize > maxPageSize {
		return meta{}, fmt.Errorf("page size %d", m.pageSize)
	}
	return m, nil
}
