package main

import (
	"slices"
	"time"
)

// sample is one process.
type sample struct {
	wall time.Duration
	cpu  time.Duration // user and system time, that of children included
}

// figures are all measurements of one side; none is left out.
type figures struct{ samples []sample }

func (f *figures) add(s sample) { f.samples = append(f.samples, s) }

func (f *figures) walls() []time.Duration {
	return f.each(func(s sample) time.Duration { return s.wall })
}

func (f *figures) cpus() []time.Duration {
	return f.each(func(s sample) time.Duration { return s.cpu })
}

func (f *figures) each(pick func(sample) time.Duration) []time.Duration {
	out := make([]time.Duration, 0, len(f.samples))
	for _, s := range f.samples {
		out = append(out, pick(s))
	}
	return out
}

// quantile takes the measurement nearest to the rank; the median of an even number is the mean of the two in the middle.
func quantile(of []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(of))
	if len(sorted) == 0 {
		return 0
	}
	if q == 0.5 && len(sorted)%2 == 0 {
		return (sorted[len(sorted)/2-1] + sorted[len(sorted)/2]) / 2
	}
	return sorted[int(q*float64(len(sorted)-1)+0.5)]
}

func median(of []time.Duration) time.Duration { return quantile(of, 0.5) }

func ratio(a, b time.Duration) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}
