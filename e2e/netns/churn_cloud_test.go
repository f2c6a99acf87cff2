package netns

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/native-vmss/native-vmss/internal/lab"
)

const (
	churnGrowth  = 8                        // addresses that are not there from the beginning
	churnAbsent  = 10500 * time.Millisecond // an address missing for so long, twice, is gone
	churnMissing = 3                        // addresses that are taken away at a time
)

// churnCloud is metadata that changes its mind.
type churnCloud struct {
	*churn
	pool         []netip.Addr
	honest, lies atomic.Int64 // documents served
	gone         []netip.Addr // in no document since goneAt
	goneAt       time.Time
	known        bool // the model knows that they are gone
	rnd          *rand.Rand
	observations int
}

func newChurnCloud(c *churn) *churnCloud {
	grown := lab.AddrRange(c.pool[len(c.pool)-1].Next(), churnGrowth)
	for _, a := range grown {
		if err := c.GW.AddRoute(netip.PrefixFrom(a, 32), lab.SimpleNode, "to-eth0"); err != nil {
			c.t.Fatal(err)
		}
	}
	c.pool = slices.Concat(c.pool, grown)
	return &churnCloud{churn: c, pool: c.pool, rnd: rand.New(rand.NewPCG(c.seed, 99))}
}

func (m *churnCloud) document(addrs []netip.Addr) http.Handler {
	nic := m.NICs[0]
	nic.Addrs = addrs
	return lab.DocumentHandler(lab.NetworkDocument(nic))
}

func (m *churnCloud) serve(count *atomic.Int64, h http.Handler) {
	m.MD.HandleFunc(func(w http.ResponseWriter, r *http.Request) {
		count.Add(1)
		h.ServeHTTP(w, r)
	})
}

// some is an honest document that lacks those that are gone and a few others for a moment.
func (m *churnCloud) some(rnd *rand.Rand) []netip.Addr {
	list := []netip.Addr{lab.SimpleNode}
	flap := rnd.IntN(3) == 0
	for _, a := range m.pool[:len(m.pool)-rnd.IntN(churnGrowth+1)] {
		if !slices.Contains(m.gone, a) && (!flap || rnd.IntN(4) > 0) {
			list = append(list, a)
		}
	}
	return list
}

// lie changes what metadata says until the returned function is called.
func (m *churnCloud) lie(rnd *rand.Rand) (stop func()) {
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			m.change(rnd)
			select {
			case <-done:
				return
			case <-time.After(time.Duration(100+rnd.IntN(500)) * time.Millisecond):
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

func (m *churnCloud) change(rnd *rand.Rand) {
	list := m.some(rnd)
	answer := func(code int, body string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = fmt.Fprint(w, body)
		})
	}
	other := m.NICs[0]
	other.MAC, other.Addrs = "0200DEADBEEF", m.pool
	lies := []http.Handler{
		m.document(list[1:]), // without the primary: not to be believed
		m.document(append([]netip.Addr{lab.SimpleGateway, lab.WireServer, lab.MetadataService}, list...)),
		m.document(append(slices.Clone(list[1:]), lab.SimpleNode, lab.SimpleNode, list[1])),
		m.document([]netip.Addr{lab.SimpleNode}), // nothing at all for pods
		answer(http.StatusInternalServerError, "down"),
		answer(http.StatusTooManyRequests, "{}"),
		answer(http.StatusOK, `{"compute":{},"network":{"interface":[{"ipv4":`),
	}
	if len(m.gone) == 0 { // a NIC that nobody looked at counts as no observation of its addresses
		lies = append(lies, lab.DocumentHandler(lab.NetworkDocument(other)), lab.DocumentHandler(json.RawMessage(`{"interface":[]}`)))
	}
	if rnd.IntN(3) == 0 {
		m.serve(&m.lies, lies[rnd.IntN(len(lies))])
	} else {
		m.serve(&m.honest, m.document(list))
	}
}

// settle is at a standstill: metadata tells the truth, somebody asks for it, and addresses go or come back for good.
func (m *churnCloud) settle() {
	m.t.Helper()
	switch {
	case len(m.gone) == 0:
		for len(m.gone) < churnMissing {
			m.gone = append(m.gone, m.pool[m.rnd.IntN(churnPool)])
		}
		m.observe()
		m.goneAt = time.Now()
	case m.known:
		m.m.Listed(m.gone...)
		m.gone, m.known = nil, false
		m.observe()
	case time.Since(m.goneAt) > churnAbsent:
		m.observe()
		m.m.Withdrawn(m.gone...)
		m.known = true
	default:
		m.observe()
	}
}

// all ends it: every address is there.
func (m *churnCloud) all() {
	m.m.Listed(m.pool...)
	m.gone, m.known = nil, false
	m.observe()
}

// observe makes the node take over what metadata says, by an ADD that finds its snapshot old.
func (m *churnCloud) observe() {
	m.t.Helper()
	list := []netip.Addr{lab.SimpleNode}
	for _, a := range m.pool {
		if !slices.Contains(m.gone, a) {
			list = append(list, a)
		}
	}
	before := m.honest.Load()
	m.serve(&m.honest, m.document(list))
	s := m.stage
	for end := time.Now().Add(patience); m.honest.Load() == before && !m.t.Failed(); time.Sleep(500 * time.Millisecond) {
		m.observations++
		m.ops["refresh"].Add(1)
		id := fmt.Sprintf("observer%d", m.observations)
		p := s.Pod(m.t, id)
		key := m.key(s, id)
		op := m.m.Add(key, netip.Addr{})
		if a := s.add(id, p); a.OK() {
			m.m.Added(op, a.IP)
		} else {
			m.m.NotAdded(op, false, a.Msg)
			a.fails(11)
		}
		m.m.Release("DEL", key)
		s.del(id, p).ok()
		m.m.Released("DEL", key)
		if err := p.Close(); err != nil {
			m.t.Fatal(err)
		}
		if time.Now().After(end) {
			m.t.Fatal("nobody asks metadata")
		}
	}
}
