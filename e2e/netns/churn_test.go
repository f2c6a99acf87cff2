package netns

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/native-vmss/native-vmss/e2e/netns/model"
	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	churnWorkers = 8
	churnIDs     = 32 // of each worker
	churnPool    = 56 // fewer than the pods that want one
	churnCool    = 3 * time.Second
	churnTurns   = 25 // of each worker, from one standstill to the next
	churnLeast   = 1000
	churnTime    = 30 * time.Second
	churnSoak    = 10000
	churnLongest = 8 * time.Minute // a machine that does fewer than churnLeast in it proves little
)

// churnSeeds play the same choices each time; what runs beside what is up to the machine.
var churnSeeds = []uint64{20221111, 7, 4242}

// churn is one node, and what all workers share.
type churn struct {
	*stage
	m        *model.Model
	seed     uint64
	second   *stage // another network on the same store
	cloud    *churnCloud
	victims  *churnVictims
	ops      map[string]*atomic.Int64
	workers  []*churner
	confFile string // that vmssctl reads

	neighbours int
	stops      []func()
}

// ADD, DEL, CHECK, GC, STATUS, repair, refresh and reboot from eight processes at once, killed by a ninth at random times, while
// metadata shrinks, grows and lies: what a model of the invariants rules out never happens, and neighbours notice nothing.
func TestNetnsBreak_churn(t *testing.T) {
	t.Parallel()
	soak := os.Getenv("NVT_SOAK") != ""
	seeds := []uint64{churnSeeds[0], uint64(time.Now().UnixNano())}
	if soak {
		seeds = append(append([]uint64(nil), churnSeeds...), seeds[1])
	}
	if v := os.Getenv("NVT_SEED"); v != "" {
		seed, err := strconv.ParseUint(v, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{seed}
	}
	var total int64
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("seed_%d", seed), func(t *testing.T) {
			t.Logf("NVT_SEED=%d makes the same choices again", seed)
			c := newChurn(t, seed)
			c.run(func(since time.Duration) bool {
				if soak {
					return c.total() < churnSoak
				}
				return (c.total() < churnLeast || since < churnTime) && since < churnLongest
			})
			total += c.total()
			if c.total() < churnLeast && !t.Failed() {
				t.Errorf("%d operations, want %d at least: the test proves little", c.total(), churnLeast)
			}
		})
	}
	t.Logf("%d operations of %d seeds", total, len(seeds))
}

func newChurn(t *testing.T, seed uint64) *churn {
	t.Helper()
	c := &churn{stage: newStage(t, poolOf(churnPool)), seed: seed, victims: newChurnVictims(), ops: map[string]*atomic.Int64{}}
	c.ipam["cooldown"], c.ipam["refresh"] = churnCool.String(), "1s"
	c.second = c.pathKeyed("second", nil)
	for _, op := range []string{"ADD", "DEL", "CHECK", "GC", "STATUS", "ipam-vmss", "killed", "late GC", "reboot", "refresh", "repair"} {
		c.ops[op] = &atomic.Int64{}
	}
	c.m = model.New(churnCool, func() time.Duration { return bootClock(t) }, func(s string) { t.Error(s) },
		lab.SimpleNode, lab.SimpleGateway, lab.MetadataService, lab.WireServer)
	c.cloud = newChurnCloud(c)
	c.confFile = c.Dir + "/churn.json"
	if err := os.WriteFile(c.confFile, c.stage.conf(), 0o600); err != nil {
		t.Fatal(err)
	}
	for w := range churnWorkers {
		c.workers = append(c.workers, newChurner(c, w))
	}
	if _, err := c.GW.EchoTCP(netip.AddrPortFrom(lab.SimpleGateway, 9000)); err != nil {
		t.Fatal(err)
	}
	return c
}

// total counts the operations.
func (c *churn) total() (n int64) {
	for op, count := range c.ops {
		if op != "killed" {
			n += count.Load()
		}
	}
	return n
}

// run goes from standstill to standstill for as long as more says.
func (c *churn) run(more func(since time.Duration) bool) {
	c.settle()
	before := c.snapshot()
	begin := time.Now()
	c.neighboursUp()
	stop := make(chan struct{})
	var ninth sync.WaitGroup
	ninth.Go(func() { c.victims.hunt(rand.New(rand.NewPCG(c.seed, 100)), c, stop) })
	for round := 0; more(time.Since(begin)) && !c.t.Failed(); round++ {
		var wg sync.WaitGroup
		lies := c.cloud.lie(rand.New(rand.NewPCG(c.seed, 1000+uint64(round))))
		for _, w := range c.workers {
			wg.Go(func() {
				for range churnTurns {
					if !c.t.Failed() {
						w.turn()
					}
				}
			})
		}
		wg.Wait()
		lies()
		c.standstill(round)
	}
	close(stop)
	ninth.Wait()
	took := time.Since(begin)
	c.logf(took)
	if c.t.Failed() { // what is left then is no news
		return
	}
	c.end()
	c.neighboursDown()
	c.mustCtl("node", "repair")
	c.clean("after the last DEL")
	c.noLeak(before)
	c.consistent()
}

func (c *churn) logf(took time.Duration) {
	words := ""
	for _, op := range []string{"ADD", "DEL", "CHECK", "GC", "late GC", "STATUS", "ipam-vmss", "refresh", "repair", "reboot", "killed"} {
		words += fmt.Sprintf(", %s %d", op, c.ops[op].Load())
	}
	c.t.Logf("seed %d: %d operations in %s%s; %d asks for an address that rests refused; %d metadata documents, %d lies",
		c.seed, c.total(), took.Round(time.Second), words, c.m.Refusals(), c.cloud.honest.Load(), c.cloud.lies.Load())
}

// neighboursUp are two pods that talk all the time, with each other and with the gateway.
func (c *churn) neighboursUp() {
	c.t.Helper()
	pods, addrs := [2]*lab.Namespace{}, [2]netip.Addr{}
	for i := range pods {
		id := fmt.Sprintf("neighbour%d", i)
		pods[i] = c.Pod(c.t, fmt.Sprintf("%s-%d", id, c.neighbours))
		op := c.m.Add(c.key(c.stage, id), netip.Addr{})
		a := c.pathRetried(id, pods[i]).ok()
		c.m.Added(op, a.IP)
		addrs[i] = a.IP
	}
	c.neighbours++
	if _, err := pods[1].EchoTCP(netip.AddrPortFrom(addrs[1], 9000)); err != nil {
		c.t.Fatal(err)
	}
	c.stops = append(c.stops, c.stage.stream(pods[0], lab.SimpleGateway), c.stage.stream(c.GW, addrs[0]))
	for _, to := range []netip.Addr{addrs[1], lab.SimpleGateway} {
		st, err := pods[0].StartStream(c.t.Context(), netip.AddrPortFrom(to, 9000), 5*time.Millisecond)
		if err != nil {
			c.t.Fatal(err)
		}
		c.stops = append(c.stops, func() {
			if r := st.Stop(); r.Err != nil || r.Sent == 0 || r.Echoed != r.Sent {
				c.t.Errorf("the neighbour's TCP stream to %s broke: %d of %d echoed: %v", to, r.Echoed, r.Sent, r.Err)
			}
		})
	}
}

// neighboursRest ends the neighbours' talk and wants all of it answered.
func (c *churn) neighboursRest() {
	for _, stop := range c.stops {
		stop()
	}
	c.stops = nil
}

func (c *churn) neighboursDown() {
	c.neighboursRest()
	for i := range 2 {
		id := fmt.Sprintf("neighbour%d", i)
		c.m.Release("DEL", c.key(c.stage, id))
		c.del(id, nil).ok()
		c.m.Released("DEL", c.key(c.stage, id))
	}
}
