module github.com/native-vmss/native-vmss/e2e/peers/cnitool-0.8.1

go 1.26.0

tool github.com/containernetworking/cni/cnitool

// This release has no go.mod: its tests alone import ginkgo and gomega, here at the releases that cnitool-1.1.2 has.
require (
	github.com/containernetworking/cni v0.8.1 // indirect
	github.com/onsi/ginkgo v1.16.4 // indirect
	github.com/onsi/gomega v1.17.0 // indirect
)
