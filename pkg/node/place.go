package node

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"
)

// place is where the node-wide state was written: a network namespace of a boot.
type place struct {
	Boot  string `json:"boot"`
	Netns uint64 `json:"netns"` // inode number
}

// herePlace is this process's own.
func herePlace(boot string) (place, error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return place{}, fmt.Errorf("network namespace of this process: %w", err)
	}
	return place{Boot: boot, Netns: st.Ino}, nil
}

// sameNamespace refuses to judge pods from another network namespace than that in which ADDs ran: none of their links is there, and all
// would look dead.
func (n *Node) sameNamespace(ctx context.Context) error {
	rec, err := n.readRecord(ctx)
	if err != nil {
		return err
	}
	return n.sameNamespaceAs(rec)
}

func (n *Node) sameNamespaceAs(rec record) error {
	if rec.Place.Boot != n.place.Boot || rec.Place.Netns == n.place.Netns {
		return nil
	}
	return fmt.Errorf("%w: it isn't the node's (net:[%d], this is net:[%d]): run it with the host's network", ErrNamespace, rec.Place.Netns,
		n.place.Netns)
}
