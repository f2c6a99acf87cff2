package boltfile

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// filled is a store with many pages, and its bytes.
func filled(t *testing.T) (*store, []byte) {
	t.Helper()
	s := newStore(t, t.TempDir(), nil)
	s.mustPut("a", "1")
	must(t, s.Update(t.Context(), func(tx *bolt.Tx) error {
		for i := range 400 {
			k := fmt.Appendf(nil, "k%04d", i)
			if err := tx.Bucket([]byte("data")).Put(k, Seal("data", k, bytes.Repeat([]byte{7}, 100))); err != nil {
				return err
			}
		}
		return nil
	}))
	b, err := os.ReadFile(s.opt.Path)
	must(t, err)
	s.rebuilds = nil
	return s, b
}

func TestFile_damagedFiles(t *testing.T) {
	s, good := filled(t)
	random := make([]byte, 40000)
	for i := range random {
		random[i] = byte(rand.Uint32())
	}
	foreign := foreignBolt(t, "metadata")
	tests := map[string][]byte{
		"zeros": make([]byte, len(good)), "random": random, "text": []byte(strings.Repeat("no database\n", 4000)),
		"short text": []byte("x"), "foreign bolt file": foreign,
		"buckets of ours, rebuild not complete": foreignBolt(t, metaBucket, "data"),
		"first meta gone":                       append(make([]byte, 4096), good[4096:]...),
		"second meta gone":                      append(append(bytes.Clone(good[:4096]), make([]byte, 4096)...), good[8192:]...),
	}
	for _, n := range []int{1, 100, 4095, 4096, 8191, 8192, 12288, 16384, 20480, len(good) / 2 &^ 4095} {
		tests[fmt.Sprint("cut at ", n)] = good[:n]
	}
	for name, content := range tests {
		t.Run(name, func(t *testing.T) {
			s := newStore(t, t.TempDir(), nil)
			must(t, os.WriteFile(s.opt.Path, content, 0o600))
			s.mustPut("a", "2")
			s.wantRebuilds(ReasonDamaged)
			kept := s.files("ipam.db.damaged-*")
			if len(kept) != 1 {
				t.Fatalf("kept %v, want one", kept)
			}
			if b, _ := os.ReadFile(kept[0]); !bytes.Equal(b, content) {
				t.Error("the damaged file was changed")
			}
			if n := strings.Count(s.log.String(), "level=ERROR"); n != 1 {
				t.Errorf("%d error lines, want 1:\n%s", n, s.log)
			}
			if v, err := s.get("a"); v != "2" || err != nil {
				t.Errorf("get: %q, %v", v, err)
			}
		})
	}
	if v, err := s.get("a"); v != "1" || err != nil {
		t.Errorf("the good file: %q, %v", v, err)
	}
}

func foreignBolt(t *testing.T, buckets ...string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "foreign.db")
	db, err := bolt.Open(path, 0o600, nil)
	must(t, err)
	must(t, db.Update(func(tx *bolt.Tx) error {
		for _, name := range buckets {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		return nil
	}))
	must(t, db.Close())
	b, err := os.ReadFile(path)
	must(t, err)
	return b
}

// TestFile_damagedPages damages each page in turn. Whatever is read afterwards is right, or gone with the rebuild.
func TestFile_damagedPages(t *testing.T) {
	_, good := filled(t)
	ways := map[string]func(p []byte){
		"zero": func(p []byte) { clear(p) },
		"flip": func(p []byte) {
			for i := range p {
				p[i] ^= 0xff
			}
		},
		"ee": func(p []byte) { copy(p[16:80], bytes.Repeat([]byte{0xee}, 64)) },
	}
	for name, damage := range ways {
		t.Run(name, func(t *testing.T) {
			for at := 0; at < len(good); at += 4096 {
				s := newStore(t, t.TempDir(), nil)
				bad := bytes.Clone(good)
				damage(bad[at : at+4096])
				must(t, os.WriteFile(s.opt.Path, bad, 0o600))
				v, err := s.get("k0200")
				if err != nil || (len(s.rebuilds) == 0 && v != strings.Repeat("\a", 100)) {
					t.Errorf("page %d: get: %q, %v, rebuilds %v", at/4096, v, err, s.rebuilds)
				}
				s.mustPut("a", "2")
			}
		})
	}
}

func TestFile_panicIsDamage(t *testing.T) {
	s := newStore(t, t.TempDir(), nil)
	s.mustPut("a", "1")
	runs := 0
	err := s.Update(t.Context(), func(*bolt.Tx) error {
		if runs++; runs == 1 {
			panic("a bad page")
		}
		return nil
	})
	if err != nil || runs != 2 {
		t.Errorf("after %d runs: %v", runs, err)
	}
	s.wantRebuilds(ReasonMissing, ReasonDamaged)

	err = s.Update(t.Context(), func(*bolt.Tx) error { panic("always") })
	if !errors.Is(err, ErrUnusable) || !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "always") {
		t.Errorf("error is %v, want ErrUnusable, ErrDamaged and the panic", err)
	}
}

func TestFile_fnFindsDamage(t *testing.T) {
	for _, write := range []bool{false, true} {
		s := newStore(t, t.TempDir(), nil)
		s.mustPut("a", "1")
		runs := 0
		fn := func(*bolt.Tx) error {
			if runs++; runs == 1 {
				return fmt.Errorf("record 7: %w", ErrDamaged)
			}
			return nil
		}
		if err := s.exclusive(t.Context(), write, fn); err != nil || runs != 2 {
			t.Errorf("after %d runs: %v", runs, err)
		}
		s.wantRebuilds(ReasonMissing, ReasonDamaged)
		if !strings.Contains(s.log.String(), "record 7") {
			t.Errorf("the log doesn't say what was found: %s", s.log)
		}
	}
}

func TestFile_keepsThreeDamaged(t *testing.T) {
	s := newStore(t, t.TempDir(), nil)
	for i := range 6 {
		must(t, os.WriteFile(s.opt.Path, fmt.Appendf(nil, "damaged %d", i), 0o600))
		s.mustPut("a", "1")
	}
	times := s.damagedTimes()
	if len(times) != 3 {
		t.Fatalf("kept %v, want 3", times)
	}
	for i, at := range times {
		b, _ := os.ReadFile(s.damagedName(at))
		if want := fmt.Sprintf("damaged %d", 3+i); string(b) != want {
			t.Errorf("kept %q, want %q", b, want)
		}
	}
}

// A kill in the middle of a rebuild leaves the new file under its other name.
func TestFile_rebuildAfterKill(t *testing.T) {
	s := newStore(t, t.TempDir(), nil)
	must(t, os.WriteFile(s.opt.Path+newSuffix, []byte("half a store"), 0o600))
	s.mustPut("a", "1")
	if f := s.files("*.new"); len(f) > 0 {
		t.Errorf("left %v", f)
	}
}

func TestUnseal(t *testing.T) {
	sealed := Seal("b", []byte("k"), []byte("value"))
	if v, err := Unseal("b", []byte("k"), sealed); string(v) != "value" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	for i := range sealed {
		bad := bytes.Clone(sealed)
		bad[i] ^= 1
		if _, err := Unseal("b", []byte("k"), bad); !errors.Is(err, ErrDamaged) {
			t.Errorf("byte %d flipped: %v", i, err)
		}
	}
	for name, err := range map[string]error{
		"key": second(Unseal("b", []byte("l"), sealed)), "bucket": second(Unseal("c", []byte("k"), sealed)),
		"short": second(Unseal("b", []byte("k"), sealed[:3])), "nil": second(Unseal("b", []byte("k"), nil)),
	} {
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func second(_ []byte, err error) error { return err }

// smallDisk mounts a tmpfs; opts as for mount -o.
func smallDisk(t *testing.T, opts string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a file system needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("nvt-small", dir, "tmpfs", 0, opts); err != nil {
		t.Skip("mounting a file system: ", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func TestFile_readOnlyDisk(t *testing.T) {
	dir := smallDisk(t, "size=300k")
	s := newStore(t, dir, nil)
	s.mustPut("a", "1")
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	if v, err := s.get("a"); v != "1" || err != nil {
		t.Errorf("readers still work: %q, %v", v, err)
	}
	err := s.put("a", "2")
	if !errors.Is(err, ErrUnusable) || !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), s.opt.Path) {
		t.Errorf("error is %v, want ErrUnusable, EROFS and the path", err)
	}
	must(t, unix.Mount("", dir, "", unix.MS_REMOUNT, ""))
	s.mustPut("a", "2")
	s.wantRebuilds(ReasonMissing)
}

func TestFile_fullDisk(t *testing.T) {
	dir := smallDisk(t, "size=300k")
	s := newStore(t, dir, nil)
	s.mustPut("a", "1")
	fill := filepath.Join(dir, "fill")
	f, err := os.Create(fill)
	must(t, err)
	for {
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			break
		}
	}
	_ = f.Close()
	deadline := time.Now().Add(10 * time.Second)
	n := 0
	for ; ; n++ {
		if err = s.put(fmt.Sprintf("key%d", n), strings.Repeat("x", 3000)); err != nil || time.Now().After(deadline) {
			break
		}
	}
	if !errors.Is(err, ErrUnusable) || !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), s.opt.Path) {
		t.Errorf("error is %v, want ErrUnusable, ENOSPC and the path", err)
	}
	if v, err := s.get("a"); v != "1" || err != nil {
		t.Errorf("full: %q, %v", v, err)
	}
	must(t, os.Remove(fill))
	s.mustPut("a", "2")
	for i := range n {
		if v, err := s.get(fmt.Sprintf("key%d", i)); len(v) != 3000 || err != nil {
			t.Errorf("key%d: %d bytes, %v", i, len(v), err)
		}
	}
	s.wantRebuilds(ReasonMissing)
	db, err := bolt.Open(s.opt.Path, 0o600, nil)
	must(t, err)
	defer func() { _ = db.Close() }()
	must(t, db.View(func(tx *bolt.Tx) error {
		for err := range tx.Check() {
			t.Errorf("consistency: %v", err)
		}
		return nil
	}))
}

func TestFile_noInodes(t *testing.T) {
	dir := smallDisk(t, "nr_inodes=2") // the root and the lock file
	s := newStore(t, dir, nil)
	err := s.put("a", "1")
	if !errors.Is(err, ErrUnusable) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error is %v, want ErrUnusable and ENOSPC", err)
	}
}
