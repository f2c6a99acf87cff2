package metadata

import (
	"strings"
	"testing"
)

func TestParseMAC(t *testing.T) {
	want := [6]byte{0x02, 0x00, 0x5e, 0x10, 0x00, 0x04}
	for _, s := range []string{
		"02005E100004", "02-00-5E-10-00-04", "02:00:5e:10:00:04", "02005e100004", "0200.5e10.0004", " 02005E100004\n",
	} {
		if got, err := ParseMAC(s); err != nil || got != want {
			t.Errorf("ParseMAC(%q) = %x, %v", s, got, err)
		}
	}
}

func TestParseMAC_malformed(t *testing.T) {
	for _, s := range []string{
		"", "*", "02005E10004", "02005E1000044", "02:00:5e:10:00", "02:00-5e:10:00:04", "2:0:5e:10:0:4", "02:00:5e:10:00:04:",
		"02005E10000G", "0x02005E1000", "000000000000", "00:00:00:00:00:00", "FFFFFFFFFFFF", "01005E100004",
		"02:00:5e:10:00:04:00:04", strings.Repeat("0", 500),
	} {
		got, err := ParseMAC(s)
		if err == nil || got != [6]byte{} {
			t.Errorf("ParseMAC(%q) = %x, %v", s, got, err)
			continue
		}
		if len(s) < 100 && !strings.Contains(err.Error(), `"`+s+`"`) || len(err.Error()) > 300 {
			t.Errorf("ParseMAC(%q): text %q doesn't quote it, or is too long", s, err)
		}
	}
}
