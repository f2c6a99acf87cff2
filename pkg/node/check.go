package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/native-vmss/native-vmss/internal/boltfile"
	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// Expect is what the runtime remembers of an ADD, as later plugins of the chain may have changed it.
type Expect struct {
	Addr   netip.Addr
	MTU    int      // of the host end; 0: the NIC's
	PodMAC *[6]byte // nil: any
}

// asks tells whether the pod's MAC is another than we give, so that its permanent neighbour may have gone with ours.
func (e Expect) asks(ours [6]byte) bool { return e.PodMAC != nil && *e.PodMAC != ours }

// Check is CHECK: it reads store, pod and kernel, changes nothing, and names everything that is missing or wrong at once.
func (n *Node) Check(ctx context.Context, a Attachment, want Expect) error {
	if err := n.makeStateDir(); err != nil {
		return err
	}
	held, err := n.lockContainer(ctx, lockOffset(a.Hash()))
	if err != nil {
		return err
	}
	defer held.Unlock()

	findings, err := n.compare(ctx, a, want)
	if err != nil || len(findings) == 0 {
		return err
	}
	// Node-wide state is written to the kernel first and noted afterwards: seen in between, it would be nobody's. Whoever writes it
	// holds this lock.
	if node, lockErr := n.lockNode(ctx); lockErr == nil {
		findings, err = n.compare(ctx, a, want)
		node.Unlock()
	}
	if err == nil && len(findings) > 0 {
		err = fmt.Errorf("%w: %s", ErrBroken, strings.Join(findings, "; "))
	}
	return err
}

// compare lists what is missing or wrong.
func (n *Node) compare(ctx context.Context, a Attachment, want Expect) ([]string, error) {
	n.known = nil
	findings, known, err := n.checkStore(ctx, a, &want)
	if errors.Is(err, boltfile.ErrNewerSchema) {
		n.log.Warn("attachment compared with the kernel's marks alone", "error", err)
	} else if err != nil {
		return nil, err
	}
	findings = append(findings, n.checkHost(ctx, a, want, known)...)
	others, err := n.notOurs(ctx, known.rec.nicOf(known.grant))
	if err != nil { // a finding, as everywhere here: what else was found is not lost with it
		others = append(others, err.Error())
	}
	findings = append(findings, others...)
	return append(findings, n.checkPod(ctx, a, want)...), nil
}

// stored is what the store says of the node and of one attachment's address.
type stored struct {
	rec   record
	grant Grant
}

// checkStore looks at the lease and at its NIC, and reads what the node should look like; without a configured or remembered MTU
// that of the NIC is wanted.
func (n *Node) checkStore(ctx context.Context, a Attachment, want *Expect) (findings []string, known stored, err error) {
	if err := n.addrs.Check(ctx, a, want.Addr); errors.Is(err, ErrBroken) {
		findings = append(findings, err.Error())
	} else if err != nil {
		return nil, known, err
	}
	view, err := n.store.Read(ctx, a.Hash())
	if err != nil {
		return nil, known, err
	}
	known = stored{decodeRecord(view.Node), Grant{Addr: want.Addr}}
	if view.Lease != nil {
		known.grant.NIC = view.Lease.NIC
	}
	gone, err := n.nicGone(ctx, known.rec, known.grant)
	switch {
	case err != nil:
	case gone != "":
		findings = append(findings, gone)
	case want.MTU == 0:
		want.MTU, err = n.mtu(ctx, known.grant)
	}
	return findings, known, err
}

// nicGone says in words that the NIC that owns the address isn't there as the record knows it; "" if it is, or if nothing is known
// about its owner. That another NIC is gone is no fault of this pod.
func (n *Node) nicGone(ctx context.Context, rec record, g Grant) (string, error) {
	nic, known := rec.ownerOf(g)
	if !known && g.NIC == (allocator.MAC{}) {
		return "", nil
	}
	if !known {
		return fmt.Sprintf("NIC %s, which has %s, is not on this node any more", g.NIC, g.Addr), nil
	}
	is, err := n.kernel.IsNIC(ctx, nic.Link, nic.Index)
	if err != nil || is {
		return "", err
	}
	return fmt.Sprintf("NIC %s (%s), which has %s, is gone, renamed or under another link", nic.MAC, nic.Link, g.Addr), nil
}

func (n *Node) checkHost(ctx context.Context, a Attachment, want Expect, known stored) []string {
	hostMAC, podMAC := macs(a.Hash())
	asks := want.asks(podMAC)
	if want.PodMAC != nil {
		podMAC = *want.PodMAC
	}
	return n.kernel.CheckHost(ctx, routes.HostWant{
		Name: linkName(n.conf.InterfacePrefix, a.Hash()), Key: a.Hash(), Addr: want.Addr, MTU: want.MTU, MAC: hostMAC, PodMAC: podMAC,
		NICs: known.rec.links(), Forward: n.forwarding(ctx, known), PolicyHash: known.rec.Applied, Proxy: asks,
		Node: known.rec.written(),
	})
}

// forwarding lists the links that this pod's packets come in by: its own NIC, and the primary one for the platform's answers. One
// that isn't there forwards for nobody; nicGone speaks of it where it matters.
func (n *Node) forwarding(ctx context.Context, known stored) []string {
	var links []string
	for _, nic := range []nicFact{known.rec.nicOf(known.grant), known.rec.primaryNIC()} {
		if slices.Contains(links, nic.Link) {
			continue
		}
		if is, err := n.kernel.IsNIC(ctx, nic.Link, nic.Index); err == nil && is {
			links = append(links, nic.Link)
		}
	}
	return links
}

func (n *Node) checkPod(ctx context.Context, a Attachment, want Expect) []string {
	pod, err := n.openPod(a.Netns)
	if err != nil {
		return []string{err.Error()}
	}
	defer pod.Close()
	hostMAC, podMAC := macs(a.Hash())
	expect := routes.PodWant{IfName: a.IfName, Addr: want.Addr, MTU: want.MTU, HostMAC: hostMAC, Asks: want.asks(podMAC)}
	if want.PodMAC != nil {
		expect.PodMAC = *want.PodMAC
	}
	return pod.Check(ctx, expect)
}
