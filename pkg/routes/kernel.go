package routes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/failpoint"
)

// Marks by which our objects are known, and numbers that are part of the datapath.
const (
	// Protocol is the number of our routes and rules; iproute2 has no name for it and networkd doesn't use it.
	Protocol = 217
	// Group is the link group of the host ends of pods.
	Group = 28278
	// tableBase + i is the routing table of NIC i; tableLast is the last one.
	tableBase = 28200
	tableLast = 28298
)

const (
	// replyTimeout bounds the wait for the kernel's answer, which it writes before the send returns.
	replyTimeout = 10 * time.Second
	// dumpTries is how often a dump is asked for that changes of the kernel's tables interrupt. Where 50 links come and go all the
	// time beside 100 that stay, a third of them are: five tries failed one command in some hundreds.
	dumpTries = 15
	// dumpPause is the pause before the first repetition; it doubles with each one up to dumpPauseMost. All of them: 0.4 s.
	dumpPause     = time.Millisecond
	dumpPauseMost = 32 * time.Millisecond
)

// gateway is what pods have as their next hop. No link carries it: each pod has a permanent neighbour for it.
var gateway = netip.AddrFrom4([4]byte{169, 254, 1, 1})

// Hash is the first 16 bytes of the SHA-256 of network, container and interface name, joined by zero bytes.
type Hash = [16]byte

// Kernel acts on one network namespace: the node's.
type Kernel struct {
	log   *slog.Logger
	space namespace
	rt    rtnetlink
	noted func(what string) // nil: nobody asks

	mu sync.Mutex // guards nf
	nf map[int]*nl.SocketHandle
}

// rtnetlink is a socket of NETLINK_ROUTE in one namespace.
type rtnetlink struct{ handle *netlink.Handle }

// New opens the network namespace of the calling thread. A nil logger discards.
func New(log *slog.Logger) (*Kernel, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	space, err := openNamespace(ownNetns)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", ownNetns, err)
	}
	rt, err := openRoute(space)
	if err != nil {
		return nil, errors.Join(err, space.Close())
	}
	return &Kernel{log: log, space: space, rt: rt}, nil
}

// OnChange has fn told of each thing that is put right from now on: a pass that changes nothing says nothing. A nil fn ends that.
func (k *Kernel) OnChange(fn func(what string)) { k.noted = fn }

func (k *Kernel) note(format string, args ...any) {
	if k.noted != nil {
		k.noted(fmt.Sprintf(format, args...))
	}
}

// Close gives back sockets and the namespace's descriptor.
func (k *Kernel) Close() {
	k.rt.close()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, s := range k.nf {
		s.Close()
	}
	k.nf = nil
	_ = k.space.Close()
}

// openRoute opens the socket on a thread that is there. For the node's own namespace that is the calling one, so that a process
// needs CAP_NET_ADMIN only; to enter another namespace takes CAP_SYS_ADMIN.
func openRoute(space namespace) (rtnetlink, error) {
	var h *netlink.Handle
	err := space.do(func() (err error) {
		h, err = netlink.NewHandle(unix.NETLINK_ROUTE)
		return err
	})
	if err != nil {
		return rtnetlink{}, fmt.Errorf("open netlink socket: %w", err)
	}
	if err := h.SetSocketTimeout(replyTimeout); err != nil {
		h.Close()
		return rtnetlink{}, fmt.Errorf("set netlink timeout: %w", err)
	}
	return rtnetlink{h}, nil
}

func (r rtnetlink) close() { r.handle.Close() }

// do is the only way to the socket: every message to NETLINK_ROUTE passes here under its name.
func (r rtnetlink) do(ctx context.Context, op string, send func(*netlink.Handle) error) error {
	if err := enter(ctx, op); err != nil {
		return err
	}
	return send(r.handle)
}

// enter stands before every call that changes or reads the kernel.
func enter(ctx context.Context, op string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return failpoint.Hit("routes." + op)
}

// dump repeats a dump until no change of the tables disturbed it: a partial list is never returned.
func dump[T any](ctx context.Context, r rtnetlink, op string, list func(*netlink.Handle) ([]T, error)) ([]T, error) {
	var found []T
	var err error
	for try := range dumpTries {
		err = r.do(ctx, op, func(h *netlink.Handle) (err error) {
			found, err = list(h)
			return err
		})
		if !errors.Is(err, netlink.ErrDumpInterrupted) && !errors.Is(err, unix.EINTR) {
			break
		}
		time.Sleep(min(dumpPause<<try, dumpPauseMost))
	}
	if err != nil {
		return nil, err
	}
	return found, nil
}

// linkByName finds a link by its name; found is false when there is none. An alternative name counts, as in the kernel.
func (r rtnetlink) linkByName(ctx context.Context, name string) (link netlink.Link, found bool, err error) {
	err = r.do(ctx, "link-get", func(h *netlink.Handle) (err error) {
		link, err = h.LinkByName(name)
		return err
	})
	return foundLink(link, err, name)
}

func (r rtnetlink) linkByIndex(ctx context.Context, index int) (link netlink.Link, found bool, err error) {
	err = r.do(ctx, "link-get", func(h *netlink.Handle) (err error) {
		link, err = h.LinkByIndex(index)
		return err
	})
	return foundLink(link, err, fmt.Sprintf("#%d", index))
}

func foundLink(link netlink.Link, err error, what string) (netlink.Link, bool, error) {
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) || errors.Is(err, unix.ENODEV) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("get link %s: %w", what, err)
	}
	return link, true, nil
}

// byIndex stands for a link in calls that need no more than its index.
func byIndex(index int) netlink.Link {
	return &netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Index: index}}
}
