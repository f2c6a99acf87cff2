package main

import (
	"github.com/containernetworking/cni/pkg/skel"

	"github.com/native-vmss/native-vmss/pkg/node"
	"github.com/native-vmss/native-vmss/plugins/internal/plugin"
)

func key(args *skel.CmdArgs, network string) node.Key {
	return node.Key{Network: network, ContainerID: args.ContainerID, IfName: args.IfName}
}

// attachment is what ADD is asked for: the environment, CNI_ARGS, args.cni and runtimeConfig.
func attachment(args *skel.CmdArgs, network string) (node.Attachment, error) {
	a := node.Attachment{Key: key(args, network), Netns: args.Netns}
	pod, err := plugin.ParseArgs(args.Args)
	if err != nil {
		return a, err
	}
	a.Namespace, a.Pod, a.UID = pod.Namespace, pod.Pod, pod.UID
	if a.Want, err = plugin.RequestedAddress(args.StdinData, pod); err != nil {
		return a, err
	}
	a.MAC, err = plugin.RequestedMAC(args.StdinData, pod)
	return a, err
}
