package lab

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Counter counts, in the kernel, frames on links that have no business in a native network: tunnels, and whatever is neither
// ARP nor IPv4. It takes the place of a capture while more frames pass than a program can read.
type Counter struct {
	conn  *nftables.Conn
	table *nftables.Table
}

// CountUnexpected starts counting frames that come in by the links.
func (n *Namespace) CountUnexpected(links ...string) (*Counter, error) {
	conn, err := nftables.New(nftables.WithNetNSFd(n.Fd()), nftables.AsLasting())
	if err != nil {
		return nil, fmt.Errorf("open nftables in %s: %w", n.Name, err)
	}
	c := &Counter{conn: conn, table: conn.AddTable(&nftables.Table{Name: "nvt_unexpected", Family: nftables.TableFamilyNetdev})}
	conn.AddObj(&nftables.CounterObj{Table: c.table, Name: "unexpected"})
	conn.AddObj(&nftables.CounterObj{Table: c.table, Name: "all"})
	for i, link := range links {
		priority := nftables.ChainPriority(-500)
		chain := conn.AddChain(&nftables.Chain{
			Name: fmt.Sprintf("link%d", i), Table: c.table, Type: nftables.ChainTypeFilter,
			Hooknum: nftables.ChainHookIngress, Priority: &priority, Device: link,
		})
		for _, exprs := range unexpectedRules() {
			conn.AddRule(&nftables.Rule{Table: c.table, Chain: chain, Exprs: exprs})
		}
	}
	if err := conn.Flush(); err != nil {
		return nil, errors.Join(fmt.Errorf("count frames in %s: %w", n.Name, err), conn.CloseLasting())
	}
	return c, nil
}

// unexpectedRules: count all; ARP is fine; what is not IPv4 counts; so do tunnels by protocol and by UDP port.
func unexpectedRules() [][]expr.Any {
	count := func(name string) expr.Any { return &expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: name} }
	protocol := &expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: 1}
	l4 := &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}
	is := func(data ...byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: data} }
	isnt := func(data ...byte) expr.Any { return &expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: data} }
	accept := &expr.Verdict{Kind: expr.VerdictAccept}
	rules := [][]expr.Any{
		{count("all")},
		{protocol, is(binaryutil.BigEndian.PutUint16(unix.ETH_P_ARP)...), accept},
		{protocol, isnt(binaryutil.BigEndian.PutUint16(unix.ETH_P_IP)...), count("unexpected"), accept},
	}
	for _, proto := range []byte{unix.IPPROTO_IPIP, unix.IPPROTO_GRE, unix.IPPROTO_IPV6} {
		rules = append(rules, []expr.Any{l4, is(proto), count("unexpected"), accept})
	}
	for _, port := range []uint16{portVXLAN, portVXLANLinux} {
		rules = append(rules, []expr.Any{
			l4, is(unix.IPPROTO_UDP),
			&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
			is(binaryutil.BigEndian.PutUint16(port)...), count("unexpected"), accept,
		})
	}
	return rules
}

// Stop returns how many frames came in, how many of them were unexpected, and removes the table.
func (c *Counter) Stop() (all, unexpected uint64, err error) {
	objs, err := c.conn.GetObjects(c.table)
	if err != nil {
		return 0, 0, errors.Join(fmt.Errorf("read frame counters: %w", err), c.conn.CloseLasting())
	}
	for _, o := range objs {
		if k, ok := o.(*nftables.CounterObj); ok && k.Name == "all" {
			all = k.Packets
		} else if ok && k.Name == "unexpected" {
			unexpected = k.Packets
		}
	}
	c.conn.DelTable(c.table)
	return all, unexpected, errors.Join(c.conn.Flush(), c.conn.CloseLasting())
}
