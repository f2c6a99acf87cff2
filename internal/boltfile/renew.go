package boltfile

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
)

const (
	metaBucket  = "meta"
	completeKey = "complete"
	// newSuffix is the name a store is built under.
	newSuffix = ".new"
	// damagedSuffix is followed by the unix time at which the file was set aside.
	damagedSuffix = ".damaged-"
	damagedKept   = 3
)

// checkComplete reads meta/complete: the schema, or the reason why the store doesn't count.
func (f *File) checkComplete(tx *bolt.Tx) (schema uint32, err error) {
	b := tx.Bucket([]byte(metaBucket))
	if b == nil {
		return 0, damage("no bucket %s: not a store of native-vmss", metaBucket)
	}
	sealed := b.Get([]byte(completeKey))
	if sealed == nil {
		return 0, damage("no key %s/%s", metaBucket, completeKey)
	}
	v, err := Unseal(metaBucket, []byte(completeKey), sealed)
	if err != nil {
		return 0, err
	}
	if len(v) < 4 {
		return 0, damage("%s/%s has %d bytes", metaBucket, completeKey, len(v))
	}
	schema = binary.LittleEndian.Uint32(v)
	switch {
	case schema > f.opt.Schema:
		return 0, fmt.Errorf("%w: %s has %d, this program reads up to %d", ErrNewerSchema, f.opt.Path, schema, f.opt.Schema)
	case string(v[4:]) != f.opt.BootID:
		return 0, &stale{why: ReasonBoot}
	case schema+1 < f.opt.Schema:
		return 0, &stale{why: ReasonSchema}
	}
	return schema, nil
}

func (f *File) putComplete(tx *bolt.Tx) error {
	b, err := tx.CreateBucketIfNotExists([]byte(metaBucket))
	if err != nil {
		return err
	}
	v := append(binary.LittleEndian.AppendUint32(nil, f.opt.Schema), f.opt.BootID...)
	return b.Put([]byte(completeKey), Seal(metaBucket, []byte(completeKey), v))
}

func (f *File) migrate(tx *bolt.Tx, from uint32) error {
	if f.opt.Migrate != nil {
		if err := f.opt.Migrate(tx, from); err != nil {
			return fmt.Errorf("migrate store %s from schema %d: %w", f.opt.Path, from, err)
		}
	}
	return f.putComplete(tx)
}

// renew replaces a store that doesn't count. The caller holds the exclusive lock.
func (f *File) renew(ctx context.Context, s *stale) error {
	if s.why != ReasonDamaged {
		if err := f.rebuild(ctx, s.why); err != nil {
			return err
		}
		f.log.Info("store rebuilt", "path", f.opt.Path, "reason", string(s.why))
		return nil
	}
	aside, err := f.setAside()
	if err != nil {
		return unusable("set aside damaged store", f.opt.Path, errors.Join(err, s))
	}
	if err := f.rebuild(ctx, s.why); err != nil {
		return fmt.Errorf("%w (damaged store kept as %s: %w)", err, aside, s)
	}
	f.log.Error("store was damaged and rebuilt from the kernel", "path", f.opt.Path, "kept", aside, "err", s)
	return nil
}

// rebuild fills a new file beside the store and renames it into place once it is complete, so a kill at any point leaves
// either what was there or a whole store.
func (f *File) rebuild(ctx context.Context, why Reason) error {
	tmp := f.opt.Path + newSuffix
	err := remove(tmp) // left by a kill
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = guard(func(file **os.File) error { return f.build(ctx, tmp, why, file) })
	}
	if err == nil {
		err = rename(tmp, f.opt.Path)
	}
	if err != nil {
		_ = remove(tmp)
		return fmt.Errorf("%w: rebuild store %s (%s): %w", ErrUnusable, f.opt.Path, why, err)
	}
	return nil
}

func (f *File) build(ctx context.Context, tmp string, why Reason, file **os.File) error {
	noSync := inMemory(filepath.Dir(tmp))
	db, err := bolt.Open(tmp, fileMode, &bolt.Options{
		Timeout:      openTimeout,
		NoSync:       noSync,
		NoGrowSync:   noSync,
		FreelistType: bolt.FreelistArrayType,
		NoStatistics: true,
		OpenFile: func(path string, flag int, mode os.FileMode) (*os.File, error) {
			opened, err := openFile(path, flag|os.O_EXCL, mode)
			*file = opened
			return opened, err
		},
	})
	if err != nil {
		return err
	}
	db.AllocSize = allocSize
	err = f.fill(ctx, db, why)
	return errors.Join(err, db.Close())
}

func (f *File) fill(ctx context.Context, db *bolt.DB, why Reason) error {
	tx, err := db.Begin(true)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // nothing to do after a commit
	if f.opt.Rebuild != nil {
		if err := f.opt.Rebuild(ctx, tx, why); err != nil {
			return err
		}
	}
	if err := f.putComplete(tx); err != nil {
		return err
	}
	return commit(tx)
}

// setAside renames the damaged file and forgets all but the newest of such files.
func (f *File) setAside() (string, error) {
	at := time.Now().Unix()
	if times := f.damagedTimes(); len(times) > 0 {
		at = max(at, times[len(times)-1]+1) // two in one second get different names, in order
	}
	if err := rename(f.opt.Path, f.damagedName(at)); err != nil {
		return "", err
	}
	times := f.damagedTimes()
	for _, t := range times[:max(0, len(times)-damagedKept)] {
		_ = remove(f.damagedName(t))
	}
	return f.damagedName(at), nil
}

func (f *File) damagedName(unix int64) string {
	return f.opt.Path + damagedSuffix + strconv.FormatInt(unix, 10)
}

// damagedTimes are the times of the damaged files, oldest first.
func (f *File) damagedTimes() []int64 {
	entries, _ := os.ReadDir(filepath.Dir(f.opt.Path))
	prefix := filepath.Base(f.opt.Path) + damagedSuffix
	var times []int64
	for _, e := range entries {
		rest, ok := strings.CutPrefix(e.Name(), prefix)
		if t, err := strconv.ParseInt(rest, 10, 64); ok && err == nil {
			times = append(times, t)
		}
	}
	sort.Slice(times, func(i, j int) bool { return times[i] < times[j] })
	return times
}
