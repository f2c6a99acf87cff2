// Command native-vmss is the CNI main plugin: it gives a pod one of its VM's own secondary addresses on a routed link.
package main

import (
	"os"
	"runtime"

	"github.com/native-vmss/native-vmss/pkg/node"
	"github.com/native-vmss/native-vmss/plugins/internal/plugin"
)

// A child that is started with a parent-death signal gets it when the thread that started it ends, so main keeps its own.
func init() { runtime.LockOSThread() } //nolint:gochecknoinits // main itself starts too late to choose its thread

func main() {
	os.Exit(plugin.Main("native-vmss", plugin.Verbs{
		Add: cmdAdd, AddTimeout: node.AddTimeout,
		Del: cmdDel, DelTimeout: node.DelTimeout,
		Check: cmdCheck, CheckTimeout: node.DelTimeout,
		GC: cmdGC, GCTimeout: node.GCTimeout,
		Status: cmdStatus, StatusTimeout: node.StatusTimeout,
	}))
}
