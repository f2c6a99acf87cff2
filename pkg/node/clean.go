package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/native-vmss/native-vmss/pkg/allocator"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// Clean takes off the node what ADDs and Prepare put there: policy table, rules, the routes in the NICs' tables, and the drop-ins
// that nobody changed. It refuses while a pod lives, or while a runtime may still call us. root is "/" but in tests.
//
// Forwarding stays on, since nobody knows who else needs it, and so do the files in the state directory: another process may hold
// a lock there, and the next boot has them no more.
func (n *Node) Clean(ctx context.Context, root string) ([]Change, error) {
	if path, err := namedBy(filepath.Join(root, ConfDir)); err != nil {
		return nil, err
	} else if path != "" {
		return nil, fmt.Errorf("%w: %s: remove it first, or the next pod brings everything back", ErrInstalled, path)
	}
	if err := n.makeStateDir(); err != nil {
		return nil, err
	}
	if err := n.sameNamespace(ctx); err != nil {
		return nil, err
	}
	if err := n.empty(ctx); err != nil {
		return nil, err
	}
	held, err := n.lockNode(ctx)
	if err != nil {
		return nil, err
	}
	defer held.Unlock()
	have, err := n.readRecord(ctx)
	if err != nil {
		return nil, err
	}
	if err := n.disown(ctx, have, n.empty); err != nil {
		return nil, err
	}
	var changes []Change
	n.kernel.OnChange(func(what string) { changes = append(changes, Change{What: what, Done: true}) })
	defer n.kernel.OnChange(nil)
	if err := n.kernel.ApplyRules(ctx, nil, routes.RemotePodsOff); err != nil {
		return changes, err
	}
	stands, err := n.kernel.PolicyTableExists(ctx)
	if err != nil {
		return changes, err
	}
	if stands {
		if err := n.kernel.DropPolicy(ctx); err != nil {
			return changes, err
		}
		changes = append(changes, Change{What: "remove table ip " + routes.PolicyTable, Done: true})
	}
	counters, err := n.dropCounting(ctx)
	if counters != "" {
		changes = append(changes, Change{What: "remove accounting by " + counters, Done: true})
	}
	if err != nil {
		return changes, err
	}
	removed, err := removeFiles(root)
	changes = append(changes, removed...)
	return changes, err
}

// empty asks kernel and store, neither of which alone knows all pods: another IPAM plugin's have no lease, another main plugin's
// no link of ours.
func (n *Node) empty(ctx context.Context) error {
	links, err := n.kernel.Links(ctx)
	if err != nil {
		return err
	}
	marked, err := n.kernel.Markers(ctx)
	if err != nil {
		return err
	}
	leases, err := n.store.List(ctx)
	if err != nil {
		return err
	}
	held := 0
	for _, l := range leases {
		if l.State == allocator.Leased || l.State == allocator.Releasing {
			held++
		}
	}
	if pods := max(len(links), len(marked), held); pods > 0 {
		return fmt.Errorf("%w: %d: drain the node ('vmssctl ipam list' names them)", ErrHasPods, pods)
	}
	return nil
}

// namedBy is the first file below dir that names a plugin of ours, whether or not it can be used.
func namedBy(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	for _, e := range entries {
		if !slices.Contains(confExtensions, filepath.Ext(e.Name())) {
			continue
		}
		path := filepath.Join(dir, e.Name())
		if _, err := ReadConf(path); err == nil || IsConfig(err) && !errors.Is(err, errNotOurs) {
			return path, nil
		}
	}
	return "", nil
}

// removeFiles takes the drop-ins away; one that somebody changed is his.
func removeFiles(root string) ([]Change, error) {
	var changes []Change
	for _, d := range dropIns {
		path := filepath.Join(root, d.path)
		have, err := readRegular(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return changes, err
		}
		if !bytes.Equal(have, []byte(d.text)) {
			changes = append(changes, Change{What: "leave " + path + ": it was changed"})
			continue
		}
		if err := removeFile(path); err != nil {
			return changes, err
		}
		changes = append(changes, Change{What: "remove " + path, Done: true})
	}
	return changes, nil
}
