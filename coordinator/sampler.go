package coordinator

import (
	"math"
	"time"

	"github.com/tutti-go/tutti/coordinator/autotune"
	"github.com/tutti-go/tutti/coordinator/negotiate"
)

// A sampler runs on rank 0 and measures the speed of the job under each candidate of the settings.
// The goroutine that owns stepping owns the sampler.
//
// A sample is a number of steps. A step ends when the first tensor of the sample, called the
// marker, is executed again:
//
//	steps      1 … skip                skip+1 … skip+Steps           then
//	measured   no: they warm up, or    yes: bytes per busy time      the tuner chooses; a new sample
//	           go by old settings                                    begins
type sampler struct {
	conf  Autotune
	tuner *autotune.Tuner
	axes  int
	log   *logWriter

	marker string // the first tensor of the sample
	seen   int    // number of executions of marker
	skip   int    // steps before the measurement begins
	// warmUntil is the busy time after which the warm-up ends, even with fewer steps. If warmUntil
	// has the value never, only the number of steps counts.
	warmUntil negotiate.Time
	bytes     int
	busy      busyTime
}

// leastSteps is the smallest number of steps in a sample, even if the steps are long.
const leastSteps = 3

// newSampler returns a sampler that begins at the current settings.
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

// tuning converts a candidate into settings.
func (s *sampler) tuning(p autotune.Candidate) negotiate.Tunables {
	t := negotiate.Tunables{Fusion: int(p[0]), Cycle: negotiate.Duration(p[1]), Cache: p[2] == 1}
	if s.axes > 3 {
		t.Class = uint8(p[3])
	}
	return t
}

// bucketDone counts a Bucket that rank 0 has executed. When a sample is complete, it returns the
// settings for the next sample.
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

// stepped counts a step and reports whether it was the last step of a sample. A sample has
// Autotune.Steps steps. It has fewer steps, but at least leastSteps, if these together took at
// least Autotune.Span. The warm-up ends after Autotune.Warmup steps, or after four times
// Autotune.Span.
func (s *sampler) stepped(now negotiate.Time) bool {
	s.seen++
	ran := s.busy.elapsed(now)
	// The steps are long, so fewer steps are enough to warm up.
	if s.seen <= s.skip && s.seen > leastSteps && ran >= s.warmUntil {
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

// next gives the tuner the measured rate, and begins a sample with the settings that the tuner asks
// for. The first step of the new sample is not measured, because a part of it used the old
// settings.
func (s *sampler) next(now negotiate.Time) negotiate.Tunables {
	tried := s.tuner.Ask()
	rate := float64(s.bytes) / (math.Max(1, float64(s.busy.elapsed(now))) / float64(negotiate.Second))
	s.tuner.Observe(rate)
	t := s.tuning(tried)
	s.log.printf(s.conf.Log, "%d,%.3f,%d,%v,%s,%.0f", len(s.tuner.Samples()), float64(t.Cycle)/float64(negotiate.Millisecond), t.Fusion, t.Cache, classes()[t.Class], rate)
	s.marker, s.seen, s.skip, s.warmUntil, s.bytes = "", 0, 1, never, 0
	return s.tuning(s.tuner.Ask())
}
