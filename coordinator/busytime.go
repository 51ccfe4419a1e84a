package coordinator

import "github.com/tutti-go/tutti/coordinator/negotiate"

// A busyTime is a stopwatch that runs while any tensor is in flight. Rates are computed per busy
// time, because the time that the program spends on other work says nothing about the settings.
type busyTime struct {
	tensors     int            // in flight; the stopwatch runs while it is above 0
	since       negotiate.Time // when the stopwatch was last started
	accumulated negotiate.Time // the busy time before since
}

// add adds to the number of tensors in flight. The stopwatch starts with the first tensor and stops
// when none is left.
func (u *busyTime) add(now negotiate.Time, tensors int) {
	if u.tensors == 0 {
		u.since = now
	}
	if u.tensors += tensors; u.tensors == 0 {
		u.accumulated += now - u.since
	}
}

// elapsed returns the busy time until now.
func (u *busyTime) elapsed(now negotiate.Time) negotiate.Time {
	if u.tensors == 0 {
		return u.accumulated
	}
	return u.accumulated + now - u.since
}

// reset sets the busy time to 0. A running stopwatch keeps running.
func (u *busyTime) reset(now negotiate.Time) { u.accumulated, u.since = 0, now }

// noteInput counts the tensors that rank 0 submits, and the tensors that it has executed.
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

// noteOutput counts the submissions that end without a Bucket.
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
