// Package kind tests the built plugins in a real Kubernetes: a kind cluster of two nodes whose network is the fake cloud.
//
// Its tests have the build tag "kind" and need the cluster that hack/kind/up.sh makes; make e2e and make e2e-smoke do it all. One
// case again, on a cluster that is left running:
//
//	REUSE=1 make e2e-smoke
//	REUSE=1 RUN=TestKindReach make e2e-smoke
//	REUSE=1 MODES=nftables ROUNDS=3 make e2e-smoke
//	make e2e-down
//
// hack/kind/faults.sh shows, on a cluster that is left running, that the tests can fail: four wrong changes of the plugins, each seen
// by another test.
//
// # What it needs
//
// Linux with nf_tables, overlay and veth, root, Docker 20.10 or newer (a daemon that runs, or Debian's docker.io to start one),
// debootstrap, nftables, iproute2, 8 GB of disk and 3 GB of memory, cgroup v1 or v2. Where no registry can be reached nothing more is
// needed than the Go module proxy and Debian's packages; where one can, NODE_IMAGE names an image of kind's own and spares a
// quarter of an hour of building. Machines that lack CAP_SYS_RESOURCE get a runtime that asks for less (lesscaps).
//
// # What is where
//
//	tools/      pins what a cluster is built of, a module for each origin
//	node/       the image of a node           fabric/    the cloud around the nodes
//	pause/      a pod's first process         probe/     both ends of the tests' traffic
//	lesscaps/   an OCI runtime for machines without CAP_SYS_RESOURCE
//	faults/     wrong changes that have no mutant of their own
//
// Nodes are 10.20.0.8 and on, their pods' addresses 10.20.1.10 and on (the control plane's) and 10.20.2.10 and on (the worker's);
// 10.30.0.4 is the hub, 203.0.113.10 the internet. Namespaces nvt-kind-fabric, nvt-kind-hub and nvt-kind-internet may be entered with
// ip netns exec; nothing that a node sends leaves them.
package kind
