package coordinator

import (
	"math"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
)

// never is a time that does not come.
const never = negotiate.Time(math.MaxInt64)

// post queues an event. The caller then calls processEvents or, where it must be quick, wakeOwner.
func (co *Coordinator) post(ev event) {
	co.mu.Lock()
	if !co.closed {
		co.events = append(co.events, ev)
		co.progress.set(hasEvents)
	}
	co.mu.Unlock()
}

// processEvents steps the state machines with the queued events, unless another goroutine owns
// them. The owner looks at the queue once more after it has given them back, so no event is left
// behind.
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

// drainEvents processes events until there are none. It reports false at the end of the
// coordinator; then the caller keeps the ownership, so that there is no step any more.
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

// popEvents returns what was posted since the last call. The slice is valid until the call after
// the next one.
func (co *Coordinator) popEvents() []event {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.progress.clear(hasEvents)
	evs := co.events
	clear(co.spareEvents)
	co.events, co.spareEvents = co.spareEvents[:0], evs
	return evs
}

// wakeOwner has another goroutine process the events: the poller, which looks soon, or else the
// loop. Callbacks of the wires call it, which must return quickly.
func (co *Coordinator) wakeOwner() {
	if co.progress.has(polling) {
		return
	}
	select {
	case co.wake <- struct{}{}:
	default:
	}
}

// inlineRanks is how many ranks rank 0 sends an order to on the program's goroutine. For more it
// wakes the loop, which costs less than the program's time.
const inlineRanks = 8

// stepInline gives the Worker an input on the caller's goroutine, if that can own the state
// machines, and otherwise queues it. It is the path of every Submit and Wait, so it reads the clock
// only if the time matters: for the first submission of a list.
func (co *Coordinator) stepInline(in negotiate.WorkerInput) {
	if !co.progress.tryStep() {
		co.post(event{in: in})
		co.processEvents()
		return
	}
	// The first submission of a list starts the Worker's cycle, so its time matters; that of the
	// others does not.
	if co.workerDue == never || co.progress.has(hasEvents) {
		co.clock = co.now()
	}
	if !co.drainEvents() { // what was submitted before
		return
	}
	// On rank 0 the Worker's list goes to the Coordinator right here, whose order may go out to the
	// other ranks. With many ranks that is left to the loop.
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
		co.post(event{in: negotiate.Flush{}}) // an event, so that the loop has something to process
		co.wakeOwner()
		return
	}
	co.processEvents()
}

// deadlineIn is the time after a wait, or never.
func (co *Coordinator) deadlineIn(wait negotiate.Duration, some bool) negotiate.Time {
	if !some {
		return never
	}
	return co.clock + negotiate.Time(wait)
}

// armTimer has the loop call the state machines when they want it. A timer that is not wanted any
// more is not stopped, which takes longer than the empty step that it causes.
func (co *Coordinator) armTimer() {
	at := min(co.workerDue, co.coordDue)
	if at == never || at == co.timerAt {
		return
	}
	co.timerAt = at
	co.timer.Reset(max(0, time.Duration(at-co.now())))
}

// peersOf lists the ranks that control messages come from.
func peersOf(c *comm.Comm) []int {
	if c.Rank() != 0 {
		return []int{0}
	}
	return ranks(c.Size())[1:]
}
