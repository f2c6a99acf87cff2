package boltfile

import (
	"errors"
	"fmt"

	bolt "go.etcd.io/bbolt/errors"
)

// Errors of taking a lock.
var (
	// ErrBusy says that somebody else held the lock until the context ended; the text names who.
	ErrBusy = errors.New("lock is busy")
)

// Errors of opening and using a store.
var (
	// ErrDamaged marks content that contradicts itself. Returned by a transaction's function it starts a rebuild.
	ErrDamaged = errors.New("store is damaged")
	// ErrNewerSchema says that a newer version of this program wrote the store. It is left alone.
	ErrNewerSchema = errors.New("store has a newer schema")
	// ErrUnusable says that the machine refuses the store: mode, owner, file system, or a rebuild that failed.
	ErrUnusable = errors.New("store is unusable")
)

// Reason says why a store is rebuilt.
type Reason string

// Reasons for a rebuild.
const (
	ReasonMissing Reason = "missing"
	ReasonEmpty   Reason = "empty"
	ReasonBoot    Reason = "of another boot"
	ReasonSchema  Reason = "of an older schema"
	ReasonDamaged Reason = "damaged"
)

// stale is the inner error that asks for a rebuild. It never leaves the package.
type stale struct {
	why   Reason
	cause error // nil unless damaged
}

func (s *stale) Error() string {
	if s.cause == nil {
		return fmt.Sprintf("store is %s", s.why)
	}
	return s.cause.Error()
}

func (s *stale) Unwrap() error { return s.cause }

// damage returns the stale error of content that can't be trusted.
func damage(format string, args ...any) error {
	return &stale{why: ReasonDamaged, cause: fmt.Errorf("%w: "+format, append([]any{ErrDamaged}, args...)...)}
}

// boltDamage lists the errors by which bbolt says that the file isn't one of its own, or no longer.
var boltDamage = []error{bolt.ErrInvalid, bolt.ErrInvalidMapping, bolt.ErrVersionMismatch, bolt.ErrChecksum}

func isBoltDamage(err error) bool {
	for _, e := range boltDamage {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
