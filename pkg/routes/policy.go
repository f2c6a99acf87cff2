package routes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
)

// PolicyTable is the nftables table, of family ip, with the static rules of the node.
const PolicyTable = "native_vmss"

// configPrefix begins the name of the chain, without a hook, that says from which configuration the table was built. Its one rule is
// there to be missed: a flush of the table takes it along, and HasPolicy sees that in the answer to the question about the chain.
const (
	configPrefix = "cfg_"
	configMarker = "gone when the table was flushed"
)

// Platform addresses of Azure. They answer only the primary address of the primary NIC.
var (
	wireserver = netip.AddrFrom4([4]byte{168, 63, 129, 16})
	imds       = netip.AddrFrom4([4]byte{169, 254, 169, 254})
)

// wireserverPorts are those that hand out the node's configuration and secrets; its DNS stays open.
var wireserverPorts = []uint16{80, 32526}

// Policy is what the policy table is built from.
type Policy struct {
	Hash           string // names the configuration
	NICs           []PolicyNIC
	Native         []netip.Prefix // never masqueraded; may overlap
	Masquerade     bool
	DenyWireserver bool
	DenyIMDS       bool
	PlatformSNAT   netip.Addr // primary address of the primary NIC
}

// PolicyNIC is a NIC that pods' packets come in and leave by.
type PolicyNIC struct {
	Link string
	// Primary is the source of what leaves the native networks by this NIC. Zero leaves the choice to the kernel, which takes
	// the link's first address in the gateway's subnet: the primary one, unless somebody put secondaries on the link before it.
	Primary netip.Addr
}

// ApplyPolicy replaces the whole policy table in one transaction: no packet ever meets half of it. The table is added before it
// is deleted, so that the deletion doesn't fail where there is none.
func (k *Kernel) ApplyPolicy(ctx context.Context, p Policy) error {
	before := k.policyText()
	if err := k.applyPolicy(ctx, p); err != nil {
		return fmt.Errorf("replace table ip %s: %w", PolicyTable, err)
	}
	if after := k.policyText(); before == "" && k.noted != nil {
		k.note("table ip %s made: it was missing", PolicyTable)
	} else if before != after {
		k.note("table ip %s written again: it was not as it should be", PolicyTable)
	}
	k.log.Info("policy table replaced", "table", PolicyTable, "config", p.Hash)
	return nil
}

func (k *Kernel) applyPolicy(ctx context.Context, p Policy) error {
	if !p.PlatformSNAT.Is4() {
		return errors.New("no primary address for platform traffic")
	}
	conn, err := k.batch()
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseLasting() }()
	table := conn.AddTable(policyTable())
	conn.DelTable(table)
	conn.AddTable(table)
	b := newBuilder(conn, table)
	if err := b.policy(p); err != nil {
		return err
	}
	return k.flush(ctx, conn)
}

// DropPolicy removes the policy table; that there is none is no error.
func (k *Kernel) DropPolicy(ctx context.Context) error {
	conn, err := k.batch()
	if err != nil {
		return err
	}
	defer func() { _ = conn.CloseLasting() }()
	conn.DelTable(conn.AddTable(policyTable()))
	if err := k.flush(ctx, conn); err != nil {
		return fmt.Errorf("delete table ip %s: %w", PolicyTable, err)
	}
	return nil
}

// batch opens nftables in the node's namespace.
func (k *Kernel) batch() (conn *nftables.Conn, err error) {
	err = k.space.do(func() (err error) {
		conn, err = nftables.New(nftables.AsLasting())
		return err
	})
	if err != nil && missingNFTables(err) {
		err = fmt.Errorf("%w (%w)", ErrNoNFTables, err)
	}
	return conn, err
}

// flush is the only way to nftables: every batch passes here.
func (k *Kernel) flush(ctx context.Context, conn *nftables.Conn) error {
	if err := enter(ctx, "nft-flush"); err != nil {
		return err
	}
	err := conn.Flush()
	if err != nil && missingNFTables(err) {
		// A batch fails with these for other reasons too: the plain question tells.
		if _, ask := k.PolicyTableExists(ctx); errors.Is(ask, ErrNoNFTables) {
			return fmt.Errorf("%w (%w)", ErrNoNFTables, err)
		}
	}
	return err
}

func policyTable() *nftables.Table {
	return &nftables.Table{Name: PolicyTable, Family: nftables.TableFamilyIPv4}
}

func configChain(hash string) string { return configPrefix + hash }
