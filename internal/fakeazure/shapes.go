package fakeazure

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
)

// shapes are changes to the instance document {"compute":…,"network":{"interface":[…]}}, by name: the odd forms that field
// reports know. Each works on a tree of map[string]any, []any and strings, and takes the tree as shapes before it left it;
// "primary" is the first address.
var shapes = map[string]func(doc map[string]any){
	// Parts missing.
	"no-network":        func(doc map[string]any) { delete(doc, "network") },
	"null-network":      func(doc map[string]any) { doc["network"] = nil },
	"no-interface":      func(doc map[string]any) { delete(network(doc), "interface") },
	"empty-interface":   func(doc map[string]any) { network(doc)["interface"] = []any{} },
	"null-interface":    func(doc map[string]any) { network(doc)["interface"] = nil },
	"no-ipv4":           eachNIC(func(nic map[string]any) { delete(nic, "ipv4") }),
	"null-ipv4":         eachNIC(func(nic map[string]any) { nic["ipv4"] = nil }),
	"second-no-ipv4":    second(func(nic map[string]any) { delete(nic, "ipv4") }),
	"second-only-ipv6":  second(onlyV6),
	"only-ipv6":         eachNIC(onlyV6),
	"no-addresses":      eachIPv4(func(v4 map[string]any) { delete(v4, "ipAddress") }),
	"empty-addresses":   eachIPv4(func(v4 map[string]any) { v4["ipAddress"] = []any{} }),
	"null-addresses":    eachIPv4(func(v4 map[string]any) { v4["ipAddress"] = nil }),
	"only-primary":      eachIPv4(func(v4 map[string]any) { l := list(v4["ipAddress"]); v4["ipAddress"] = l[:min(1, len(l))] }),
	"without-primary":   eachIPv4(func(v4 map[string]any) { l := list(v4["ipAddress"]); v4["ipAddress"] = l[min(1, len(l)):] }),
	"no-subnet":         eachIPv4(func(v4 map[string]any) { delete(v4, "subnet") }),
	"empty-subnet":      eachIPv4(func(v4 map[string]any) { v4["subnet"] = []any{} }),
	"prefix-number":     eachSubnet(func(s map[string]any) { s["prefix"] = number(prefix(s)) }),
	"prefix-slash":      eachSubnet(func(s map[string]any) { s["prefix"] = "/" + prefix(s) }),
	"prefix-empty":      eachSubnet(func(s map[string]any) { s["prefix"] = "" }),
	"prefix-absent":     eachSubnet(func(s map[string]any) { delete(s, "prefix") }),
	"two-subnets":       eachIPv4(twoSubnets),
	"mac-dashes":        eachMAC(func(mac string) any { return spell(mac, "-") }),
	"mac-colons":        eachMAC(func(mac string) any { return strings.ToLower(spell(mac, ":")) }),
	"mac-lower":         eachMAC(func(mac string) any { return strings.ToLower(mac) }),
	"mac-short":         eachMAC(func(mac string) any { return mac[:7] + mac[8:] }),
	"mac-empty":         eachMAC(func(string) any { return "" }),
	"mac-star":          eachMAC(func(string) any { return "*" }),
	"mac-null":          eachMAC(func(string) any { return nil }),
	"mac-absent":        eachNIC(func(nic map[string]any) { delete(nic, "macAddress") }),
	"second-first":      func(doc map[string]any) { slices.Reverse(interfaces(doc)) },
	"shuffle":           shuffle,
	"duplicate-address": eachIPv4(func(v4 map[string]any) { v4["ipAddress"] = slices.Repeat(list(v4["ipAddress"]), 2) }),
	"mapped-addresses":  eachAddress(func(s string) string { return "::ffff:" + s }),
	"bad-address":       eachIPv4(func(v4 map[string]any) { v4["ipAddress"] = append(list(v4["ipAddress"]), address("10.20.0.300")) }),
	"block":             eachIPv4(func(v4 map[string]any) { v4["ipAddress"] = append(list(v4["ipAddress"]), address("10.20.0.224/28")) }),
}

// number is a JSON number by its spelling.
type number string

// MarshalJSON implements json.Marshaler.
func (n number) MarshalJSON() ([]byte, error) { return []byte(n), nil }

// Shapes lists the names that Fault.Shapes takes.
func Shapes() []string {
	names := make([]string, 0, len(shapes))
	for name := range shapes {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// prefix is a subnet's prefix length, whatever shape it has got before.
func prefix(subnet map[string]any) string {
	digits := strings.Trim(fmt.Sprint(subnet["prefix"]), "/")
	if _, err := strconv.Atoi(digits); err != nil {
		return "24"
	}
	return digits
}

func object(v any) map[string]any { m, _ := v.(map[string]any); return m }

func list(v any) []any { l, _ := v.([]any); return l }

func address(s string) map[string]any {
	return map[string]any{"privateIpAddress": s, "publicIpAddress": ""}
}

// network is never nil, so that shapes may follow each other in any order.
func network(doc map[string]any) map[string]any {
	if n := object(doc["network"]); n != nil {
		return n
	}
	return map[string]any{}
}

func interfaces(doc map[string]any) []any { return list(network(doc)["interface"]) }

func eachNIC(fn func(nic map[string]any)) func(map[string]any) {
	return func(doc map[string]any) {
		for _, nic := range interfaces(doc) {
			fn(object(nic))
		}
	}
}

// second changes the NICs after the first.
func second(fn func(nic map[string]any)) func(map[string]any) {
	return func(doc map[string]any) {
		for i, nic := range interfaces(doc) {
			if i > 0 {
				fn(object(nic))
			}
		}
	}
}

func eachIPv4(fn func(v4 map[string]any)) func(map[string]any) {
	return eachNIC(func(nic map[string]any) {
		if v4 := object(nic["ipv4"]); v4 != nil {
			fn(v4)
		}
	})
}

func eachSubnet(fn func(subnet map[string]any)) func(map[string]any) {
	return eachIPv4(func(v4 map[string]any) {
		for _, s := range list(v4["subnet"]) {
			fn(object(s))
		}
	})
}

func eachMAC(fn func(mac string) any) func(map[string]any) {
	return eachNIC(func(nic map[string]any) {
		if mac, ok := nic["macAddress"].(string); ok && len(mac) == 12 {
			nic["macAddress"] = fn(mac)
		}
	})
}

func eachAddress(fn func(string) string) func(map[string]any) {
	return eachIPv4(func(v4 map[string]any) {
		for _, a := range list(v4["ipAddress"]) {
			a := object(a)
			a["privateIpAddress"] = fn(a["privateIpAddress"].(string))
		}
	})
}

func onlyV6(nic map[string]any) {
	nic["ipv4"] = map[string]any{"ipAddress": []any{}, "subnet": []any{}}
	nic["ipv6"] = map[string]any{"ipAddress": []any{
		map[string]any{"privateIpAddress": "fd00::4"}, map[string]any{"privateIpAddress": "fd00::10"},
	}}
}

func twoSubnets(v4 map[string]any) {
	v4["subnet"] = append(list(v4["subnet"]), map[string]any{"address": "10.99.0.0", "prefix": "16"})
}

// shuffle puts NICs and addresses in any order.
func shuffle(doc map[string]any) {
	mix := func(l []any) { rand.Shuffle(len(l), func(i, j int) { l[i], l[j] = l[j], l[i] }) }
	mix(interfaces(doc))
	eachIPv4(func(v4 map[string]any) { mix(list(v4["ipAddress"])) })(doc)
}

// spell puts a separator between the bytes of 02005E100004.
func spell(mac, sep string) string {
	var parts []string
	for i := 0; i < len(mac); i += 2 {
		parts = append(parts, mac[i:i+2])
	}
	return strings.Join(parts, sep)
}
