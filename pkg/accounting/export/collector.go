package export

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/native-vmss/native-vmss/pkg/accounting"
)

// Limits of one page. An Azure VM has 8 NICs of 256 addresses at most, so no node has more pods; namespaces stay in the totals until
// the node boots.
const (
	DefaultMaxPods       = 2048
	DefaultMaxNamespaces = 1000
	defaultTimeout       = 10 * time.Second
)

// Source returns what pods and the node have sent and got so far.
type Source func(context.Context) (accounting.Usage, error)

// Options say what a page has; zero values are the defaults.
type Options struct {
	NoPods        bool // no series of single pods
	MaxPods       int  // pods with series of their own
	MaxNamespaces int
	Timeout       time.Duration // of one call of the source
}

// Collector is a prometheus.Collector over a source. Scrapes may come at the same time.
type Collector struct {
	source Source
	opt    Options
	descs  descs

	// mu is held over the call of the source: were two calls to overlap, the older values could be kept as the last ones, and
	// a counter go down.
	mu     sync.Mutex
	last   *accounting.Usage // of the last call that didn't fail
	errors uint64
}

var _ prometheus.Collector = (*Collector)(nil)

// New makes a Collector.
func New(source Source, opt Options) *Collector {
	if opt.MaxPods <= 0 {
		opt.MaxPods = DefaultMaxPods
	}
	if opt.MaxNamespaces <= 0 {
		opt.MaxNamespaces = DefaultMaxNamespaces
	}
	if opt.Timeout <= 0 {
		opt.Timeout = defaultTimeout
	}
	return &Collector{source: source, opt: opt, descs: newDescs(opt)}
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs.all() {
		ch <- d
	}
}

// Collect implements prometheus.Collector. The interface has no context, so the call of the source has one of its own.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), c.opt.Timeout)
	defer cancel()
	usage, failed, errors := c.read(ctx)
	e := emitter{ch: ch, descs: c.descs}
	e.counter(c.descs.errors, float64(errors))
	if usage == nil {
		e.gauge(c.descs.stale, 1)
		return
	}
	e.gauge(c.descs.stale, one(failed || usage.Stale))
	e.state(*usage)
	if !c.opt.NoPods {
		e.pods(sumPods(usage.Pods, c.opt.MaxPods))
	}
	e.namespaces(sumNamespaces(*usage, c.opt.MaxNamespaces))
	node := counts{}
	node.add(usage.Node)
	for k, v := range node {
		e.counter(c.descs.node, float64(v.bytes), k.direction, k.class)
	}
}

// read returns the newest values that there are; nil: none.
func (c *Collector) read(ctx context.Context) (usage *accounting.Usage, failed bool, errors uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u, err := c.source(ctx)
	if err == nil {
		c.last = &u
	} else {
		c.errors++
	}
	return c.last, err != nil, c.errors
}

// emitter sends samples of one scrape. Labels were cleaned before, and no series comes twice.
type emitter struct {
	ch    chan<- prometheus.Metric
	descs descs
}

func (e emitter) counter(d *prometheus.Desc, v float64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
}

func (e emitter) gauge(d *prometheus.Desc, v float64, labels ...string) {
	e.ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (e emitter) state(u accounting.Usage) {
	on := u.Off == ""
	e.gauge(e.descs.on, one(on), label(u.Backend))
	e.gauge(e.descs.marksOn, one(on && u.MarksOff == ""))
	resets := map[string]uint64{}
	for reason, n := range u.Resets {
		resets[label(reason)] += n
	}
	for reason, n := range resets {
		e.counter(e.descs.resets, float64(n), reason)
	}
}

func (e emitter) pods(pods map[podName]*pod) {
	for name, p := range pods {
		if p.mark != 0 {
			e.gauge(e.descs.mark, float64(p.mark), name.namespace, name.pod)
		}
		if p.off {
			continue
		}
		for k, v := range p.counts {
			e.counter(e.descs.podBytes, float64(v.bytes), name.namespace, name.pod, k.direction, k.class)
		}
	}
}

func (e emitter) namespaces(all map[string]*namespace) {
	for name, n := range all {
		if n.dark {
			e.counter(e.descs.unknown, n.unknown.Seconds(), name)
		}
		for k, v := range n.counts {
			e.counter(e.descs.nsBytes, float64(v.bytes), name, k.direction, k.class)
			e.counter(e.descs.nsPackets, float64(v.packets), name, k.direction, k.class)
		}
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
