// Package routes does all that native-vmss does to the kernel outside accounting: links, addresses, routes, policy rules,
// neighbours, sysctls, the policy table in nftables, and flushes of conntrack.
//
// It knows single steps and no order of steps: pkg/node composes them. What belongs to one pod is created exclusively, never
// over something that is there; node-wide state is compared and completed; every removal is idempotent; and what isn't marked
// as ours is never changed. The marks are
//
//	link group 28278          both in the message that creates a pod's pair and on every link we look at
//	link alias  "nvm1 …"      address, generation and owner of the lease (type Alias); a link of the group without one is an
//	                          attachment that was never finished
//	protocol 217              our routes and policy rules
//	table ip native_vmss      our nftables table; chain cfg_<hash> in it names the configuration
//
// A pod with the address 10.20.0.10 gives this, on the node and in the pod:
//
//	10.20.0.10 dev veth3f9c2a71d05 proto 217 scope link       main table of the node; no address on the link itself
//
//	10.20.0.10/32 on eth0                                     in the pod
//	169.254.1.1 dev eth0 scope link
//	default via 169.254.1.1 dev eth0
//	169.254.1.1 lladdr <MAC of the host end> PERMANENT
//
// A Kernel holds sockets of the network namespace in which New was called, and works there whatever thread calls it. Its
// methods may be called at the same time; a netlink call itself can't be interrupted, so a context is asked before each one.
package routes
