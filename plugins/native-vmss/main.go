// Command native-vmss is the CNI main plugin: it gives a pod one of its VM's own secondary addresses on a routed link.
package main

import (
	"os"

	"github.com/native-vmss/native-vmss/pkg/node"
	"github.com/native-vmss/native-vmss/plugins/internal/plugin"
)

func main() {
	os.Exit(plugin.Main("native-vmss", plugin.Verbs{
		Add: cmdAdd, AddTimeout: node.AddTimeout,
		Del: cmdDel, DelTimeout: node.DelTimeout,
		Check: cmdCheck, CheckTimeout: node.DelTimeout,
		GC: cmdGC, GCTimeout: node.GCTimeout,
		Status: cmdStatus, StatusTimeout: node.StatusTimeout,
	}))
}
