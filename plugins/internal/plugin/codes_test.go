package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/boltfile"
	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/metadata"
	"github.com/native-vmss/native-vmss/pkg/node"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// The codes of the specification, and ours from 100 on.
func TestCoded(t *testing.T) {
	other := types.NewError(107, "from another plugin", "its details")
	tests := []struct {
		err  error
		code uint
	}{
		{node.ErrUnknownKey, 2},
		{node.ErrNetns, 4},
		{fmt.Errorf("%w: %w", node.ErrNetns, routes.ErrOwnNetns), 4},
		{node.ErrNamespace, 4},
		{node.ErrInterfaceExists, 4},
		{errArgs, 4},
		{boltfile.ErrUnusable, 5},
		{boltfile.ErrNewerSchema, 5},
		{boltfile.ErrDamaged, 5},
		{node.ErrStore, 5},
		{node.ErrKernel, 5},
		{fmt.Errorf("%w: %w", node.ErrKernel, routes.ErrNoNFTables), 5},
		{node.ErrConfig, 7},
		{allocator.ErrPoolExhausted, 11},
		{allocator.ErrReleasing, 11},
		{allocator.ErrNotAvailable, 11},
		{allocator.ErrStale, 11},
		{node.ErrAddressInUse, 11},
		{allocator.ErrNotOurs, 7},
		{fmt.Errorf("%w; %w", allocator.ErrNotOurs, node.ErrNoMetadata), 11},
		{boltfile.ErrBusy, 11},
		{node.ErrNoMetadata, 11},
		{node.ErrLeaseLost, 11},
		{node.ErrNICsChanged, 11},
		{node.ErrUnfit, 7},
		{node.ErrNICGone, 11},
		{fmt.Errorf("%w: %w", node.ErrNoMetadata, metadata.ErrMalformed), 11},
		{errors.Join(allocator.ErrPoolExhausted, node.ErrNoMetadata), 11},
		{context.DeadlineExceeded, 11},
		{context.Canceled, 11},
		{node.ErrNoAddresses, 50},
		{node.ErrBroken, 103},
		{other, 107},
		{routes.ErrForeignLink, 110},
		{fmt.Errorf("add route: %w", unix.EPERM), 110},
		{&os.PathError{Op: "open", Path: "/proc/sys/net", Err: unix.EROFS}, 110},
		{errors.New("anything"), 120},
	}
	for _, tt := range tests {
		wrapped := fmt.Errorf("do something: %w", tt.err)
		for _, err := range []error{tt.err, wrapped, errors.Join(tt.err, errors.New("undo: failed too"))} {
			var got *types.Error
			if !errors.As(coded(err), &got) || got.Code != tt.code {
				t.Errorf("coded(%v) = %+v, want code %d", err, got, tt.code)
				continue
			}
			if got.Error() != err.Error() { // libcni drops stderr: all of the text has to be in the document
				t.Errorf("coded(%q) says %q", err, got)
			}
		}
	}
	if err := coded(nil); err != nil {
		t.Errorf("coded(nil) = %v", err)
	}
	var got *types.Error
	if errors.As(coded(errors.Join(other)), &got); got != other {
		t.Errorf("another plugin's error is %+v", got)
	}
}

func TestNotReady(t *testing.T) {
	worse := types.NewError(51, "pods suffer", "")
	tests := []struct {
		err  error
		code uint
	}{
		{node.ErrNoAddresses, 50},
		{node.ErrUnknownKey, 50},
		{types.NewError(11, "busy", "details"), 50},
		{types.NewError(50, "not ready", ""), 50},
		{worse, 51},
	}
	for _, tt := range tests {
		var got *types.Error
		if err := NotReady(tt.err); !errors.As(err, &got) || got.Code != tt.code || got.Error() != tt.err.Error() {
			t.Errorf("NotReady(%v) = %+v", tt.err, got)
		}
	}
	if err := NotReady(nil); err != nil {
		t.Errorf("NotReady(nil) = %v", err)
	}
}

// No code but the specification's below 100, and no sentinel twice.
func TestCodes_table(t *testing.T) {
	seen := map[error]bool{}
	for _, c := range codes {
		if c.code < 100 && c.code != 50 && (c.code < 1 || c.code > 7) && c.code != 11 || c.code == 3 {
			t.Errorf("%v has code %d", c.is, c.code)
		}
		if seen[c.is] {
			t.Errorf("%v twice", c.is)
		}
		seen[c.is] = true
	}
}

func TestGuarded(t *testing.T) {
	var got *types.Error
	err := guarded(func(context.Context, *skel.CmdArgs) error { panic("oops") }, time.Second, &skel.CmdArgs{})
	if !errors.As(err, &got) || got.Code != 120 || got.Msg != "panic: oops" {
		t.Errorf("a panic is %+v", err)
	}
	err = guarded(func(ctx context.Context, _ *skel.CmdArgs) error { <-ctx.Done(); return ctx.Err() }, time.Millisecond, &skel.CmdArgs{})
	if !errors.As(err, &got) || got.Code != 11 {
		t.Errorf("a deadline is %+v", err)
	}
}

func TestBounded(t *testing.T) {
	short := strings.Repeat("x", 2*textHalf)
	if got := bounded(short); got != short {
		t.Errorf("a text of %d bytes was cut", len(short))
	}
	long := "begin " + strings.Repeat("é", 1<<20) + " end"
	got := bounded(long)
	if len(got) > 2*textHalf+64 || !strings.HasPrefix(got, "begin ") || !strings.HasSuffix(got, " end") || !utf8.ValidString(got) {
		t.Errorf("bounded: %d bytes, valid %v, %.20q … %q", len(got), utf8.ValidString(got), got, got[len(got)-10:])
	}
}
