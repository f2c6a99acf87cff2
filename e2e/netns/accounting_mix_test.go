package netns

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"
)

func acctAs(err error, exit **exec.ExitError) bool { return errors.As(err, exit) }

// acctMix is a random course: pods come, talk and go, repairs are killed and started again, others save and restore their rules.
type acctMix struct {
	*acctLab
	n     *acctNode
	rnd   *rand.Rand
	count int
	loop  func()
	did   []string
}

var acctTeams = []string{"team-a", "team-b", "team-c"}

// Pods, repairs and others do what they do, in any order: each number is exact at each rest, and none ever falls, for a reader who reads
// all the time.
func TestNetnsAccounting_mix(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	l, n := newAcctSimple(t, 6, "nftables")
	kill, stop := n.acctLoop()
	defer stop()
	m := &acctMix{acctLab: l, n: n, rnd: rand.New(rand.NewPCG(seed, 0)), loop: kill}
	m.come()
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { n.watches(done) })
	steps, rests := 0, 0
	for end := time.Now().Add(acctMixTime()); time.Now().Before(end) && !t.Failed(); steps++ {
		m.step()
		if steps%5 == 4 {
			l.exact("at a rest")
			rests++
		}
	}
	close(done)
	wg.Wait()
	l.exact("at the end")
	for len(n.pods) > 0 {
		l.del(n.pods[0])
	}
	l.exact("without pods")
	if resets := n.scrape().of("accounting_resets_total"); resets != 0 {
		t.Errorf("%d resets, but nobody touched the counters: steps %v", resets, m.did)
	}
	t.Logf("%d steps, %d rests, %d pods", steps, rests, m.count)
}

// watches reads until the end and wants no total to fall.
func (n *acctNode) watches(done <-chan struct{}) {
	var last acctPage
	for reads := 0; ; reads++ {
		select {
		case <-done:
			n.t.Logf("%d readings", reads)
			return
		default:
		}
		page, err := n.tryScrape()
		if err != nil {
			n.t.Errorf("metrics: %v", err)
			return
		}
		for _, line := range page.fell(last) {
			n.t.Errorf("reading %d: %s", reads, line)
		}
		last = page
	}
}

func (m *acctMix) step() {
	m.t.Helper()
	pod := func() *acctPod { return m.n.pods[m.rnd.IntN(len(m.n.pods))] }
	what := m.rnd.IntN(10)
	m.did = append(m.did, fmt.Sprint(what))
	switch what {
	case 0, 1:
		if len(m.n.pods) < 5 {
			m.come()
		}
	case 2:
		if len(m.n.pods) > 1 {
			m.del(pod())
		}
	case 3:
		m.loop()
	case 4:
		m.n.mustCtl("node", "repair")
	case 5: // others' rules
		m.n.sh("iptables-save -c | iptables-restore -c; nft add table ip acctother; nft list table ip acctother >/run/saved; nft -f /run/saved")
	case 6:
		m.dies()
	default:
		m.says(pod())
	}
}

// come adds a pod; its address may have been another's a moment ago.
func (m *acctMix) come() {
	m.t.Helper()
	m.count++
	m.podIn(0, acctTeams[m.rnd.IntN(len(acctTeams))], fmt.Sprintf("p%d", m.count))
}

// dies deletes a pod by a DEL that is killed at some step, and made again.
func (m *acctMix) dies() {
	m.t.Helper()
	if len(m.n.pods) < 2 {
		return
	}
	p := m.n.pods[m.rnd.IntN(len(m.n.pods))]
	points := []string{"boltfile.commit#1", "boltfile.commit#2", "boltfile.lock#3", "boltfile.lock#4", "routes.link-del#1", "routes.conntrack-flush#1"}
	m.kills(m.n.call("DEL", p.name, p.space), points[m.rnd.IntN(len(points))])
	m.n.del(p.name, p.space).ok()
	if slices.Contains(m.n.pods, p) {
		m.ended(p)
	}
	p.space.Close()
}
