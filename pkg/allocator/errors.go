package allocator

import (
	"errors"
	"fmt"

	"github.com/native-vmss/native-vmss/internal/boltfile"
)

// Errors of asking for an address.
var (
	// ErrPoolExhausted says that no address can be handed out now; the text has the totals and when the next one is ready.
	ErrPoolExhausted = errors.New("no assignable address")
	// ErrReleasing says that the key's earlier lease is still being torn down.
	ErrReleasing = errors.New("lease is being released")
	// ErrNotAvailable says why the address that was asked for by name can't be had.
	ErrNotAvailable = errors.New("requested address is not available")
	// ErrNotOurs says that the address that was asked for by name is none that this node could ever hand out.
	ErrNotOurs = errors.New("requested address can't be a pod's here")
	// ErrOrphaned says that who asked is gone: nothing was leased.
	ErrOrphaned = errors.New("caller is gone")
)

// Errors of changing a lease.
var (
	// ErrStale says that the lease that was passed is no longer the address's current one.
	ErrStale = errors.New("lease is not the current one")
)

// damaged says that the store contradicts itself: boltfile sets it aside and rebuilds it.
func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{boltfile.ErrDamaged}, args...)...)
}
