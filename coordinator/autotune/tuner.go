package autotune

import (
	"math"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// An Axis is one setting. If Choices is 0, the value is a number from Low to High. The scale is
// logarithmic if Log is set. If Choices is above 0, the value is one of the unordered choices 0 to
// Choices-1.
type Axis struct {
	Name      string
	Low, High float64
	Log       bool
	Choices   int
}

// A Candidate is a point of the search: a value for each axis.
type Candidate []float64

// A Sample is a candidate that was tried, and its score. A higher score is better.
type Sample struct {
	Candidate Candidate
	Score     float64
}

// Options configure the search. The zero value of a field means its default.
type Options struct {
	Start Candidate // the first candidate; the default is the middle of each axis

	// Most is the maximum number of samples; the default is 24. The last 4 samples compare the best
	// point with the start. If Most is 4 to 7, the last 2 samples do so. If Most is below 4, there
	// is no comparison, and the best point wins if its sample is better by a tenth.
	Most int

	// Gain is the smallest relative gain with which the search moves to another point; the default
	// is 0.02. Smaller differences are mostly noise.
	Gain float64
}

// A Tuner searches for the best point. Only one goroutine at a time may use it.
//
//	phase      Ask returns                        ends when
//	searching  the start, then points next to     no point at the finest step is better, or the
//	           the best one so far                samples for the search are used up
//	comparing  the best point and the start,      the start has won a pair, or the best all pairs
//	           in pairs
//	finished   the winner                         -
type Tuner struct {
	axes    []Axis
	opts    Options
	samples []Sample
	phase   phase
	next    Candidate // the result of Ask

	// These fields belong to the search.
	best   Candidate
	score  float64 // the score of the sample of best
	step   float64 // the length of a move along a numeric axis, as a fraction of the axis
	moves  []move  // moves from best that are still to be tried
	gained bool    // a move of this round was a gain

	pairs  int       // number of pairs of samples that are reserved for the comparison
	scores []float64 // the scores of the comparison, in order
}

// A phase is a row of Tuner's table.
type phase uint8

const (
	searching phase = iota
	comparing
	finished
)

// A move leads from a point to another point that differs on one axis. On a numeric axis, to is 1
// for a step up, and -1 for a step down. On an axis with choices, to is the new choice.
type move struct{ axis, to int }

const (
	firstStep = 1. / 4
	lastStep  = 1. / 16
	mostPairs = 2 // maximum number of pairs in which the best point must beat the start
)

// New returns a Tuner. For invalid axes or options it returns fault.Misuse.
func New(axes []Axis, opts Options) (*Tuner, error) {
	bad := func(format string, args ...any) (*Tuner, error) {
		return nil, fault.New(fault.Misuse, "autotune", -1, format, args...)
	}
	if len(axes) == 0 {
		return bad("got no axis, want one or more")
	}
	for _, a := range axes {
		numbers := a.Choices == 0 && a.Low < a.High && !math.IsInf(a.Low, 0) && !math.IsInf(a.High, 0) && (!a.Log || a.Low > 0)
		if !numbers && a.Choices < 1 {
			return bad("axis %s: got the range %g to %g and %d choices, want an increasing range or choices", a.Name, a.Low, a.High, a.Choices)
		}
	}
	if opts.Most == 0 {
		opts.Most = 24
	}
	if opts.Gain == 0 {
		opts.Gain = 0.02
	}
	if opts.Most < 1 || opts.Gain < 0 {
		return bad("got options %+v, want Most of at least 1 and Gain of at least 0", opts)
	}
	t := &Tuner{axes: slices.Clone(axes), opts: opts, step: firstStep, pairs: min(mostPairs, opts.Most/4)}
	start := slices.Clone(opts.Start)
	if start == nil {
		for i := range axes {
			start = append(start, t.value(i, 0.5))
		}
	}
	if !t.valid(start) {
		return bad("got start %v, want a value within each of %d axes", opts.Start, len(axes))
	}
	t.opts.Start, t.best, t.next = start, start, start
	return t, nil
}

// valid reports whether a candidate has a value within each axis.
func (t *Tuner) valid(p Candidate) bool {
	if len(p) != len(t.axes) {
		return false
	}
	for i, a := range t.axes {
		if a.Choices > 0 && (p[i] != math.Trunc(p[i]) || p[i] < 0 || int(p[i]) >= a.Choices) || a.Choices == 0 && !(p[i] >= a.Low && p[i] <= a.High) {
			return false
		}
	}
	return true
}

// Ask returns the point to try next. After the search, Ask returns the winner.
func (t *Tuner) Ask() Candidate { return slices.Clone(t.next) }

// Observe records the score of the point that Ask returned, such as a rate. A score that is not a
// finite number counts as the worst score so far, or as 0 if it is the first score. After the
// search, Observe does nothing.
func (t *Tuner) Observe(score float64) {
	if t.phase == finished {
		return
	}
	if math.IsNaN(score) || math.IsInf(score, 0) {
		score = 0
		for i, s := range t.samples {
			if i == 0 || s.Score < score {
				score = s.Score
			}
		}
	}
	t.samples = append(t.samples, Sample{t.next, score})
	if t.phase == comparing {
		t.compare(score)
		return
	}
	t.search(score)
}

// Finished reports whether the search is over.
func (t *Tuner) Finished() bool { return t.phase == finished }

// Best returns the best point so far.
func (t *Tuner) Best() Candidate { return slices.Clone(t.best) }

// Samples returns all samples, in order.
func (t *Tuner) Samples() []Sample { return slices.Clone(t.samples) }

// search moves to the point that was just sampled if the point is a gain. Then it chooses the next
// point.
func (t *Tuner) search(score float64) {
	switch {
	case len(t.samples) == 1:
		t.score = score
	case score-t.score > t.opts.Gain*math.Abs(t.score):
		t.best, t.score, t.gained = t.next, score, true
	default:
		t.moves = t.moves[1:] // after a gain, the next step goes in the same direction
	}
	if len(t.samples) >= t.opts.Most-2*t.pairs || !t.choose() {
		t.endSearch()
	}
}

// choose finds the next point to try. It returns false when no such point is left at the finest
// step.
func (t *Tuner) choose() bool {
	for {
		for ; len(t.moves) > 0; t.moves = t.moves[1:] {
			p := t.moved(t.moves[0])
			if !slices.ContainsFunc(t.samples, func(s Sample) bool { return slices.Equal(s.Candidate, p) }) {
				t.next = p
				return true
			}
		}
		if !t.gained && len(t.samples) > 1 {
			if t.step /= 2; t.step < lastStep {
				return false
			}
		}
		t.gained = false
		t.moves = t.allMoves()
	}
}

// allMoves lists the moves of one round. Moves to other choices come first, because they may matter
// most.
func (t *Tuner) allMoves() (list []move) {
	for i, a := range t.axes {
		for c := range a.Choices {
			list = append(list, move{i, c})
		}
	}
	for i, a := range t.axes {
		if a.Choices == 0 {
			list = append(list, move{i, 1}, move{i, -1})
		}
	}
	return list
}

// moved returns the point to which a move leads from the best point. A move stops at the end of its
// axis.
func (t *Tuner) moved(m move) Candidate {
	p := slices.Clone(t.best)
	if t.axes[m.axis].Choices > 0 {
		p[m.axis] = float64(m.to)
		return p
	}
	at := t.fraction(m.axis, p[m.axis]) + float64(m.to)*t.step
	p[m.axis] = t.value(m.axis, min(max(at, 0), 1))
	return p
}

// value returns the number at a given fraction of an axis. On an axis with choices, it returns the
// choice.
func (t *Tuner) value(i int, fraction float64) float64 {
	a := t.axes[i]
	switch {
	case a.Choices > 0:
		return min(math.Floor(fraction*float64(a.Choices)), float64(a.Choices-1))
	case a.Log:
		return min(max(a.Low*math.Pow(a.High/a.Low, fraction), a.Low), a.High)
	}
	return a.Low + fraction*(a.High-a.Low)
}

// fraction returns the position of a number on its axis, from 0 to 1.
func (t *Tuner) fraction(i int, v float64) float64 {
	a := t.axes[i]
	if a.Log {
		return math.Log(v/a.Low) / math.Log(a.High/a.Low)
	}
	return (v - a.Low) / (a.High - a.Low)
}

// endSearch begins the comparison of the best point with the start. The comparison is needed
// because the best of many noisy scores may be due to chance, and because the machine may have
// become faster during the search.
func (t *Tuner) endSearch() {
	switch {
	case slices.Equal(t.best, t.opts.Start):
		t.finish(true)
	case t.pairs == 0:
		t.finish(t.score-t.samples[0].Score > clearGain*math.Abs(t.samples[0].Score))
	default:
		t.phase, t.next = comparing, t.best
	}
}

// clearGain is the relative gain over the start that the best point needs to win if no samples are
// left for a comparison.
const clearGain = 0.1

// compare records a score of the comparison. The order within a pair alternates, so that a machine
// that gets steadily slower favors neither point. The point that the search has found must win all
// pairs.
//
//	sample  1      2      3      4
//	of      found  start  start  found
func (t *Tuner) compare(score float64) {
	t.scores = append(t.scores, score)
	n := len(t.scores)
	if n%2 == 0 {
		found, start := t.scores[n-2], t.scores[n-1]
		if n%4 == 0 {
			found, start = start, found
		}
		if found <= start || n == 2*t.pairs {
			t.finish(found > start)
			return
		}
	}
	if t.next = t.best; n%4 == 1 || n%4 == 2 {
		t.next = t.opts.Start
	}
}

// finish ends the search. If found is true, the best point wins, and otherwise the start.
func (t *Tuner) finish(found bool) {
	if !found {
		t.best = t.opts.Start
	}
	t.phase, t.next = finished, t.best
}
