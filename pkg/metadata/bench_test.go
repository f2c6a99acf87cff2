package metadata

import (
	"fmt"
	"testing"
)

// A NIC of Azure has at most 256 addresses; the size goals are about 200,000.
func BenchmarkParse(b *testing.B) {
	for _, n := range []int{256, 200_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			in := []byte(document(entry(`"02005E100004"`, list(many(n)...), subnet24)))
			b.SetBytes(int64(len(in)))
			for b.Loop() {
				if _, err := Parse(in); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// many returns n addresses.
func many(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("10.%d.%d.%d", 100+i>>16, i>>8&255, i&255)
	}
	return list
}
