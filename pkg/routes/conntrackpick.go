package routes

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const nfgenmsgLen = 4 // struct nfgenmsg, include/uapi/linux/netfilter/nfnetlink.h

// pickConntrack deletes one by one what a flush by filter would delete at once, for kernels from 5.8, which filter a dump, to
// about 6.10, which filter a flush. Only the entries that match come to user space; an older kernel would send them all, so
// each one is looked at.
func (k *Kernel) pickConntrack(ctx context.Context, s source) error {
	req := netfilterRequest(unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_GET, unix.NLM_F_DUMP, familyCounts)
	s.filter(req)
	found, err := k.netfilter(ctx, "conntrack-dump", req)
	if err != nil {
		return fmt.Errorf("dump: %w", err)
	}
	for _, entry := range found {
		attrs, err := entryAttrs(entry)
		if err != nil {
			return err
		}
		if !s.matches(attrs) {
			return unix.EOPNOTSUPP
		}
		del, err := deleteRequest(attrs)
		if err != nil {
			return err
		}
		_, err = k.netfilter(ctx, "conntrack-delete", del)
		if err != nil && !errors.Is(err, unix.ENOENT) { // it ended by itself
			return fmt.Errorf("delete: %w", err)
		}
	}
	return nil
}

func entryAttrs(entry []byte) ([]syscall.NetlinkRouteAttr, error) {
	if len(entry) < nfgenmsgLen {
		return nil, fmt.Errorf("conntrack entry of %d bytes", len(entry))
	}
	attrs, err := nl.ParseRouteAttr(entry[nfgenmsgLen:])
	if err != nil {
		return nil, fmt.Errorf("parse conntrack entry: %w", err)
	}
	return attrs, nil
}

// nested finds an attribute by its type and reads the attributes in it; nil when it isn't there.
func nested(attrs []syscall.NetlinkRouteAttr, kind int) []syscall.NetlinkRouteAttr {
	for _, a := range attrs {
		if attrType(a) == kind {
			in, _ := nl.ParseRouteAttr(a.Value)
			return in
		}
	}
	return nil
}

func attrType(a syscall.NetlinkRouteAttr) int {
	return int(a.Attr.Type) &^ unix.NLA_F_NESTED &^ unix.NLA_F_NET_BYTEORDER
}

func (s source) matches(entry []syscall.NetlinkRouteAttr) bool {
	for _, a := range nested(nested(entry, s.tuple), nl.CTA_TUPLE_IP) {
		if attrType(a) == nl.CTA_IP_V4_SRC {
			return ipAddr(a.Value) == s.addr
		}
	}
	return false
}

// deleteRequest names an entry by its original tuple, zone and id: one that took its place since has another id.
func deleteRequest(attrs []syscall.NetlinkRouteAttr) (*nl.NetlinkRequest, error) {
	req := netfilterRequest(unix.NFNL_SUBSYS_CTNETLINK, nl.IPCTNL_MSG_CT_DELETE, unix.NLM_F_ACK, 0)
	named := false
	for _, a := range attrs {
		switch attrType(a) {
		case nl.CTA_TUPLE_ORIG:
			named = true
			req.AddData(nl.NewRtAttr(unix.NLA_F_NESTED|nl.CTA_TUPLE_ORIG, a.Value))
		case ctaID:
			req.AddData(nl.NewRtAttr(ctaID, a.Value))
		case ctaZone:
			req.AddData(nl.NewRtAttr(ctaZone, a.Value))
		}
	}
	if !named { // without a tuple the message would mean "delete everything"
		return nil, errors.New("conntrack entry without a tuple")
	}
	return req, nil
}

// Attributes that the library lacks. include/uapi/linux/netfilter/nfnetlink_conntrack.h
const (
	ctaID   = 12
	ctaZone = 18
)
