package fakeazure

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Names of a cloud whose topology has none.
const (
	defaultLocation       = "westeurope"
	defaultSubscriptionID = "00000000-0000-0000-0000-000000000000"
	defaultResourceGroup  = "native-vmss"
)

// document builds the instance document of a VM and applies shapes. All primitives are strings, as in the real one.
func (c *Cloud) document(v *vm, changes []string) map[string]any {
	c.mu.Lock()
	doc := map[string]any{"compute": c.compute(v), "network": map[string]any{"interface": c.interfaces(v)}}
	c.mu.Unlock()
	for _, name := range changes {
		shapes[name](doc)
	}
	return doc
}

func (c *Cloud) interfaces(v *vm) []any {
	nics := make([]any, 0, len(v.NICs))
	for _, nic := range v.NICs {
		v4 := []any{address(nic.Primary.String())}
		for _, addr := range v.views[nic.MAC].now() {
			v4 = append(v4, address(addr.String()))
		}
		v6 := make([]any, 0, len(nic.V6))
		for _, addr := range nic.V6 {
			v6 = append(v6, map[string]any{"privateIpAddress": addr.String()})
		}
		nics = append(nics, map[string]any{
			"ipv4":       map[string]any{"ipAddress": v4, "subnet": []any{c.subnetEntry(nic.Subnet)}},
			"ipv6":       map[string]any{"ipAddress": v6},
			"macAddress": nic.MAC.IMDS(),
		})
	}
	return nics
}

func (c *Cloud) subnetEntry(name string) map[string]any {
	var prefix netip.Prefix
	if s, err := c.subnet(name); err == nil { // checked when the NIC was added
		prefix = s.Prefix
	}
	return map[string]any{"address": prefix.Addr().String(), "prefix": strconv.Itoa(prefix.Bits())}
}

// compute has the keys that programs use.
func (c *Cloud) compute(v *vm) map[string]any {
	return map[string]any{
		"azEnvironment":       "AzurePublicCloud",
		"location":            or(c.top.Location, defaultLocation),
		"name":                v.Name,
		"osProfile":           map[string]any{"adminUsername": "", "computerName": v.computerName(), "disablePasswordAuthentication": "true"},
		"osType":              "Linux",
		"platformFaultDomain": "0",
		"resourceGroupName":   or(c.top.ResourceGroup, defaultResourceGroup),
		"resourceId":          c.resourceID(v),
		"subscriptionId":      or(c.top.SubscriptionID, defaultSubscriptionID),
		"tags":                "",
		"tagsList":            []any{},
		"vmId":                fmt.Sprintf("00000000-0000-4000-8000-%x", v.NICs[0].MAC[:]),
		"vmScaleSetName":      v.ScaleSet,
		"zone":                v.Zone,
	}
}

func (c *Cloud) resourceID(v *vm) string {
	group := "/subscriptions/" + or(c.top.SubscriptionID, defaultSubscriptionID) + "/resourceGroups/" +
		or(c.top.ResourceGroup, defaultResourceGroup) + "/providers/Microsoft.Compute/"
	if v.ScaleSet == "" {
		return group + "virtualMachines/" + v.Name
	}
	return group + "virtualMachineScaleSets/" + v.ScaleSet + "/virtualMachines/" + v.InstanceID
}

func (v *vm) computerName() string {
	return or(v.ComputerName, strings.ReplaceAll(v.Name, "_", "-"))
}

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
