package main

import (
	"context"
	"os"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/native-vmss/native-vmss/pkg/node"
	"github.com/native-vmss/native-vmss/plugins/internal/plugin"
)

// open parses the configuration and makes the node; the caller closes it. An ipam.type other than ipam-vmss is exec'ed.
func open(args *skel.CmdArgs, how node.Strictness) (*node.Node, node.Conf, *delegate, error) {
	conf, err := node.ParseMain(args.StdinData, how)
	if err != nil {
		return nil, conf, nil, err
	}
	log := plugin.Logger(conf.Log)
	var addrs node.Addresses
	var d *delegate
	if conf.IPAM.Type != node.IPAMType {
		d = newDelegate(conf.IPAM.Type, args)
		addrs = d
	}
	n, err := node.Open(conf, addrs, log)
	return n, conf, d, err
}

func cmdAdd(ctx context.Context, args *skel.CmdArgs) error {
	n, conf, ipam, err := open(args, node.Strict)
	if err != nil {
		return err
	}
	defer n.Close()
	a, err := attachment(args, conf.Name)
	if err != nil {
		return err
	}
	answer, err := newAnswer(args.StdinData)
	if err != nil {
		return err
	}
	res, err := n.Attach(ctx, a)
	if err != nil {
		return err
	}
	answer.add(res, a)
	answer.addIPAM(ipam)
	if err := answer.print(os.Stdout); err != nil {
		return withUndo(err, n.Undo(ctx, a.Key))
	}
	return nil
}

func cmdDel(ctx context.Context, args *skel.CmdArgs) error {
	n, conf, _, err := open(args, node.Lenient)
	if err != nil {
		return err
	}
	defer n.Close()
	return n.Detach(ctx, key(args, conf.Name))
}

func cmdCheck(ctx context.Context, args *skel.CmdArgs) error {
	n, conf, _, err := open(args, node.Lenient)
	if err != nil {
		return err
	}
	defer n.Close()
	want, err := expected(args)
	if err != nil {
		return err
	}
	return n.Check(ctx, node.Attachment{Key: key(args, conf.Name), Netns: args.Netns}, want)
}

func cmdStatus(ctx context.Context, args *skel.CmdArgs) error {
	n, _, _, err := open(args, node.Strict)
	if err != nil {
		return plugin.NotReady(err)
	}
	defer n.Close()
	return plugin.NotReady(n.Status(ctx))
}

func cmdGC(ctx context.Context, args *skel.CmdArgs) error {
	n, conf, _, err := open(args, node.Lenient)
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
