package netns

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/native-vmss/native-vmss/internal/lab"
)

// pathRow is a line of vmssctl ipam list -o json.
type pathRow struct {
	Address, State string
	Generation     uint64
}

// pathLeases asks vmssctl which addresses are leased, with their generations.
func (s *stage) pathLeases() map[string]uint64 {
	s.t.Helper()
	// Standard output alone: that a store was lost is said beside it.
	list, err := s.Node.Command(context.Background(), program(s.t, "vmssctl"), "--conf", s.ctlConf(), "ipam", "list", "-o", "json").Output()
	if err != nil {
		s.t.Fatalf("vmssctl ipam list: %v", err)
	}
	out := map[string]uint64{}
	for _, r := range pathJSON[[]pathRow](s.t, string(list)) {
		if r.State == "leased" {
			out[r.Address] = r.Generation
		}
	}
	return out
}

// pathKeys reads the index of keys: half of the key's hash -> its address.
func (s *stage) pathKeys() map[string]string {
	s.t.Helper()
	out := map[string]string{}
	s.readStore(stateDir+"/ipam.db", func(tx *bolt.Tx) error {
		return tx.Bucket([]byte("keys")).ForEach(func(k, _ []byte) error {
			a, _ := netip.AddrFromSlice(k[8:])
			out[fmt.Sprintf("%x", k[:8])] = a.String()
			return nil
		})
	})
	return out
}

// pathMany runs f for 0..n-1, a few at a time.
func pathMany(n int, f func(i int)) {
	var wg sync.WaitGroup
	gate := make(chan struct{}, 4)
	for i := range n {
		gate <- struct{}{}
		wg.Go(func() {
			f(i)
			<-gate
		})
	}
	wg.Wait()
}

// pathRetried adds a pod as a kubelet does: again while the answer is "try again later".
func (s *stage) pathRetried(id string, p *lab.Namespace) *answer {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(300 * time.Millisecond) {
		a := s.add(id, p)
		if a.Exit == 0 || a.Code != 11 || time.Now().After(end) {
			return a
		}
	}
}

// A store that is lost, emptied or cut in the middle of 50 live pods: no live address is given out, and every pod is known again.
func TestNetnsPath_lost_store(t *testing.T) {
	t.Parallel()
	const live = 50
	db := stateDir + "/ipam.db"
	each(t, map[string]string{
		"removed":           "rm " + db,
		"emptied":           ": >" + db,
		"cut_in_the_middle": "truncate -s $(( $(stat -c %s " + db + ") / 2 )) " + db,
	}, func(t *testing.T, damage string) {
		s := newStage(t, poolOf(2*live))
		held := map[netip.Addr]bool{}
		pods := map[string]*lab.Namespace{}
		var mu sync.Mutex
		pathMany(live, func(i int) {
			id := fmt.Sprintf("live%d", i)
			p := s.Pod(t, id)
			a := s.add(id, p)
			mu.Lock()
			held[a.IP], pods[id] = true, p
			mu.Unlock()
		})
		if len(held) != live {
			t.Fatalf("%d distinct addresses for %d pods", len(held), live)
		}
		leases, keys := s.pathLeases(), s.pathKeys()
		s.sh(damage)

		fresh := map[netip.Addr]string{}
		pathMany(live, func(i int) {
			id := fmt.Sprintf("new%d", i)
			p := s.Pod(t, id)
			a := s.pathRetried(id, p)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case a.Exit != 0:
				t.Errorf("%s: code %d: %s", id, a.Code, a.Msg)
			case held[a.IP] || fresh[a.IP] != "":
				t.Errorf("%s was given %s, which a live pod holds", id, a.IP)
			default:
				fresh[a.IP] = id
			}
		})
		after, keysAfter := s.pathLeases(), s.pathKeys()
		for a, g := range leases {
			if after[a] != g {
				t.Errorf("lease of %s: generation %d before, %d after", a, g, after[a])
			}
		}
		for k, a := range keys {
			if keysAfter[k] != a {
				t.Errorf("key %s had %s, and %q after", k, a, keysAfter[k])
			}
		}
		// In a rebuilt store as in the old one: a live pod works and can be deleted.
		if !s.answers(pods["live0"], lab.SimpleGateway) {
			t.Error("a live pod lost its network")
		}
		pathMany(live, func(i int) {
			id := fmt.Sprintf("live%d", i)
			if a := s.del(id, pods[id]); a.Exit != 0 {
				t.Errorf("DEL %s: %s", id, a.Msg)
			}
		})
		if n := len(s.held()); n != len(fresh) {
			t.Errorf("%d addresses held after the DELs, want %d", n, len(fresh))
		}
		for id := range pods {
			if s.hasLink(linkOf(id, "eth0")) {
				t.Errorf("link of %s is left", id)
			}
		}
		if damaged := s.sh("ls " + stateDir); strings.Contains(damage, "truncate") && !strings.Contains(damaged, "ipam.db.damaged-") {
			t.Errorf("a damaged store was not kept aside: %s", damaged)
		}
	})
}
