package coordinator

import (
	"math"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
)

// never is no time.
const never = negotiate.Time(math.MaxInt64)

// post leaves an event in the inbox; act, or rouse, is to follow.
func (co *Coordinator) post(ev event) {
	co.mu.Lock()
	if !co.closed {
		co.events = append(co.events, ev)
		co.progress.set(hasEvents)
	}
	co.mu.Unlock()
}

// processEvents acts on what was posted, unless somebody has the turn, who does so then.
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

// drainEvents acts on the inbox. It is false at the end, after which nobody gets a turn.
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

// popEvents is what was posted since it was last called.
func (co *Coordinator) popEvents() []event {
	co.mu.Lock()
	defer co.mu.Unlock()
	co.progress.clear(hasEvents)
	evs := co.events
	clear(co.spareEvents)
	co.events, co.spareEvents = co.spareEvents[:0], evs
	return evs
}

// wakeOwner has somebody act who is neither a callback of the wires, which must be quick,
// nor in the way of the program's: who helps does so soon, else the loop is woken.
func (co *Coordinator) wakeOwner() {
	if co.progress.has(polling) {
		return
	}
	select {
	case co.wake <- struct{}{}:
	default:
	}
}

// inlineRanks are as many as rank 0 tells an order sooner than it wakes a goroutine.
const inlineRanks = 8

// stepInline tells the Member something, on the program's goroutine where that is quick.
func (co *Coordinator) stepInline(in negotiate.WorkerInput) {
	if !co.progress.tryStep() {
		co.post(event{in: in})
		co.processEvents()
		return
	}
	if co.workerDue == never || co.progress.has(hasEvents) { // the Member looks at the time of what comes first
		co.clock = co.now()
	}
	if !co.drainEvents() { // what was submitted before
		return
	}
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
		co.post(event{in: negotiate.Flush{}})
		co.wakeOwner()
		return
	}
	co.processEvents()
}

// deadlineIn is a moment in so much time; never without.
func (co *Coordinator) deadlineIn(wait negotiate.Duration, some bool) negotiate.Time {
	if !some {
		return never
	}
	return co.clock + negotiate.Time(wait)
}

// armTimer has the loop look when a state machine wants to. An alarm that nobody
// wants any more rings in vain: to stop it takes longer.
func (co *Coordinator) armTimer() {
	at := min(co.workerDue, co.coordDue)
	if at == never || at == co.timerAt {
		return
	}
	co.timerAt = at
	co.timer.Reset(max(0, time.Duration(at-co.now())))
}

// peersOf are the ranks that messages of the negotiation come from.
func peersOf(c *comm.Comm) []int {
	if c.Rank() != 0 {
		return []int{0}
	}
	return ranks(c.Size())[1:]
}
