package coordinator

import "github.com/tutti-go/tutti/coordinator/negotiate"

// An underway is a clock that runs while something is: what the program does beside
// says nothing of settings.
type underway struct {
	tensors int
	since   negotiate.Time // it was started
	before  negotiate.Time // that it ran before
}

// add starts the clock with the first tensor, and stops it with the last.
func (u *underway) add(now negotiate.Time, tensors int) {
	if u.tensors == 0 {
		u.since = now
	}
	if u.tensors += tensors; u.tensors == 0 {
		u.before += now - u.since
	}
}

// ran is what it shows.
func (u *underway) ran(now negotiate.Time) negotiate.Time {
	if u.tensors == 0 {
		return u.before
	}
	return u.before + now - u.since
}

// reset has it show nothing.
func (u *underway) reset(now negotiate.Time) { u.before, u.since = 0, now }

// told notes what gets under way on rank 0, and what was carried out.
func (s *sampler) told(now negotiate.Time, in negotiate.WorkerInput) {
	switch in := in.(type) {
	case *negotiate.Submit:
		s.way.add(now, len(in.Submissions))
	case negotiate.Submit:
		s.way.add(now, len(in.Submissions))
	case negotiate.Join:
		s.way.add(now, 1)
	case negotiate.Finished:
		if b := in.Bucket; b.Part+1 == b.Parts {
			for i := range b.Entries {
				if b.Entries[i].Submission != 0 {
					s.way.add(now, -1)
				}
			}
		}
	}
}

// ended notes what ends otherwise.
func (s *sampler) ended(now negotiate.Time, out negotiate.WorkerOutput) {
	switch o := out.(type) {
	case negotiate.Fail:
		s.way.add(now, -len(o.Submissions))
	case negotiate.Joined:
		s.way.add(now, -1)
	case negotiate.SetChanged:
		if o.Submission != 0 {
			s.way.add(now, -1)
		}
	}
}
