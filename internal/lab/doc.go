// Package lab builds small networks out of Linux namespaces, drives traffic through them and looks at what comes out: the stage
// of the demo and of every test that needs a kernel.
//
// A Lab owns everything that is made through it: network namespaces named nvt-<lab>-<name>, nodes (a network and a mount
// namespace each), processes started inside them and a temporary directory. Close removes all of it. When the process that
// owns the lab dies without closing it, a janitor (a shell that waits for the end of a pipe) removes the names.
//
// The Go runtime moves goroutines between threads, and a namespace belongs to a thread. All work inside a namespace therefore
// runs on a thread of its own that is never used for anything else again (see onThread).
//
//	l, err := lab.New(lab.Options{})
//	defer l.Close()
//	node, err := l.Node("node1")              // own /run, /var/lib/cni and /sys
//	pod, err := l.Namespace("p1")
//	out := node.RunPlugin(ctx, "bin/native-vmss", lab.Call{Command: "ADD", Netns: pod.Path, …})
package lab
