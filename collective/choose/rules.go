package choose

import (
	"cmp"
	"math"
	"slices"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/reduce"
)

// A Measurement is what a call took: the median of the slowest ranks'. Of a way that has taken
// turns with the default table's it is that one's, so many times as they were apart.
type Measurement struct {
	Algorithm collective.Algorithm
	Wire      string
	Ranks     int
	Bytes     int
	Segment   int // bytes; 0 where the algorithm sends no messages, or just one segment each
	Seconds   float64
}

// MaxRatio is how much faster a way must be than the default table's, than the one
// that is best for smaller vectors, or another segment than the usual one: less may
// be chance, and a table with few changes is easier to read.
const MaxRatio = 0.92

// Merge is the older times with the newer ones, which replace those of the same
// wire and number of ranks and collective: one measurement should not be compared
// with another, of perhaps another day.
func Merge(older, newer []Measurement) []Measurement {
	type job struct {
		wire  string
		ranks int
		verb  collective.Verb
	}
	of := func(t Measurement) job { return job{t.Wire, t.Ranks, t.Algorithm.Verb()} }
	again := make(map[job]bool)
	for _, t := range newer {
		again[of(t)] = true
	}
	kept := slices.DeleteFunc(slices.Clone(older), func(t Measurement) bool { return again[of(t)] })
	return append(kept, newer...)
}

// Rules are what follows from times: for each collective, wire, and number of
// ranks that was measured, the fastest algorithm of each size, and after it the
// fastest of those that still run where it cannot, because the operator does not
// commute or no memory is shared. What the default table does stands where nothing
// was found to be clearly faster. Between two sizes that were measured, the change is
// where the default table has it, when both go by that, and else at their geometric
// mean. Beyond the largest size nothing is said where the default table would change
// over there, nor beyond twice that size where something else was faster. A number of ranks that was not measured has the rules of the next larger
// one that was; twice as many as the largest and more have none.
func Rules(times []Measurement) []collective.TableRule {
	usual := defaults(collective.DefaultRules())
	var rules []collective.TableRule
	for _, verb := range collective.Verbs() {
		ofVerb := filter(times, func(t Measurement) bool { return t.Algorithm.Verb() == verb })
		for _, wire := range values(ofVerb, func(t Measurement) string { return t.Wire }) {
			ofWire := filter(ofVerb, func(t Measurement) bool { return t.Wire == wire })
			counts := values(ofWire, func(t Measurement) int { return t.Ranks })
			for i, ranks := range counts {
				limits := collective.TableRule{Wire: wire, MinRanks: 2, MaxRanks: uint32(ranks)}
				if i > 0 {
					limits.MinRanks = uint32(counts[i-1] + 1)
				}
				if i == len(counts)-1 {
					limits.MaxRanks = uint32(2*ranks - 1)
				}
				rules = append(rules, usual.rulesFor(filter(ofWire, func(t Measurement) bool { return t.Ranks == ranks }), limits)...)
			}
		}
	}
	return rules
}

// A chosen is the way that rules take for one size. So far as the default table goes
// it, too, until is the largest vector for which it does; it is 0 where it does not.
type chosen struct {
	Measurement
	until uint64
}

// unlimited is the until of a way that has no limit.
const unlimited = math.MaxUint64

// rulesFor are the rules for one verb, wire and number of ranks.
func (d defaults) rulesFor(times []Measurement, limits collective.TableRule) []collective.TableRule {
	var rules []collective.TableRule
	var open []chosen // the best of the band that is open
	closeAt := func(maxBytes uint64) {
		for _, p := range open {
			u := limits
			u.Algorithm, u.Segment, u.MaxBytes = p.Algorithm, uint32(p.Segment), maxBytes
			rules = append(rules, u)
		}
	}
	before := 0
	for i, size := range values(times, func(t Measurement) int { return t.Bytes }) {
		picked := d.best(filter(times, func(t Measurement) bool { return t.Bytes == size }), open)
		if i > 0 && !slices.EqualFunc(picked, open, func(a, b chosen) bool { return sameMethod(a.Measurement, b.Measurement) }) {
			closeAt(boundary(open, picked, before, size))
		}
		open, before = picked, size
	}
	closeAt(upperBound(open, before))
	return rules
}

// boundary is up to which size the picks of the smaller of two sizes hold.
func boundary(below, above []chosen, smaller, larger int) uint64 {
	measured := func(p chosen) bool { return p.until == 0 }
	if !slices.ContainsFunc(below, measured) && !slices.ContainsFunc(above, measured) {
		if until := upperBound(below, smaller); until >= uint64(smaller) && until < uint64(larger) {
			return until
		}
	}
	return uint64(math.Sqrt(float64(smaller) * float64(larger)))
}

// upperBound is up to which size picks hold when largest is the last that was measured: as far
// as the default table goes one of these ways, and twice as far as was measured where it
// does not; 0 stands for any size, and for calls that have none.
func upperBound(picks []chosen, largest int) uint64 {
	until := uint64(unlimited)
	for _, p := range picks {
		switch {
		case p.until > 0:
			until = min(until, p.until)
		case largest > 0:
			until = min(until, 2*uint64(largest))
		}
	}
	if until == unlimited {
		return 0
	}
	return until
}

// sameMethod reports whether two times are of the same way to do it.
func sameMethod(a, b Measurement) bool { return a.Algorithm == b.Algorithm && a.Segment == b.Segment }

// A requirement is what a call can ask of an algorithm.
type requirement struct {
	order  reduce.Order
	shared bool
}

func requirements() []requirement {
	return []requirement{{reduce.Commutative, true}, {reduce.Commutative, false}, {reduce.RankOrder, true}, {reduce.RankOrder, false}}
}

// supported are those of times whose algorithms run there, the fastest first.
func (s requirement) supported(times []Measurement) []Measurement {
	can := filter(times, func(t Measurement) bool {
		return t.Algorithm.SupportsOrder(s.order) && (s.shared || !t.Algorithm.NeedsShared())
	})
	slices.SortStableFunc(can, faster)
	return can
}

func faster(a, b Measurement) int { return cmp.Compare(a.Seconds, b.Seconds) }

// best are the fastest, one for each situation that a call can be in, each once
// and the fastest first. before are those of smaller vectors.
func (d defaults) best(times []Measurement, before []chosen) []chosen {
	var all []chosen
	for _, s := range requirements() {
		can := s.supported(times)
		if len(can) == 0 {
			continue
		}
		one := d.stable(can, before)
		if !slices.ContainsFunc(all, func(p chosen) bool { return sameMethod(p.Measurement, one.Measurement) }) {
			all = append(all, one)
		}
	}
	slices.SortStableFunc(all, func(a, b chosen) int { return faster(a.Measurement, b.Measurement) })
	return all
}

// stable is the fastest of times, which are sorted, or one that is nearly as fast
// and changes less: the default table's, or else what was best before, or else what
// has the usual segments.
func (d defaults) stable(times []Measurement, before []chosen) chosen {
	level := filter(times, func(t Measurement) bool { return times[0].Seconds > MaxRatio*t.Seconds })
	if usual, ok := d.find(times); ok && slices.Contains(level, usual.Measurement) {
		return usual
	}
	for _, same := range []func(Measurement) bool{
		func(t Measurement) bool {
			return slices.ContainsFunc(before, func(p chosen) bool { return sameMethod(p.Measurement, t) })
		},
		func(t Measurement) bool { return t.Segment == 0 },
	} {
		if i := slices.IndexFunc(level, same); i >= 0 {
			return chosen{Measurement: level[i]}
		}
	}
	return chosen{Measurement: times[0]}
}

// defaults are the default table's rules.
type defaults []collective.TableRule

// find is which of times, all of one size, the default table's way took; false where
// that was not measured.
func (d defaults) find(times []Measurement) (chosen, bool) {
	for _, u := range d {
		i := slices.IndexFunc(times, func(t Measurement) bool {
			return sameMethod(t, Measurement{Algorithm: u.Algorithm, Segment: int(u.Segment)}) && covers(u, t)
		})
		switch {
		case i < 0:
		case u.MaxBytes == 0:
			return chosen{times[i], unlimited}, true
		default:
			return chosen{times[i], u.MaxBytes}, true
		}
	}
	for _, t := range times { // what a table falls back on, which no rule names
		if t.Segment == 0 && t.Algorithm == collective.Algorithms(t.Algorithm.Verb())[0] {
			return chosen{t, unlimited}, true
		}
	}
	return chosen{}, false
}

// covers reports whether the rule is one for calls as t's.
func covers(u collective.TableRule, t Measurement) bool {
	return (u.MaxBytes == 0 || uint64(t.Bytes) <= u.MaxBytes) && (u.Wire == "" || u.Wire == t.Wire) &&
		t.Ranks >= int(u.MinRanks) && (u.MaxRanks == 0 || t.Ranks <= int(u.MaxRanks))
}

// A Comparison is a way of which Rules would say that it is faster than the default
// table's, with the times of both.
type Comparison struct{ Default, Contender Measurement }

// Comparisons are those that follow from times of one collective and size, each once. A
// measurement that has them take turns can tell chance from gain. What was the best for
// smaller vectors, and is nearly so for these, needs no more proof.
func Comparisons(times []Measurement) []Comparison {
	d := defaults(collective.DefaultRules())
	var all []Comparison
	for _, s := range requirements() {
		can := s.supported(times)
		usual, ok := d.find(can)
		if !ok {
			continue
		}
		rival := d.stable(can, nil)
		if sameMethod(rival.Measurement, usual.Measurement) {
			continue
		}
		if r := (Comparison{usual.Measurement, rival.Measurement}); !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	return all
}

func filter(times []Measurement, keep func(Measurement) bool) []Measurement {
	var some []Measurement
	for _, t := range times {
		if keep(t) {
			some = append(some, t)
		}
	}
	return some
}

// values are the different values that the times have, ascending.
func values[V cmp.Ordered](times []Measurement, of func(Measurement) V) []V {
	var all []V
	for _, t := range times {
		all = append(all, of(t))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
