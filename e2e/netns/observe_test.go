package netns

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	bolt "go.etcd.io/bbolt"

	"github.com/native-vmss/native-vmss/internal/lab"
)

func (s *stage) snapshot() lab.Snapshot {
	s.t.Helper()
	snap, err := s.Node.Snapshot(context.Background(), lab.SnapshotOptions{Pool: s.pool})
	if err != nil {
		s.t.Fatal(err)
	}
	return snap
}

// noLeak wants the node as it was, and nobody in the store.
func (s *stage) noLeak(before lab.Snapshot) {
	s.t.Helper()
	s.unchanged(before)
	if held := s.held(); len(held) > 0 {
		s.t.Errorf("leak: the store still has %v", held)
	}
}

func (s *stage) unchanged(before lab.Snapshot) {
	s.t.Helper()
	if d := before.Diff(s.snapshot()); len(d) > 0 {
		s.t.Errorf("the node has changed:\n%s", strings.Join(d, "\n"))
	}
}

// States of a record's first byte; pkg/allocator/doc.go draws the layout, and this is another reader of it.
var states = []string{"free", "leased", "releasing", "cooling"}

// records reads a copy of the store: address -> value.
func (s *stage) records() map[netip.Addr][]byte {
	s.t.Helper()
	return s.recordsOf(filepath.Join(stateDir, "ipam.db"))
}

func (s *stage) recordsOf(file string) map[netip.Addr][]byte {
	s.t.Helper()
	out := map[netip.Addr][]byte{}
	s.readStore(file, func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("addr4"))
		if b == nil {
			return nil
		}
		return b.ForEach(func(k, v []byte) error {
			a, ok := netip.AddrFromSlice(k)
			if !ok {
				return fmt.Errorf("key %x is no address", k)
			}
			out[a] = slices.Clone(v)
			return nil
		})
	})
	return out
}

// readStore opens a copy, so that the reader's lock is in nobody's way. A missing file is an empty store.
func (s *stage) readStore(file string, f func(*bolt.Tx) error) {
	s.t.Helper()
	b, err := os.ReadFile(s.Node.Path(file))
	if os.IsNotExist(err) {
		return
	}
	if err != nil {
		s.t.Fatal(err)
	}
	copied := filepath.Join(s.t.TempDir(), "ipam.db")
	if err := os.WriteFile(copied, b, 0o600); err != nil {
		s.t.Fatal(err)
	}
	db, err := bolt.Open(copied, 0o600, &bolt.Options{ReadOnly: true})
	if err != nil {
		s.t.Fatalf("open the store: %v", err)
	}
	defer db.Close()
	if err := db.View(f); err != nil {
		s.t.Fatalf("read the store: %v", err)
	}
}

// consistent runs bbolt's own check over the store.
func (s *stage) consistent() {
	s.t.Helper()
	s.readStore(filepath.Join(stateDir, "ipam.db"), func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			s.t.Errorf("store is inconsistent: %v", err)
		}
		return nil
	})
}

// state is that of one address, "" when the store doesn't know it.
func (s *stage) state(a netip.Addr) string {
	s.t.Helper()
	v, ok := s.records()[a]
	if !ok {
		return ""
	}
	return states[v[0]]
}

// held lists the addresses that are leased or being released, in order.
func (s *stage) held() []netip.Addr {
	s.t.Helper()
	return s.heldIn(stateDir)
}

func (s *stage) heldIn(dir string) []netip.Addr {
	s.t.Helper()
	var out []netip.Addr
	for a, v := range s.recordsOf(filepath.Join(dir, "ipam.db")) {
		if st := states[v[0]]; st == "leased" || st == "releasing" {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// linkOf is the name that an attachment's host link has, computed without the product.
func linkOf(id, ifname string) string {
	h := sha256.Sum256([]byte(network + "\x00" + id + "\x00" + ifname))
	return "veth" + hex.EncodeToString(h[:])[:11]
}

// hasLink asks ip.
func (s *stage) hasLink(name string) bool {
	err := s.Node.Command(context.Background(), "ip", "link", "show", "dev", name).Run()
	return err == nil
}

// podLinks are the names of the links of our group, in order.
func (s *stage) podLinks() []string {
	s.t.Helper()
	var list []struct {
		Name string `json:"ifname"`
	}
	if err := json.Unmarshal([]byte(s.sh("ip -j link show group 28278")), &list); err != nil {
		s.t.Fatal(err)
	}
	var names []string
	for _, l := range list {
		if l.Name != "" {
			names = append(names, l.Name)
		}
	}
	slices.Sort(names)
	return names
}

// sameRecords wants every record of the store byte for byte as it was.
func (s *stage) sameRecords(want map[netip.Addr][]byte) {
	s.t.Helper()
	got := s.records()
	for a, v := range want {
		if !bytes.Equal(got[a], v) {
			s.t.Errorf("record of %s changed: %x to %x", a, v, got[a])
		}
	}
	for a := range got {
		if _, ok := want[a]; !ok {
			s.t.Errorf("record of %s is new", a)
		}
	}
}

// noLeakOnNewNode is noLeak where no ADD ever succeeded: beside the files of the state directory nothing may be new, node-wide
// state included.
func (s *stage) noLeakOnNewNode(before lab.Snapshot) {
	s.t.Helper()
	for _, line := range before.Diff(s.snapshot()) {
		if !strings.HasPrefix(line, "file ") {
			s.t.Errorf("leak: %s", line)
		}
	}
	if held := s.held(); len(held) > 0 {
		s.t.Errorf("leak: the store still has %v", held)
	}
}
