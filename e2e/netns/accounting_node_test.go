package netns

import (
	"net/netip"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// nodeSums are the node's own numbers in a page.
func (p acctPage) nodeSums() map[acctKey]uint64 {
	sums := map[acctKey]uint64{}
	for _, k := range acctKeys {
		sums[k] = p.of("node_network_bytes_total", "direction="+k.direction, "class="+k.class)
	}
	return sums
}

// The node's own traffic is counted as it goes over its NIC, and is nobody else's: what pods send under its address is theirs, and what
// comes to it for a pod is the pod's.
func TestNetnsAccounting_node(t *testing.T) {
	t.Parallel()
	w := newAcctWorld(t, 30, "nftables")
	n := w.l1()
	own := func() map[acctKey]uint64 {
		r := acctRead(w.t, n.nic)
		sums := map[acctKey]uint64{}
		for _, k := range acctKeys {
			sums[k] = r.Of(w.ip1, k.direction == "tx", func(peer netip.Addr) bool { return w.class(peer) == k.class }).Bytes
		}
		return sums
	}
	moved := func(after, before map[acctKey]uint64) map[acctKey]uint64 {
		d := map[acctKey]uint64{}
		for _, k := range acctKeys {
			d[k] = after[k] - before[k]
		}
		return d
	}
	at := func(ip netip.Addr) netip.AddrPort { return netip.AddrPortFrom(ip, acctPort) }
	for _, p := range []struct {
		name string
		from *lab.Namespace
		to   netip.AddrPort
		own  bool // the node's
	}{
		{"node_to_hub", w.node1, at(lab.CloudHub), true},
		{"hub_to_node", w.Hub, at(w.ip1), true},
		{"node_to_internet", w.node1, at(lab.CloudInternet), true},
		{"node_to_remote_pod", w.node1, at(w.r.ip), true},
		{"remote_pod_to_node", w.r.space, at(w.ip1), true},
		{"node_to_service_to_remote_pod", w.node1, netip.AddrPortFrom(acctServiceRemote, 80), true},
		{"node_to_local_pod", w.node1, at(w.a.ip), false},
		{"pod_to_node", w.a.space, at(w.ip1), false},
		{"pod_to_internet_under_the_nodes_address", w.a.space, at(lab.CloudInternet), false},
		{"pod_to_hub", w.a.space, at(lab.CloudHub), false},
		{"nodeport_to_local_pod", w.Hub, netip.AddrPortFrom(w.ip1, acctNodePort), false},
		{"hostport_to_local_pod", w.Hub, netip.AddrPortFrom(w.ip1, acctHostPort), false},
	} {
		w.run(t, p.name, func(w *acctWorld) {
			for _, k := range acctPorts {
				pageBefore, linkBefore := n.scrape().nodeSums(), own()
				if err := k.run(p.from, p.to); err != nil {
					w.t.Errorf("by %s: %v", k.name, err)
				}
				var counted, seen map[acctKey]uint64
				right := func() bool {
					counted, seen = moved(n.scrape().nodeSums(), pageBefore), moved(own(), linkBefore)
					for _, key := range acctKeys {
						if want := seen[key]; p.own && counted[key] != want || !p.own && counted[key] != 0 {
							return false
						}
					}
					return true
				}
				if !pathEventually(acctSettles, right) {
					w.t.Fatalf("by %s: counted %v, the NIC saw %v under the node's address", k.name, counted, seen)
				}
				if sum := seen[acctKeys[0]] + seen[acctKeys[1]]; p.own && sum == 0 {
					w.t.Errorf("by %s: nothing came by the NIC: the test proves nothing", k.name)
				}
			}
			w.exact("by the pods' links")
		})
	}
}
