package node

import (
	"context"
	"errors"
	"net/netip"

	"github.com/native-vmss/native-vmss/internal/boltfile"
	"github.com/native-vmss/native-vmss/pkg/routes"
)

// Detach is DEL. It needs the key alone: no namespace, no earlier result, no working configuration (I3). What isn't there
// is success.
//
// A store that a newer version wrote is not ours to change: the pod goes by the kernel's marks, and its lease is what that
// version's sweep or GC collects, as after any pod that ended without a DEL.
func (n *Node) Detach(ctx context.Context, k Key) error {
	return n.detach(ctx, k.Hash(), func(ctx context.Context, teardown Teardown) error {
		gone := false
		err := n.addrs.Release(ctx, k, func(ctx context.Context, g Grant) error {
			err := teardown(ctx, g)
			gone = err == nil
			return err
		})
		if gone && errors.Is(err, boltfile.ErrNewerSchema) {
			n.log.Warn("pod removed by its marks, its lease stays", "error", err)
			return nil
		}
		return err
	})
}

// detach runs a release under the container's lock. A state directory that can't be written must not keep a dead pod wired:
// then it goes on without the lock and reports that.
func (n *Node) detach(ctx context.Context, h Hash, release func(context.Context, Teardown) error) error {
	held, err := n.lockForRelease(ctx, h)
	if errors.Is(err, boltfile.ErrBusy) {
		return err
	}
	if held != nil {
		defer held.Unlock()
	}
	return errors.Join(err, release(ctx, func(ctx context.Context, g Grant) error {
		return n.teardown(ctx, h, g)
	}))
}

func (n *Node) lockForRelease(ctx context.Context, h Hash) (*boltfile.Held, error) {
	if err := n.makeStateDir(); err != nil {
		return nil, err
	}
	return n.lockContainer(ctx, lockOffset(h))
}

// teardown removes what the kernel has of an attachment. Where no record tells its address (another IPAM plugin's, a lost
// store), the link's mark does, and the conntrack entries are flushed here: nobody else could.
func (n *Node) teardown(ctx context.Context, h Hash, g Grant) error {
	if err := n.removeWiring(ctx, h, g); err != nil || n.allocates() {
		return err
	}
	if err := n.endForeign(ctx, h); err != nil {
		n.countLog().Error("last bytes of a pod are lost", "addr", g.Addr, "error", err)
	}
	return nil
}

func (n *Node) removeWiring(ctx context.Context, h Hash, g Grant) error {
	if g.Addr.IsValid() {
		return n.unwire(ctx, h, g)
	}
	link, found, err := n.kernel.Link(ctx, linkName(n.conf.InterfacePrefix, h))
	if err != nil && !errors.Is(err, routes.ErrForeignLink) {
		return err // else the connections would stay
	}
	if found && link.Marked && link.Alias.Key == h {
		g.Addr = link.Alias.Addr
	}
	if err := n.unwire(ctx, h, g); err != nil || !g.Addr.IsValid() {
		return err
	}
	if err := n.kernel.FlushConntrack(ctx, g.Addr); err != nil {
		n.log.Warn("conntrack not flushed", "addr", g.Addr, "error", err)
	}
	return nil
}

// unwire removes the attachment's link and route and sees that they are gone. The link's name comes from the record, else
// from the configured or the default prefix. Where that name is nobody's or somebody else's, one scan for the key's mark
// decides: people rename links.
func (n *Node) unwire(ctx context.Context, h Hash, g Grant) error {
	names := []string{linkName(n.conf.InterfacePrefix, h), linkName(defaultPrefix, h)}
	if g.LinkName != "" {
		names = []string{g.LinkName}
	}
	for _, name := range names {
		done, err := n.removeNamed(ctx, name, h, g.Addr)
		if done || err != nil {
			return err
		}
	}
	links, err := n.kernel.Links(ctx)
	if err != nil {
		return err
	}
	for _, l := range links {
		if l.Marked && l.Alias.Key == h {
			return n.kernel.Remove(ctx, l.Name, h, l.Alias.Addr)
		}
	}
	return n.kernel.RemoveRoute(ctx, h, g.Addr)
}

// removeNamed removes the attachment's link if it has this name. Somebody else's link of that name is none of ours: an ADD
// that found it failed, and must not be stuck for ever.
func (n *Node) removeNamed(ctx context.Context, name string, h Hash, addr netip.Addr) (bool, error) {
	_, found, err := n.kernel.Link(ctx, name)
	if found {
		err = n.kernel.Remove(ctx, name, h, addr)
	}
	if errors.Is(err, routes.ErrForeignLink) {
		return false, nil
	}
	return found, err
}
