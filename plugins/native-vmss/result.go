package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"go4.org/netipx"

	"github.com/native-vmss/native-vmss/internal/failpoint"
	"github.com/native-vmss/native-vmss/pkg/node"
	"github.com/native-vmss/native-vmss/pkg/routes"
	"github.com/native-vmss/native-vmss/plugins/internal/plugin"
)

// answer is ADD's result in the making: what earlier plugins of the chain made, then what we made.
type answer struct {
	spec string
	dns  *types.DNS // the configuration's own, which replaces the IPAM's
	current.Result
}

// newAnswer reads what the configuration says about the answer. A prevResult that can't be read is refused: passing it on
// is our duty, and we'd lose it.
func newAnswer(stdin []byte) (*answer, error) {
	var conf struct {
		CNIVersion string    `json:"cniVersion"`
		DNS        types.DNS `json:"dns"`
	}
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return nil, fmt.Errorf("%w: %w", node.ErrConfig, err)
	}
	prev, err := plugin.PrevResult(stdin)
	if err != nil {
		return nil, err
	}
	a := &answer{spec: conf.CNIVersion}
	if prev != nil {
		a.Result = *prev
	}
	a.CNIVersion = current.ImplementedSpecVersion
	if d := conf.DNS; d.Nameservers != nil || d.Search != nil || d.Options != nil || d.Domain != "" { // empty lists count
		a.dns = &d
	}
	return a, nil
}

// add appends the two ends of the link, the host's first, and the pod's address on the second.
func (a *answer) add(res node.Result, at node.Attachment) {
	a.Interfaces = append(a.Interfaces,
		&current.Interface{Name: res.HostLink, Mac: net.HardwareAddr(res.HostMAC[:]).String(), Mtu: res.MTU},
		&current.Interface{Name: at.IfName, Mac: net.HardwareAddr(res.PodMAC[:]).String(), Mtu: res.MTU, Sandbox: at.Netns})
	a.IPs = append(a.IPs, &current.IPConfig{
		Interface: current.Int(len(a.Interfaces) - 1),
		Address:   *netipx.PrefixIPNet(netip.PrefixFrom(res.Addr, res.Addr.BitLen())),
		Gateway:   routes.Gateway().AsSlice(),
	})
	a.Routes = append(a.Routes, &types.Route{
		Dst: *netipx.PrefixIPNet(netip.PrefixFrom(netip.IPv4Unspecified(), 0)), GW: routes.Gateway().AsSlice(),
	})
}

// addIPAM passes on the DNS of another IPAM plugin; the configuration's own replaces it whole, as in ptp.
func (a *answer) addIPAM(d *delegate) {
	switch {
	case a.dns != nil:
		a.DNS = *a.dns
	case d != nil && d.result != nil && !d.result.DNS.IsEmpty():
		a.DNS = d.result.DNS
	}
}

// dropNewFields removes what came with 1.1.0: the library would print it in older results too.
func (a *answer) dropNewFields() {
	for _, i := range a.Interfaces {
		i.Mtu, i.SocketPath, i.PciID = 0, "", ""
	}
	for _, r := range a.Routes {
		*r = types.Route{Dst: r.Dst, GW: r.GW}
	}
}

// print writes the result in the caller's version, in one write.
func (a *answer) print(w io.Writer) error {
	if newer, _ := version.GreaterThanOrEqualTo(a.spec, "1.1.0"); !newer {
		a.dropNewFields()
	}
	out, err := a.GetAsVersion(a.spec)
	if err != nil {
		return fmt.Errorf("%w: cniVersion: %w", node.ErrConfig, err)
	}
	if err := failpoint.Hit("native-vmss.answer"); err != nil {
		return err
	}
	return out.PrintTo(w)
}

// expected is what CHECK compares with: our interface and address in the result that the runtime kept.
func expected(args *skel.CmdArgs) (node.Expect, error) {
	prev, err := plugin.PrevResult(args.StdinData)
	if err != nil {
		return node.Expect{}, err
	}
	if prev == nil {
		return node.Expect{}, fmt.Errorf("%w: prevResult: missing", node.ErrConfig)
	}
	for i, intf := range prev.Interfaces {
		if intf.Name != args.IfName || intf.Sandbox != args.Netns {
			continue
		}
		want := node.Expect{}
		if i > 0 && prev.Interfaces[i-1].Sandbox == "" { // the host end comes before the pod's
			want.MTU = prev.Interfaces[i-1].Mtu
		}
		if hw, err := net.ParseMAC(intf.Mac); err == nil && len(hw) == 6 {
			want.PodMAC = (*[6]byte)(hw)
		}
		for _, ip := range prev.IPs {
			if ip.Interface != nil && *ip.Interface == i && ip.Address.IP.To4() != nil {
				want.Addr, _ = netipx.FromStdIP(ip.Address.IP)
				return want, nil
			}
		}
	}
	return node.Expect{}, fmt.Errorf("%w: prevResult: no IPv4 address on %s in %s", node.ErrConfig, args.IfName, args.Netns)
}

// withUndo joins what went wrong while a failed ADD was undone.
func withUndo(err, undo error) error { return errors.Join(err, undo) }
