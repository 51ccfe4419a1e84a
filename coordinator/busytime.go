package coordinator

import "github.com/tutti-go/tutti/coordinator/negotiate"

// A busyTime is a stopwatch that runs while any tensor is in flight. Time in which the program does
// something else says nothing about settings, so rates are per busy time.
type busyTime struct {
	tensors     int            // in flight; the stopwatch runs while it is above 0
	since       negotiate.Time // when it was started last
	accumulated negotiate.Time // what it showed then
}

// add starts the stopwatch with the first tensor and stops it with the last.
func (u *busyTime) add(now negotiate.Time, tensors int) {
	if u.tensors == 0 {
		u.since = now
	}
	if u.tensors += tensors; u.tensors == 0 {
		u.accumulated += now - u.since
	}
}

// elapsed is what the stopwatch shows.
func (u *busyTime) elapsed(now negotiate.Time) negotiate.Time {
	if u.tensors == 0 {
		return u.accumulated
	}
	return u.accumulated + now - u.since
}

// reset sets it to 0. It keeps running if it runs.
func (u *busyTime) reset(now negotiate.Time) { u.accumulated, u.since = 0, now }

// noteInput counts tensors that get in flight on rank 0, and those that are executed.
func (s *sampler) noteInput(now negotiate.Time, in negotiate.WorkerInput) {
	switch in := in.(type) {
	case *negotiate.Submit:
		s.busy.add(now, len(in.Submissions))
	case negotiate.Submit:
		s.busy.add(now, len(in.Submissions))
	case negotiate.Join:
		s.busy.add(now, 1)
	case negotiate.Finished:
		if b := in.Bucket; b.Part+1 == b.Parts {
			for i := range b.Entries {
				if b.Entries[i].Submission != 0 {
					s.busy.add(now, -1)
				}
			}
		}
	}
}

// noteOutput counts tensors that end in other ways.
func (s *sampler) noteOutput(now negotiate.Time, out negotiate.WorkerOutput) {
	switch o := out.(type) {
	case negotiate.Fail:
		s.busy.add(now, -len(o.Submissions))
	case negotiate.JoinDone:
		s.busy.add(now, -1)
	case negotiate.SetChanged:
		if o.Submission != 0 {
			s.busy.add(now, -1)
		}
	}
}
