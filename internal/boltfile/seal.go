package boltfile

import (
	"encoding/binary"
	"hash/crc32"
)

// sumSize is the length of the CRC-32C that ends every value.
const sumSize = 4

// castagnoli is the table of CRC-32C. crc32.MakeTable would prepare the processor's instruction for long inputs too, which takes each
// process 0.3 ms; a value here has some 100 bytes.
var castagnoli = func() *crc32.Table {
	var t crc32.Table
	for i := range t {
		c := uint32(i)
		for range 8 {
			c = c>>1 ^ c&1*crc32.Castagnoli
		}
		t[i] = c
	}
	return &t
}()

// Seal appends to value the CRC-32C over bucket, key and value: a value that was moved under another key fails like one whose
// bytes were changed.
func Seal(bucket string, key, value []byte) []byte {
	return binary.LittleEndian.AppendUint32(value, sum(bucket, key, value))
}

// Unseal returns the value without its sum, or an error that wraps ErrDamaged. The result aliases sealed.
func Unseal(bucket string, key, sealed []byte) ([]byte, error) {
	n := len(sealed) - sumSize
	if n < 0 {
		return nil, damage("%s/%x has %d bytes and no sum", bucket, key, len(sealed))
	}
	if binary.LittleEndian.Uint32(sealed[n:]) != sum(bucket, key, sealed[:n]) {
		return nil, damage("%s/%x has a wrong sum", bucket, key)
	}
	return sealed[:n:n], nil
}

func sum(bucket string, key, value []byte) uint32 {
	c := crc32.Update(0, castagnoli, []byte(bucket))
	c = crc32.Update(c, castagnoli, []byte{0})
	c = crc32.Update(c, castagnoli, key)
	return crc32.Update(c, castagnoli, value)
}
