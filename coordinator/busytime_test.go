package coordinator

import (
	"testing"
	"time"

	"github.com/tutti-go/tutti/coordinator/negotiate"
	"github.com/tutti-go/tutti/tensor"
)

// oneTensor returns a Bucket with one tensor. A sampler takes this tensor for the first tensor of a
// step.
func oneTensor() *negotiate.Bucket {
	t := &negotiate.Spec{Name: "w", Operation: negotiate.AllReduce, DType: tensor.Float32, Wire: tensor.Float32, Shape: []int{1000}}
	return &negotiate.Bucket{Entries: []negotiate.BucketEntry{{Spec: t, Submission: 1}}, Parts: 1}
}

// runStep runs a step that begins at the given time and has the given duration. It reports whether
// a sample is complete.
func runStep(s *sampler, at, duration negotiate.Time) bool {
	b := oneTensor()
	s.noteInput(at, &negotiate.Submit{Requests: make([]negotiate.TensorRequest, 1), Submissions: []negotiate.SubmissionID{1}})
	_, change := s.bucketDone(at+duration, b)
	s.noteInput(at+duration, negotiate.Finished{Bucket: b})
	return change
}

// A sample must not count time in which no tensor is in flight. A sample with long steps must have
// fewer steps.
func TestASampleHasAsManyStepsAsItNeeds(t *testing.T) {
	const ms = negotiate.Time(negotiate.Millisecond)
	for _, c := range []struct {
		what          string
		length, pause negotiate.Time
		first, then   int // steps until a sample is complete
	}{
		{"short steps", 1 * ms, 0, 41, 12},
		{"short steps between long pauses", 1 * ms, 500 * ms, 41, 12},
		{"steps of a tenth of a second", 100 * ms, 0, 13, 5},
		{"steps of a second", 1000 * ms, 7 * ms, 7, 5},
	} {
		s, err := newSampler(Autotune{}, true, negotiate.Tunables{Cycle: negotiate.Millisecond, Fusion: 1 << 20, Cache: true}, nil)
		if err != nil {
			t.Fatal(err)
		}
		now := negotiate.Time(time.Hour)
		for i, want := range []int{c.first, c.then, c.then} {
			steps := 1
			for ; !runStep(s, now, c.length) && steps < 1000; steps++ {
				now += c.length + c.pause
			}
			now += c.length + c.pause
			if steps != want {
				t.Errorf("%s: sample %d took %d steps, want %d", c.what, i, steps, want)
			}
			got := s.tuner.Samples()[i].Score
			if want := 4000 * float64(negotiate.Second) / float64(c.length); got < 0.99*want || got > 1.35*want {
				t.Errorf("%s: sample %d is of %.0f bytes per second, want %.0f", c.what, i, got, want)
			}
		}
	}
}

// Whatever the outcome of a submission, the clock must stop when no tensor is in flight.
func TestTheClockOfASampleStopsHoweverThingsEnd(t *testing.T) {
	var s sampler
	s.noteInput(10, negotiate.Submit{Submissions: []negotiate.SubmissionID{1, 2, 3}})
	s.noteInput(20, negotiate.Join{Submission: 4})
	s.noteOutput(30, negotiate.Fail{Submissions: []negotiate.SubmissionID{2}})
	s.noteOutput(40, negotiate.SetChanged{Submission: 3})
	s.noteOutput(45, negotiate.SetChanged{}) // requested by another rank only
	b := oneTensor()
	// This rank has not submitted the second tensor.
	b.Entries = append(b.Entries, negotiate.BucketEntry{Spec: b.Entries[0].Spec})
	s.noteInput(50, negotiate.Finished{Bucket: &negotiate.Bucket{Entries: b.Entries, Part: 0, Parts: 2}})
	s.noteInput(60, negotiate.Finished{Bucket: &negotiate.Bucket{Entries: b.Entries, Part: 1, Parts: 2}})
	if s.busy.elapsed(65) != 55 {
		t.Errorf("the clock shows %d, want 55", s.busy.elapsed(65))
	}
	s.noteOutput(70, negotiate.JoinDone{Submission: 4})
	if got := s.busy.elapsed(1000); got != 60 {
		t.Errorf("the clock shows %d, and stopped at 60", got)
	}
}
