// Package main: hack/suites.sh copies this file into the suites that make the machine's namespace themselves.
package main

import (
	"fmt"
	"os"
	"os/exec"

	. "github.com/onsi/gomega"
)

// cloudAddress is reached through the NIC and, being outside all private networks, by masquerade only.
const cloudAddress = "203.0.113.10"

var nodes int

// asNode gives a namespace that a suite takes for its machine what a node has: a NIC with one address, and an empty /run. The
// cloud at the NIC's other end is the namespace that the suite itself runs in; its metadata service knows each NIC by this
// numbering of MACs and addresses.
func asNode(path string) {
	nodes++
	port := fmt.Sprintf("port%d", nodes)
	node, gateway := fmt.Sprintf("10.20.%d.4", nodes), fmt.Sprintf("10.20.%d.1", nodes)
	inside := []string{"nsenter", "--net=" + path, "ip"}
	for _, command := range [][]string{
		{
			"ip", "link", "add", port, "type", "veth",
			"peer", "name", "eth0", "address", fmt.Sprintf("02:00:0a:14:%02x:04", nodes), "netns", path,
		},
		{"ip", "addr", "add", gateway + "/24", "dev", port},
		{"ip", "link", "set", port, "up"},
		append(inside, "link", "set", "lo", "up"),
		append(inside, "addr", "add", node+"/24", "dev", "eth0"),
		append(inside, "link", "set", "eth0", "up"),
		append(inside, "route", "add", "default", "via", gateway),
	} {
		out, err := exec.Command(command[0], command[1:]...).CombinedOutput()
		Expect(err).NotTo(HaveOccurred(), "%v: %s", command, out)
	}
	Expect(os.RemoveAll("/run/native-vmss")).To(Succeed())
}
