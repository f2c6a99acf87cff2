package lab

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Offload is a setting of a link that decides how large the packets are that the kernel handles (linux/ethtool.h).
type Offload uint32

// Offloads.
const (
	TSO Offload = unix.ETHTOOL_STSO // the sender's stack leaves cutting into segments to the link
	GSO Offload = unix.ETHTOOL_SGSO // it cuts them as late as it can
	GRO Offload = unix.ETHTOOL_SGRO // the receiver joins segments
)

// ethtoolValue is struct ethtool_value, ethtoolRequest struct ifreq with a pointer to it.
type ethtoolValue struct{ cmd, data uint32 }

type ethtoolRequest struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// SetOffload switches an offload of a link on or off.
func (n *Namespace) SetOffload(link string, o Offload, on bool) error {
	err := n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		value := ethtoolValue{cmd: uint32(o)}
		if on {
			value.data = 1
		}
		req := ethtoolRequest{data: unsafe.Pointer(&value)}
		copy(req.name[:unix.IFNAMSIZ-1], link)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("set offload %#x of %s in %s to %v: %w", uint32(o), link, n.Name, on, err)
	}
	return nil
}
