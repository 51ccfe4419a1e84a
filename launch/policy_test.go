package launch

import (
	"syscall"
	"testing"
	"time"
)

// Each test case is the life of one job: a sequence of events with their times, and the signal
// that all processes get after each event.
func TestPolicyTranscripts(t *testing.T) {
	const (
		none = syscall.Signal(0)
		term = syscall.SIGTERM
		kill = syscall.SIGKILL
		s    = time.Second
	)
	type event struct {
		at   time.Duration
		what string // ok, fail: a rank exits; absent: rankAbsent; int: the user's signal; end: the end of ctx; time: the deadline
		want syscall.Signal
		next time.Duration // the deadline after the event
	}
	for name, c := range map[string]struct {
		ranks   int
		timeout time.Duration
		events  []event
		phase   phase
	}{
		"all is well": {2, 0, []event{{1 * s, "ok", none, never}, {9 * s, "ok", none, 11 * s}}, draining},
		"the others report in time": {3, 0, []event{
			{1 * s, "fail", none, 3 * s}, {2 * s, "fail", none, 3 * s}, {2 * s, "fail", none, 4 * s}}, draining},
		"ranks wait for one that will not come": {2, 0, []event{
			{1 * s, "ok", none, never}, {1 * s, "absent", none, 3 * s}, {2 * s, "absent", none, 3 * s}, {3 * s, "time", term, 5 * s}}, terminating},
		"grace, TERM, KILL": {3, 0, []event{
			{1 * s, "fail", none, 3 * s}, {3 * s, "time", term, 5 * s}, {4 * s, "fail", none, 5 * s}, {5 * s, "time", kill, 7 * s},
			{5 * s, "fail", none, 7 * s}}, killing},
		"what survives KILL is given up": {1, 0, []event{
			{0, "end", term, 2 * s}, {2 * s, "time", kill, 4 * s}, {4 * s, "time", none, never}}, abandoned},
		"the time is over":        {1, 5 * s, []event{{5 * s, "time", term, 7 * s}, {6 * s, "fail", none, 7 * s}}, terminating},
		"a failure ends the time": {2, 5 * s, []event{{4 * s, "fail", none, 6 * s}, {6 * s, "time", term, 8 * s}}, terminating},
		"the first signal is the ranks'": {2, 0, []event{
			{1 * s, "int", syscall.SIGINT, never}, {60 * s, "ok", none, never}, {60 * s, "ok", none, 62 * s}}, draining},
		"the second and third are not": {1, 0, []event{
			{1 * s, "int", syscall.SIGINT, never}, {2 * s, "int", term, 4 * s}, {3 * s, "int", kill, 5 * s}, {4 * s, "int", kill, 5 * s}}, killing},
		"what lingers is ended": {1, 0, []event{{1 * s, "ok", none, 3 * s}, {3 * s, "time", term, 5 * s}, {5 * s, "time", kill, 7 * s}}, killing},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPolicy(c.ranks, 2*s, c.timeout)
			for i, e := range c.events {
				got := none
				switch e.what {
				case "ok", "fail":
					p.exited(e.at, e.what == "fail")
				case "absent":
					p.rankAbsent(e.at)
				case "int":
					got = p.interrupted(e.at, syscall.SIGINT)
				case "end":
					got = p.end(e.at)
				case "time":
					if p.deadline > e.at {
						t.Errorf("event %d: the deadline is %v", i, p.deadline)
					}
					got = p.deadlinePassed(e.at)
				}
				if got != e.want || p.deadline != e.next {
					t.Errorf("event %d, %s: got signal %v and deadline %v, want %v and %v", i, e.what, got, p.deadline, e.want, e.next)
				}
			}
			if p.phase != c.phase {
				t.Errorf("got phase %d, want %d", p.phase, c.phase)
			}
		})
	}
}
