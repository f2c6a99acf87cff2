module github.com/native-vmss/native-vmss/e2e/peers/cnitool-1.1.2

go 1.26.0

tool github.com/containernetworking/cni/cnitool

require github.com/containernetworking/cni v1.1.2 // indirect
