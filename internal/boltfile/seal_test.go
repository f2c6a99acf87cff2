package boltfile

import (
	"hash/crc32"
	"testing"
)

func TestCastagnoli_is_CRC32C(t *testing.T) {
	// The check value of CRC-32C in the catalogues of CRCs.
	if got := crc32.Update(0, castagnoli, []byte("123456789")); got != 0xe3069283 {
		t.Errorf("%#x", got)
	}
	if *castagnoli != *crc32.MakeTable(crc32.Castagnoli) {
		t.Error("the table is another than the library's")
	}
}
