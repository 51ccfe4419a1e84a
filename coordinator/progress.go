package coordinator

import (
	"context"
	"sync/atomic"

	"github.com/tutti-go/tutti/internal/bridge"
)

// progress decides which goroutine of this rank steps the state machines, and which goroutine polls
// the wires for control messages. Its state is one atomic word. So each decision is one
// compare-and-swap, and a goroutine always sees a consistent state.
//
// The state machines have at most one owner. No goroutine waits to become the owner. If a goroutine
// does not become the owner, its event stays in the queue. The owner checks the queue before and
// after it releases the ownership.
//
//	          tryStep                    endStep
//	free ───────────────► stepping ───────────────► free, then processEvents again
//	                         │ the coordinator ends
//	                         └────────────────────► stepping for ever: no more steps
//
// The wires have at most one poller. A goroutine in Wait polls for its own handle. The executor
// polls for all waiters while it has nothing to execute. The invariant: while a goroutine waits and
// the executor is idle, either a goroutine polls or the wires are armed. Armed wires wake a
// goroutine when a message comes.
//
//	waiters  executor  poller   who moves the control messages
//	0        any       no       the loop, woken by armed wires
//	any      busy      no       the collective that the executor is in, or the loop
//	> 0      idle      yes      the poller
//	> 0      idle      no       the loop; the last poller has armed the wires as it left
//
// A goroutine that finds a poller sleeps on its own channel. So the poller must check for sleeping
// waiters in the same atomic step in which it stops polling.
type progress struct {
	word atomic.Uint64
	wires
}

// wires move the control messages: a bridge.Poller.
type wires interface {
	// Poll moves messages until ev is met, and then returns true. It returns false earlier if
	// polling is no longer worthwhile. In this case it has armed the wires.
	Poll(ctx context.Context, ev bridge.PollCondition) bool
	// Arm arms the wires.
	Arm()
}

// The parts of progress.word. The number of waiters is in the bits from oneWaiter up.
const (
	hasEvents uint64 = 1 << iota // the event queue is not empty
	stepping                     // a goroutine owns the state machines
	polling                      // a goroutine polls the wires
	executing                    // the executor has something to do, or ends
	oneWaiter
)

// has reports whether a flag of the state is set.
func (p *progress) has(part uint64) bool { return p.word.Load()&part != 0 }

// set sets a flag of the state and reports whether the flag was clear.
func (p *progress) set(part uint64) bool { return p.word.Or(part)&part == 0 }

// clear clears a flag of the state.
func (p *progress) clear(part uint64) { p.word.And(^part) }

// addWaiters counts goroutines that wait for a handle.
func (p *progress) addWaiters(n int) { p.word.Add(uint64(int64(n)) * oneWaiter) }

// waiters returns the number of goroutines that wait for a handle.
func (p *progress) waiters() int { return int(p.word.Load() / oneWaiter) }

// tryStep tries to make the caller the owner of the state machines. It fails if there is an owner.
func (p *progress) tryStep() bool { return p.set(stepping) }

// endStep releases the ownership.
func (p *progress) endStep() { p.clear(stepping) }

// tryPoll tries to make the caller the poller. It fails if there is a poller or the executor is
// busy.
func (p *progress) tryPoll() bool {
	for {
		old := p.word.Load()
		if old&(polling|executing) != 0 {
			return false
		}
		if p.word.CompareAndSwap(old, old|polling) {
			return true
		}
	}
}

// endPoll ends the caller's polling. If a waiter is left that no other goroutine would wake,
// endPoll first arms the wires.
func (p *progress) endPoll() {
	for armed := false; ; {
		old := p.word.Load()
		if old >= oneWaiter && old&executing == 0 && !armed {
			p.Arm()
			armed = true
			continue
		}
		if p.word.CompareAndSwap(old, old&^polling) {
			return
		}
	}
}

// poll moves the control messages until one of three events: the wait of w ends, the executor gets
// a job, or polling is no longer worthwhile. If w is nil, poll runs until no goroutine waits. If
// another goroutine polls, poll returns at once.
func (co *Coordinator) poll(ctx context.Context, w *waiter) {
	if !co.progress.tryPoll() {
		return
	}
	co.pollEnd = pollEnd{co: co, w: w}
	co.progress.Poll(ctx, &co.pollEnd)
	co.pollEnd.w = nil
	co.progress.endPoll()
	co.processEvents() // a callback may have posted an event for the poller just now
}

// pollEnd is the condition that ends a poller's polling. The poller owns it.
type pollEnd struct {
	co       *Coordinator
	w        *waiter // nil: polls for all waiters
	happened bool
}

// Met implements bridge.PollCondition. It also processes the events that callbacks have posted.
// Once Met has returned true, it always returns true, even if the executor is idle again.
func (e *pollEnd) Met() bool {
	if e.happened {
		return true
	}
	e.co.processEvents()
	switch {
	case e.co.progress.has(executing):
		e.happened = true
	case e.w == nil:
		e.happened = e.co.progress.waiters() == 0
	default:
		e.happened = len(e.w.woken) > 0
	}
	return e.happened
}
