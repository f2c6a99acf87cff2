package export

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/native-vmss/native-vmss/pkg/accounting"
)

// podName is a pod as its labels have it.
type podName struct{ namespace, pod string }

// series is the rest of a sample's labels.
type series struct{ direction, class string }

type count struct{ bytes, packets uint64 }

type counts map[series]count

func (c counts) add(samples []accounting.Sample) {
	for _, s := range samples {
		k := series{label(s.Direction), label(s.Class)}
		c[k] = count{c[k].bytes + s.Bytes, c[k].packets + s.Packets}
	}
}

func (c counts) addAll(o counts) {
	for k, v := range o {
		c[k] = count{c[k].bytes + v.bytes, c[k].packets + v.packets}
	}
}

// pod is the newest sandbox of a name.
type pod struct {
	counts
	off  bool
	mark uint32
	use  uint64
}

// sumPods has one entry per name, that of the newest sandbox: a sum would fall when the older one goes, and its rest count again. Pods
// without a name can't be told apart and have none. There are at most limit, and one for the others. Which are shown goes by name: by
// traffic, a pod would come and go with what its neighbours do.
func sumPods(pods []accounting.PodUsage, limit int) map[podName]*pod {
	sums := map[podName]*pod{}
	for _, p := range pods {
		k := podName{label(p.Namespace), label(p.Pod)}
		if p.Namespace == "" && p.Pod == "" || sums[k] != nil && sums[k].use > p.Use {
			continue
		}
		sums[k] = &pod{counts: counts{}, off: p.Off, mark: p.Mark, use: p.Use}
		sums[k].add(p.Samples)
	}
	names := slices.SortedFunc(maps.Keys(sums), func(a, b podName) int {
		return cmp.Or(cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.pod, b.pod))
	})
	if len(names) <= limit {
		return sums
	}
	rest := &pod{counts: counts{}}
	for _, k := range names[limit:] {
		if !sums[k].off {
			rest.addAll(sums[k].counts)
		}
		delete(sums, k)
	}
	sums[podName{other, other}] = rest
	return sums
}

// namespace is what one namespace has.
type namespace struct {
	counts
	unknown time.Duration
	dark    bool // unknown is known
}

// sumNamespaces is sumPods for namespaces. Their totals stay when their pods are gone, so what is shown changes only by new ones.
func sumNamespaces(u accounting.Usage, limit int) map[string]*namespace {
	sums := map[string]*namespace{}
	of := func(name string) *namespace {
		k := label(name)
		if sums[k] == nil {
			sums[k] = &namespace{counts: counts{}}
		}
		return sums[k]
	}
	for _, n := range u.Namespaces {
		of(n.Namespace).add(n.Samples)
	}
	for name, d := range u.Unknown {
		n := of(name)
		n.unknown, n.dark = n.unknown+d, true
	}
	names := slices.Sorted(maps.Keys(sums))
	if len(names) <= limit {
		return sums
	}
	rest := &namespace{counts: counts{}}
	for _, k := range names[limit:] {
		rest.addAll(sums[k].counts)
		rest.unknown, rest.dark = rest.unknown+sums[k].unknown, rest.dark || sums[k].dark
		delete(sums, k)
	}
	sums[other] = rest
	return sums
}
