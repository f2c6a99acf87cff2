package routes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/native-vmss/native-vmss/internal/procfile"
)

// Where sysctls are; "all" stands for every link.
const (
	sysctlNet       = "/proc/sys/net/"
	ipForward       = "ipv4/ip_forward"
	conntrackCount  = "netfilter/nf_conntrack_count"
	allLinks        = "all"
	arpIgnoreStrict = 2 // from this value on arp_ignore looks at the asker's address, which pods' neighbours don't pass
)

func conf4(link, key string) string { return "ipv4/conf/" + link + "/" + key }
func proxyDelay(link string) string { return "ipv4/neigh/" + link + "/proxy_delay" }

func conf6(link, key string) string { return "ipv6/conf/" + link + "/" + key }

// writeSysctl sets net.<key> in the namespace of the calling thread.
func writeSysctl(ctx context.Context, key, value string) error {
	if err := enter(ctx, "sysctl"); err != nil {
		return err
	}
	if err := procfile.Write(sysctlNet+key, value); err != nil {
		return fmt.Errorf("set net.%s to %s: %w", strings.ReplaceAll(key, "/", "."), value, err)
	}
	return nil
}

// readSysctl reads the number in net.<key> in the namespace of the calling thread.
func readSysctl(key string) (int, error) {
	b, err := procfile.Read(sysctlNet + key)
	if err != nil {
		return 0, fmt.Errorf("read net.%s: %w", strings.ReplaceAll(key, "/", "."), err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return 0, fmt.Errorf("read net.%s: %w", strings.ReplaceAll(key, "/", "."), err)
	}
	return n, nil
}

// ipv6Off turns IPv6 off on a link.
func ipv6Off(link string) sysctlValue { return sysctlValue{conf6(link, "disable_ipv6"), "1"} }

// writeIPv6 sets a link's IPv6 values. A kernel without IPv6 has no such files, which is as good.
func writeIPv6(ctx context.Context, values ...sysctlValue) error {
	for _, s := range values {
		err := writeSysctl(ctx, s.key, s.value)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ensureSysctl writes only what differs: a write of ip_forward resets the forwarding of every link, even with the same value.
func ensureSysctl(ctx context.Context, key string, want int) (changed bool, err error) {
	have, err := readSysctl(key)
	if err != nil || have == want {
		return false, err
	}
	return true, writeSysctl(ctx, key, strconv.Itoa(want))
}

// ApplySysctls makes the node forward between its NICs and its pods. Links that other software set to forwarding or not are
// left as they are.
func (k *Kernel) ApplySysctls(ctx context.Context, nics []string) error {
	keys := []string{ipForward}
	for _, nic := range nics {
		keys = append(keys, conf4(nic, "forwarding"))
	}
	return k.space.do(func() error {
		for _, key := range keys {
			changed, err := ensureSysctl(ctx, key, 1)
			if err != nil {
				return err
			}
			if changed {
				k.log.Info("sysctl set", "key", "net/"+key, "value", 1)
				k.note("sysctl net/%s set to 1", key)
			}
		}
		return nil
	})
}
