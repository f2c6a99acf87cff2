package allocator

import (
	"fmt"
	"net/netip"
	"time"
)

// Hash is the first half of a SHA-256. The key of a lease hashes network \0 container id \0 interface name.
type Hash = [16]byte

// MAC is the hardware address that tells NICs apart.
type MAC [6]byte

func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// State is where an address stands between two pods.
type State uint8

// States, in the order an address goes through them.
const (
	Free State = iota
	Leased
	Releasing
	Cooling
	states // how many there are
)

func (s State) String() string {
	if s < states {
		return [...]string{"free", "leased", "releasing", "cooling"}[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// Reason is why an address that would be free is not handed out. It stands beside the state and never changes it.
type Reason uint8

// Reasons to block an address.
const (
	NotBlocked  Reason = iota
	OnHostLink         // the address is on one of the node's own links (stock cloud-init does that)
	UsedByOther        // the kernel has a foreign route for it
	reasons            // how many there are
)

func (r Reason) String() string {
	if r < reasons {
		return [...]string{"", "on-host-link", "used-by-other"}[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// Owner is whom an address is leased to. Only the hashes are known after a rebuild; the rest is for people, labels and DEL.
type Owner struct {
	Key, Network Hash
	NetworkName  string
	ContainerID  string
	IfName       string
	Namespace    string
	Pod          string // after a rebuild the "namespace/pod" of the link's alias, cut, with Namespace empty
	UID          string
	Netns        string
	NetnsInode   uint64
	Main         string // type of the main plugin
}

// Request asks for an address.
type Request struct {
	Owner
	LinkName string     // the pod's host link, so that DEL finds it whatever its configuration says
	Want     netip.Addr // the zero value: any
	Metered  bool       // the traffic of the address is counted
	Remade   bool       // by counters that are made anew for this lease
	// Orphaned is asked inside the transaction, with the store's lock held: a DEL takes the same lock, so it comes either
	// after the commit and finds the lease, or before, and then the caller was gone before.
	Orphaned func() bool
}

// Lease is one address and what the store knows of it; List returns free ones in the same form.
type Lease struct {
	Addr       netip.Addr
	Generation uint64 // zero for an address that was not leased since it was last free
	NIC        MAC    // zero after a rebuild, until a snapshot lists the address
	State      State
	Since      time.Duration // boot clock: when it entered the state; for a free one when its last user left it
	Present    bool          // metadata lists it
	Blocked    Reason
	Owner      Owner
	LinkName   string
	FlushDue   bool      // conntrack entries of an earlier user may still be there
	Time       time.Time // wall time of the lease, for people
	Existing   bool      // Lease found it instead of making it
	Meter      *Meter    // of Lease with Metered and of Release, else nil
}

// Snapshot is what metadata and the node's links say about the pools.
type Snapshot struct {
	NICs    []NIC
	Skipped []MAC    // listed but unusable now: their pools stay as they are, and nothing of them is handed out
	Digest  [32]byte // of the metadata document; the zero value forces a comparison
}

// NIC is one network interface and the addresses that Azure delivers to it.
type NIC struct {
	MAC     MAC
	Link    string
	Primary netip.Addr // never handed out
	Subnets []netip.Prefix
	Addrs   []netip.Addr // secondaries
	OnLink  []netip.Addr // those of Addrs that a host link has
}

// NICInfo is what the store keeps of a NIC.
type NICInfo struct {
	MAC     MAC
	Link    string
	Primary netip.Addr
	Subnets []netip.Prefix
	Skipped bool // the last snapshot said that it is unusable, or lacks it: nothing of it is handed out
}

// Totals counts the addresses of one NIC. Every address is in exactly one of the numbers: leased and releasing ones by their
// state, others as absent, blocked, cooling or free, in this order.
type Totals struct {
	NIC     MAC // zero: leased addresses that no snapshot has listed since a rebuild
	Link    string
	Skipped bool // the NIC is unusable now, so its free addresses are not handed out

	Total, Free, Leased, Releasing, Cooling, Blocked, Absent int
}

// View is what an ADD, CHECK or STATUS reads before it decides.
type View struct {
	Node          []byte        // PutNode's record, nil when there is none
	SnapshotAt    time.Duration // boot clock of the last Sync or Touch
	SnapshotKnown bool          // false until the first Sync after a rebuild
	Digest        [32]byte      // of the last Sync
	NICs          []NICInfo
	Lease         *Lease // of the key, leased or releasing
	Totals        []Totals
	EverKnown     bool          // some pod address was known at some time
	NextReady     time.Duration // until the next cooling address may be handed out; zero when none cools
}

// Observed is what the kernel shows of the pods that are running.
type Observed struct {
	Ran     bool // our policy table is there, so pods may have ended in this boot without a trace
	Holders []Holder
}

// Holder is a pod's address as its host link's alias tells it.
type Holder struct {
	Addr         netip.Addr
	Generation   uint64
	Key, Network Hash
	NetnsInode   uint64
	Pod          string
	Main         string // type of the main plugin that made the link
	Metered      bool   // its traffic is counted
}
