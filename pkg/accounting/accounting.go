package accounting

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

// Directions, as the subject sees them.
const (
	RX = "rx"
	TX = "tx"
)

// Classes that are always there, after the configuration's own.
const (
	Cluster  = "cluster"  // nativeCIDRs, the subnets of the node's NICs, the platform's, link-local and loopback addresses
	Internet = "internet" // all else
)

// Names of the backends, as a configuration spells them.
const (
	NFTables = "nftables"
	IPTables = "iptables"
	None     = "none"
)

var (
	// ErrNotApplied says that the static part is missing or was made from another configuration: Apply makes it.
	ErrNotApplied = errors.New("accounting is not set up")
	// ErrUnavailable says what the host lacks: a kernel feature, or a binary.
	ErrUnavailable = errors.New("accounting can't work here")
	// ErrLocked says that another tool held the lock of iptables for too long.
	ErrLocked = errors.New("iptables is locked by another tool")
)

// Config is what the static part is made from.
type Config struct {
	Hash    string   // names the configuration
	Classes []Class  // in order, the first that holds the peer counts; the last is Cluster. What none holds is Internet
	NICs    []string // links whose traffic with the node's own addresses is the node's
	// MarkMask is where the packets of a pod carry its number; zero: nowhere.
	MarkMask uint32
}

// Class is a name for peers.
type Class struct {
	Name     string
	Prefixes []netip.Prefix // may overlap
}

// Subject is an address whose traffic is counted.
type Subject struct {
	Addr netip.Addr
	Slot uint16 // number of the address on this node, from 1; its packets carry it inside MarkMask if it fits
	// Used says that a pod has it; its names may be empty.
	Used bool
	// Counted says that it was counted up to now: that its counters don't stand is another's doing.
	Counted bool
	// Names of the pod that has it, for the comments of iptables rules; nftables doesn't know them.
	Namespace, Pod string
}

// Sample is one counter's value.
type Sample struct {
	Direction string
	Class     string
	Bytes     uint64
	Packets   uint64
}

// Reading is what all counters said at one moment.
type Reading struct {
	Pods map[netip.Addr][]Sample // by address, whosever the counters are
	Node []Sample

	of func(Subject) []Sample // nil: an address's counters are those of whoever has it
}

// Of are the values of a subject; nil where there are none, or they are of another pod with that address.
func (r Reading) Of(s Subject) []Sample {
	if r.of != nil {
		return r.of(s)
	}
	return r.Pods[s.Addr]
}

// Backend is one way to count. Its methods may be called at the same time, by several processes; none blocks for longer than its
// context allows. Each change of the kernel is one transaction: a kill leaves it done or not done (by iptables-legacy done, without the
// values of the counters, where it falls between the kernel's two steps).
type Backend interface {
	// Apply makes the static part as conf has it and the objects of these subjects, puts right what others changed, and removes the
	// objects of all other addresses. Counters that stand keep their values. It returns a line for each thing that it changed;
	// where what it found may have counted packets twice or not at all, the line comes in doubted too.
	Apply(ctx context.Context, conf Config, subjects []Subject) (changed, doubted []string, err error)
	// Start makes the objects of one subject unless they stand, and returns their values: the new pod's bytes are those above them.
	// ErrNotApplied without the static part.
	Start(ctx context.Context, conf Config, s Subject) ([]Sample, error)
	// Stop returns a subject's last values, once no packet of it comes any more; nil without an error where it has no counters.
	// What need not stay for the next pod with that address is removed.
	Stop(ctx context.Context, s Subject) ([]Sample, error)
	// Read returns all values, by one dump; ErrNotApplied where nothing counts.
	Read(ctx context.Context) (Reading, error)
	// Standing names what stands. Who removes it all and makes it again, with whatever values, changes the name; so may Apply. Empty:
	// there is nothing, or it can't be told.
	Standing(ctx context.Context) (string, error)
	// Halt ends the counting: values stay as they are until Drop. That there is nothing is no error.
	Halt(ctx context.Context) error
	// Drop removes everything that this backend has made. That there is nothing is no error.
	Drop(ctx context.Context) error
	// Close gives sockets back.
	Close()
}

// Mark returns the mark of a subject under a mask; zero where it has none.
func Mark(mask uint32, slot uint16) uint32 {
	if mask == 0 || slot == 0 {
		return 0
	}
	shift := 0
	for mask>>shift&1 == 0 {
		shift++
	}
	m := uint32(slot) << shift
	if m&^mask != 0 || m>>shift != uint32(slot) {
		return 0
	}
	return m
}

// Usage is what pods and the node have sent and got so far, as it is in the totals.
type Usage struct {
	Backend  string
	Off      string // why nothing is counted now, whoever wants it so; empty: it is
	MarksOff string // why packets carry no marks, where the configuration wants them; empty: they do
	Stale    bool   // the counters could not be read: values are those of the last fold
	Pods     []PodUsage
	// Namespaces has the sum of all pods that ever were in a namespace since the boot or the loss of the store.
	Namespaces []NamespaceUsage
	Node       []Sample
	Resets     map[string]uint64        // by reason, how often counters were found lower than before, doubled or lost
	Unknown    map[string]time.Duration // by namespace, how long pods went uncounted
}

// PodUsage is the traffic of one pod; a pod with several sandboxes comes several times.
type PodUsage struct {
	Namespace, Pod string
	Addr           netip.Addr
	Use            uint64 // tells two uses of one address apart
	Mark           uint32 // zero: none
	Off            bool   // not counted now
	Samples        []Sample
}

// NamespaceUsage is the traffic of one namespace.
type NamespaceUsage struct {
	Namespace string
	Samples   []Sample
}
