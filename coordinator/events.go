package coordinator

import (
	"math"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
)

// The constant never is a time that does not come.
const never = negotiate.Time(math.MaxInt64)

// post queues an event. The caller then calls processEvents or, if it must return quickly,
// wakeOwner.
func (co *Coordinator) post(ev event) {
	co.mu.Lock()
	if !co.closed {
		co.events = append(co.events, ev)
		co.progress.set(hasEvents)
	}
	co.mu.Unlock()
}

// processEvents steps the state machines with the queued events, unless another goroutine owns the
// machines. The owner checks the queue once more after it has released the ownership, so no event
// is left behind.
func (co *Coordinator) processEvents() {
	for co.progress.has(hasEvents) && co.progress.tryStep() {
		co.clock = co.now()
		if !co.drainEvents() {
			return
		}
		co.armTimer()
		co.progress.endStep()
	}
}

// drainEvents processes events until the queue is empty. It returns false when the coordinator
// ends. The caller then keeps the ownership, so that no further step happens.
func (co *Coordinator) drainEvents() bool {
	for co.progress.has(hasEvents) {
		evs := co.popEvents()
		for i := range evs {
			if co.handleEvent(&evs[i]) {
				close(co.stopped)
				return false
			}
		}
	}
	return true
}

// popEvents returns the events that were posted since the last call. The slice is valid until the
// second call of popEvents after this call.
func (co *Coordinator) popEvents() []event {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.progress.clear(hasEvents)
	evs := co.events
	clear(co.spareEvents)
	co.events, co.spareEvents = co.spareEvents[:0], evs
	return evs
}

// wakeOwner makes another goroutine process the events. That goroutine is the poller if there is
// one, and otherwise the loop. Callbacks of the wires call it, because they must return quickly.
func (co *Coordinator) wakeOwner() {
	if co.progress.has(polling) {
		return
	}
	select {
	case co.wake <- struct{}{}:
	default:
	}
}

// inlineRanks is the largest number of ranks for which rank 0 sends an order on the program's
// goroutine. With more ranks, rank 0 wakes the loop instead, because this takes the program less
// time than many sends.
const inlineRanks = 8

// stepInline gives the Worker an input. If the caller can become the owner of the state machines,
// the step runs on the caller's goroutine. Otherwise stepInline queues the input. Every Submit and
// Wait calls it, so it reads the clock only if the time matters: for queued events, and for the
// first submission of a list.
func (co *Coordinator) stepInline(in negotiate.WorkerInput) {
	if !co.progress.tryStep() {
		co.post(event{in: in})
		co.processEvents()
		return
	}
	// The first submission of a list starts the Worker's cycle, so its time matters. The times of
	// the later submissions do not matter.
	if co.workerDue == never || co.progress.has(hasEvents) {
		co.clock = co.now()
	}
	if !co.drainEvents() { // events that were queued earlier
		return
	}
	// On rank 0 the Worker's list goes directly to the Coordinator, which may then send its order
	// to the other ranks. With many ranks the loop does that.
	over := co.stepWorker(in)
	wake := !over && len(co.local) > 0 && co.size > inlineRanks
	if len(co.local) > 0 && !wake {
		co.clock = co.now()
		over = co.deliverLocal() || over
	}
	if over {
		close(co.stopped)
		return
	}
	co.armTimer()
	co.progress.endStep()
	if wake {
		co.post(event{in: negotiate.Flush{}}) // an event, so that the loop has work
		co.wakeOwner()
		return
	}
	co.processEvents()
}

// deadlineIn returns the time that is wait after the current step. If some is false, there is no
// wait, and deadlineIn returns the constant never.
func (co *Coordinator) deadlineIn(wait negotiate.Duration, some bool) negotiate.Time {
	if !some {
		return never
	}
	return co.clock + negotiate.Time(wait)
}

// armTimer sets the timer to the next time at which the state machines want to be called. It does
// not stop a timer that is no longer needed, because a stop takes longer than the empty step that
// the timer causes.
func (co *Coordinator) armTimer() {
	at := min(co.workerDue, co.coordDue)
	if at == never || at == co.timerAt {
		return
	}
	co.timerAt = at
	co.timer.Reset(max(0, time.Duration(at-co.now())))
}

// peersOf lists the ranks from which this rank receives control messages.
func peersOf(c *comm.Comm) []int {
	if c.Rank() != 0 {
		return []int{0}
	}
	return ranks(c.Size())[1:]
}
