package node

import (
	"errors"
	"fmt"
)

// Configuration.
var (
	// ErrConfig is a value that can't be used; the text names the key.
	ErrConfig = errors.New("invalid configuration")
	// ErrUnknownKey is a key of ours that we don't know; the text names it, its value and the nearest known one.
	ErrUnknownKey = errors.New("unknown configuration key")
)

// The attachment.
var (
	// ErrInterfaceExists says that the pod already has an interface of the asked name; nothing was touched.
	ErrInterfaceExists = errors.New("interface exists in the pod")
	// ErrAttached says that a pod of another main plugin has its address and its interface already; nothing was touched.
	ErrAttached = errors.New("already attached")
	// ErrNetns is a CNI_NETNS that is no network namespace of a pod.
	ErrNetns = errors.New("not usable as a pod's network namespace")
	// ErrNamespace says that a command that judges pods runs in another network namespace than they were made from.
	ErrNamespace = errors.New("wrong network namespace")
	// ErrUnfit is an address from another IPAM plugin that can't be a pod's; the text has it and says why.
	ErrUnfit = errors.New("address can't be a pod's")
	// ErrAddressInUse says that an address that another IPAM plugin gave is held by somebody else on this node.
	ErrAddressInUse = errors.New("address is in use")
	// ErrLeaseLost: the store was lost or replaced while the pod was wired.
	ErrLeaseLost = errors.New("the lease was lost while the pod was wired")
	// ErrBroken is what CHECK returns: the text lists what is missing or wrong.
	ErrBroken = errors.New("attachment is broken")
)

// The node.
var (
	// ErrNoMetadata says that no address is known to be free and the metadata service gave no usable answer.
	ErrNoMetadata = errors.New("no usable answer from the metadata service")
	// ErrNICGone says that the NIC of a leased address was taken off the node since; the next try gets another address.
	ErrNICGone = errors.New("the NIC of the address is gone")
	// ErrNICsChanged says that a NIC was renamed or taken off while rules were written for it.
	ErrNICsChanged = errors.New("the node's NICs changed meanwhile")
	// ErrHasPods says that nothing was changed because pods live on addresses of this node; the text has their number.
	ErrHasPods = errors.New("nothing was changed: pods have addresses here")
	// ErrInstalled says that nothing was removed, since a runtime may still call us; the text names the file.
	ErrInstalled = errors.New("nothing was removed: a configuration of the runtime names a plugin of ours")
	// ErrNICSkipped says that nothing is handed out of a NIC; the text says why.
	ErrNICSkipped = errors.New("a NIC can't be used for pods")
	// ErrNoAddresses says that no pod address has ever been known on this node.
	ErrNoAddresses = errors.New("no pod address known")
	// ErrUnknownLink is a pod's link of which the store knows nothing; it was left alone.
	ErrUnknownLink = errors.New("link of a pod that the store doesn't know (another state directory, or an old copy of the store?)")
	// ErrNotOurs is something of others that stops pods' packets and that is not ours to change; the text names it and says what helps.
	ErrNotOurs = errors.New("somebody else's to change")
	// ErrStore says that the store could not be used.
	ErrStore = errors.New("store unusable")
	// ErrKernel says that the kernel lacks something without which a pod would not be safe.
	ErrKernel = errors.New("kernel support missing")
)

// keyError is an ErrConfig or ErrUnknownKey about one key.
func keyError(kind error, key, format string, args ...any) error {
	return fmt.Errorf("%w: %s: %s", kind, key, fmt.Sprintf(format, args...))
}
