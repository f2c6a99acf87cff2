package routes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Numbers of conntrack's netlink interface that the library lacks.
// include/uapi/linux/netfilter/nfnetlink_conntrack.h, net/netfilter/nf_internals.h (Linux 6.10)
const (
	ctaFilter           = 25
	ctaFilterOrigFlags  = 1
	ctaFilterReplyFlags = 2
	filterIPSrc         = 1 << 0 // CTA_FILTER_FLAG(CTA_IP_SRC)
	// familyCounts is a header version that makes the kernel look at the header's address family.
	familyCounts = 1
)

// ConntrackCount is the number of conntrack entries in the node's namespace.
func (k *Kernel) ConntrackCount(ctx context.Context) (n int, err error) {
	if err := enter(ctx, "conntrack-count"); err != nil {
		return 0, err
	}
	err = k.space.do(func() (err error) {
		n, err = readSysctl(conntrackCount)
		return err
	})
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // no conntrack in this kernel, or not loaded yet
	}
	return n, err
}

// FlushConntrack deletes the entries that name addr: as the source of a connection (client, masqueraded or not), or as the
// source of its replies (server, behind a Service or not). The kernel picks them itself: at once where it can, else by a
// dump that it filters.
func (k *Kernel) FlushConntrack(ctx context.Context, addr netip.Addr) error {
	addr = addr.Unmap()
	if !addr.Is4() {
		return fmt.Errorf("flush conntrack entries of %s: not an IPv4 address", addr)
	}
	for _, s := range sourcesOf(addr) {
		if err := k.flushConntrack(ctx, s); err != nil {
			return fmt.Errorf("flush conntrack entries of %s: %w", addr, err)
		}
	}
	return nil
}

// source means all entries whose tuple in one direction has addr as its source.
type source struct {
	addr        netip.Addr
	tuple       int // attribute that holds the tuple of that direction
	filterFlags int // attribute that says what of it counts
}

func sourcesOf(addr netip.Addr) []source {
	return []source{
		{addr, nl.CTA_TUPLE_ORIG, ctaFilterOrigFlags},
		{addr, nl.CTA_TUPLE_REPLY, ctaFilterReplyFlags},
	}
}

func (k *Kernel) flushConntrack(ctx context.Context, s source) error {
	req := netfilterRequest(unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, familyCounts)
	s.filter(req)
	_, err := k.netfilter(ctx, "conntrack-flush", req)
	if !lacksFilter(err) {
		return err
	}
	if err = k.pickConntrack(ctx, s); lacksFilter(err) {
		return fmt.Errorf("%w (%w)", ErrNoConntrackFilter, err)
	}
	return err
}

func lacksFilter(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// filter makes a request mean the entries of s.
//
// The tuple must be there beside the filter: a kernel that doesn't know the filter then finds a tuple without a protocol and
// answers EINVAL. Without a tuple it would take a deletion for "flush everything".
func (s source) filter(req *nl.NetlinkRequest) {
	t := nl.NewRtAttr(unix.NLA_F_NESTED|s.tuple, nil)
	t.AddRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_IP, nil).AddRtAttr(nl.CTA_IP_V4_SRC, s.addr.AsSlice())
	req.AddData(t)
	f := nl.NewRtAttr(unix.NLA_F_NESTED|ctaFilter, nil)
	f.AddRtAttr(s.filterFlags, binary.NativeEndian.AppendUint32(nil, filterIPSrc))
	req.AddData(f)
}
