// Package node makes, removes and checks one pod's attachment on one node. It is the only package that knows the order of
// things; allocator, metadata and routes each know one thing and nothing of each other.
//
// # One ADD
//
//	lock the container            a byte of containers.lock: one ADD, DEL, CHECK or sweep of a container at a time
//	look into the pod             CNI_NETNS is a network namespace, not ours, and has no such interface
//	read the store                node record, age of the snapshot; each NIC of the record is still there
//	refresh, if due               metadata -> which addresses each NIC has (one process asks for all)
//	ensure the node               policy table not flushed, policy rules: two reads when they stand. Where something is missing,
//	                              these, the NICs' routing tables and the sysctls are written; CHECK looks at every rule
//	lease an address              committed under (network, container id, interface name) with a generation
//	ask the kernel                who holds <ip>/32? somebody live: block the address, take the next; another IPAM plugin's goes
//	                              back to it, and the ADD fails
//	flush conntrack               what came for the address while it cooled must not reach the new pod
//	count                         the address's counters stand, or are made; what fails here costs the pod nothing
//	wire the pod                  pair, alias, pod side, host side up, <ip>/32 with CREATE|EXCL, wait until it can send
//	read the lease back           it is still ours: print the result
//
// Whatever fails after the lease is undone by what DEL does, in a fresh context.
//
// # One DEL
//
//	lock the container, leased -> releasing, remove route and link by their marks and see that they are gone (a link of our name
//	and group is the attachment's, whatever its alias says, unless that is another one's of ours; else DEL fails),
//	flush conntrack, read the pod's counters, releasing -> cooling with its last bytes in the totals
//
// # What always holds
//
// Of docs/invariants.md, which explains the numbers:
//
//	I2  an address is unique because Azure puts it on one NIC: a node decides alone, and asks nobody but its own metadata
//	I3  DEL, CHECK and GC need the node's kernel and store, and of the configuration name, ipam.type and stateDir; nothing else. A
//	    wrong one of these is an error: another store than the ADD's would leave its lease
//	I5  what others say (metadata, a pod list) can block an address, never free one: only DEL, GC or the local kernel do
//	I6  leased -> releasing -> (link and route seen gone) -> cooling -> free, each step committed, each repeatable
//	I7  all that we put into the kernel has our mark (link group and alias, route protocol, our nftables table), and we
//	    remove by mark only
//	I8  the store is an index over facts that the kernel holds too: a lost or damaged one is rebuilt, never guessed to be free
//
// Lock order: container, metadata, node, fold, ipam; the last is innermost and never held over the others.
package node
