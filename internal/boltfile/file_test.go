package boltfile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

// store is a File with a rebuild that leaves a trace, and its log.
type store struct {
	*File
	t        *testing.T
	dir      string
	rebuilds []Reason
	fail     error // returned by the next rebuilds
	log      *bytes.Buffer
}

func newStore(t *testing.T, dir string, change func(*Options)) *store {
	t.Helper()
	s := &store{t: t, dir: dir, log: &bytes.Buffer{}}
	opt := Options{
		Path: filepath.Join(dir, "ipam.db"), LockPath: filepath.Join(dir, "ipam.lock"), Schema: 5, BootID: "boot-1",
		Rebuild: func(_ context.Context, tx *bolt.Tx, why Reason) error {
			s.rebuilds = append(s.rebuilds, why)
			if s.fail != nil {
				return s.fail
			}
			_, err := tx.CreateBucket([]byte("data"))
			return err
		},
		Log: slog.New(slog.NewTextHandler(s.log, nil)),
	}
	if change != nil {
		change(&opt)
	}
	s.File = New(opt)
	return s
}

func (s *store) put(k, v string) error {
	return s.Update(s.t.Context(), func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("data")).Put([]byte(k), Seal("data", []byte(k), []byte(v)))
	})
}

func (s *store) get(k string) (v string, err error) {
	err = s.View(s.t.Context(), func(tx *bolt.Tx) error {
		sealed := tx.Bucket([]byte("data")).Get([]byte(k))
		if sealed == nil {
			v = ""
			return nil
		}
		b, err := Unseal("data", []byte(k), sealed)
		v = string(b)
		return err
	})
	return v, err
}

func (s *store) mustPut(k, v string) {
	s.t.Helper()
	if err := s.put(k, v); err != nil {
		s.t.Fatalf("put: %v", err)
	}
}

func (s *store) wantRebuilds(want ...Reason) {
	s.t.Helper()
	if fmt.Sprint(s.rebuilds) != fmt.Sprint(want) {
		s.t.Errorf("rebuilds %q, want %q", s.rebuilds, want)
	}
}

func (s *store) files(pattern string) []string {
	found, _ := filepath.Glob(filepath.Join(s.dir, pattern))
	return found
}

func TestFile_missingStoreIsRebuilt(t *testing.T) {
	for _, empty := range []bool{false, true} {
		for _, first := range []string{"view", "update"} {
			t.Run(fmt.Sprint(first, " empty=", empty), func(t *testing.T) {
				s := newStore(t, t.TempDir(), nil)
				want := ReasonMissing
				if empty {
					want = ReasonEmpty
					if err := os.WriteFile(s.opt.Path, nil, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if first == "view" {
					if v, err := s.get("a"); v != "" || err != nil {
						t.Fatalf("get: %q, %v", v, err)
					}
				}
				s.mustPut("a", "1")
				if v, err := s.get("a"); v != "1" || err != nil {
					t.Errorf("get: %q, %v", v, err)
				}
				s.wantRebuilds(want)
				if f := s.files("*.damaged-*"); len(f) > 0 || strings.Contains(s.log.String(), "level=ERROR") {
					t.Errorf("a missing store is no damage: %v, %s", f, s.log)
				}
				if info, err := os.Stat(s.opt.Path); err != nil || info.Mode().Perm() != 0o600 {
					t.Errorf("mode: %v, %v", info.Mode(), err)
				}
			})
		}
	}
}

func TestFile_Update_rollsBack(t *testing.T) {
	s := newStore(t, t.TempDir(), nil)
	s.mustPut("a", "1")
	boom := errors.New("boom")
	err := s.Update(t.Context(), func(tx *bolt.Tx) error {
		_ = tx.Bucket([]byte("data")).Put([]byte("a"), Seal("data", []byte("a"), []byte("2")))
		return boom
	})
	if !errors.Is(err, boom) {
		t.Errorf("error is %v", err)
	}
	if v, err := s.get("a"); v != "1" || err != nil {
		t.Errorf("get: %q, %v", v, err)
	}
	s.wantRebuilds(ReasonMissing)
}

func TestFile_otherBootIsNoDamage(t *testing.T) {
	s := newStore(t, t.TempDir(), nil)
	s.mustPut("a", "1")
	next := newStore(t, s.dir, func(o *Options) { o.BootID = "boot-2" })
	if v, err := next.get("a"); v != "" || err != nil {
		t.Errorf("get: %q, %v", v, err)
	}
	next.wantRebuilds(ReasonBoot)
	if f := s.files("*.damaged-*"); len(f) > 0 || !strings.Contains(next.log.String(), "level=INFO") || strings.Contains(next.log.String(), "ERROR") {
		t.Errorf("another boot is an info line: %v, %s", f, next.log)
	}
}

func TestFile_schemas(t *testing.T) {
	dir := t.TempDir()
	old := newStore(t, dir, nil)
	old.mustPut("a", "1")

	var migrated []uint32
	next := newStore(t, dir, func(o *Options) {
		o.Schema = 6
		o.Migrate = func(_ *bolt.Tx, from uint32) error { migrated = append(migrated, from); return nil }
	})
	if v, err := next.get("a"); v != "1" || err != nil || len(migrated) > 0 {
		t.Errorf("a reader takes schema N-1 as it is: %q, %v, %v", v, err, migrated)
	}
	next.mustPut("b", "2")
	next.mustPut("c", "3")
	if fmt.Sprint(migrated) != "[5]" {
		t.Errorf("migrations %v, want one from 5", migrated)
	}
	before, _ := os.ReadFile(old.opt.Path)
	if _, err := old.get("a"); !errors.Is(err, ErrNewerSchema) {
		t.Errorf("error is %v, want ErrNewerSchema", err)
	}
	if err := old.put("a", "9"); !errors.Is(err, ErrNewerSchema) {
		t.Errorf("error is %v, want ErrNewerSchema", err)
	}
	if after, _ := os.ReadFile(old.opt.Path); !bytes.Equal(before, after) {
		t.Error("an older program changed a newer store")
	}
	far := newStore(t, dir, func(o *Options) { o.Schema = 8 })
	if v, err := far.get("a"); v != "" || err != nil {
		t.Errorf("get: %q, %v", v, err)
	}
	far.wantRebuilds(ReasonSchema)
}

func TestFile_failedRebuild(t *testing.T) {
	s := newStore(t, t.TempDir(), nil)
	s.fail = errors.New("netlink is down")
	for range 2 {
		err := s.put("a", "1")
		if !errors.Is(err, ErrUnusable) || !errors.Is(err, s.fail) || !strings.Contains(err.Error(), s.opt.Path) {
			t.Fatalf("error is %v, want ErrUnusable with cause and path", err)
		}
		if f := s.files("*.db*"); len(f) > 0 {
			t.Fatalf("a failed rebuild left %v", f)
		}
	}
	s.fail = nil
	s.mustPut("a", "1")
}

func TestFile_unusable(t *testing.T) {
	tests := []struct {
		name string
		make func(t *testing.T, path string)
		want string
	}{
		{"directory", func(t *testing.T, path string) { must(t, os.MkdirAll(filepath.Join(path, "x"), 0o700)) }, "is a directory"},
		{"symlink", func(t *testing.T, path string) { must(t, os.Symlink("/etc/passwd", path)) }, "not a regular file"},
		{"fifo", func(t *testing.T, path string) { must(t, unix.Mkfifo(path, 0o600)) }, "not a regular file"},
		{"mode", func(t *testing.T, path string) {
			must(t, os.WriteFile(path, nil, 0o600))
			must(t, os.Chmod(path, 0o666))
		}, "0666"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStore(t, t.TempDir(), nil)
			tt.make(t, s.opt.Path)
			before, _ := os.Lstat(s.opt.Path)
			_, verr := s.get("a")
			for _, err := range []error{verr, s.put("a", "1")} {
				if !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), s.opt.Path) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("error is %v, want ErrUnusable, the path and %q", err, tt.want)
				}
			}
			if after, err := os.Lstat(s.opt.Path); err != nil || !os.SameFile(before, after) {
				t.Errorf("it was replaced: %v", err)
			}
			s.wantRebuilds()
		})
	}
}

func TestFile_wrongOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file away")
	}
	s := newStore(t, t.TempDir(), nil)
	s.mustPut("a", "1")
	must(t, os.Chown(s.opt.Path, 12345, 0))
	err := s.put("a", "2")
	if !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), "owned by uid 12345") {
		t.Errorf("error is %v", err)
	}
	must(t, os.Chown(s.opt.Path, 0, 0))
	if v, err := s.get("a"); v != "1" || err != nil {
		t.Errorf("get: %q, %v", v, err)
	}
}

// TestFile_concurrent runs writers and readers beside each other; every increment must count.
func TestFile_concurrent(t *testing.T) {
	s := newStore(t, t.TempDir(), nil)
	const workers, turns = 6, 25
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range turns {
				err := s.Update(t.Context(), func(tx *bolt.Tx) error {
					b := tx.Bucket([]byte("data"))
					var n uint64
					if v := b.Get([]byte("n")); v != nil {
						n = binary.LittleEndian.Uint64(v)
					}
					return b.Put([]byte("n"), binary.LittleEndian.AppendUint64(nil, n+1))
				})
				if err == nil {
					err = s.View(t.Context(), func(*bolt.Tx) error { return nil })
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	must(t, s.View(t.Context(), func(tx *bolt.Tx) error {
		if n := binary.LittleEndian.Uint64(tx.Bucket([]byte("data")).Get([]byte("n"))); n != workers*turns {
			t.Errorf("counted %d, want %d", n, workers*turns)
		}
		return nil
	}))
	s.wantRebuilds(ReasonMissing)
}

// A foreign reader (the bbolt command) holds bbolt's own lock, not ours.
func TestFile_foreignReader(t *testing.T) {
	s := newStore(t, t.TempDir(), nil)
	s.mustPut("a", "1")
	db, err := bolt.Open(s.opt.Path, 0o600, &bolt.Options{ReadOnly: true})
	must(t, err)
	defer func() { _ = db.Close() }()
	if v, err := s.get("a"); v != "1" || err != nil {
		t.Errorf("readers go together: %q, %v", v, err)
	}
	err = s.put("a", "2")
	if !errors.Is(err, ErrBusy) || !strings.Contains(err.Error(), fmt.Sprintf("pid %d", os.Getpid())) {
		t.Errorf("error is %v, want ErrBusy with this process", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
