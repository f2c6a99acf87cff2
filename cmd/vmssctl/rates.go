package main

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/native-vmss/native-vmss/pkg/accounting"
)

// reading is what was read and when, by the boot clock.
type reading struct {
	accounting.Usage
	at time.Duration
}

// flow is one direction of one class.
type flow struct{ direction, class string }

type rate struct{ bits, packets float64 } // per second

// rates of one row; nil: unknown, which isn't zero. A flow that isn't in it had no packet.
type rates map[flow]rate

// of sums the rates of a direction and a class, "" is each.
func (r rates) of(direction, class string) (sum rate) {
	for f, v := range r {
		if (direction == "" || f.direction == direction) && (class == "" || f.class == class) {
			sum.bits += v.bits
			sum.packets += v.packets
		}
	}
	return sum
}

// rateRow is a pod; or a namespace, without pod and address.
type rateRow struct {
	namespace, pod, address string
	uncounted               bool
	rates                   rates
}

// frame is what happened between two readings.
type frame struct {
	at         time.Time
	seconds    float64 // zero: there is only one reading
	backend    string
	off        string // why there are no rates
	marksOff   string
	classes    []string
	node       rates
	namespaces []rateRow
	pods       []rateRow
}

// Why there are no rates though all works.
const (
	staleReading = "the counters could not be read: what is known is as old as the last 'vmssctl node repair'"
	firstReading = "first reading"
	storeLost    = "the store was lost in between, totals began again"
)

// compare makes a frame of two readings. Without an earlier one, or where nothing was counted in one of them, all rates are unknown.
func compare(before *reading, now reading) frame {
	f := frame{backend: now.Backend, off: now.Off, marksOff: now.MarksOff, classes: classesOf(now.Usage)}
	switch {
	case f.off != "":
	case now.Stale:
		f.off = staleReading
	case before == nil || before.Off != "":
		f.off = firstReading
	case before.Resets["store"] != now.Resets["store"]:
		f.off = storeLost
	default:
		f.seconds = (now.at - before.at).Seconds()
	}
	earlier := index{}
	if f.seconds > 0 {
		earlier = indexOf(before.Usage)
		f.node, _ = ratesOf(before.Node, now.Node, f.seconds)
	}
	for _, n := range now.Namespaces {
		row := rateRow{namespace: n.Namespace}
		if f.seconds > 0 {
			// The totals of a namespace don't start again with a pod: lower ones are of no use.
			row.rates, _ = ratesOf(earlier.namespaces[n.Namespace], n.Samples, f.seconds)
		}
		f.namespaces = append(f.namespaces, row)
	}
	for _, p := range now.Pods {
		row := rateRow{namespace: p.Namespace, pod: p.Pod, address: p.Addr.String(), uncounted: p.Off}
		old := earlier.pods[podKey{p.Namespace, p.Pod, row.address}]
		if old.Use != p.Use {
			old = accounting.PodUsage{} // a new pod of that name and address
		}
		if f.seconds > 0 && !p.Off && !old.Off {
			var same bool
			if row.rates, same = ratesOf(old.Samples, p.Samples, f.seconds); !same {
				row.rates, _ = ratesOf(nil, p.Samples, f.seconds) // a new pod of that name and address
			}
		}
		f.pods = append(f.pods, row)
	}
	return f
}

type podKey struct{ namespace, pod, address string }

type index struct {
	namespaces map[string][]accounting.Sample
	pods       map[podKey]accounting.PodUsage
}

func indexOf(u accounting.Usage) index {
	x := index{map[string][]accounting.Sample{}, map[podKey]accounting.PodUsage{}}
	for _, n := range u.Namespaces {
		x.namespaces[n.Namespace] = n.Samples
	}
	for _, p := range u.Pods {
		x.pods[podKey{p.Namespace, p.Pod, p.Addr.String()}] = p
	}
	return x
}

// ratesOf returns false, and unknown rates, where a value is lower than before.
func ratesOf(before, now []accounting.Sample, seconds float64) (rates, bool) {
	old, all := map[flow]accounting.Sample{}, rates{}
	for _, s := range before {
		old[flow{s.Direction, s.Class}] = s
	}
	for _, s := range now {
		f := flow{s.Direction, s.Class}
		if s.Bytes < old[f].Bytes || s.Packets < old[f].Packets {
			return nil, false
		}
		const bitsPerByte = 8
		all[f] = rate{
			bits:    float64(s.Bytes-old[f].Bytes) * bitsPerByte / seconds,
			packets: float64(s.Packets-old[f].Packets) / seconds,
		}
	}
	return all, true
}

// classesOf lists the configuration's own classes by name and then those that are always there.
func classesOf(u accounting.Usage) []string {
	var own []string
	add := func(samples []accounting.Sample) {
		for _, s := range samples {
			if s.Class != accounting.Cluster && s.Class != accounting.Internet && !slices.Contains(own, s.Class) {
				own = append(own, s.Class)
			}
		}
	}
	add(u.Node)
	for _, n := range u.Namespaces {
		add(n.Samples)
	}
	for _, p := range u.Pods {
		add(p.Samples)
	}
	slices.Sort(own)
	return append(own, accounting.Cluster, accounting.Internet)
}

// Keys to sort by; the name of a class is one too.
const (
	sortTotal = "total"
	sortName  = "name"
)

// sort puts the most busy first, those of equal rates by name, and unknown ones last.
func (f *frame) sort(key string) {
	value := func(r rateRow) float64 {
		switch {
		case key == sortName:
			return 0
		case r.rates == nil:
			return -1
		case key == sortTotal:
			return r.rates.of("", "").bits
		case key == accounting.RX || key == accounting.TX:
			return r.rates.of(key, "").bits
		}
		return r.rates.of("", key).bits
	}
	for _, rows := range [][]rateRow{f.namespaces, f.pods} {
		slices.SortStableFunc(rows, func(a, b rateRow) int {
			return cmp.Or(cmp.Compare(value(b), value(a)), strings.Compare(a.namespace, b.namespace),
				strings.Compare(a.pod, b.pod), strings.Compare(a.address, b.address))
		})
	}
}
