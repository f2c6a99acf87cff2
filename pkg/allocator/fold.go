package allocator

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
)

// StartMeter asks for a meter for an address that another IPAM gave out, or whose lease has none yet.
type StartMeter struct {
	Addr           netip.Addr
	Key            Hash // of the attachment
	Leased         bool // only while the attachment has a lease of the address
	Unused         bool // only where nobody else has it: ErrStale
	Namespace, Pod string
	Remade         bool // the counters are made anew for this use: it isn't counted until SetMeter says from where on
}

// Fold is what one dump of the counters said.
type Fold struct {
	Live   map[netip.Addr]Use
	Node   []Sample          // nil: not read
	Resets map[string]uint64 // further reasons to count
	// Classes are those that are counted; nil: any. The counters of another one went with it, and that they are gone is no reset.
	Classes []string
	// Made says that the counters were just made or found to be those of these uses: those that were off are counted from here on.
	Made bool
}

// Use is what the counters of an address said, and of which use they were taken to be.
type Use struct {
	Use     uint64
	Samples []Sample // nil: there are none
}

// FoldResult says what a fold found beside bytes.
type FoldResult struct {
	Reset []netip.Addr // with counters that were lower than before
	On    int          // how many uses that were off are counted from here on
	Stale []netip.Addr // whose use has ended, or is another by now: nothing of them was added
}

// StartMeter begins to count the traffic of an address; repeated by the same attachment it changes nothing. Where the attachment
// has a lease of the address, that is the use that is counted.
func (s *Store) StartMeter(ctx context.Context, req StartMeter) (Meter, error) {
	var out Meter
	err := s.update(ctx, "start meter", func(t *txn) error {
		a := req.Addr.Unmap()
		if !a.IsValid() || req.Key == (Hash{}) {
			return fmt.Errorf("meter of %q for key %x", req.Addr, req.Key)
		}
		r, found, err := t.record(a)
		if err != nil {
			return err
		}
		var use uint64
		if found && r.held() {
			if r.Owner.Key != req.Key {
				return fmt.Errorf("%w: %s is leased to another", ErrStale, a)
			}
			use = r.Generation
		} else if req.Leased {
			return fmt.Errorf("%w: %s is not leased", ErrStale, a)
		} else if m, found, err := t.meter(a); err != nil {
			return err
		} else if found && m.Key == req.Key {
			out = m
			return nil
		} else if found && m.Use != 0 && req.Unused {
			return fmt.Errorf("%w: %s is another's", ErrStale, a)
		} else if use, err = t.generation(); err != nil {
			return err
		}
		out, err = t.beginMeter(a, use, req)
		return err
	})
	if err != nil {
		return Meter{}, err
	}
	return out, nil
}

// SetMeter notes at which values the counters of a use start: nothing below them is its own. off says that it isn't counted from now
// on, until it is said otherwise here or by a Fold with Made.
func (s *Store) SetMeter(ctx context.Context, addr netip.Addr, use uint64, live []Sample, off bool) error {
	return s.update(ctx, "set meter", func(t *txn) error {
		m, found, err := t.meter(addr.Unmap())
		if err != nil {
			return err
		}
		if !found || use == 0 || m.Use != use {
			return fmt.Errorf("%w: meter of %s is of use %d, not %d", ErrStale, addr, m.Use, use)
		}
		b := t.ledger()
		if live != nil {
			m.Series = rebase(m.Series, live)
		}
		if off && m.Off == 0 {
			m.Off = max(t.now, 1)
		}
		if !off {
			if err := b.on(&m); err != nil {
				return err
			}
		}
		if err := t.putMeter(m); err != nil {
			return err
		}
		return b.close()
	})
}

// StopMeters notes that nobody counts from now on: each use is off, and the node's counters, which are gone, begin at zero.
func (s *Store) StopMeters(ctx context.Context) error {
	return s.update(ctx, "stop meters", func(t *txn) error {
		var counted []Meter
		err := t.eachMeter(func(m Meter) error {
			if m.Use != 0 && m.Off == 0 {
				counted = append(counted, m)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, m := range counted {
			m.Off = max(t.now, 1)
			if err := t.putMeter(m); err != nil {
				return err
			}
		}
		sum, err := t.summary()
		if err != nil {
			return err
		}
		sum.node = rebase(sum.node, nil)
		return t.putSummary(sum)
	})
}

// Fold adds to the totals what came since the last fold. Values of a use that is over by now add nothing.
func (s *Store) Fold(ctx context.Context, f Fold) (FoldResult, error) {
	var out FoldResult
	err := s.update(ctx, "fold counters", func(t *txn) error {
		out = FoldResult{}
		b := t.ledger()
		for reason, n := range f.Resets {
			b.resets[reason] = n
		}
		for _, a := range inOrder(f.Live) {
			u := f.Live[a]
			m, found, err := t.meter(a.Unmap())
			if err != nil {
				return err
			}
			if !found || u.Use == 0 || m.Use != u.Use {
				out.Stale = append(out.Stale, a)
				continue
			}
			off := m.Off != 0
			fell, err := b.fold(&m, u.Samples, f)
			if err != nil {
				return err
			}
			if off && m.Off == 0 {
				out.On++
			}
			if fell {
				out.Reset = append(out.Reset, a)
			}
			if err := t.putMeter(m); err != nil {
				return err
			}
		}
		if err := b.foldNode(f.Node, f.Classes); err != nil {
			return err
		}
		return b.close()
	})
	if err != nil {
		return FoldResult{}, err
	}
	return out, nil
}

func inOrder(live map[netip.Addr]Use) []netip.Addr {
	all := make([]netip.Addr, 0, len(live))
	for a := range live {
		all = append(all, a)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// fold takes the values of a use. What a meter that was off has counted meanwhile is nobody's, and values alone don't say that they are
// its own.
func (l *ledger) fold(m *Meter, live []Sample, f Fold) (fell bool, err error) {
	if len(live) == 0 || m.Off != 0 && !f.Made {
		return false, nil
	}
	if m.Off != 0 {
		m.Series = rebase(m.Series, live)
		return false, l.on(m)
	}
	next, delta, fell := advance(m.Series, live, f.Classes)
	m.Series = next
	if fell {
		l.resets[ResetCounters] = plus(l.resets[ResetCounters], 1)
	}
	return fell, l.add(m.Namespace, delta)
}

func (l *ledger) foldNode(live []Sample, classes []string) error {
	if len(live) == 0 {
		return nil
	}
	sum, err := l.summary()
	if err != nil {
		return err
	}
	next, _, fell := advance(sum.node, live, classes)
	if sum.node = next; fell {
		sum.reset(ResetCounters, 1)
	}
	return l.putSummary(sum)
}

// on has a meter count again.
func (l *ledger) on(m *Meter) error {
	if m.Off == 0 {
		return nil
	}
	d := l.now - m.Off
	m.Off = 0
	return l.unknown(m.Namespace, d)
}

// end ends the use that is counted. The values up to which all is in the totals stay for the next one.
func (l *ledger) end(m *Meter) error {
	if err := l.on(m); err != nil {
		return err
	}
	m.Use, m.Key, m.Namespace, m.Pod = 0, Hash{}, "", ""
	for i := range m.Series {
		m.Series[i].Used = Count{}
	}
	return nil
}

// endMeter folds the last values of a use and ends it, unless it is over already.
func (t *txn) endMeter(a netip.Addr, last []Sample, of func(*Meter) bool) error {
	m, found, err := t.meter(a)
	if err != nil || !found || m.Use == 0 || !of(&m) {
		return err
	}
	b := t.ledger()
	if _, err := b.fold(&m, last, Fold{}); err != nil {
		return err
	}
	unread := last == nil || m.Off != 0
	if err := b.end(&m); err != nil {
		return err
	}
	m.Unread = unread
	if err := t.putMeter(m); err != nil {
		return err
	}
	return b.close()
}

// EndMeter ends the meter that StartMeter began for an address of another IPAM; last are the counters' last values, nil: unknown. One
// that is over already stays so.
func (s *Store) EndMeter(ctx context.Context, addr netip.Addr, key Hash, last []Sample) error {
	return s.update(ctx, "end meter", func(t *txn) error {
		return t.endMeter(addr.Unmap(), last, func(m *Meter) bool { return m.Key == key })
	})
}

// seriesKey names a series.
type seriesKey struct{ direction, class string }

func (s *Series) key() seriesKey { return seriesKey{s.Direction, s.Class} }

// rebase returns the series with the live values as those up to which all is counted; a counter that isn't there stands at zero.
func rebase(old []Series, live []Sample) []Series {
	at := make(map[seriesKey]int, len(old)+len(live))
	next := slices.Clone(old)
	for i := range next {
		next[i].Folded = Count{}
		at[next[i].key()] = i
	}
	for _, v := range live {
		i, known := at[seriesKey{v.Direction, v.Class}]
		if !known {
			i = len(next)
			next = append(next, Series{Direction: v.Direction, Class: v.Class})
			at[next[i].key()] = i
		}
		next[i].Folded = next[i].Folded.plus(Count{v.Bytes, v.Packets})
	}
	return sorted(next)
}

// An example: a counter stood at 1000 when a pod began, so Folded is 1000 and Used 0. At 1500 a fold makes Folded 1500, Used 500, and adds
// 500 to the namespace's total. Then others zero it: at 40 the fold makes Folded 40 and adds nothing, a reset. At 100 the pod's DEL adds 60;
// Folded is 100 for the next pod with the address, whose Used begins at 0.
//
// advance is rebase that adds to each series' use what came since, and returns it. A counter that fell adds nothing; one that isn't
// there any more fell unless its class isn't counted.
func advance(old []Series, live []Sample, classes []string) (next []Series, delta []Sample, fell bool) {
	before := make(map[seriesKey]Count, len(old))
	for i := range old {
		before[old[i].key()] = old[i].Folded
	}
	next = rebase(old, live)
	for i := range next {
		s := &next[i]
		d, ok := s.Folded.since(before[s.key()])
		if !ok {
			counted := classes == nil || slices.Contains(classes, s.Class)
			fell = fell || counted || s.Folded != (Count{})
			continue
		}
		if d != (Count{}) {
			s.Used = s.Used.plus(d)
			delta = append(delta, Sample{s.Direction, s.Class, d.Bytes, d.Packets})
		}
	}
	return next, delta, fell
}

// addUsed adds samples to the series' use.
func addUsed(all []Series, delta []Sample) []Series {
	for _, d := range delta {
		i := slices.IndexFunc(all, func(s Series) bool { return s.Direction == d.Direction && s.Class == d.Class })
		if i < 0 {
			i = len(all)
			all = append(all, Series{Direction: d.Direction, Class: d.Class})
		}
		all[i].Used = all[i].Used.plus(Count{d.Bytes, d.Packets})
	}
	return sorted(all)
}
