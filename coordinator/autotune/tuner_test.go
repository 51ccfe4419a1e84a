package autotune_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tutti-go/tutti/coordinator/autotune"
	"github.com/tutti-go/tutti/fault"
)

// A problem is a synthetic function that returns a rate for given settings.
type problem struct {
	name  string
	axes  []autotune.Axis
	score func(p autotune.Candidate) float64
	best  float64
}

func problems() []problem {
	fusion := autotune.Axis{Name: "fusion", Low: 1 << 16, High: 1 << 28, Log: true}
	cycle := autotune.Axis{Name: "cycle", Low: 0.1, High: 100, Log: true}
	cache := autotune.Axis{Name: "cache", Choices: 2}
	class := autotune.Axis{Name: "class", Choices: 3}
	hill := func(v, top, width float64) float64 { d := math.Log(v/top) / width; return math.Exp(-d * d) }
	return []problem{
		{"one hill", []autotune.Axis{fusion}, func(p autotune.Candidate) float64 { return 100 * hill(p[0], 5e6, 3) }, 100},
		{"a parabola", []autotune.Axis{{Name: "x", Low: -3, High: 7}}, func(p autotune.Candidate) float64 { return 50 - (p[0]-2)*(p[0]-2) }, 50},
		{"a hill of two axes", []autotune.Axis{fusion, cycle}, func(p autotune.Candidate) float64 { return 100 * (0.3 + 0.7*hill(p[0], 2e7, 3)*hill(p[1], 3, 2)) }, 100},
		{"settings and choices", []autotune.Axis{fusion, cycle, cache, class}, func(p autotune.Candidate) float64 {
			return 100 * (0.4 + 0.2*p[2] + 0.2*math.Abs(p[3]-1)) * (0.5 + 0.5*hill(p[0], 3e7, 4)*hill(p[1], 2, 3))
		}, 80},
		{"it does not matter", []autotune.Axis{fusion, cycle, class}, func(autotune.Candidate) float64 { return 7 }, 7},
		{"it matters on one axis of three", []autotune.Axis{fusion, cycle, class}, func(p autotune.Candidate) float64 { return 10 + 90*p[2]/2 }, 100},
	}
}

func newTuner(t *testing.T, axes []autotune.Axis, opts autotune.Options) *autotune.Tuner {
	t.Helper()
	tu, err := autotune.New(axes, opts)
	if err != nil {
		t.Fatal(err)
	}
	return tu
}

// tune runs a Tuner to its end on a problem whose scores have noise. It returns the Tuner's best
// point.
func tune(t *testing.T, p problem, opts autotune.Options, noise float64, seed uint64) autotune.Candidate {
	t.Helper()
	tu, rnd := newTuner(t, p.axes, opts), rand.New(rand.NewPCG(seed, 1))
	for !tu.Finished() {
		if len(tu.Samples()) > 24 {
			t.Fatalf("%s: not settled after %d samples", p.name, len(tu.Samples()))
		}
		tu.Observe(p.score(tu.Ask()) * (1 + noise*rnd.NormFloat64()))
	}
	if !slices.Equal(tu.Ask(), tu.Best()) {
		t.Errorf("%s: settled, it asks for %v, and the best is %v", p.name, tu.Ask(), tu.Best())
	}
	return tu.Best()
}

func TestATunerFindsWhatIsNearlyBestAndFinishes(t *testing.T) {
	const seeds = 20
	for _, p := range problems() {
		for _, noise := range []float64{0, 0.03} {
			var found []float64
			for seed := range uint64(seeds) {
				found = append(found, p.score(tune(t, p, autotune.Options{}, noise, seed))/p.best)
			}
			slices.Sort(found)
			if found[0] < 0.85 || found[len(found)/2] < 0.95 {
				t.Errorf("%s, noise %g: the worst of %d is %.3f of the best, want 0.85; the median %.3f, want 0.95", p.name, noise, seeds, found[0], found[len(found)/2])
			}
		}
	}
}

// The job has many small tensors and poor initial settings. Fusion is so small that a step takes
// many calls, and the cycle is longer than the computation. The search must find settings that at
// least double the rate, with and without noise.
func TestATunerSpeedsUpAJobThatWasSetUpPoorly(t *testing.T) {
	const (
		tensors, size = 600, 8 << 10 // the number of tensors, and the bytes of each
		call          = 40e-6        // seconds for each collective
		perByte       = 1 / 2e9      // seconds for each byte of a collective
		announce      = 0.2e-6       // seconds to negotiate a tensor by its name
		compute       = 4e-3         // seconds between the first submission and the last
	)
	job := problem{
		name: "many small tensors",
		axes: []autotune.Axis{
			{Name: "fusion", Low: 64 << 10, High: 256 << 20, Log: true},
			{Name: "cycle", Low: 0.1, High: 50, Log: true}, // ms
			{Name: "cache", Choices: 2},
		},
		score: func(p autotune.Candidate) float64 {
			bytes := float64(tensors * size)
			// There is one call per cycle while tensors are submitted.
			calls := max(math.Ceil(bytes/p[0]), compute/(p[1]*1e-3))
			names := float64(tensors) * announce * (20 - 19*p[2])
			wait := max(0, p[1]*1e-3-compute) // wait for further tensors, which do not come
			return bytes / (compute + calls*call + bytes*perByte + names + wait)
		},
	}
	start := autotune.Candidate{64 << 10, 20, 0}
	began := job.score(start)
	for _, noise := range []float64{0, 0.05} {
		for seed := range uint64(10) {
			if got := job.score(tune(t, job, autotune.Options{Start: start}, noise, seed)); got < 2*began {
				t.Errorf("noise %g, seed %d: it began at %.0f MB/s and settles at %.0f, want at least twice as much", noise, seed, began/1e6, got/1e6)
			}
		}
	}
}

// The noise of this test changes scores more than any setting does. The search must still finish
// within its number of samples.
func TestATunerFinishesHoweverLoudTheNoise(t *testing.T) {
	for _, p := range problems() {
		for _, noise := range []float64{0.3, 3} {
			for _, most := range []int{1, 3, 20} {
				tu, err := autotune.New(p.axes, autotune.Options{Most: most})
				if err != nil {
					t.Fatal(err)
				}
				rnd := rand.New(rand.NewPCG(1, 3))
				asked := 0
				for ; !tu.Finished() && asked <= most; asked++ {
					tu.Observe(p.score(tu.Ask()) * math.Exp(noise*rnd.NormFloat64()))
				}
				if asked > most || len(tu.Samples()) != asked || !slices.Equal(tu.Ask(), tu.Best()) {
					t.Errorf("%s, noise %g: after %d of at most %d samples, settled is %v", p.name, noise, asked, most, tu.Finished())
				}
			}
		}
	}
}

// Here the start is the best point, but noise makes other points look better. The start must mostly
// stay. If another point is clearly better, the search must still find it.
func TestATunerEndsNoWorseThanItBegan(t *testing.T) {
	p := problems()[3]
	start := autotune.Candidate{3e7, 2, 1, 0} // the best point
	poor := autotune.Candidate{1 << 28, 50, 0, 1}
	for _, tc := range []struct {
		name  string
		start autotune.Candidate
		noise float64
		least float64 // smallest allowed mean result, as a fraction of the best score
	}{
		{"the start is the best, no noise", start, 0, 0.999},
		{"the start is the best, some noise", start, 0.1, 0.98},
		{"the start is the best, loud noise", start, 0.4, 0.93},
		{"the start is poor, no noise", poor, 0, 0.93},
		{"the start is poor, some noise", poor, 0.1, 0.75},
	} {
		const games = 12 // the seed determines their outcome
		total := 0.0
		for seed := range uint64(games) {
			tu, err := autotune.New(p.axes, autotune.Options{Start: tc.start})
			if err != nil {
				t.Fatal(err)
			}
			rnd := rand.New(rand.NewPCG(seed, 4))
			for !tu.Finished() {
				tu.Observe(p.score(tu.Ask()) * math.Exp(tc.noise*rnd.NormFloat64()))
			}
			total += p.score(tu.Best()) / p.best
		}
		if mean := total / games; mean < tc.least {
			t.Errorf("%s: it settles at %.3f of the best on average, want %.3f", tc.name, mean, tc.least)
		}
	}
}

// A Tuner must find better points than a search that tries the same number of random points.
func TestATunerBeatsRandomSearch(t *testing.T) {
	p := problems()[2]
	tu := newTuner(t, p.axes, autotune.Options{})
	for !tu.Finished() {
		tu.Observe(p.score(tu.Ask()))
	}
	const games = 10
	var random float64
	for seed := range uint64(games) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		var best float64
		for range tu.Samples() {
			at := make(autotune.Candidate, len(p.axes))
			for i, a := range p.axes {
				at[i] = a.Low * math.Pow(a.High/a.Low, rnd.Float64())
			}
			best = max(best, p.score(at))
		}
		random += best / games
	}
	if tuned := p.score(tu.Best()); tuned <= random*1.02 {
		t.Errorf("the tuner finds %.1f, and random points %.1f", tuned, random)
	}
}

func TestEqualScoresLeadToEqualQuestions(t *testing.T) {
	p := problems()[3]
	a, b := newTuner(t, p.axes, autotune.Options{}), newTuner(t, p.axes, autotune.Options{})
	for !a.Finished() {
		if !slices.Equal(a.Ask(), b.Ask()) {
			t.Fatalf("after %d scores: %v and %v", len(a.Samples()), a.Ask(), b.Ask())
		}
		s := p.score(a.Ask())
		a.Observe(s)
		b.Observe(s)
	}
}

func TestScoresThatAreNoNumbersCountAsTheWorst(t *testing.T) {
	p := problems()[0]
	tu := newTuner(t, p.axes, autotune.Options{})
	for i := 0; !tu.Finished(); i++ {
		at := tu.Ask()
		switch {
		case i%5 == 3:
			tu.Observe(math.NaN())
		case i%7 == 4:
			tu.Observe(math.Inf(1))
		default:
			tu.Observe(p.score(at))
		}
	}
	if s := p.score(tu.Best()); s < 80 {
		t.Errorf("the best has %.1f, want 80", s)
	}
	for _, s := range tu.Samples() {
		if math.IsNaN(s.Score) || math.IsInf(s.Score, 0) {
			t.Errorf("sample %+v", s)
		}
	}
}

func TestAScoreThatIsNoNumberIsRecordedAsTheWorstSoFar(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for _, tc := range []struct{ scores, want []float64 }{
		{[]float64{50, 40, nan, 60, inf, 30, nan}, []float64{50, 40, 40, 60, 40, 30, 30}},
		{[]float64{-50, -80, inf, -20, -inf}, []float64{-50, -80, -80, -20, -80}},
		{[]float64{nan, 50, nan}, []float64{0, 50, 0}},
	} {
		tu := newTuner(t, problems()[0].axes, autotune.Options{})
		for _, score := range tc.scores {
			tu.Observe(score)
		}
		var got []float64
		for _, s := range tu.Samples() {
			got = append(got, s.Score)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("scores %v: got %v, want %v", tc.scores, got, tc.want)
		}
	}
}

func TestTheStartIsTriedFirstAndAskChangesNothing(t *testing.T) {
	start := autotune.Candidate{1 << 20, 5}
	tu, err := autotune.New(problems()[2].axes, autotune.Options{Start: start})
	if err != nil {
		t.Fatal(err)
	}
	got := tu.Ask()
	got[0] = -1
	if !slices.Equal(tu.Ask(), start) || !slices.Equal(tu.Best(), start) {
		t.Errorf("got %v, want %v", tu.Ask(), start)
	}
}

func TestAxesAndOptionsThatCannotBeAreRefused(t *testing.T) {
	good := autotune.Axis{Name: "x", Low: 1, High: 2}
	for what, c := range map[string]struct {
		axes []autotune.Axis
		opts autotune.Options
	}{
		"no axis":         {nil, autotune.Options{}},
		"turned round":    {[]autotune.Axis{{Low: 2, High: 1}}, autotune.Options{}},
		"log of 0":        {[]autotune.Axis{{Low: 0, High: 1, Log: true}}, autotune.Options{}},
		"no choice":       {[]autotune.Axis{{Choices: -1}}, autotune.Options{}},
		"no end":          {[]autotune.Axis{{Low: 0, High: math.Inf(1)}}, autotune.Options{}},
		"outside":         {[]autotune.Axis{good}, autotune.Options{Start: autotune.Candidate{3}}},
		"other dimension": {[]autotune.Axis{good}, autotune.Options{Start: autotune.Candidate{1, 1}}},
		"no samples":      {[]autotune.Axis{good}, autotune.Options{Most: -1}},
	} {
		if _, err := autotune.New(c.axes, c.opts); !errors.Is(err, fault.Misuse) {
			t.Errorf("%s: got %v, want misuse", what, err)
		}
	}
}
