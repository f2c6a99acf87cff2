// Package accounting counts, in the kernel, what the pods of a node and the node itself send and get, by direction and traffic class.
//
// It has two backends behind one small type, Backend: nftables (the default; one verdict map and a small chain per address, so a
// packet costs the same at 1 and at 250 pods) and iptables (for people who run iptables-exporter; a packet costs more with each pod).
// Both count a packet once per pod and direction, under the class of its real peer: what a pod sends after DNAT, what it gets before
// SNAT.
//
// What the nftables backend makes, here for the address 10.20.0.10, whose number is 1:
//
//	table ip native_vmss_acct
//	  pre     prerouting −90, after DNAT       from a pod's link:  ip saddr vmap @tx  -> t_10.20.0.10
//	                                           from a NIC, to an address of the node  -> n_rx
//	  post    postrouting 99, before SNAT      to a pod's link:    ip daddr vmap @rx  -> r_10.20.0.10
//	                                           to a NIC, from an address of the node  -> n_tx
//	  t_10.20.0.10   mark 0x00010000 inside markMask; peer in @class_cluster: counter c_10.20.0.10_tx_cluster, return;
//	                 counter c_10.20.0.10_tx_internet, return
//	  r_10.20.0.10   likewise with rx: on the pod's link the mark is the receiver's
//	  cfg_<hash>     names the configuration that all this was made from
//
// The iptables backend counts in the mangle table: tx in FORWARD and INPUT, after DNAT and routing; rx in POSTROUTING, after DNAT and
// before SNAT. PREROUTING would be before DNAT there, and OUTPUT too. So it differs from the nftables backend in this:
//
//   - what a pod sends and routing drops (no route, an address of the unreachable kind, a failed source check) is not tx;
//   - what a later chain drops on its way to a pod (another rule of mangle or nat POSTROUTING, or of an nft chain behind it) is rx;
//   - a rule of others before ours in those chains that ends them hides packets from us. Ours are put in front when they are made, and
//     left where they are afterwards, for a tool that does likewise would move them away again for ever; only behind one that ends the
//     chain itself (ACCEPT, RETURN, a goto) Apply puts them in front again. What others drop, or accept in a chain of theirs, isn't seen;
//   - packets to a pod don't carry its mark, only those that it sends;
//   - Stop leaves an address's chains, which no packet reaches any more, until Apply or the next pod: the page of iptables-exporter
//     shows an ended pod until then;
//   - where rules have to be rewritten under a running pod (another configuration, rules that others changed) what comes between the
//     reading and the writing, some milliseconds, is lost; nothing is counted twice.
//
// Packets of pods are known by the link group of pods' links, so that neither the node's packets nor those of others count.
// Rules are in the flavour, nft or legacy, of the iptables in PATH; Apply takes over what the other one has of ours.
//
// What is counted belongs to an address, and counters only grow: who had the address, and since when, is the store's to know
// (pkg/allocator keeps for each address the values up to which its bytes are in a total). So a new lease writes nothing here, and
// DEL only reads.
//
// Bytes are IP bytes of packets as the kernel handles them: a GSO super-packet counts once, so bytes are up to 3.5 % below the
// wire's and packets up to 7 times fewer.
package accounting
