package netns

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// With super-packets and without, whoever makes them: the sender's stack (TSO, GSO) or the node's NIC (GRO).
func TestNetnsAccounting_offloads(t *testing.T) {
	t.Parallel()
	for _, cut := range []bool{false, true} {
		for _, gro := range []bool{false, true} {
			t.Run(fmt.Sprintf("cut_%v_gro_%v", cut, gro), func(t *testing.T) {
				t.Parallel()
				l := newAcctLab(t, 5, "nftables")
				a, b, r := l.pod(0, "a"), l.pod(0, "b"), l.pod(1, "r")
				ends := map[*lab.Namespace]string{a.space: "eth0", b.space: "eth0", r.space: "eth0", l.Hub: "eth0"}
				for n, link := range ends {
					l.echoes(n, netip.AddrPortFrom(netip.IPv4Unspecified(), acctPort))
					for _, o := range []lab.Offload{lab.TSO, lab.GSO} {
						l.offload(n, link, o, !cut)
					}
				}
				for _, n := range l.Nodes {
					// The far end has to cut as well: a link that gets super-packets leaves the rest alone.
					l.offload(l.Space, n.Ports[0].Link(), lab.TSO, !cut)
					l.offload(n.Namespace, "eth0", lab.GRO, gro)
				}
				super := map[string]int{}
				for name, p := range map[string]struct {
					from *acctPod
					to   netip.Addr
				}{
					"pod to pod": {a, b.ip}, "pod to remote pod": {a, r.ip}, "pod to hub": {a, lab.CloudHub}, "remote pod to pod": {r, b.ip},
				} {
					before := acctRead(t, p.from.tally).Super
					if err := acctSendTCP(p.from.space, netip.AddrPortFrom(p.to, acctPort)); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					l.exact(name)
					super[name] = acctRead(t, p.from.tally).Super - before
				}
				for name, n := range super {
					// A pod that cuts sends none; what comes by the NIC is joined there or not; what a pod beside sends isn't.
					if want := !cut || gro && name != "pod to pod"; (n > 0) != want {
						t.Errorf("%s: %d super-packets", name, n)
					}
				}
			})
		}
	}
}

func (l *acctLab) offload(n *lab.Namespace, link string, o lab.Offload, on bool) {
	l.t.Helper()
	if err := n.SetOffload(link, o, on); err != nil {
		l.t.Fatal(err)
	}
}
