package plugin

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// errArgs is a CNI_ARGS that can't be used; the text names the pair.
var errArgs = errors.New("invalid CNI_ARGS")

// Args is what a Kubernetes runtime says of the pod; none of it is identity.
type Args struct {
	Namespace, Pod, UID string
	IP                  netip.Addr // a requested address
	MAC                 string     // a requested hardware address as it was written: the main plugin judges it
}

// ParseArgs reads K=V;K=V. Unlike the library's parser it takes a value that holds "=", a trailing ";" and blanks around a
// pair: runtimes build the string from a map, and people add to it by hand. Unknown keys need IgnoreUnknown, as everywhere.
func ParseArgs(s string) (Args, error) {
	var a Args
	var unknown string
	ignore := false
	for pair := range strings.SplitSeq(s, ";") {
		pair = strings.TrimSpace(pair)
		if pair == "" {
			continue
		}
		key, value, found := strings.Cut(pair, "=")
		if !found {
			return a, fmt.Errorf("%w: %q has no \"=\"", errArgs, pair)
		}
		known, err := a.set(key, value, &ignore)
		if err != nil {
			return a, fmt.Errorf("%w: %q: %w", errArgs, pair, err)
		}
		if !known && unknown == "" {
			unknown = pair
		}
	}
	if unknown != "" && !ignore {
		return a, fmt.Errorf("%w: %q is not known, and IgnoreUnknown is not set", errArgs, unknown)
	}
	return a, nil
}

func (a *Args) set(key, value string, ignore *bool) (known bool, err error) {
	switch key {
	case "K8S_POD_NAMESPACE":
		a.Namespace = value
	case "K8S_POD_NAME":
		a.Pod = value
	case "K8S_POD_UID":
		a.UID = value
	case "K8S_POD_INFRA_CONTAINER_ID":
	case "MAC":
		a.MAC = value
	case "IP":
		if value != "" { // as the library has it
			a.IP, err = requested(value)
		}
	case "IgnoreUnknown":
		switch strings.ToLower(value) {
		case "1", "true":
			*ignore = true
		case "0", "false", "":
		default:
			err = errors.New("neither 1 nor 0")
		}
	default:
		return false, nil
	}
	return true, err
}
