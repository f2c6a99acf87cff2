package allocator

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/boot"
)

// benchStore is a store on tmpfs with n addresses.
func benchStore(b testing.TB, n int) *Store {
	b.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "nvt-bench-")
	if err != nil {
		b.Skip("no tmpfs: ", err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := Open(Options{
		Dir: dir, CoolDown: testCool, LockTimeout: 10 * time.Second, BootID: "bench", Now: boot.Clock,
		Kernel: func(context.Context) (Observed, error) { return Observed{}, nil },
	})
	all := make([]netip.Addr, n)
	for i := range all {
		all[i] = netip.AddrFrom4([4]byte{10, byte(32 + i>>16), byte(i >> 8), byte(i)})
	}
	if err := s.Sync(context.Background(), snap(all)); err != nil {
		b.Fatal(err)
	}
	return s
}

// fillStore leases addresses to pods from … to, many in one transaction.
func fillStore(b testing.TB, s *Store, from, to int) {
	b.Helper()
	const batch = 500
	for ; from < to; from += batch {
		err := s.update(context.Background(), "fill", func(t *txn) error {
			for i := from; i < min(from+batch, to); i++ {
				a, r, err := t.longestIdle()
				if err != nil {
					return err
				}
				if _, err := t.assign(a, r, request(i)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

func fileMB(b testing.TB, s *Store) float64 {
	info, err := os.Stat(s.opt.Dir + "/" + storeFile)
	if err != nil {
		b.Fatal(err)
	}
	return float64(info.Size()) / 1e6
}

func BenchmarkLease(b *testing.B) {
	for _, size := range []struct {
		name string
		n    int
	}{{"256", 256}, {"200000", 200000}} {
		b.Run("free/"+size.name, func(b *testing.B) {
			s := benchStore(b, size.n)
			benchCycle(b, s, size.n, false)
			b.ReportMetric(fileMB(b, s), "file-MB")
		})
		b.Run("metered/"+size.name, func(b *testing.B) {
			s := benchStore(b, size.n)
			benchCycle(b, s, size.n, true)
			b.ReportMetric(fileMB(b, s), "file-MB")
		})
		b.Run("leased/"+size.name, func(b *testing.B) {
			s := benchStore(b, size.n)
			fillStore(b, s, 0, size.n-size.n/16)
			benchCycle(b, s, size.n, false)
			fillStore(b, s, size.n*2, size.n*2+free(b, s))
			b.ReportMetric(fileMB(b, s), "file-MB")
		})
	}
}

func free(b testing.TB, s *Store) int {
	v, err := s.Read(context.Background(), Hash{})
	if err != nil {
		b.Fatal(err)
	}
	return v.Totals[0].Free
}

// benchCycle measures one Lease: open, lock, transaction, close. The address goes back outside the measured time.
func benchCycle(b *testing.B, s *Store, n int, metered bool) {
	ctx := context.Background()
	took, cpu := make([]time.Duration, 0, b.N), make([]time.Duration, 0, b.N)
	runtime.LockOSThread() // the CPU time is this thread's
	defer runtime.UnlockOSThread()
	b.ResetTimer()
	for i := range b.N {
		req := request(n + i)
		req.Metered = metered
		began, beganCPU := time.Now(), threadCPU(b)
		l, err := s.Lease(ctx, req)
		if err != nil {
			b.Fatal(err)
		}
		took, cpu = append(took, time.Since(began)), append(cpu, threadCPU(b)-beganCPU)
		b.StopTimer()
		if err := s.update(ctx, "undo", func(t *txn) error {
			r, err := t.current(l)
			if err != nil {
				return err
			}
			next := r.free(Free, t.now)
			return t.change(l.Addr, &r, &next)
		}); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	// Medians, and CPU time beside the clock's: the mean is the other users' of a shared machine.
	b.ReportMetric(median(took), "median-µs")
	b.ReportMetric(median(cpu), "cpu-median-µs")
}

func median(d []time.Duration) float64 {
	slices.Sort(d)
	return float64(d[len(d)/2].Nanoseconds()) / 1e3
}

func threadCPU(b *testing.B) time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
		b.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

func BenchmarkRead(b *testing.B) {
	s := benchStore(b, 200000)
	fillStore(b, s, 0, 100000)
	key := request(50000).Key
	b.ResetTimer()
	for range b.N {
		if v, err := s.Read(context.Background(), key); err != nil || v.Lease == nil {
			b.Fatal(v.Lease, err)
		}
	}
}

func BenchmarkSync_unchanged(b *testing.B) {
	s := benchStore(b, 200000)
	all := make([]netip.Addr, 200000)
	for i := range all {
		all[i] = netip.AddrFrom4([4]byte{10, byte(32 + i>>16), byte(i >> 8), byte(i)})
	}
	same := snap(all)
	b.ResetTimer()
	for range b.N {
		if err := s.Sync(context.Background(), same); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkFloor is what bbolt itself takes on the same store, under the same load, for an open, a transaction with one record
// and three index entries, and a close.
func BenchmarkFloor(b *testing.B) {
	const n = 200000
	s := benchStore(b, n)
	fillStore(b, s, 0, n-n/16)
	path := s.opt.Dir + "/" + storeFile
	cpu := make([]time.Duration, 0, b.N)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b.ResetTimer()
	for i := range b.N {
		began := threadCPU(b)
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoSync: true, NoGrowSync: true, FreelistType: bbolt.FreelistArrayType})
		if err != nil {
			b.Fatal(err)
		}
		err = db.Update(func(tx *bbolt.Tx) error {
			r := request(i * 7)
			key := make([]byte, 14)
			binary.BigEndian.PutUint32(key, uint32(i))
			return errors.Join(
				tx.Bucket([]byte(bucketV4)).Put(netip.AddrFrom4([4]byte{10, 33, byte(i >> 8), byte(i)}).AsSlice(), make([]byte, 200)),
				tx.Bucket([]byte(bucketKeys)).Put(r.Key[:12], make([]byte, 4)),
				tx.Bucket([]byte(bucketFree)).Put(key, make([]byte, 4)),
				tx.Bucket([]byte(bucketState)).Put(keyGeneration, make([]byte, 12)),
			)
		})
		if err = errors.Join(err, db.Close()); err != nil {
			b.Fatal(err)
		}
		cpu = append(cpu, threadCPU(b)-began)
	}
	b.ReportMetric(median(cpu), "cpu-median-µs")
}
