package autotune

import (
	"math"
	"math/rand/v2"
	"slices"

	"github.com/tutti-go/tutti/fault"
)

// An Axis is one setting: a number from Low to High, of which with Log the
// logarithm counts; or with Choices above 0 one of that many things, 0 to
// Choices-1, of which none lies between two others.
type Axis struct {
	Name      string
	Low, High float64
	Log       bool
	Choices   int
}

// A Point is a value for each axis.
type Point []float64

// A Sample is what was tried, and how well it did: more is better.
type Sample struct {
	Point Point
	Score float64
}

// Options say how much is tried. The zero value of a field means the default.
type Options struct {
	Start    Point   // tried first, and kept unless something is clearly better; the default is the middle
	First    int     // points that are tried before anything is learnt; 8, or as many as Most leaves
	Most     int     // points at most; 24, of which the last 4 are what was found and the start, in turns; 2 of 4 to 7, and of fewer none: one score that is a tenth better decides
	Least    float64 // an expected improvement, relative to the best score, that is not worth trying; 0.01
	Patience int     // how often in turn it must be as small before the Tuner settles; 4
	Seed     uint64
}

// A Tuner seeks the best point. It is used by one goroutine at a time.
type Tuner struct {
	axes    []Axis
	opts    Options
	rnd     *rand.Rand
	samples []Sample
	next    Point
	small   int // expected improvements in turn that were too small
	settled bool
	best    Point

	// The last samples: what was found and the start, in turns.
	turns  int       // pairs of these, for which samples are kept back
	final  bool      // they are being tried
	scores []float64 // of what was found and of the start, one after the other
}

// mostTurns is how often in turn what was found must do better than the start did.
const mostTurns = 2

// New makes a Tuner; axes and options that cannot be get fault.Misuse.
func New(axes []Axis, opts Options) (*Tuner, error) {
	bad := func(format string, args ...any) (*Tuner, error) {
		return nil, fault.New(fault.Misuse, "autotune", -1, format, args...)
	}
	if len(axes) == 0 {
		return bad("no axis")
	}
	for _, a := range axes {
		numbers := a.Choices == 0 && a.Low < a.High && !math.IsInf(a.Low, 0) && !math.IsInf(a.High, 0) && (!a.Log || a.Low > 0)
		if !numbers && a.Choices < 1 {
			return bad("axis %s goes from %g to %g, with %d choices", a.Name, a.Low, a.High, a.Choices)
		}
	}
	fill := func(v *int, otherwise int) {
		if *v == 0 {
			*v = otherwise
		}
	}
	fill(&opts.Most, 24)
	turns := min(mostTurns, opts.Most/4)
	fill(&opts.First, min(8, opts.Most-2*turns))
	fill(&opts.Patience, 4)
	if opts.Least == 0 {
		opts.Least = 0.01
	}
	t := &Tuner{axes: slices.Clone(axes), opts: opts, rnd: rand.New(rand.NewPCG(opts.Seed, 0x7475747469))}
	if opts.First < 1 || opts.Most < opts.First || opts.Patience < 1 || opts.Least < 0 {
		return bad("options %+v", opts)
	}
	if t.next = slices.Clone(opts.Start); t.next == nil {
		middle := make([]float64, len(axes))
		for i := range middle {
			middle[i] = 0.5
		}
		t.next = t.point(middle)
	}
	if !t.valid(t.next) {
		return bad("start %v is outside of the axes", opts.Start)
	}
	t.best = t.next
	t.opts.Start = t.next
	t.turns = max(0, min(turns, (opts.Most-opts.First)/2))
	return t, nil
}

func (t *Tuner) valid(p Point) bool {
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

// Ask is the point to be tried next; once settled, the best.
func (t *Tuner) Ask() Point {
	if t.settled {
		return slices.Clone(t.best)
	}
	return slices.Clone(t.next)
}

// Tell says how well the point did that Ask gave: a rate, say. A score that is no
// finite number counts as the worst so far. Once settled, it is ignored.
func (t *Tuner) Tell(score float64) {
	if t.settled {
		return
	}
	if math.IsNaN(score) || math.IsInf(score, 0) {
		score = 0
		for _, s := range t.samples {
			score = min(score, s.Score)
		}
	}
	t.samples = append(t.samples, Sample{t.next, score})
	if t.final {
		t.judge(score)
		return
	}
	if len(t.samples) < t.opts.First {
		t.next = t.point(t.spread(len(t.samples)))
		return
	}
	t.decide()
}

// Settled reports whether there is nothing more to try.
func (t *Tuner) Settled() bool { return t.settled }

// Best is what is best as far as is known.
func (t *Tuner) Best() Point { return slices.Clone(t.best) }

// Samples are what was tried, in order.
func (t *Tuner) Samples() []Sample { return slices.Clone(t.samples) }

// decide learns from all samples, and finds what to try next.
func (t *Tuner) decide() {
	points, scores := make([][]float64, len(t.samples)), make([]float64, len(t.samples))
	for i, s := range t.samples {
		points[i], scores[i] = t.place(s.Point), s.Score
	}
	p := learn(points, scores)
	if p == nil { // scores beyond what can be reckoned with
		t.finish()
		return
	}
	best := math.Inf(-1) // of what is expected where something was tried: scores have noise
	for i := range points {
		if mean, _ := p.predict(points[i]); mean > best {
			best, t.best = mean, t.samples[i].Point
		}
	}
	next, gain := t.promising(p, best)
	if gain*p.scale <= t.opts.Least*math.Abs(best*p.scale+p.shift) {
		t.small++
	} else {
		t.small = 0
	}
	if t.small >= t.opts.Patience {
		var some bool
		if next, some = t.neighbour(); !some {
			t.finish()
			return
		}
	}
	t.next = next
	if len(t.samples) >= t.opts.Most-2*t.turns {
		t.finish()
	}
}

// finish ends the search. The best of many scores with noise is one that was lucky, and
// the machine may have been quicker then: so what was found and the start are tried in
// turns, unless they are one.
func (t *Tuner) finish() {
	switch {
	case slices.Equal(t.best, t.opts.Start):
		t.settled = true
	case t.turns == 0:
		t.settle(t.clearly())
	default:
		t.final, t.next = true, t.best
	}
}

// margin is by how much what was found must have beaten the start where there is no
// sample left to try them in turns.
const margin = 0.1

// clearly reports whether a sample of the best was so much better than the start's.
func (t *Tuner) clearly() bool {
	start := t.samples[0].Score
	return slices.ContainsFunc(t.samples, func(s Sample) bool {
		return slices.Equal(s.Point, t.best) && s.Score-start > margin*math.Abs(start)
	})
}

// judge counts a score of the last turns. Who begins changes from turn to turn. What was
// found stays if it has won all, and the start as soon as it has not lost one.
func (t *Tuner) judge(score float64) {
	t.scores = append(t.scores, score)
	n := len(t.scores)
	startNext := n%4 == 1 || n%4 == 2 // found, start; start, found; and so on
	if n%2 == 0 {
		found, start := t.scores[n-2], t.scores[n-1]
		if n%4 == 0 {
			found, start = start, found
		}
		if found <= start {
			t.settle(false)
			return
		}
		if n == 2*t.turns {
			t.settle(true)
			return
		}
	}
	if t.next = t.best; startNext {
		t.next = t.opts.Start
	}
}

// settle ends all, with what was found or with the start.
func (t *Tuner) settle(found bool) {
	t.settled = true
	if !found {
		t.best = t.opts.Start
	}
}

// neighbour is the best point with one choice made otherwise, if there is one that
// was not tried. A process learns little of choices from afar, and believes it too
// soon.
func (t *Tuner) neighbour() (at Point, some bool) {
	for i, a := range t.axes {
		for c := range a.Choices {
			p := slices.Clone(t.best)
			p[i] = float64(c)
			if !slices.ContainsFunc(t.samples, func(s Sample) bool { return slices.Equal(s.Point, p) }) {
				return p, true
			}
		}
	}
	return t.best, false
}

// Candidates for the next point: anywhere, and near the best.
const (
	anywhere = 400
	nearby   = 150
)

// promising is the point of the greatest expected improvement among many.
func (t *Tuner) promising(p *process, best float64) (at Point, gain float64) {
	gain = -1
	for k := range anywhere + nearby {
		unit := make([]float64, len(t.axes))
		for i := range unit {
			unit[i] = t.rnd.Float64()
		}
		if k >= anywhere {
			t.near(unit)
		}
		q := t.point(unit)
		if g := p.improvement(t.place(q), best); g > gain {
			at, gain = q, g
		}
	}
	return at, gain
}

// near moves a random place to the neighbourhood of the best: numbers by a tenth
// of their axis or so, and choices now and then.
func (t *Tuner) near(unit []float64) {
	for i, a := range t.axes {
		if a.Choices > 0 {
			if t.rnd.IntN(4) > 0 {
				unit[i] = (t.best[i] + 0.5) / float64(a.Choices)
			}
			continue
		}
		unit[i] = min(max(t.unit(i, t.best[i])+0.1*t.rnd.NormFloat64(), 0), 1)
	}
}

// spread is the k-th of places that lie evenly, as Halton's sequence does (1960).
func (t *Tuner) spread(k int) []float64 {
	primes := [...]int{2, 3, 5, 7, 11, 13, 17, 19}
	unit := make([]float64, len(t.axes))
	for i := range unit {
		base := primes[i%len(primes)]
		for f, n := 1/float64(base), k; n > 0; n, f = n/base, f/float64(base) {
			unit[i] += f * float64(n%base)
		}
	}
	return unit
}

// point is what a place in the unit cube stands for.
func (t *Tuner) point(unit []float64) Point {
	p := make(Point, len(unit))
	for i, a := range t.axes {
		switch u := unit[i]; {
		case a.Choices > 0:
			p[i] = min(math.Floor(u*float64(a.Choices)), float64(a.Choices-1))
		case a.Log:
			p[i] = min(max(math.Exp(math.Log(a.Low)+u*(math.Log(a.High)-math.Log(a.Low))), a.Low), a.High)
		default:
			p[i] = a.Low + u*(a.High-a.Low)
		}
	}
	return p
}

// unit is where a number lies on its axis, from 0 to 1.
func (t *Tuner) unit(i int, v float64) float64 {
	a := t.axes[i]
	if a.Log {
		return (math.Log(v) - math.Log(a.Low)) / (math.Log(a.High) - math.Log(a.Low))
	}
	return (v - a.Low) / (a.High - a.Low)
}

// apart, times the root of 2, is how far choices lie from each other: so far that
// one says little of another.
const apart = 0.7

// place is where the process has a point: choices have an axis each, so that all
// are equally far from each other.
func (t *Tuner) place(p Point) []float64 {
	var at []float64
	for i, a := range t.axes {
		if a.Choices == 0 {
			at = append(at, t.unit(i, p[i]))
			continue
		}
		for c := range a.Choices {
			if float64(c) == p[i] {
				at = append(at, apart)
			} else {
				at = append(at, 0)
			}
		}
	}
	return at
}
