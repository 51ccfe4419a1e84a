package choose

import (
	"cmp"
	"math"
	"slices"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/reduce"
)

// A Measurement is the measured time of a method, which is an algorithm with a segment size. The
// time is the median, over all calls, of the slowest rank's time. If a method was timed in turns
// with the default table's method, its time is the default method's time multiplied by the measured
// ratio of the two.
type Measurement struct {
	Algorithm collective.Algorithm
	Wire      string
	Ranks     int
	Bytes     int
	Segment   int // bytes; 0 if no message has several segments
	Seconds   float64
}

// MaxRatio is the ratio of times below which a method replaces another method. The other method may
// be the method of the default table, the best method for smaller vectors, or the same algorithm
// with another segment size. A smaller gain may be chance, and a table with few changes is easier
// to read.
const MaxRatio = 0.92

// Merge combines older and newer measurements. Newer measurements replace all older measurements
// with the same wire, number of ranks and collective, because measurements from different runs
// should not be compared.
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

// Rules derives the rules of a table from measurements.
//
// For each collective, wire and measured number of ranks, the rules list the fastest algorithm
// of each size. If some calls cannot use that algorithm, because their operator does not commute
// or their ranks share no memory, the next rule names the fastest algorithm for these calls. The
// default table's choice remains unless another method was clearly faster.
//
// Between two measured sizes, the rule changes at their geometric mean. But if both sizes use the
// default table's choice, the rule changes where the default table changes. The rule of the largest
// measured size ends at twice that size. But if that rule is the default table's choice, it ends
// where the default table changes.
//
// A number of ranks that was not measured uses the rules of the next larger number that was
// measured. There are no rules for twice the largest measured number of ranks, or more.
func Rules(times []Measurement) []collective.TableRule {
	usual := defaults(collective.DefaultRules())
	var rules []collective.TableRule
	for _, verb := range collective.Verbs() {
		ofVerb := filter(times, func(t Measurement) bool { return t.Algorithm.Verb() == verb })
		for _, wire := range values(ofVerb, func(t Measurement) string { return t.Wire }) {
			ofWire := filter(ofVerb, func(t Measurement) bool { return t.Wire == wire })
			counts := values(ofWire, func(t Measurement) int { return t.Ranks })
			for i, ranks := range counts {
				// Rules for this number of ranks also apply to smaller numbers. They end above the
				// next smaller measured number, or at 2 if there is no smaller measured number.
				// Rules for the largest measured number also apply to larger numbers below twice
				// that number.
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

// A chosen is the method that rules use for one size. If the default table uses the same method,
// the field until is the size of the largest vector for which it does so. Otherwise until is 0.
type chosen struct {
	Measurement
	until uint64
}

// unlimited is the value of until for a method that the default table uses for all larger
// vectors.
const unlimited = math.MaxUint64

// rulesFor returns the rules for one verb, wire and number of ranks. It goes through the measured
// sizes in ascending order and collects the choices of the current band of sizes. When the choices
// change, the band ends. rulesFor then appends one rule for each choice, the fastest choice first,
// all with the same MaxBytes. So a call follows the fastest choice that supports it.
func (d defaults) rulesFor(times []Measurement, limits collective.TableRule) []collective.TableRule {
	var rules []collective.TableRule
	var open []chosen // the choices of the current band of sizes
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

// boundary returns the largest vector for which the choices of the smaller of two sizes hold. If
// both sizes use the default table's choice, the boundary is the size at which the default table
// changes, because this size is known exactly. Otherwise nothing was measured between the two
// sizes, and their geometric mean is the best guess.
func boundary(below, above []chosen, smaller, larger int) uint64 {
	measured := func(p chosen) bool { return p.until == 0 }
	if !slices.ContainsFunc(below, measured) && !slices.ContainsFunc(above, measured) {
		if until := upperBound(below, smaller); until >= uint64(smaller) && until < uint64(larger) {
			return until
		}
	}
	return uint64(math.Sqrt(float64(smaller) * float64(larger)))
}

// upperBound returns the MaxBytes of the rules for the largest measured size. If the default table
// uses one of the picks, it returns the size of the largest vector for which the default table uses
// that pick. Otherwise it returns twice the largest measured size. 0 means that there is no limit,
// as for operations without a size.
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

// sameMethod reports whether two measurements have the same algorithm and segment size.
func sameMethod(a, b Measurement) bool { return a.Algorithm == b.Algorithm && a.Segment == b.Segment }

// A requirement describes a kind of calls that an algorithm must support. It says whether their
// operators need rank order, and whether their ranks share memory. Each combination may need its
// own method, because the fastest method overall may not support it.
type requirement struct {
	order  reduce.Order
	shared bool
}

// requirements returns the requirements that rules distinguish: all combinations of their fields.
func requirements() []requirement {
	return []requirement{{reduce.Commutative, true}, {reduce.Commutative, false}, {reduce.RankOrder, true}, {reduce.RankOrder, false}}
}

// supported returns the measurements whose algorithms meet the requirement, the fastest measurement
// first.
func (s requirement) supported(times []Measurement) []Measurement {
	can := filter(times, func(t Measurement) bool {
		return t.Algorithm.SupportsOrder(s.order) && (s.shared || !t.Algorithm.NeedsShared())
	})
	slices.SortStableFunc(can, faster)
	return can
}

// faster orders measurements by their times.
func faster(a, b Measurement) int { return cmp.Compare(a.Seconds, b.Seconds) }

// best returns the fastest method for each requirement, without duplicates, the fastest first. One
// method usually meets several requirements, so the result usually has one or two methods. The
// parameter before holds the choices for smaller vectors.
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

// stable returns the fastest of the sorted measurements, or a method that is nearly as fast and
// keeps the table simpler. Among the methods that are nearly as fast, it prefers the default
// table's method, then the previous choice, then the method with the default segment size.
func (d defaults) stable(times []Measurement, before []chosen) chosen {
	// Methods within MaxRatio of the fastest count as equally fast.
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

// The type defaults holds the rules of the default table.
type defaults []collective.TableRule

// find looks for the default table's method among measurements of one size. It returns the
// measurement of that method, or false if there is none.
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
	// No rule of the default table covers the call, so the table falls back on the first
	// algorithm of the verb with the default segment size.
	for _, t := range times {
		if t.Segment == 0 && t.Algorithm == collective.Algorithms(t.Algorithm.Verb())[0] {
			return chosen{t, unlimited}, true
		}
	}
	return chosen{}, false
}

// covers reports whether a rule covers the call of a measurement.
func covers(u collective.TableRule, t Measurement) bool {
	return (u.MaxBytes == 0 || uint64(t.Bytes) <= u.MaxBytes) && (u.Wire == "" || u.Wire == t.Wire) &&
		t.Ranks >= int(u.MinRanks) && (u.MaxRanks == 0 || t.Ranks <= int(u.MaxRanks))
}

// A Comparison holds the measurement of the default table's method, and the measurement of a method
// that Rules would prefer.
type Comparison struct{ Default, Contender Measurement }

// Comparisons returns the Comparisons that follow from measurements of one collective and size,
// without duplicates. The caller should then time the two methods in turns, to distinguish a
// gain from chance. A method that was best for smaller vectors and is nearly as good for this
// size needs no comparison.
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
		// Several requirements often lead to the same pair of methods.
		if r := (Comparison{usual.Measurement, rival.Measurement}); !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	return all
}

// filter returns the measurements for which the function keep returns true.
func filter(times []Measurement, keep func(Measurement) bool) []Measurement {
	var some []Measurement
	for _, t := range times {
		if keep(t) {
			some = append(some, t)
		}
	}
	return some
}

// values returns the distinct values of the measurements in ascending order.
func values[V cmp.Ordered](times []Measurement, of func(Measurement) V) []V {
	var all []V
	for _, t := range times {
		all = append(all, of(t))
	}
	slices.Sort(all)
	return slices.Compact(all)
}
