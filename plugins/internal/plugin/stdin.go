package plugin

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/native-vmss/native-vmss/pkg/node"
)

// RequestedAddress is the one address a caller may ask for: runtimeConfig.ips, else args.cni.ips, else CNI_ARGS IP. Each of
// the first two makes the ones after it ignored, as the conventions have it.
func RequestedAddress(stdin []byte, pod Args) (netip.Addr, error) {
	for _, path := range [][]string{{"runtimeConfig", "ips"}, {"args", "cni", "ips"}} {
		raw := lookUp(stdin, path)
		if raw == nil {
			continue
		}
		field := strings.Join(path, ".")
		var list []string
		if err := json.Unmarshal(raw, &list); err != nil {
			return netip.Addr{}, fmt.Errorf("%w: %s: not a list of addresses", node.ErrConfig, field)
		}
		if len(list) > 0 {
			addr, err := only(list)
			if err != nil {
				return addr, fmt.Errorf("%w: %s: %w", node.ErrConfig, field, err)
			}
			return addr, nil
		}
	}
	return pod.IP, nil
}

// only is the one address of a list. podman names it twice when it sets up the network of a container that has a fixed one again.
func only(list []string) (netip.Addr, error) {
	var first netip.Addr
	for _, s := range list {
		addr, err := requested(s)
		if err != nil {
			return netip.Addr{}, err
		}
		if first.IsValid() && addr != first {
			return netip.Addr{}, fmt.Errorf("%s and %s, but a pod has one address", first, addr)
		}
		first = addr
	}
	return first, nil
}

// RequestedMAC is the hardware address that a caller asks for: runtimeConfig.mac, else args.cni.mac, else CNI_ARGS MAC, which
// is the only one that podman sends. Nil when nobody asks.
func RequestedMAC(stdin []byte, pod Args) (*[6]byte, error) {
	for _, path := range [][]string{{"runtimeConfig", "mac"}, {"args", "cni", "mac"}} {
		raw := lookUp(stdin, path)
		if raw == nil {
			continue
		}
		var text string
		err := json.Unmarshal(raw, &text)
		if err == nil && text == "" {
			continue
		}
		mac, ok := unicast(text)
		if !ok {
			return nil, fmt.Errorf("%w: %s: %s is not a unicast MAC of 6 bytes", node.ErrConfig, strings.Join(path, "."), raw)
		}
		return mac, nil
	}
	if pod.MAC == "" {
		return nil, nil
	}
	mac, ok := unicast(pod.MAC)
	if !ok {
		return nil, fmt.Errorf("%w: \"MAC=%s\": not a unicast MAC of 6 bytes", errArgs, pod.MAC)
	}
	return mac, nil
}

func unicast(text string) (*[6]byte, bool) {
	hw, err := net.ParseMAC(text)
	if err != nil || len(hw) != 6 || hw[0]&1 != 0 || [6]byte(hw) == ([6]byte{}) {
		return nil, false
	}
	return (*[6]byte)(hw), true
}

// lookUp finds a value inside objects; nil when there is none. Where something else stands in an object's place nothing is
// asked of us: these objects are everybody's.
func lookUp(data []byte, path []string) json.RawMessage {
	for _, key := range path {
		var object map[string]json.RawMessage
		if json.Unmarshal(data, &object) != nil {
			return nil
		}
		data = object[key]
	}
	return data
}

// requested reads "ip" or "ip/len"; the length says nothing, a pod's address is always a /32.
func requested(s string) (netip.Addr, error) {
	host, _, _ := strings.Cut(s, "/")
	addr, err := netip.ParseAddr(host)
	if err != nil || !addr.Unmap().Is4() {
		return netip.Addr{}, fmt.Errorf("%q is no IPv4 address", s)
	}
	return addr.Unmap(), nil
}

// ValidAttachments reads GC's list. A null or empty list means that nothing is valid; no list at all is told apart, since
// it proves nothing. Both spellings of the key are in use.
func ValidAttachments(stdin []byte, network string) (valid []node.Key, given bool, err error) {
	var c map[string]json.RawMessage
	if err := json.Unmarshal(stdin, &c); err != nil {
		return nil, false, fmt.Errorf("%w: stdin is no JSON object%s", node.ErrConfig, node.JSONFault(err))
	}
	for _, field := range []string{"cni.dev/valid-attachments", "cni.dev/attachments"} {
		raw, ok := c[field]
		if !ok {
			continue
		}
		given = true
		var list []struct {
			ContainerID string `json:"containerID"`
			IfName      string `json:"ifname"`
		}
		if err := json.Unmarshal(raw, &list); err != nil {
			return nil, false, fmt.Errorf("%w: %s: not a list of attachments", node.ErrConfig, field)
		}
		for i, l := range list {
			if l.ContainerID == "" || l.IfName == "" { // taken for a list of others, it would release everything
				return nil, false, fmt.Errorf("%w: %s: [%d] lacks containerID or ifname", node.ErrConfig, field, i)
			}
			valid = append(valid, node.Key{Network: network, ContainerID: l.ContainerID, IfName: l.IfName})
		}
	}
	return valid, given, nil
}
