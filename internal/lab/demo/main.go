// Command demo builds two nodes of a fake cloud out of namespaces, attaches pods with the binaries in bin/ and the shipped
// conflist, and shows line by line what they promise. It ends with a failure at the first line that doesn't hold. FAULT=name in
// the environment seeds a fault that it has to find.
//
// It needs root and a Linux kernel, and no program but those in bin/.
package main

import "os"

func main() { os.Exit(run(os.Stdout, os.Getenv("FAULT"))) }
