package coordinator

import "github.com/tutti-go/tutti/coordinator/negotiate"

// An busyTime is a clock that runs while something is: what the program does beside
// says nothing of settings.
type busyTime struct {
	tensors     int
	since       negotiate.Time // it was started
	accumulated negotiate.Time // that it ran before
}

// add starts the clock with the first tensor, and stops it with the last.
func (u *busyTime) add(now negotiate.Time, tensors int) {
	if u.tensors == 0 {
		u.since = now
	}
	if u.tensors += tensors; u.tensors == 0 {
		u.accumulated += now - u.since
	}
}

// elapsed is what it shows.
func (u *busyTime) elapsed(now negotiate.Time) negotiate.Time {
	if u.tensors == 0 {
		return u.accumulated
	}
	return u.accumulated + now - u.since
}

// reset has it show nothing.
func (u *busyTime) reset(now negotiate.Time) { u.accumulated, u.since = 0, now }

// noteInput notes what gets under way on rank 0, and what was carried out.
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

// noteOutput notes what ends otherwise.
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
