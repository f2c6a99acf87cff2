package allocator

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func sampleRecords() map[string]record {
	o := request(3).Owner
	unnamed := Owner{Key: Hash{1}, Network: Hash{2}, NetnsInode: 4026532001, Pod: "train/worker-…1a2b3c4d"}
	odd := Owner{
		Key: Hash{9}, NetworkName: "name with \x00 and ü", ContainerID: "ABCDEF", IfName: strings.Repeat("x", 300),
		UID: "8F5A1C2E-0000-4000-8000-000000000001", Netns: "/proc/1/ns/net", Main: "00000000000",
	}
	return map[string]record{
		"free":      {Present: true, NIC: 1, Since: time.Hour},
		"zero":      {},
		"absent":    {NIC: 65535, Since: 1, Missing: 2 * time.Hour},
		"blocked":   {Present: true, NIC: 1, Since: 7, Blocked: OnHostLink, BlockedAt: 9},
		"cooling":   {State: Cooling, Present: true, NIC: 1, Since: 7, Generation: 1 << 60, FlushDue: true},
		"had":       {State: Cooling, Present: true, NIC: 1, Since: 7, Generation: 3, Last: o.Key},
		"leased":    {State: Leased, Present: true, NIC: 1, Since: 7, Generation: 5, Owner: o, LinkName: request(3).LinkName, Time: 1795968000123},
		"releasing": {State: Releasing, NIC: 1, Since: 7, Generation: 5, Owner: o, LinkName: "tap0", Time: 1},
		"rebuilt":   {State: Leased, Since: 7, Generation: 5, Owner: unnamed},
		"odd":       {State: Leased, Since: 7, Generation: 5, Owner: odd, LinkName: "veth09000000000", Missing: 1, Blocked: UsedByOther, BlockedAt: 3},
	}
}

func TestRecord_roundTrip(t *testing.T) {
	for name, r := range sampleRecords() {
		t.Run(name, func(t *testing.T) {
			got, err := decodeRecord(r.encode())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(r, got); diff != "" {
				t.Errorf("record (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRecord_sizes(t *testing.T) {
	const sum = 4
	all := sampleRecords()
	free, leased := all["free"], all["leased"]
	if n := len(free.encode()) + sum; n > 20 {
		t.Errorf("a free record has %d bytes, want at most 20", n)
	}
	if n := len(leased.encode()) + sum; n > 200 {
		t.Errorf("a leased record has %d bytes, want at most 200", n)
	}
}

func TestRecord_damagedBytes(t *testing.T) {
	for name, r := range sampleRecords() {
		b := r.encode()
		for n := range b {
			if _, err := decodeRecord(b[:n]); err == nil {
				t.Errorf("%s: accepted when cut at %d of %d", name, n, len(b))
			}
		}
		if _, err := decodeRecord(append(bytes.Clone(b), 0)); err == nil {
			t.Errorf("%s: accepted with a byte too many", name)
		}
	}
}

// FuzzRecord: no bytes make the decoder panic, and what it accepts comes back the same from another turn.
func FuzzRecord(f *testing.F) {
	for _, r := range sampleRecords() {
		f.Add(r.encode())
	}
	f.Add([]byte{1, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeRecord(b)
		if err != nil {
			return
		}
		again, err := decodeRecord(r.encode())
		if err != nil {
			t.Fatalf("%+v doesn't decode: %v", r, err)
		}
		if diff := cmp.Diff(r, again); diff != "" {
			t.Errorf("record (-first +again):\n%s", diff)
		}
	})
}

// FuzzRecord_strings: every owner comes back as it was, whatever form its strings are stored in.
func FuzzRecord_strings(f *testing.F) {
	f.Add("native-vmss", "0123abcd", "eth0", "veth0123456789a", "8f5a1c2e-0000-4000-8000-000000000001", []byte{1, 2})
	f.Add("", "", "", "", "", []byte{})
	f.Add("a\x00b", "ABCD", "000", "00000000000", "x8F5A1C2E-0000-4000-8000-000000000001", []byte{0})
	f.Fuzz(func(t *testing.T, network, id, ifname, link, uid string, key []byte) {
		r := record{State: Leased, Since: 1, Generation: 2, LinkName: link}
		r.Owner = Owner{NetworkName: network, ContainerID: id, IfName: ifname, UID: uid, Netns: uid + id, Pod: link + uid}
		copy(r.Owner.Key[:], key)
		got, err := decodeRecord(r.encode())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(r, got); diff != "" {
			t.Errorf("record (-want +got):\n%s", diff)
		}
	})
}

func TestNIC_roundTrip(t *testing.T) {
	want := nic{3, NICInfo{MAC: mac1, Link: "eth0", Primary: addr(4), Subnets: pool(1).NICs[0].Subnets, Skipped: true}}
	got, err := decodeNIC(mac1[:], want.encode())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(nic{}), cmp.Comparer(func(a, b NICInfo) bool {
		return a.MAC == b.MAC && a.Skipped == b.Skipped && a.Link == b.Link && a.Primary == b.Primary && len(a.Subnets) == 1 && a.Subnets[0] == b.Subnets[0]
	})); diff != "" {
		t.Errorf("NIC (-want +got):\n%s", diff)
	}
	b := want.encode()
	for n := range b {
		if _, err := decodeNIC(mac1[:], b[:n]); err == nil {
			t.Errorf("accepted when cut at %d", n)
		}
	}
}
