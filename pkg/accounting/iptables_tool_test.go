package accounting

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/nstest"
)

// BR-53: another tool's lock is waited for, but not for ever, and nothing is left half done.
func TestNetnsIPTables_locked(t *testing.T) {
	dir := usePath(t, "legacy")
	ns := nstest.New(t)
	b := newIPTables(t)
	conf := testConf()
	apply(t, b, conf, pod(1, "a"))
	before := rules(t, ns, "legacy")
	lock, err := os.Open(os.Getenv("XTABLES_LOCKFILE"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	_, err = b.Start(t.Context(), conf, pod(2, "b"))
	_, _, err2 := b.Apply(t.Context(), conf, nil)
	_, err3 := b.Stop(t.Context(), pod(1, "a"))
	for _, err := range []error{err, err2, err3, b.Drop(t.Context())} {
		if !errors.Is(err, ErrLocked) {
			t.Errorf("under the lock: %v", err)
		}
	}
	if _, err := b.Read(t.Context()); !errors.Is(err, ErrLocked) { // who holds it may be between the two steps of a change
		t.Errorf("a reading under the lock: %v", err)
	}
	if err := b.(*xtables).tool.restore(t.Context(), "*mangle\n-N X\nCOMMIT\n"); !errors.Is(err, ErrLocked) { // the tool says so itself
		t.Errorf("a change under the lock: %v", err)
	}
	if got := rules(t, ns, "legacy"); strings.Join(got, "\n") != strings.Join(before, "\n") {
		t.Errorf("changed under the lock: %v", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := b.Start(ctx, conf, pod(2, "b")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a caller with less time: %v", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	start(t, b, conf, pod(2, "b"))
	os.Remove(filepath.Join(dir, "lock"))
	start(t, b, conf, pod(3, "c")) // without the file
}

// BR-53: a tool that ends at once with "locked" is asked again; each end of a start is counted in a file.
func TestNetnsIPTables_lockedTwice(t *testing.T) {
	forFlavours(t, func(t *testing.T, flavour string) {
		dir := usePath(t, flavour)
		nstest.New(t)
		wrapper(t, dir, "iptables-restore", fmt.Sprintf(`echo x >> %[1]s/starts
if [ "$(wc -l < %[1]s/starts)" -le 2 ]; then
	echo "Another app is currently holding the xtables lock. Perhaps you want to use the -w option?" >&2
	exit 4
fi
exec iptables-%[2]s-restore "$@"`, dir, flavour))
		b := newIPTables(t)
		apply(t, b, testConf(), pod(1, "a"))
		starts, err := os.ReadFile(filepath.Join(dir, "starts"))
		if err != nil || string(starts) != "x\nx\nx\n" {
			t.Errorf("starts: %q, %v", starts, err)
		}
	})
}

// BR-53: where the lock file can't be made accounting is off, and says why.
func TestNetnsIPTables_lockFile(t *testing.T) {
	dir := usePath(t, "legacy")
	nstest.New(t)
	t.Setenv("XTABLES_LOCKFILE", filepath.Join(dir, "no", "such", "folder"))
	if _, _, err := newIPTables(t).Apply(t.Context(), testConf(), nil); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "lock file") {
		t.Errorf("no place for the lock: %v", err)
	}
}

// A tool that hangs ends with its caller's time.
func TestNetnsIPTables_hangs(t *testing.T) {
	for _, name := range []string{"iptables-save", "iptables-restore"} {
		t.Run(name, func(t *testing.T) {
			dir := usePath(t, "nft")
			nstest.New(t)
			wrapper(t, dir, name, "[ \"$1\" = -V ] && exec iptables-nft-save -V\nexec sleep 1000")
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			if _, _, err := newIPTables(t).Apply(ctx, testConf(), nil); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
	}
}

// BR-54, 1 to 5 and 8: a pod counts once, whatever stands in either flavour and whichever is the one in PATH.
func TestNetnsIPTables_flavours(t *testing.T) {
	foreign := func(t *testing.T, flavour string, n int) {
		var text strings.Builder
		text.WriteString("*mangle\n")
		for i := range n {
			fmt.Fprintf(&text, "-A FORWARD -s 10.77.0.%d/32 -j MARK --set-xmark 0x4000/0x4000\n", i)
		}
		restore(t, flavour, text.String()+"COMMIT\n", "--noflush")
	}
	tests := []struct {
		name        string
		legacy, nft int      // rules of others
		turns       []string // flavours in PATH, one after the other
	}{
		{"1 both have rules", 10, 2, []string{"nft"}},
		{"1 both have rules, legacy in PATH", 10, 2, []string{"legacy"}},
		{"2 none has any", 0, 0, []string{"nft"}},
		{"3 ours in the other", 0, 2, []string{"nft", "legacy"}},
		{"8 there and back", 2, 2, []string{"legacy", "nft", "legacy", "nft"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t)
			if tt.legacy > 0 {
				foreign(t, "legacy", tt.legacy)
			}
			if tt.nft > 0 {
				foreign(t, "nft", tt.nft)
			}
			var b Backend
			for i, flavour := range tt.turns {
				usePath(t, flavour)
				b = newIPTables(t)
				_, doubted := apply(t, b, testConf(), l.subjects[:]...)
				if len(doubted) != 0 {
					t.Errorf("turn %d: doubted %v", i, doubted)
				}
				ping(l.pods[0], "10.1.0.2")
				ping(l.node, "203.0.113.2")
				r := read(t, b)
				wantBytes(t, flavour, r.Pods[l.subjects[0].Addr], TX, Cluster, (i+1)*pings*pingBytes)
				wantBytes(t, flavour, r.Pods[l.subjects[0].Addr], RX, Cluster, (i+1)*pings*pingBytes)
				wantBytes(t, flavour, r.Node, TX, Internet, (i+1)*pings*pingBytes)
				for _, f := range flavours {
					if f == "legacy" && !hasLegacyTable() {
						continue
					}
					all := rules(t, l.node, f)
					if ours := countOf(all, chainPrefix); (ours > 0) != (f == flavour) {
						t.Errorf("turn %d, %s in PATH: %d rules of ours in %s", i, flavour, ours, f)
					}
					if n := countOf(all, "10.77."); n != map[string]int{"nft": tt.nft, "legacy": tt.legacy}[f] {
						t.Errorf("turn %d: %d foreign rules in %s", i, n, f)
					}
				}
			}
			usePath(t, "nft")
			if _, _, err := newIPTables(t).Apply(t.Context(), testConf(), l.subjects[:]); err != nil {
				t.Fatal(err)
			}
			if err := b.Drop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if n := countOf(rules(t, l.node, "nft"), chainPrefix); n != 0 {
				t.Errorf("%d rules left by drop", n)
			}
		})
	}
}

// BR-54, 4 to 7: which programs do.
func TestNetnsIPTables_programs(t *testing.T) {
	only := func(t *testing.T, names ...string) string {
		dir := t.TempDir()
		for _, name := range names {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", dir)
		return dir
	}
	for _, names := range [][]string{
		{"iptables-save", "iptables-restore"},
		{"iptables-nft-save", "iptables-nft-restore"},
		{"iptables-legacy-save", "iptables-legacy-restore"},
	} {
		t.Run(names[0], func(t *testing.T) {
			t.Setenv("XTABLES_LOCKFILE", filepath.Join(t.TempDir(), "lock"))
			nstest.New(t)
			only(t, names...)
			b := newIPTables(t)
			apply(t, b, testConf(), pod(1, "a"))
			if r := read(t, b); len(r.Pods) != 1 {
				t.Errorf("%v", r)
			}
		})
	}
	for _, names := range [][]string{{}, {"nft"}, {"iptables"}} {
		t.Run(fmt.Sprint("not", names), func(t *testing.T) {
			only(t, names...)
			if _, err := NewIPTables(nil); !errors.Is(err, ErrUnavailable) {
				t.Errorf("%v", err)
			}
		})
	}
	t.Run("no table", func(t *testing.T) {
		dir := usePath(t, "nft")
		nstest.New(t)
		says := `echo "iptables v1.8.9 (legacy): can't initialize iptables table 'mangle': Table does not exist (do you need to insmod?)" >&2; exit 3`
		wrapper(t, dir, "iptables-save", "[ \"$1\" = -V ] && exec iptables-legacy-save -V\n"+says)
		wrapper(t, dir, "iptables-restore", says)
		_, _, err := newIPTables(t).Apply(t.Context(), testConf(), nil)
		if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "Table does not exist") {
			t.Errorf("%v", err)
		}
	})
	t.Run("gone while we run", func(t *testing.T) {
		dir := usePath(t, "nft")
		nstest.New(t)
		b := newIPTables(t)
		os.Remove(filepath.Join(dir, "iptables-save"))
		if _, err := b.Read(t.Context()); !errors.Is(err, ErrUnavailable) {
			t.Errorf("%v", err)
		}
	})
}

// A dump that ends early is no reading.
func TestNetnsIPTables_truncated(t *testing.T) {
	dir := usePath(t, "nft")
	nstest.New(t)
	apply(t, newIPTables(t), testConf(), pod(1, "a"))
	wrapper(t, dir, "iptables-save", `iptables-nft-save "$@" | head -n 20`)
	if r, err := newIPTables(t).Read(t.Context()); !errors.Is(err, errTruncated) {
		t.Errorf("%v, %v", r, err)
	}
}

// A flavour that can't work here has nothing of ours: it stops nobody.
func TestNetnsIPTables_otherUnusable(t *testing.T) {
	dir := usePath(t, "legacy")
	nstest.New(t)
	wrapper(t, dir, "iptables-nft-save", `echo "iptables-nft-save/1.8.9 Failed to initialize nft: Protocol not supported" >&2; exit 1`)
	wrapper(t, dir, "iptables-nft-restore", "exit 1")
	wrapper(t, dir, "iptables-save", `[ "$1" = -V ] && { [ -e `+dir+`/asked ] || { : > `+dir+`/asked; exit 1; }; }
exec iptables-legacy-save "$@"`)
	b := newIPTables(t)
	if _, _, err := b.Apply(t.Context(), testConf(), nil); err == nil {
		t.Error("no answer to what flavour it is, and no error")
	}
	apply(t, b, testConf(), pod(1, "a")) // a question that failed is asked again
	if err := b.Drop(t.Context()); err != nil {
		t.Error(err)
	}
}
