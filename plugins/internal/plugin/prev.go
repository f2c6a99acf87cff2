package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/native-vmss/native-vmss/pkg/node"
)

// PrevResult is the result that the caller passes in, nil without one. Nothing else of the configuration is looked at: CHECK
// must not fail for a key that it doesn't need.
func PrevResult(stdin []byte) (*current.Result, error) {
	var c struct {
		CNIVersion string          `json:"cniVersion"`
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.Unmarshal(stdin, &c); err != nil {
		return nil, fmt.Errorf("%w: stdin is no JSON object%s", node.ErrConfig, node.JSONFault(err))
	}
	if c.PrevResult == nil {
		return nil, nil
	}
	conf := &types.PluginConf{CNIVersion: c.CNIVersion}
	if err := json.Unmarshal(c.PrevResult, &conf.RawPrevResult); err != nil {
		return nil, fmt.Errorf("%w: prevResult: not an object", node.ErrConfig)
	}
	if conf.RawPrevResult == nil { // null
		return nil, nil
	}
	if err := version.ParsePrevResult(conf); err != nil {
		return nil, badPrevResult(err)
	}
	res, err := Current(conf.PrevResult)
	if err != nil {
		return nil, badPrevResult(err)
	}
	if slices.Contains(res.Interfaces, nil) || slices.Contains(res.IPs, nil) || slices.Contains(res.Routes, nil) {
		return nil, badPrevResult(errNull)
	}
	// Passed on, it would be printed as "<nil>", which nobody can read.
	if slices.ContainsFunc(res.IPs, func(ip *current.IPConfig) bool { return ip.Address.IP == nil }) {
		return nil, badPrevResult(errors.New("ips: an entry without address"))
	}
	if slices.ContainsFunc(res.Routes, func(r *types.Route) bool { return r.Dst.IP == nil }) {
		return nil, badPrevResult(errors.New("routes: an entry without dst"))
	}
	return res, nil
}

var errNull = errors.New("null in a list")

// Current brings somebody's result to our version of its type. The library's conversion from versions before 1.0.0 panics on a null
// in a list: here that is an error, since what was done before has to be undone.
func Current(r types.Result) (res *current.Result, err error) {
	defer func() {
		if recover() != nil {
			res, err = nil, errNull
		}
	}()
	return current.NewResultFromResult(r)
}

// badPrevResult keeps what the library says of the version, and leaves out what encoding/json says of Go types.
func badPrevResult(err error) error {
	var shape *json.UnmarshalTypeError
	if errors.As(err, &shape) || strings.Contains(err.Error(), "json: cannot unmarshal") {
		return fmt.Errorf("%w: prevResult: not a result of its cniVersion", node.ErrConfig)
	}
	return fmt.Errorf("%w: prevResult: %w", node.ErrConfig, err)
}
