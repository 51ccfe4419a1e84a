package coordinator

import (
	"context"
	"math"
	"time"

	"github.com/tutti-go/tutti/comm"
	"github.com/tutti-go/tutti/coordinator/negotiate"
)

// The state machines belong to whoever has the turn, of which there is one. It is
// taken by whoever has something to tell, or waits: who submits tells the Member by
// itself, who waits moves the messages of the negotiation and acts on them, and so
// does the executor when it has carried something out. So an order passes through no
// goroutine that would have to be woken for it. The loop is for what happens while
// all of these do something else.
//
// A turn is never waited for. Who does not get it leaves what it has in the inbox,
// into which the one who has the turn looks before and after giving it up.

// never is no time.
const never = negotiate.Time(math.MaxInt64)

// post leaves an event in the inbox; act, or rouse, is to follow.
func (co *Coordinator) post(ev event) {
	co.mu.Lock()
	if !co.closed {
		co.inbox = append(co.inbox, ev)
		co.hasEvents.Store(true)
	}
	co.mu.Unlock()
}

// processEvents acts on what was posted, unless somebody has the turn, who does so then.
func (co *Coordinator) processEvents() {
	for co.hasEvents.Load() && co.turn.CompareAndSwap(false, true) {
		co.clock = co.now()
		if !co.drainEvents() {
			return
		}
		co.armTimer()
		co.turn.Store(false)
	}
}

// drainEvents acts on the inbox. It is false at the end, after which nobody gets a turn.
func (co *Coordinator) drainEvents() bool {
	for co.hasEvents.Load() {
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
	co.hasEvents.Store(false)
	evs := co.inbox
	clear(co.spare)
	co.inbox, co.spare = co.spare[:0], evs
	return evs
}

// wakeOwner has somebody act who is neither a callback of the wires, which must be quick,
// nor in the way of the program's: who helps does so soon, else the loop is woken.
func (co *Coordinator) wakeOwner() {
	if co.helping.Load() {
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
	if !co.turn.CompareAndSwap(false, true) {
		co.post(event{in: in})
		co.processEvents()
		return
	}
	if co.due[0] == never || co.hasEvents.Load() { // the Member looks at the time of what comes first
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
	co.turn.Store(false)
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
	at := min(co.due[0], co.due[1])
	if at == never || at == co.timerAt {
		return
	}
	co.timerAt = at
	co.timer.Reset(max(0, time.Duration(at-co.now())))
}

// A lookout moves messages of the negotiation: a comm.Lookout, which see.
type lookout interface {
	Poll(ctx context.Context, ev comm.Event) bool
	Arm()
}

// help moves the negotiation until w's wait is over, or something is to be carried
// out, which the caller would only be in the way of; or until it is not worth while
// any more. It may be called by anyone. Without w it helps all that wait.
func (co *Coordinator) help(ctx context.Context, w *waiter) {
	if co.exec.busy.Load() || !co.helping.CompareAndSwap(false, true) {
		return
	}
	co.watch = watch{co: co, w: w}
	co.lookout.Poll(ctx, &co.watch)
	co.watch.w = nil
	co.helping.Store(false)
	// Who came to help while this one did has gone to sleep, and so has the executor if
	// it got idle just now. Both have said so before they looked at helping, so to look
	// after it is given up misses none of them: else the wires would wake nobody for as
	// long as they expect somebody to look.
	if co.stranded() && co.helping.CompareAndSwap(false, true) {
		co.lookout.Arm()
		co.helping.Store(false)
	}
	co.processEvents() // on what a callback has left to us just now
}

// stranded reports whether somebody waits, and nobody is there to look at the wires.
func (co *Coordinator) stranded() bool { return co.waiting.Load() > 0 && !co.exec.busy.Load() }

// A watch is what a helper looks out for.
type watch struct {
	co   *Coordinator
	w    *waiter // nil: all of them
	over bool    // it has happened
}

// Met implements comm.Event: what was true stays so, though the executor may have
// done meanwhile what it had to do.
func (o *watch) Met() bool {
	if o.over {
		return true
	}
	o.co.processEvents()
	switch {
	case o.co.exec.busy.Load():
		o.over = true
	case o.w == nil:
		o.over = o.co.waiting.Load() == 0
	default:
		o.over = len(o.w.woken) > 0
	}
	return o.over
}

// peersOf are the ranks that messages of the negotiation come from.
func peersOf(c *comm.Comm) []int {
	if c.Rank() != 0 {
		return []int{0}
	}
	return ranks(c.Size())[1:]
}
