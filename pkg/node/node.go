package node

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"

	"github.com/native-vmss/native-vmss/internal/boltfile"
	"github.com/native-vmss/native-vmss/internal/boot"
	"github.com/native-vmss/native-vmss/pkg/accounting"
	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// Files in the state directory, beside the store's own ipam.db and ipam.lock.
const (
	nodeLockFile       = "node.lock"
	metadataLockFile   = "metadata.lock"
	foldLockFile       = "fold.lock"
	containersLockFile = "containers.lock"
)

// Attachment is what a caller asks for.
type Attachment struct {
	Key
	Netns     string // path; ADD and CHECK only
	Namespace string // of the pod; names are for people, never identity
	Pod       string
	UID       string
	Want      netip.Addr // a requested address; zero: any
	MAC       *[6]byte   // a requested MAC of the pod's end
	Main      string     // type of the main plugin that makes the link; empty: native-vmss
	// Orphaned reports whether the caller is gone, so that nobody will ever read the answer; nil: never.
	Orphaned func() bool
}

// UnknownName stands for the pod and the main plugin of an address that a rebuilt store found marked as in use.
const UnknownName = "unknown"

// Result is what ADD made.
type Result struct {
	Addr     netip.Addr
	HostLink string
	HostMAC  [6]byte
	PodMAC   [6]byte
	MTU      int
}

// Node does the work of one process on one node. It is made per invocation and holds netlink sockets of the namespace in
// which it was opened.
type Node struct {
	conf   Conf
	log    *slog.Logger
	store  *allocator.Store
	kernel *routes.Kernel
	addrs  Addresses
	place  place // of this process
	// known is the record that this invocation has read or written; nil before. What it says of the NICs may be read from
	// it; a decision about the record itself reads the store.
	known *record
	// uncounted says that this invocation's ADD has not come to the pod's counters yet.
	uncounted bool
	// noted is told of each thing that Repair puts right; nil otherwise.
	noted func(what string)
	// pending is what Repair found that the next ADD will change.
	pending string
}

// Open makes a Node. It opens sockets and reads the boot's id; the store is opened at its first use. A nil log discards; nil addrs takes the allocator's.
func Open(conf Conf, addrs Addresses, log *slog.Logger) (*Node, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	bootID, err := boot.ID()
	if err != nil {
		return nil, err
	}
	at, err := herePlace(bootID)
	if err != nil {
		return nil, err
	}
	kernel, err := routes.New(log)
	if err != nil {
		return nil, err
	}
	n := &Node{conf: conf, log: log, kernel: kernel, addrs: addrs, place: at}
	n.store = allocator.Open(allocator.Options{
		Dir: conf.IPAM.StateDir, CoolDown: conf.IPAM.CoolDown, LockTimeout: conf.IPAM.LockTimeout,
		BootID: bootID, Now: boot.Clock, Kernel: n.observe, Log: log,
	})
	if n.addrs == nil {
		n.addrs = local{n}
	}
	return n, nil
}

// Close gives the sockets back.
func (n *Node) Close() { n.kernel.Close() }

// observe answers a rebuild's question: who holds which address, and did we run in this boot? (I8)
func (n *Node) observe(ctx context.Context) (allocator.Observed, error) {
	ran, err := n.kernel.PolicyTableExists(ctx)
	if err != nil {
		return allocator.Observed{}, err
	}
	links, err := n.kernel.Links(ctx)
	if err != nil {
		return allocator.Observed{}, err
	}
	seen := allocator.Observed{Ran: ran}
	for _, l := range links {
		// An unfinished ADD holds nothing, and what another IPAM gave is none of the store's.
		if !l.Marked || l.Alias.Generation == NoLease {
			continue
		}
		a := l.Alias
		seen.Holders = append(seen.Holders, allocator.Holder{
			Addr: a.Addr, Generation: a.Generation, Key: a.Key, Network: a.Network, NetnsInode: a.NetnsInode,
			Pod: a.Pod, Main: mainType, Metered: n.conf.Wide.Accounting != accounting.None,
		})
	}
	n.note("store made from what the kernel has: addresses of %d pods", len(seen.Holders))
	// What other main plugins' pods have is noted in the kernel, but not whose it is: such a lease stays until the machine
	// boots again.
	marked, err := n.kernel.Markers(ctx)
	if err != nil {
		return allocator.Observed{}, err
	}
	for _, a := range marked {
		seen.Holders = append(seen.Holders, allocator.Holder{
			Addr: a, Generation: uint64(boot.Clock()), Key: Key{IfName: a.String()}.Hash(), Pod: UnknownName, Main: UnknownName,
		})
	}
	return seen, nil
}

func (n *Node) path(file string) string { return filepath.Join(n.conf.IPAM.StateDir, file) }

// lockContainer serialises ADD, DEL, CHECK and sweep of one container.
func (n *Node) lockContainer(ctx context.Context, offset int64) (*boltfile.Held, error) {
	ctx, cancel := context.WithTimeout(ctx, n.conf.IPAM.LockTimeout)
	defer cancel()
	return boltfile.LockRange(ctx, n.path(containersLockFile), offset)
}

// Leases lists every address that the store knows, free ones included, in address order.
func (n *Node) Leases(ctx context.Context) ([]allocator.Lease, error) { return n.store.List(ctx) }
