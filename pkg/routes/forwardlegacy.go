package routes

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/native-vmss/native-vmss/internal/procfile"
)

// The older interface of iptables (iptables-legacy), include/uapi/linux/netfilter_ipv4/ip_tables.h. Its chains are not nftables'.
const (
	legacyNames      = "/proc/thread-self/net/ip_tables_names" // tables that this namespace has
	legacyFilter     = "filter"
	legacyGetInfo    = 64 // IPT_SO_GET_INFO
	legacyGetEntries = 65 // IPT_SO_GET_ENTRIES
	// Of struct ipt_getinfo: its size, and where first entry and policy of chain FORWARD and the size of all entries stand.
	legacyInfoSize, legacyFirst, legacyPolicy, legacyTotal = 84, 36 + 4*unix.NF_INET_FORWARD, 56 + 4*unix.NF_INET_FORWARD, 80
	// Of struct ipt_get_entries: where its size stands, and its entries begin.
	legacySize, legacyEntries = 32, 40
	// Of struct ipt_entry: where the offset of its target stands; and of struct xt_standard_target: where the verdict stands.
	legacyTarget, legacyVerdict = 88, 32
	legacyDrop                  = ^uint32(0) // -NF_DROP - 1
)

// legacyForwardDropped is ForwardDropped for iptables-legacy. A namespace without a legacy table filter isn't asked: the question would
// load a module.
func (k *Kernel) legacyForwardDropped(ctx context.Context) (drops bool, err error) {
	err = k.space.do(func() error {
		names, err := procfile.Read(legacyNames)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !slices.Contains(strings.Fields(string(names)), legacyFilter) {
			return nil
		}
		if err != nil {
			return err
		}
		drops, err = legacyDropsAll(ctx)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("look at chain FORWARD of iptables-legacy: %w", err)
	}
	return drops, nil
}

func legacyDropsAll(ctx context.Context) (bool, error) {
	info := make([]byte, legacyInfoSize)
	if err := legacyAsk(ctx, legacyGetInfo, info); err != nil {
		return false, err
	}
	number := func(b []byte, at uint32) uint32 { return binary.NativeEndian.Uint32(b[at:]) }
	if number(info, legacyFirst) != number(info, legacyPolicy) {
		return false, nil // it has rules
	}
	size := number(info, legacyTotal)
	table := make([]byte, legacyEntries+size)
	binary.NativeEndian.PutUint32(table[legacySize:], size)
	if err := legacyAsk(ctx, legacyGetEntries, table); errors.Is(err, unix.EAGAIN) {
		return false, nil // somebody is at work there
	} else if err != nil {
		return false, err
	}
	policy := legacyEntries + number(info, legacyPolicy)
	if int(policy)+legacyTarget+2 > len(table) {
		return false, errors.New("a policy behind the end of the table")
	}
	verdict := policy + uint32(binary.NativeEndian.Uint16(table[policy+legacyTarget:])) + legacyVerdict
	if int(verdict)+4 > len(table) {
		return false, errors.New("a verdict behind the end of the table")
	}
	return number(table, verdict) == legacyDrop, nil
}

// legacyAsk fills in what stands behind the table's name. Any socket of IPv4 will do.
func legacyAsk(ctx context.Context, option uintptr, answer []byte) error {
	if err := enter(ctx, "iptables-get"); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	copy(answer, legacyFilter)
	size := uint32(len(answer))
	_, _, no := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.IPPROTO_IP, option,
		uintptr(unsafe.Pointer(&answer[0])), uintptr(unsafe.Pointer(&size)), 0)
	if no != 0 {
		return no
	}
	return nil
}
