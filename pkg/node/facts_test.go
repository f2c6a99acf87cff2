package node

import (
	"strings"
	"testing"

	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// The primary NIC is the pods' NIC with the lowest metric, not whatever link has the best default route.
func TestMatch_default(t *testing.T) {
	doc := document(docNIC(4, "10.20.0.4"), docNIC(5, "10.20.1.4"))
	eth0, eth1 := link(4, "eth0", 2, "+10.20.0.4/24"), link(5, "eth1", 3, "+10.20.1.4/24")
	vpn := withDefault(link(9, "tap0", 1, "172.30.0.2/24"), "172.30.0.1", 0, "")
	tests := []struct {
		name  string
		links []routes.NIC
		want  string
	}{
		{"second is better", []routes.NIC{withDefault(eth0, "10.20.0.1", 200, ""), withDefault(eth1, "10.20.1.1", 100, "")}, "eth1"},
		{"metric 0", []routes.NIC{withDefault(eth0, "10.20.0.1", 100, ""), withDefault(eth1, "10.20.1.1", 0, "")}, "eth1"},
		{"equal", []routes.NIC{withDefault(eth0, "10.20.0.1", 0, ""), withDefault(eth1, "10.20.1.1", 0, "")}, "eth0"},
		{"the better of a link's two", []routes.NIC{withDefault(eth0, "10.20.0.1", 50, ""), withDefault(withDefault(eth1, "10.20.1.1", 900, ""), "10.20.1.1", 10, "")}, "eth1"},
		{"only one has any", []routes.NIC{eth0, withDefault(eth1, "10.20.1.1", 4000, "")}, "eth1"},
		{"another link's is better", []routes.NIC{vpn, withDefault(eth0, "10.20.0.1", 200, ""), withDefault(eth1, "10.20.1.1", 100, "")}, "eth1"},
		{"none", []routes.NIC{eth0, eth1}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m, err := match(doc, tt.links, nil)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, f := range m.facts {
				if f.Default {
					got += f.Link
				}
			}
			if got != tt.want {
				t.Errorf("primary NIC %q, want %q", got, tt.want)
			}
		})
	}
}

// A document that says nothing usable about a NIC must not take away the rules that its pods live by.
func TestKeepKnown(t *testing.T) {
	links := []routes.NIC{withDefault(link(4, "eth0", 2, "+10.20.0.4/24"), "10.20.0.1", 100, ""), link(5, "eth1", 3)}
	known := func(m byte, name string, index int) nicFact {
		return nicFact{MAC: allocator.MAC(mac(m)).String(), Link: name, Index: index}
	}
	first, second := known(4, "eth0", 2), known(5, "eth1", 3)
	tests := []struct {
		name          string
		facts, before []nicFact
		want          string
	}{
		{"first document", []nicFact{second, first}, nil, "eth0 eth1"},
		{"the same again", []nicFact{first, second}, []nicFact{first, second}, "eth0 eth1"},
		{"second without answer", []nicFact{first}, []nicFact{first, second}, "eth0 eth1"},
		{"first without answer", []nicFact{second}, []nicFact{first, second}, "eth0 eth1"},
		{"a NIC that is gone", []nicFact{first}, []nicFact{first, known(6, "eth2", 4)}, "eth0"},
		{"a link that came back with another index", []nicFact{first}, []nicFact{first, known(5, "eth1", 9)}, "eth0"},
		{"a link with another name", []nicFact{first}, []nicFact{first, known(5, "eth7", 3)}, "eth0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var names []string
			for _, f := range keepKnown(tt.facts, tt.before, links) {
				names = append(names, f.Link)
				if f.Default != (f.Link == "eth0") {
					t.Errorf("%s: Default = %v", f.Link, f.Default)
				}
			}
			if got := strings.Join(names, " "); got != tt.want {
				t.Errorf("NICs %q, want %q", got, tt.want)
			}
		})
	}
}
