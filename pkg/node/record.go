package node

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// layoutVersion changes when the node-wide kernel objects do, so that a new version re-makes them.
const layoutVersion = 2

// record is what pkg/node keeps in the store about the node: whose configuration stands in the kernel, and for which NICs.
type record struct {
	Network string    `json:"network"`
	Wide    Wide      `json:"nodeWide"`
	NICs    []nicFact `json:"nics"`
	Applied string    `json:"applied"` // hash of all above as it was written to the kernel; "" = not yet
	Place   place     `json:"place"`   // where that is
	// Undone says that a NIC was down when Applied was written: routes by it are still to be made.
	Undone   bool     `json:"undone,omitempty"`
	Counting counting `json:"counting,omitzero"`
	// Skipped says of which NICs the last document could not be used, and why: for the errors of those who find nothing free.
	Skipped []string `json:"skipped,omitempty"`
	// Gone holds leases whose link a sweep found missing: "key hash/generation" -> boot clock of the first time.
	Gone map[string]time.Duration `json:"gone,omitempty"`
}

// nicFact is what the node-wide rules need to know about a NIC that pods use.
type nicFact struct {
	MAC     string         `json:"mac"`
	Link    string         `json:"link"`
	Index   int            `json:"index"`
	Primary netip.Addr     `json:"primary"`
	Subnets []netip.Prefix `json:"subnets"` // the first is the one that holds the primary
	Gateway netip.Addr     `json:"gateway"`
	Default bool           `json:"default"` // main's default route with the lowest metric goes by it
}

func decodeRecord(raw []byte) record {
	var r record
	// The store has checked the sum; a record of another version's shape reads as none and is written anew.
	_ = json.Unmarshal(raw, &r)
	return r
}

// hash names everything in the record that the kernel's objects are made from.
func (r record) hash() string {
	b, _ := json.Marshal(struct { // plain data: can't fail
		Layout int
		Wide   Wide
		NICs   []nicFact
	}{layoutVersion, r.Wide, r.NICs})
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:8])
}

// skipped is the end of an error text about a lack of addresses.
func (r record) skipped() string {
	if len(r.Skipped) == 0 {
		return ""
	}
	return "; skipped: " + strings.Join(r.Skipped, "; ")
}

func (r record) primaryNIC() nicFact {
	for _, nic := range r.NICs {
		if nic.Default {
			return nic
		}
	}
	if len(r.NICs) > 0 {
		return r.NICs[0]
	}
	return nicFact{}
}

func (n *Node) putRecord(ctx context.Context, r record) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode node record: %w", err)
	}
	return n.store.PutNode(ctx, b)
}

func (n *Node) readRecord(ctx context.Context) (record, error) {
	view, err := n.store.Read(ctx, Hash{})
	if err != nil {
		return record{}, err
	}
	return decodeRecord(view.Node), nil
}

// nics is the record for questions about the NICs.
func (n *Node) nics(ctx context.Context) (record, error) {
	if n.known != nil {
		return *n.known, nil
	}
	rec, err := n.readRecord(ctx)
	if err == nil {
		n.known = &rec
	}
	return rec, err
}

// policy is the record in the kernel's terms.
func (r record) policy(hash string) routes.Policy {
	p := routes.Policy{
		Hash: hash, Native: append([]netip.Prefix{}, r.Wide.NativeCIDRs...), Masquerade: r.Wide.Masquerade,
		DenyWireserver: !r.Wide.Wireserver, DenyIMDS: !r.Wide.IMDS, PlatformSNAT: r.primaryNIC().Primary,
	}
	for _, nic := range r.NICs {
		p.NICs = append(p.NICs, routes.PolicyNIC{Link: nic.Link, Primary: nic.Primary})
		p.Native = append(p.Native, nic.Subnets...)
	}
	return p
}

// written is what the kernel's node-wide objects were made from; nil if they are another version's, or older than the record.
func (r record) written() *routes.NodeWant {
	if r.Applied == "" || r.Applied != r.hash() {
		return nil
	}
	return &routes.NodeWant{Policy: r.policy(r.Applied), NICs: r.ruleNICs(), RemotePods: r.Wide.RemotePods}
}

func (r record) ruleNICs() []routes.RuleNIC {
	out := make([]routes.RuleNIC, 0, len(r.NICs))
	for i, nic := range r.NICs {
		out = append(out, routes.RuleNIC{Number: i + 1, Link: nic.Link, Index: nic.Index, Subnets: nic.Subnets, Gateway: nic.Gateway, Primary: nic.Primary, Default: nic.Default})
	}
	return out
}

func (r record) links() []string {
	out := make([]string, 0, len(r.NICs))
	for _, nic := range r.NICs {
		out = append(out, nic.Link)
	}
	return out
}

// nicOf is ownerOf that always has an answer: the NIC of the address's subnet, else the primary one.
func (r record) nicOf(g Grant) nicFact {
	for _, by := range []Grant{g, {Addr: g.Addr}} {
		if nic, known := r.ownerOf(by); known {
			return nic
		}
	}
	return r.primaryNIC()
}

// ownerOf finds the NIC that owns a lease; a lease of a rebuilt store has none until the next snapshot, so the subnet decides.
func (r record) ownerOf(g Grant) (nicFact, bool) {
	i := slices.IndexFunc(r.NICs, func(nic nicFact) bool {
		if g.NIC != (allocator.MAC{}) {
			return nic.MAC == g.NIC.String()
		}
		return slices.ContainsFunc(nic.Subnets, func(s netip.Prefix) bool { return s.Contains(g.Addr) })
	})
	if i < 0 {
		return nicFact{}, false
	}
	return r.NICs[i], true
}

// who asks the kernel who holds an address; routes to the node's NICs lead to no pod.
func (n *Node) who(ctx context.Context, addr netip.Addr) (routes.Use, error) {
	return n.kernel.Who(ctx, addr, n.nicNames(ctx)...)
}

// nicNames are the NICs that the record knows; without one the kernel's physical links have to do.
func (n *Node) nicNames(ctx context.Context) []string {
	rec, err := n.nics(ctx)
	if err != nil {
		return nil
	}
	return rec.links()
}

const stateDirMode = 0o700

func (n *Node) makeStateDir() error {
	if err := makeDir(n.conf.IPAM.StateDir, stateDirMode); err != nil {
		return fmt.Errorf("%w: %w", ErrStore, err)
	}
	return nil
}
