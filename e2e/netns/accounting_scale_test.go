package netns

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// However many pods there are, the numbers are exact, and for the same traffic the same.
// It runs alone: the kernel has one neighbour table for all namespaces, of a thousand entries, and this test needs five hundred.
func TestNetnsAccounting_at_1_30_and_250_pods(t *testing.T) {
	var mu sync.Mutex
	same := map[string]string{} // what a path's traffic came to, for the first who sent it
	for _, count := range []int{1, 30, 250} {
		t.Run(fmt.Sprint(count), func(t *testing.T) {
			l := newAcctLab(t, max(count, 2), "nftables")
			remote := l.pod(1, "r")
			pods := l.more(0, count)
			a, b := pods[0], pods[len(pods)-1]
			ends := []*lab.Namespace{a.space, remote.space, l.Nodes[0].Namespace, l.Hub, l.Internet}
			if b != a {
				ends = append(ends, b.space)
			}
			for _, n := range ends {
				l.echoes(n, netip.AddrPortFrom(netip.IPv4Unspecified(), acctPort))
			}
			node := l.Nodes[0].NICs[0].Primary
			for _, p := range []struct {
				name string
				from *acctPod
				to   netip.Addr
			}{
				{"to the hub", a, lab.CloudHub},
				{"to a remote pod", a, remote.ip},
				{"from a remote pod", remote, a.ip},
				{"to the internet", a, lab.CloudInternet},
				{"to the node", a, node},
				{"to the last pod", a, b.ip},
			} {
				if p.from.ip == p.to {
					continue // there is one pod
				}
				for _, k := range acctEach {
					before := l.sawAll()
					if err := k.run(p.from.space, netip.AddrPortFrom(p.to, acctPort)); err != nil {
						t.Errorf("%s by %s: %v", p.name, k.name, err)
					}
					what := p.name + " by " + k.name
					after := l.exact(what)
					if k.name == acctTCP.name {
						continue // how many acknowledgements come is nobody's to say
					}
					came := fmt.Sprint(after[p.from].way(before[p.from], "tx"), after[p.from].way(before[p.from], "rx"))
					mu.Lock()
					if first, known := same[what]; known && first != came {
						t.Errorf("%s: %s at %d pods, %s at fewer", what, came, count, first)
					}
					same[what] = came
					mu.Unlock()
				}
			}
			l.together(pods)
		})
	}
}

// together has all pods ping at the same time, each with a size of its own.
func (l *acctLab) together(pods []*acctPod) {
	l.t.Helper()
	before := l.sawAll()
	var wg sync.WaitGroup
	for i, p := range pods {
		wg.Go(func() {
			r, err := p.space.Ping(context.Background(), lab.CloudHub, lab.PingOptions{Count: 3, Interval: time.Millisecond, Size: 8 + i, Timeout: patience})
			if err != nil || r.Lost() > 0 {
				l.t.Errorf("%s: %+v %v", p.name, r, err)
			}
		})
	}
	wg.Wait()
	after := l.exact("all together")
	for i, p := range pods {
		want := lab.Sum{Packets: 3, Bytes: 3 * uint64(28+8+i)}
		if rx, tx := after[p].way(before[p], "rx"), after[p].way(before[p], "tx"); rx != want || tx != want {
			l.t.Errorf("%s got %+v and sent %+v, want %+v", p.name, rx, tx, want)
		}
	}
}
