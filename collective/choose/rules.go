package choose

import (
	"cmp"
	"math"
	"slices"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/reduce"
)

// A Time is what a call took: the median of the slowest ranks'.
type Time struct {
	Algorithm collective.Algorithm
	Wire      string
	Ranks     int
	Bytes     int
	Segment   int // bytes; 0 where the algorithm sends no messages, or just one segment each
	Seconds   float64
}

// worthwhile is how much faster another algorithm must be than the one that is
// best for smaller vectors, or another segment than the usual one: less may be
// chance, and a table with few changes is easier to read.
const worthwhile = 0.92

// Merge is the older times with the newer ones, which replace those of the same
// wire and number of ranks and collective: one measurement should not be compared
// with another, of perhaps another day.
func Merge(older, newer []Time) []Time {
	type job struct {
		wire  string
		ranks int
		verb  collective.Verb
	}
	of := func(t Time) job { return job{t.Wire, t.Ranks, t.Algorithm.Verb()} }
	again := make(map[job]bool)
	for _, t := range newer {
		again[of(t)] = true
	}
	kept := slices.DeleteFunc(slices.Clone(older), func(t Time) bool { return again[of(t)] })
	return append(kept, newer...)
}

// Rules are what follows from times: for each collective, wire, and number of
// ranks that was measured, the fastest algorithm of each size, and after it the
// fastest of those that still run where it cannot, because the operator does not
// commute or no memory is shared. Between two sizes that were measured, the change
// is at their geometric mean. A number of ranks that was not measured has the rules
// of the next larger one that was; twice as many as the largest and more have none.
func Rules(times []Time) []collective.Rule {
	var rules []collective.Rule
	for _, verb := range collective.Verbs() {
		ofVerb := filter(times, func(t Time) bool { return t.Algorithm.Verb() == verb })
		for _, wire := range values(ofVerb, func(t Time) string { return t.Wire }) {
			ofWire := filter(ofVerb, func(t Time) bool { return t.Wire == wire })
			counts := values(ofWire, func(t Time) int { return t.Ranks })
			for i, ranks := range counts {
				limits := collective.Rule{Wire: wire, MinRanks: 2, MaxRanks: uint32(ranks)}
				if i > 0 {
					limits.MinRanks = uint32(counts[i-1] + 1)
				}
				if i == len(counts)-1 {
					limits.MaxRanks = uint32(2*ranks - 1)
				}
				rules = append(rules, bands(filter(ofWire, func(t Time) bool { return t.Ranks == ranks }), limits)...)
			}
		}
	}
	return rules
}

// bands are the rules for one verb, wire and number of ranks.
func bands(times []Time, limits collective.Rule) []collective.Rule {
	sizes := values(times, func(t Time) int { return t.Bytes })
	var rules []collective.Rule
	var picked, open []Time // the best of this size; of the band that is open
	closeAt := func(maxBytes uint64) {
		for _, t := range open {
			u := limits
			u.Algorithm, u.Segment, u.MaxBytes = t.Algorithm, uint32(t.Segment), maxBytes
			rules = append(rules, u)
		}
	}
	for i, size := range sizes {
		picked = best(filter(times, func(t Time) bool { return t.Bytes == size }), open)
		if i > 0 && !slices.EqualFunc(picked, open, alike) {
			closeAt(uint64(math.Sqrt(float64(sizes[i-1]) * float64(size))))
		}
		open = picked
	}
	closeAt(0)
	return rules
}

// alike reports whether two times are of the same way to do it.
func alike(a, b Time) bool { return a.Algorithm == b.Algorithm && a.Segment == b.Segment }

// best are the fastest, one for each situation that a call can be in, each once
// and the fastest first. before are those of smaller vectors.
func best(times, before []Time) []Time {
	times = slices.Clone(times)
	slices.SortStableFunc(times, func(a, b Time) int { return cmp.Compare(a.Seconds, b.Seconds) })
	var all []Time
	for _, order := range []reduce.Order{reduce.Commutative, reduce.RankOrder} {
		for _, sharing := range []bool{true, false} {
			can := filter(times, func(t Time) bool {
				return t.Algorithm.Takes(order) && (sharing || !t.Algorithm.NeedsShared())
			})
			if len(can) == 0 {
				continue
			}
			pick := steady(can, before)
			if !slices.ContainsFunc(all, func(t Time) bool { return alike(t, pick) }) {
				all = append(all, pick)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Time) int { return cmp.Compare(a.Seconds, b.Seconds) })
	return all
}

// steady is the fastest of times, which are sorted, or one that is nearly as fast
// and changes less: what was best before, or else what has the usual segments.
func steady(times, before []Time) Time {
	level := filter(times, func(t Time) bool { return times[0].Seconds > worthwhile*t.Seconds })
	for _, same := range []func(Time) bool{
		func(t Time) bool { return slices.ContainsFunc(before, func(b Time) bool { return alike(b, t) }) },
		func(t Time) bool { return t.Segment == 0 },
	} {
		if i := slices.IndexFunc(level, same); i >= 0 {
			return level[i]
		}
	}
	return times[0]
}

func filter(times []Time, keep func(Time) bool) []Time {
	var some []Time
	for _, t := range times {
		if keep(t) {
			some = append(some, t)
		}
	}
	return some
}

// values are the different values that the times have, ascending.
func values[V cmp.Ordered](times []Time, of func(Time) V) []V {
	var all []V
	for _, t := range times {
		all = append(all, of(t))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
