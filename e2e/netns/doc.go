// Package netns holds the field cases that one node shows: faults that users of such plugins met elsewhere, each replayed step
// by step against the shipped binaries in a lab of network namespaces.
//
// A file is a case, a subtest is one of its numbered variants and is named after what it protects. What counts is what
// outsiders see: ip, nft, conntrack, iptables-save, the files, packets, and the store as bbolt shows it. Nothing is judged
// through the packages under test.
//
// Some kernels lack dummy links; ifb links or the ends of a veth pair stand in for them where a case names one.
package netns
