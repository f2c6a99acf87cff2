package node

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
)

// Drop-ins that keep the node's own software off the pods' addresses. Paths are below the root.
var dropIns = []dropIn{
	{
		path: "etc/cloud/cloud.cfg.d/99-native-vmss.cfg",
		// Since 23.4 cloud-init puts every secondary address of a NIC on its link at each boot; such an address answers from
		// the node and can't be a pod's.
		text: `# Written by "vmssctl node prepare": secondary addresses belong to pods.
datasource:
  Azure:
    apply_network_config_for_secondary_ips: false
`,
	},
	{
		path: "etc/systemd/networkd.conf.d/10-native-vmss.conf",
		// networkd removes routes and rules that it doesn't know whenever it starts, pods' routes included.
		text: `# Written by "vmssctl node prepare": routes and rules of pods are not networkd's to remove.
[Network]
ManageForeignRoutes=no
ManageForeignRoutingPolicyRules=no
ManageForeignNextHops=no
`,
	},
}

type dropIn struct{ path, text string }

func prepareFiles(root string, do bool) ([]Change, error) {
	var changes []Change
	for _, d := range dropIns {
		path := filepath.Join(root, d.path)
		have, err := readRegular(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return changes, err
		}
		if bytes.Equal(have, []byte(d.text)) {
			continue
		}
		if do {
			if err := writeWhole(path, d.text); err != nil {
				return changes, err
			}
		}
		changes = append(changes, Change{What: "write " + path, Done: do})
	}
	return changes, nil
}
