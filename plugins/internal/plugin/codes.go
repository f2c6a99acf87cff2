package plugin

import (
	"context"
	"errors"
	"syscall"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/native-vmss/native-vmss/internal/boltfile"
	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/node"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// Codes of our own; the specification keeps 0-99 for itself.
const (
	codeAttached = 100 // ipam-vmss: the pod has its interface already
	codeBroken   = 103 // CHECK: something of the attachment is missing or wrong
	codeKernel   = 110 // the kernel refused an operation, or shows what somebody else made
	codeInternal = 120 // a fault of ours
	codeNotReady = 50  // the specification's "plugin not available", STATUS only
)

// codes maps each sentinel to the code of the specification's list, the first match wins.
var codes = []struct {
	is   error
	code uint
}{
	{node.ErrUnknownKey, types.ErrUnsupportedField},
	{node.ErrConfig, types.ErrInvalidNetworkConfig},
	{node.ErrUnfit, types.ErrInvalidNetworkConfig},
	{node.ErrNetns, types.ErrInvalidEnvironmentVariables},
	{node.ErrNamespace, types.ErrInvalidEnvironmentVariables},
	{node.ErrInterfaceExists, types.ErrInvalidEnvironmentVariables},
	{node.ErrAttached, codeAttached},
	{errArgs, types.ErrInvalidEnvironmentVariables},
	{allocator.ErrPoolExhausted, types.ErrTryAgainLater},
	{allocator.ErrReleasing, types.ErrTryAgainLater},
	{allocator.ErrNotAvailable, types.ErrTryAgainLater},
	{boltfile.ErrBusy, types.ErrTryAgainLater},
	{node.ErrNoMetadata, types.ErrTryAgainLater},
	{node.ErrAddressInUse, types.ErrTryAgainLater},
	{allocator.ErrStale, types.ErrTryAgainLater},
	{allocator.ErrNotOurs, types.ErrInvalidNetworkConfig}, // unless metadata couldn't be asked whether it is new
	{node.ErrLeaseLost, types.ErrTryAgainLater},
	{node.ErrNICGone, types.ErrTryAgainLater},
	{node.ErrNICsChanged, types.ErrTryAgainLater},
	{node.ErrNoAddresses, codeNotReady},
	{node.ErrBroken, codeBroken},
	{boltfile.ErrUnusable, types.ErrIOFailure},
	{boltfile.ErrNewerSchema, types.ErrIOFailure},
	{boltfile.ErrDamaged, types.ErrIOFailure},
	{node.ErrStore, types.ErrIOFailure},
	{node.ErrKernel, types.ErrIOFailure},
	{node.ErrUnknownLink, codeKernel},
	{routes.ErrForeignLink, codeKernel},
	{routes.ErrLinkExists, codeKernel},
	{routes.ErrRouteExists, codeKernel},
	{routes.ErrNotStale, codeKernel},
	{routes.ErrNotGone, codeKernel},
	{routes.ErrUnsettled, codeKernel},
	{context.DeadlineExceeded, types.ErrTryAgainLater},
	{context.Canceled, types.ErrTryAgainLater},
}

// coded turns an error into the document's. One that came from another plugin stays as it is; with text around it, its code
// stays and the text is kept.
func coded(err error) error {
	if err == nil {
		return nil
	}
	var e *types.Error
	if errors.As(err, &e) {
		if err.Error() == e.Error() {
			return e
		}
		return types.NewError(e.Code, err.Error(), "")
	}
	for _, c := range codes {
		if errors.Is(err, c.is) {
			return types.NewError(c.code, err.Error(), "")
		}
	}
	var refused syscall.Errno
	if errors.As(err, &refused) {
		return types.NewError(codeKernel, err.Error(), "")
	}
	return types.NewError(codeInternal, err.Error(), "")
}

// NotReady makes any failure of STATUS the one code that runtimes know.
func NotReady(err error) error {
	if err == nil {
		return nil
	}
	var e *types.Error
	if errors.As(err, &e) && (e.Code == codeNotReady || e.Code == codeNotReady+1) {
		return e
	}
	return types.NewError(codeNotReady, err.Error(), "")
}
