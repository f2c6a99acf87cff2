package lab

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// openFirewall makes the firewall pass on what it gets, under its own address. Replies come back to it and go on to where the
// packets came from with the internet's address as their source: its port is a forwarding one.
func (c *Cloud) openFirewall() error {
	for _, s := range [][2]string{
		{"net.ipv4.ip_forward", "1"},
		{"net.ipv4.conf.all.rp_filter", "0"},
		{"net.ipv4.conf.eth0.rp_filter", "0"},
		{"net.ipv4.conf.all.send_redirects", "0"}, // it sends out by the link that it gets by
		{"net.ipv4.conf.eth0.send_redirects", "0"},
	} {
		if err := c.Firewall.Sysctl(s[0], s[1]); err != nil {
			return err
		}
	}
	conn, err := nftables.New(nftables.WithNetNSFd(c.Firewall.Fd()))
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	table := conn.AddTable(&nftables.Table{Name: "firewall", Family: nftables.TableFamilyIPv4})
	post := conn.AddChain(&nftables.Chain{
		Name: "post", Table: table, Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource,
	})
	conn.AddRule(&nftables.Rule{Table: table, Chain: post, Exprs: masqueradeOutside(CloudNetwork.Masked().Addr().As4()[0])})
	if err := conn.Flush(); err != nil {
		return fmt.Errorf("set up firewall: %w", err)
	}
	return nil
}

// masqueradeOutside translates what goes anywhere but to <octet>.0.0.0/8.
func masqueradeOutside(octet byte) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 1},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: 1, Data: []byte{octet}},
		&expr.Masq{},
	}
}

// watchOutside captures at the firewall and at the internet for as long as the lab lives.
func (c *Cloud) watchOutside() (err error) {
	if c.atFirewall, err = c.Firewall.Capture("eth0"); err != nil {
		return err
	}
	c.Defer(func() error { _, err := c.atFirewall.Stop(); return err })
	if c.atInternet, err = c.Internet.Capture("eth0"); err != nil {
		return err
	}
	c.Defer(func() error { _, err := c.atInternet.Stop(); return err })
	return nil
}

// FirewallSaw returns the distinct sources of what came to the firewall for the internet, sorted.
func (c *Cloud) FirewallSaw() []netip.Addr { return sourcesTo(CloudInternet, c.atFirewall) }

// InternetSaw returns the distinct sources of what came to the internet's host, sorted.
func (c *Cloud) InternetSaw() []netip.Addr { return sourcesTo(CloudInternet, c.atInternet) }

func sourcesTo(dst netip.Addr, c *Capture) []netip.Addr {
	var list []netip.Addr
	flows, err := c.Seen()
	if err != nil {
		return nil // a capture that failed has seen nobody; closing the lab says why
	}
	for f := range flows {
		if !f.Out && f.Kind == KindIPv4 && f.Dst == dst {
			list = append(list, f.Src)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}
