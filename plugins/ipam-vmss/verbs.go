package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"go4.org/netipx"

	"github.com/native-vmss/native-vmss/internal/failpoint"
	"github.com/native-vmss/native-vmss/pkg/node"
	"github.com/native-vmss/native-vmss/plugins/internal/plugin"
)

func open(args *skel.CmdArgs, how node.Strictness) (*node.Node, node.Conf, error) {
	conf, err := node.ParseIPAM(args.StdinData, how)
	if err != nil {
		return nil, conf, err
	}
	n, err := node.Open(conf, nil, plugin.Logger(conf.Log))
	return n, conf, err
}

func key(args *skel.CmdArgs, network string) node.Key {
	return node.Key{Network: network, ContainerID: args.ContainerID, IfName: args.IfName}
}

func cmdAdd(ctx context.Context, args *skel.CmdArgs) error {
	n, conf, err := open(args, node.Strict)
	if err != nil {
		return err
	}
	defer n.Close()
	pod, err := plugin.ParseArgs(args.Args)
	if err != nil {
		return err
	}
	from, err := mainPlugin(args.StdinData)
	if err != nil {
		return err
	}
	a := node.Attachment{
		Key: key(args, conf.Name), Netns: args.Netns, Main: from.Type, Orphaned: orphaned,
		Namespace: pod.Namespace, Pod: pod.Pod, UID: pod.UID,
	}
	if a.Want, err = plugin.RequestedAddress(args.StdinData, pod); err != nil {
		return err
	}
	r, err := n.Reserve(ctx, a)
	if err != nil {
		return err
	}
	if err := printResult(os.Stdout, r, from.CNIVersion); err != nil {
		return errors.Join(err, n.Undo(ctx, a.Key))
	}
	return nil
}

func cmdDel(ctx context.Context, args *skel.CmdArgs) error {
	n, conf, err := open(args, node.Lenient)
	if err != nil {
		return err
	}
	defer n.Close()
	return n.ReleaseReservation(ctx, key(args, conf.Name))
}

func cmdCheck(ctx context.Context, args *skel.CmdArgs) error {
	n, conf, err := open(args, node.Lenient)
	if err != nil {
		return err
	}
	defer n.Close()
	addr, err := previousAddress(args.StdinData)
	if err != nil {
		return err
	}
	return n.CheckReservation(ctx, node.Attachment{Key: key(args, conf.Name)}, addr)
}

func cmdStatus(ctx context.Context, args *skel.CmdArgs) error {
	n, _, err := open(args, node.Strict)
	if err != nil {
		return plugin.NotReady(err)
	}
	defer n.Close()
	return plugin.NotReady(n.Status(ctx))
}

func cmdGC(ctx context.Context, args *skel.CmdArgs) error {
	n, conf, err := open(args, node.Lenient)
	if err != nil {
		return err
	}
	defer n.Close()
	valid, given, err := plugin.ValidAttachments(args.StdinData, conf.Name)
	if err != nil {
		return err
	}
	return n.GC(ctx, valid, given)
}

// caller is what an IPAM plugin reads of the main plugin's configuration beside "ipam".
type caller struct {
	CNIVersion string `json:"cniVersion"`
	Type       string `json:"type"`
}

func mainPlugin(stdin []byte) (caller, error) {
	var c caller
	if err := json.Unmarshal(stdin, &c); err != nil {
		return c, fmt.Errorf("%w: cniVersion or type: not a string%s", node.ErrConfig, node.JSONFault(err))
	}
	return c, nil
}

// printResult writes the abbreviated result of an IPAM plugin: no interfaces.
func printResult(w io.Writer, r node.Reservation, spec string) error {
	res := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		IPs: []*current.IPConfig{{
			Address: *netipx.PrefixIPNet(r.Addr), Gateway: r.Gateway.AsSlice(),
		}},
		Routes: []*types.Route{{Dst: *netipx.PrefixIPNet(netip.PrefixFrom(netip.IPv4Unspecified(), 0))}},
	}
	out, err := res.GetAsVersion(spec)
	if err != nil {
		return fmt.Errorf("%w: cniVersion: %w", node.ErrConfig, err)
	}
	if err := failpoint.Hit("ipam-vmss.answer"); err != nil {
		return err
	}
	return out.PrintTo(w)
}

// previousAddress is the IPv4 address in prevResult: in an IPAM's CHECK the main plugin passes the runtime's on.
func previousAddress(stdin []byte) (netip.Addr, error) {
	res, err := plugin.PrevResult(stdin)
	if err != nil {
		return netip.Addr{}, err
	}
	if res == nil {
		return netip.Addr{}, fmt.Errorf("%w: prevResult: missing", node.ErrConfig)
	}
	for _, ip := range res.IPs {
		if a, ok := netipx.FromStdIP(ip.Address.IP); ok && a.Is4() {
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("%w: prevResult: no IPv4 address", node.ErrConfig)
}
