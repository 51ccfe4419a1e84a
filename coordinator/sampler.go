package coordinator

import (
	"math"
	"time"

	"github.com/tutti-go/tutti/coordinator/autotune"
	"github.com/tutti-go/tutti/coordinator/negotiate"
)

// A sampler measures on rank 0 how well settings do. Who has the turn has it.
type sampler struct {
	conf  Autotune
	tuner *autotune.Tuner
	axes  int
	log   *logWriter

	marker    string // the first tensor of the sample: when it comes again, a step has ended
	seen      int
	skip      int            // steps before the measurement begins
	warmUntil negotiate.Time // when that is over all the same; never: not before
	bytes     int
	busy      busyTime
}

// leastSteps of a sample, however long they take.
const leastSteps = 3

// newSampler begins at the settings that hold.
func newSampler(conf Autotune, frozen bool, now negotiate.Tunables, to *logWriter) (*sampler, error) {
	axes := []autotune.Axis{
		{Name: "fusion", Low: 64 << 10, High: 256 << 20, Log: true},
		{Name: "cycle", Low: float64(100 * negotiate.Microsecond), High: float64(50 * negotiate.Millisecond), Log: true},
		{Name: "cache", Choices: 2},
	}
	if !frozen {
		axes = append(axes, autotune.Axis{Name: "algorithm", Choices: len(classes())})
	}
	within := func(i int, v float64) float64 { return min(max(v, axes[i].Low), axes[i].High) }
	start := autotune.Candidate{within(0, float64(now.Fusion)), within(1, float64(now.Cycle)), 0, float64(now.Class)}
	if now.Cache {
		start[2] = 1
	}
	if conf.Steps <= 0 {
		conf.Steps = 10
	}
	if conf.Warmup <= 0 {
		conf.Warmup = 30
	}
	if conf.Span <= 0 {
		conf.Span = 250 * time.Millisecond
	}
	t, err := autotune.New(axes, autotune.Options{Start: start[:len(axes)], Most: conf.Samples})
	if err != nil {
		return nil, err
	}
	s := &sampler{conf: conf, tuner: t, axes: len(axes), log: to, skip: conf.Warmup, warmUntil: 4 * negotiate.Time(conf.Span)}
	to.printf(conf.Log, "sample,cycle_ms,fusion_bytes,cache,algorithm,bytes_per_second")
	return s, nil
}

// tuning is what a point stands for.
func (s *sampler) tuning(p autotune.Candidate) negotiate.Tunables {
	t := negotiate.Tunables{Fusion: int(p[0]), Cycle: negotiate.Duration(p[1]), Cache: p[2] == 1}
	if s.axes > 3 {
		t.Class = uint8(p[3])
	}
	return t
}

// bucketDone counts a Bucket that rank 0 has carried out. It returns what to try
// next when a sample is complete, and whether that is for good.
func (s *sampler) bucketDone(now negotiate.Time, b *negotiate.Bucket) (next negotiate.Tunables, change bool) {
	for i := range b.Entries {
		t := b.Entries[i].Spec
		s.bytes += negotiate.Size(t, b.Entries[i].Rows, b.Part, b.Parts)
		if b.Part+1 < b.Parts {
			continue
		}
		if s.marker == "" {
			s.marker = t.Name
		}
		if t.Name != s.marker {
			continue
		}
		if s.stepped(now) {
			return s.next(now), true
		}
	}
	return next, false
}

// stepped counts a step, and reports whether it was a sample's last.
func (s *sampler) stepped(now negotiate.Time) bool {
	s.seen++
	ran := s.busy.elapsed(now)
	if s.seen <= s.skip && s.seen > leastSteps && ran >= s.warmUntil { // steps are long enough for fewer to do
		s.skip = s.seen - 1
	}
	steps := s.seen - 1 - s.skip
	switch {
	case steps < 0:
		return false
	case steps == 0:
		s.bytes = 0
		s.busy.reset(now)
		return false
	}
	return steps >= s.conf.Steps || steps >= leastSteps && ran >= negotiate.Time(s.conf.Span)
}

// next tells the tuner, and begins another sample, whose first step is not
// measured: some of it went by what held before.
func (s *sampler) next(now negotiate.Time) negotiate.Tunables {
	tried := s.tuner.Ask()
	rate := float64(s.bytes) / (math.Max(1, float64(s.busy.elapsed(now))) / float64(negotiate.Second))
	s.tuner.Observe(rate)
	t := s.tuning(tried)
	s.log.printf(s.conf.Log, "%d,%.3f,%d,%v,%s,%.0f", len(s.tuner.Samples()), float64(t.Cycle)/float64(negotiate.Millisecond), t.Fusion, t.Cache, classes()[t.Class], rate)
	s.marker, s.seen, s.skip, s.warmUntil, s.bytes = "", 0, 1, never, 0
	return s.tuning(s.tuner.Ask())
}
