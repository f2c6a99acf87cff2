package allocator

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/boltfile"
)

// envCounted makes the test binary a process that leases, sends, folds and ends: "<dir>:<worker>:<rounds>".
const envCounted = "NVT_ALLOCATOR_COUNTED"

// counted is a node's traffic in a file: a line for each packet, written in one go, which a kill leaves whole or not there. Its sums
// by address are the kernel's counters, those by namespace the truth.
type counted struct {
	*Store
	dir string
}

func (c counted) packets() string { return filepath.Join(c.dir, "packets") }

func (c counted) send(a netip.Addr, namespace string, n int) error {
	f, err := os.OpenFile(c.packets(), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = fmt.Fprintf(f, "%s %s %d\n", a, namespace, n)
	return err
}

func (c counted) sums() (byAddr map[netip.Addr]uint64, byNamespace map[string]uint64, err error) {
	byAddr, byNamespace = map[netip.Addr]uint64{}, map[string]uint64{}
	b, err := os.ReadFile(c.packets())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		n, err := strconv.ParseUint(f[2], 10, 64)
		if err != nil {
			return nil, nil, err
		}
		byAddr[netip.MustParseAddr(f[0])] += n
		byNamespace[f[1]] += n
	}
	return byAddr, byNamespace, nil
}

func (c counted) values(a netip.Addr) ([]Sample, error) {
	byAddr, _, err := c.sums()
	return []Sample{{"tx", "internet", byAddr[a], 0}}, err
}

// locked is what fold.lock is to a node: between a reading and its fold nobody folds a later one.
func (c counted) locked(fn func() error) error {
	held, err := boltfile.Lock(context.Background(), filepath.Join(c.dir, "fold.lock"))
	if err != nil {
		return err
	}
	defer held.Unlock()
	return fn()
}

func (c counted) foldAll() error {
	return c.locked(func() error {
		b, err := c.Books(context.Background())
		if err != nil {
			return err
		}
		f := Fold{Made: true, Live: map[netip.Addr]Use{}}
		for _, m := range b.Meters {
			samples, err := c.values(m.Addr)
			if err != nil {
				return err
			}
			f.Live[m.Addr] = Use{m.Use, samples}
		}
		_, err = c.Fold(context.Background(), f)
		return err
	})
}

// end is a DEL, which may follow one that was killed.
func (c counted) end(key Hash) error {
	l, found, err := c.Release(context.Background(), key)
	if err != nil || !found {
		return err
	}
	return c.locked(func() error {
		last, err := c.values(l.Addr)
		if err != nil {
			return err
		}
		return c.Cool(context.Background(), l, last)
	})
}

// pod is an attachment's whole life. A new use begins at the values that the counters have: the last use folded them.
func (c counted) pod(req Request) error {
	l, err := c.Lease(context.Background(), req)
	if err != nil {
		return err
	}
	values, err := c.values(l.Addr)
	if err != nil {
		return err
	}
	folded := uint64(0)
	for _, s := range l.Meter.Series {
		folded += s.Folded.Bytes
	}
	if folded != values[0].Bytes || l.Meter.Off != 0 {
		return fmt.Errorf("%s begins with %+v, its counter is at %d", l.Addr, l.Meter, values[0].Bytes)
	}
	for range 3 {
		if err := c.send(l.Addr, req.Namespace, 1+rand.IntN(1000)); err != nil {
			return err
		}
		if err := c.foldAll(); err != nil {
			return err
		}
	}
	if err := c.send(l.Addr, req.Namespace, 1+rand.IntN(1000)); err != nil {
		return err
	}
	return c.end(req.Key)
}

func countedWork(v string) error {
	f := strings.Split(v, ":")
	c := counted{processStore(f[0]), f[0]}
	worker, _ := strconv.Atoi(f[1])
	rounds, _ := strconv.Atoi(f[2])
	for i := range rounds {
		err := c.pod(meteredRequest(worker*1000+i, fmt.Sprint("ns-", i%3)))
		if errors.Is(err, ErrPoolExhausted) {
			time.Sleep(time.Millisecond)
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// balanced ends what killed processes left and checks that each byte is in exactly one total.
func (f *fixture) balanced(c counted) {
	f.t.Helper()
	for _, l := range f.byAddr() {
		if l.State == Leased || l.State == Releasing {
			f.must(c.end(l.Owner.Key))
		}
	}
	_, want, err := c.sums()
	f.must(err)
	got := map[string]uint64{}
	for _, o := range f.books().Totals {
		got[o.Namespace] += o.Bytes
	}
	for ns, n := range want {
		if got[ns] != n {
			f.t.Errorf("namespace %s has %d bytes in its total, its pods sent %d", ns, got[ns], n)
		}
	}
	if b := f.books(); len(b.Resets)+len(b.Unknown) > 0 {
		f.t.Errorf("resets %v, unknown %v", b.Resets, b.Unknown)
	}
	f.invariants()
}

func startCounted(t *testing.T, dir string, worker, rounds int, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), fmt.Sprintf("%s=%s:%d:%d", envCounted, dir, worker, rounds)), env...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// Eight processes lease, send, fold and end, some are killed at a random time: nothing is counted twice or lost.
func TestStore_books_manyProcesses(t *testing.T) {
	f := &fixture{t: t, dir: memDir(t)}
	f.Store = processStore(f.dir)
	c := counted{f.Store, f.dir}
	f.sync(pool(12))
	const workers, victims, rounds = 8, 3, 15
	var cmds []*exec.Cmd
	for w := range workers {
		cmds = append(cmds, startCounted(t, f.dir, w, rounds))
	}
	endWorkers(t, cmds, victims)
	f.balanced(c)
}
