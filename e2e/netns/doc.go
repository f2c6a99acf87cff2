// Package netns holds the field cases that one node shows: faults that users of such plugins met elsewhere, each replayed step
// by step against the shipped binaries in a lab of network namespaces.
//
// A file br*_test.go is a case, a subtest is one of its numbered variants and is named after what it protects. The other files have a
// theme, which begins the names of their tests: Path is what a pod can do, NICs what nodes with several do, Standing the node-wide
// state; Failpoint, Damage, Break (at random), Hang, Clock, Reboot, Upgrade and Hostile are what goes wrong; Isolation is what a pod
// can't do; Conf, Ctl, GC, CheckHost, Caller, Podman, Cnitool and Suites are those who call us, Chain and Foreign the plugins beside us.
//
// What counts is what outsiders see: ip, nft, conntrack, iptables-save, the files, packets, and the store as bbolt shows it. Nothing is judged
// through the packages under test.
//
// Some kernels lack dummy links; ifb links or the ends of a veth pair stand in for them where a case names one.
package netns
