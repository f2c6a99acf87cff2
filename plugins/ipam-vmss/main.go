// Command ipam-vmss is the CNI IPAM plugin: it hands out the secondary addresses of this VM's NICs to other main plugins.
package main

import (
	"os"

	"github.com/native-vmss/native-vmss/pkg/node"
	"github.com/native-vmss/native-vmss/plugins/internal/plugin"
)

func main() {
	os.Exit(plugin.Main("ipam-vmss", plugin.Verbs{
		Add: cmdAdd, AddTimeout: node.AddTimeout,
		Del: cmdDel, DelTimeout: node.DelTimeout,
		Check: cmdCheck, CheckTimeout: node.DelTimeout,
		GC: cmdGC, GCTimeout: node.GCTimeout,
		Status: cmdStatus, StatusTimeout: node.StatusTimeout,
	}))
}
