package launch

import (
	"syscall"
	"time"
)

// A phase is how far the end of a job has come.
type phase uint8

const (
	running     phase = iota // all is well
	failing                  // a rank has failed; the others have the grace
	draining                 // all ranks have ended, but not all that they started
	terminating              // everything has got TERM
	killing                  // everything has got KILL
	abandoned                // something survives KILL, as in a dead file system
)

// never is the deadline of a phase that lasts until something happens.
const never = time.Duration(1<<63 - 1)

// A policy decides which signals the processes of a job get, and when. It is a
// pure state machine: times are durations since the job's start, and each input
// returns the signal that all remaining processes shall get now, 0 for none.
// The caller calls passed when the time is until or later.
type policy struct {
	grace    time.Duration
	alive    int // ranks that have not ended
	phase    phase
	deadline time.Duration

	interrupts int  // how often the user asked for the end
	timedOut   bool // the job's own time ran out
}

func newPolicy(ranks int, grace, timeout time.Duration) *policy {
	p := &policy{grace: grace, alive: ranks, deadline: never}
	if timeout > 0 {
		p.deadline = timeout
	}
	return p
}

// exited takes the end of one rank.
func (p *policy) exited(now time.Duration, failed bool) {
	p.alive--
	if failed && p.phase == running {
		p.setPhase(failing, now)
	}
	if p.alive == 0 && p.phase < draining {
		p.setPhase(draining, now)
	}
}

// interrupted takes a signal by which the user asks for the end: the first is
// the ranks' to handle, in their own time; the second and third are not.
func (p *policy) interrupted(now time.Duration, sig syscall.Signal) syscall.Signal {
	p.interrupts++
	switch {
	case p.interrupts == 1:
		return sig
	case p.phase < terminating:
		return p.end(now)
	case p.phase < killing:
		p.setPhase(killing, now)
	}
	return syscall.SIGKILL
}

// end asks everything to end now.
func (p *policy) end(now time.Duration) syscall.Signal {
	p.setPhase(terminating, now)
	return syscall.SIGTERM
}

// deadlinePassed takes the end of the phase's time.
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

func (p *policy) setPhase(next phase, now time.Duration) {
	p.phase = next
	switch next {
	case failing, draining:
		p.deadline = now + p.grace
	case terminating, killing:
		p.deadline = now + killAfter
	default:
		p.deadline = never
	}
}
