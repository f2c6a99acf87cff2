package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// ConfDir is where runtimes look for conflists.
const ConfDir = "/etc/cni/net.d"

var confExtensions = []string{".conf", ".conflist", ".json"}

// errNotOurs says that a file is a CNI configuration of others.
var errNotOurs = errors.New("no plugin of ours in it")

// FindConf returns the configuration of the first file in dir, in the order that runtimes use, that names a plugin of ours;
// one that can't be used is an error. Without one the defaults have to do.
func FindConf(dir string) (Conf, error) {
	entries, err := os.ReadDir(dir) // sorted by name
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return Conf{}, err
	}
	for _, e := range entries {
		if !slices.Contains(confExtensions, filepath.Ext(e.Name())) {
			continue
		}
		conf, err := ReadConf(filepath.Join(dir, e.Name()))
		if err == nil || IsConfig(err) && !errors.Is(err, errNotOurs) {
			return conf, err
		}
	}
	c := defaultConf()
	c.IPAM.Type = IPAMType
	return c, nil
}

// ReadConf reads our plugin's configuration from a conflist or from a file with one plugin.
func ReadConf(path string) (Conf, error) {
	data, err := readRegular(path)
	if err != nil {
		return Conf{}, err
	}
	conf, err := parseFile(data)
	if err != nil {
		return Conf{}, fmt.Errorf("%s: %w", path, err)
	}
	return conf, nil
}

func parseFile(data []byte) (Conf, error) {
	var list struct {
		Name    string                       `json:"name"`
		Plugins []map[string]json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return Conf{}, fmt.Errorf("%w: %w: not a conflist%s", errNotOurs, ErrConfig, JSONFault(err))
	}
	if list.Plugins == nil {
		return parseOurs(data)
	}
	for _, p := range list.Plugins {
		if p == nil { // null in the list
			continue
		}
		name, err := json.Marshal(list.Name)
		if err != nil {
			return Conf{}, err
		}
		p["name"] = name
		one, err := json.Marshal(p)
		if err != nil {
			return Conf{}, err
		}
		conf, err := parseOurs(one)
		if !errors.Is(err, errNotOurs) {
			return conf, err
		}
	}
	return Conf{}, errNotOurs
}

func parseOurs(data []byte) (Conf, error) {
	var p struct {
		Type string `json:"type"`
		IPAM struct {
			Type string `json:"type"`
		} `json:"ipam"`
	}
	// Another shape is not ours.
	_ = json.Unmarshal(data, &p)
	switch {
	case p.Type == mainType:
		return ParseMain(data, Strict)
	case p.IPAM.Type == IPAMType:
		return ParseIPAM(data, Strict)
	}
	return Conf{}, errNotOurs
}
