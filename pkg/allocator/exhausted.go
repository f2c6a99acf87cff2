package allocator

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// exhausted says why no address can be handed out, from counters alone:
//
//	no assignable address: 5 total (4 leased, 0 releasing, 1 cooling, 0 blocked, 0 absent) on eth0 02:00:5e:10:00:04;
//	cooling, ready in 4s
func (t *txn) exhausted() error {
	totals, next, err := t.allTotals()
	if err != nil {
		return err
	}
	if len(totals) == 0 {
		return fmt.Errorf("%w: no pod address is known yet", ErrPoolExhausted)
	}
	var b strings.Builder
	for i, n := range totals {
		if n.Free > 0 && !n.Skipped {
			return damaged("NIC %s counts %d free addresses and its queue has none", n.NIC, n.Free)
		}
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "%d total (%d leased, %d releasing, %d cooling, %d blocked, %d absent) on %s",
			n.Total, n.Leased, n.Releasing, n.Cooling, n.Blocked, n.Absent, nicName(n))
	}
	if next > 0 {
		fmt.Fprintf(&b, "; cooling, ready in %s", seconds(next))
	}
	blocked, err := t.blockedText()
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: %s%s", ErrPoolExhausted, b.String(), blocked)
}

func nicName(n Totals) string {
	if n.NIC == (MAC{}) {
		return "a NIC that is not known yet"
	}
	name := strings.TrimSpace(n.Link + " " + n.NIC.String())
	if n.Skipped {
		name += " (which can't be used now)"
	}
	return name
}

// named is how many blocked addresses an error names.
const named = 3

// blockedText names what is blocked, and for addresses on a host link the way out.
func (t *txn) blockedText() (string, error) {
	var b strings.Builder
	for _, reason := range []Reason{OnHostLink, UsedByOther} {
		var addrs []string
		n := 0
		err := t.walk(bucketBlocked, []byte{byte(reason)}, func(k, _ []byte) (bool, error) {
			a, ok := netip.AddrFromSlice(k[1:])
			if !ok {
				return false, damaged("%s/%x names no address", bucketBlocked, k)
			}
			if n++; n <= named {
				addrs = append(addrs, a.String())
			}
			return n < blockedCounted, nil
		})
		if err != nil {
			return "", err
		}
		if n == 0 {
			continue
		}
		list, count := strings.Join(addrs, " "), fmt.Sprint(n)
		if n > named {
			list += " …"
		}
		if n == blockedCounted {
			count += " or more"
		}
		fmt.Fprintf(&b, "; %s blocked: %s (%s)", count, reason, list)
		if reason == OnHostLink {
			b.WriteString(": run 'vmssctl node prepare --force'")
		}
	}
	return b.String(), nil
}

// blockedCounted bounds the walk over blocked addresses; a NIC has at most 256.
const blockedCounted = 1024

// seconds rounds up: an address that is ready in 0.2 s is not ready in 0 s.
func seconds(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}
