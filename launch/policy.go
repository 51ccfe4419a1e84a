package launch

import (
	"syscall"
	"time"
)

// A phase says how far the end of a job has progressed.
//
//	running ---- a rank fails ----> failing ----+
//	   |                               |        |
//	   |  all ranks have ended         | same   | grace is over
//	   v                               v        v
//	draining <-------------------------+   terminating --- 2 s ---> killing --- survival ---> abandoned
//	   +---------- grace is over --------------^
//
// Three events lead to terminating from every earlier phase: the job's timeout, the end of the
// context, and the user's second signal. The user's third signal leads to killing.
type phase uint8

const (
	running     phase = iota // no rank has failed
	failing                  // a rank has failed; the other ranks have the grace period
	draining                 // all ranks have ended, but some of their children have not
	terminating              // all processes have received TERM
	killing                  // all processes have received KILL
	abandoned                // a process survives KILL, for example in a file system that hangs
)

// The constant never is a time that does not come. It is the deadline of a phase that only an event
// can end.
const never = time.Duration(1<<63 - 1)

// A policy decides which signals the processes of a job get, and when. It is a pure state machine.
// Times are durations since the start of the job. Each input returns the signal that all remaining
// processes must get now, or 0 for none. The caller must call deadlinePassed when the time deadline
// has come.
// deadline or later.
//
//	input                 in phase                     signal   next phase
//	exited, failed        running                      none     failing
//	rankAbsent            running                      none     failing
//	exited, the last      running, failing             none     draining
//	remaining, 0          running, failing             none     draining
//	interrupted, first    any                          as got   the same
//	interrupted, others   before terminating           TERM     terminating
//	interrupted, others   terminating, killing         KILL     killing
//	end                   any                          TERM     terminating
//	deadlinePassed        running, failing, draining   TERM     terminating
//	deadlinePassed        terminating                  KILL     killing
//	deadlinePassed        killing                      none     abandoned
type policy struct {
	grace    time.Duration
	survival time.Duration // how long a process may take to end after KILL
	alive    int           // number of ranks that have not ended
	phase    phase
	deadline time.Duration

	interrupts int  // how often the user has asked for the end of the job
	timedOut   bool // the job's timeout has passed
}

// newPolicy returns the policy of a job that begins now. A timeout of 0 means no timeout.
func newPolicy(ranks int, grace, timeout time.Duration) *policy {
	p := &policy{grace: grace, survival: killAfter, alive: ranks, deadline: never}
	if timeout > 0 {
		p.deadline = timeout
	}
	return p
}

// remaining tells the policy that n ranks run or will be started. Only jobs that start ranks while
// they run call it directly.
func (p *policy) remaining(now time.Duration, n int) {
	p.alive = n
	if n == 0 && p.phase < draining {
		p.setPhase(draining, now)
	}
}

// exited tells the policy that one rank has ended.
func (p *policy) exited(now time.Duration, failed bool) {
	p.alive--
	// Only the first failure starts the grace period. A later failure does not extend it.
	if failed && p.phase == running {
		p.setPhase(failing, now)
	}
	// When the last rank has ended, its children get a grace period of their own.
	p.remaining(now, p.alive)
}

// rankAbsent tells the policy that ranks wait for a rank that will never come. The rank has ended
// without Init, or has ended its PMI connection, or too few ranks are left for another epoch.
func (p *policy) rankAbsent(now time.Duration) {
	if p.phase == running {
		p.setPhase(failing, now)
	}
}

// interrupted tells the policy that the user has asked for the end by a signal. The first signal is
// forwarded, so that the ranks can end in their own time. In place of the second signal the ranks
// get TERM, and in place of the third they get KILL.
func (p *policy) interrupted(now time.Duration, sig syscall.Signal) syscall.Signal {
	p.interrupts++
	switch {
	// The ranks handle the signal in their own time, so the phase does not change and no deadline
	// is set.
	case p.interrupts == 1:
		return sig
	// The user has asked again, so all processes get TERM now.
	case p.phase < terminating:
		return p.end(now)
	case p.phase < killing:
		p.setPhase(killing, now)
	}
	return syscall.SIGKILL
}

// end tells the policy that all processes must end now.
func (p *policy) end(now time.Duration) syscall.Signal {
	p.setPhase(terminating, now)
	return syscall.SIGTERM
}

// deadlinePassed tells the policy that the deadline of the phase has passed.
func (p *policy) deadlinePassed(now time.Duration) syscall.Signal {
	switch p.phase {
	case running:
		p.timedOut = true
		return p.end(now)
	case failing, draining:
		return p.end(now)
	case terminating:
		p.setPhase(killing, now)
		return syscall.SIGKILL
	}
	p.setPhase(abandoned, now)
	return 0
}

// setPhase begins a phase and sets its deadline.
func (p *policy) setPhase(next phase, now time.Duration) {
	p.phase = next
	switch next {
	case failing, draining:
		p.deadline = now + p.grace
	case terminating:
		p.deadline = now + killAfter
	case killing:
		p.deadline = now + p.survival
	default:
		p.deadline = never
	}
}
