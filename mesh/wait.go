package mesh

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/transport"
)

// A Waiter lets one goroutine sleep until its Condition is met. Any goroutine may call Wake. Only
// the waiting goroutine may call the other methods.
//
// The order of the steps avoids lost wake-ups. The waiter first publishes its Waiter, then arms the
// links, then checks the Condition, and only then sleeps. The goroutine that makes the Condition
// true calls Wake afterwards. A Wake that comes before the sleep ends the sleep at once.
type Waiter struct {
	pool  *waiterPool
	wake  wakeup
	timer *time.Timer
}

// A waiterPool holds the Waiters of a Mesh that are not in use. Meshes do not share one, because in
// a test the timer of a Waiter runs by the clock of its synctest bubble. A sync.Pool is not used,
// because it would keep a closed Mesh alive for two garbage collections.
type waiterPool struct {
	mu   sync.Mutex // guards free
	free []*Waiter  // at most maxFreeWaiters
}

// maxFreeWaiters is the maximum number of Waiters that a pool keeps.
const maxFreeWaiters = 64

// NewWaiter returns a free Waiter of this Mesh, or a new one. Free gives it back.
func (m *Mesh) NewWaiter() *Waiter {
	if w := m.waiters.get(); w != nil {
		return w
	}
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &Waiter{pool: &m.waiters, wake: newWakeup(), timer: t}
}

// get removes a free Waiter, or returns nil.
func (ws *waiterPool) get() *Waiter {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	last := len(ws.free) - 1
	if last < 0 {
		return nil
	}
	w := ws.free[last]
	ws.free[last] = nil
	ws.free = ws.free[:last]
	return w
}

// put adds a Waiter, unless the pool is full.
func (ws *waiterPool) put(w *Waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.free) < maxFreeWaiters {
		ws.free = append(ws.free, w)
	}
}

// Free returns w to the pool. A late Wake for the old Condition may still come. At worst it ends
// one sleep of the next user early, and that user then checks its own Condition again.
func (w *Waiter) Free() {
	select {
	case <-w.wake:
	default:
	}
	w.pool.put(w)
}

// Wake ends the current sleep, or the next one.
func (w *Waiter) Wake() {
	w.wake.raise()
}

// A Condition is what a goroutine waits for. Met is called often and must be cheap. Once Met has
// returned true, it must return true until the wait has returned.
type Condition interface {
	Met() bool
}

// A WaitPolicy limits a wait. The waiter calls NextCheck before it sleeps, and calls Check when
// that time has come. Neither method may block.
type WaitPolicy interface {
	// NextCheck returns the time at which Check is to be called; zero means never.
	NextCheck() time.Time
	// Check is called at that time. An error ends the wait.
	Check() error
}

// How a waiter polls before it sleeps. A rank with a core of its own polls for pollTime after the
// last movement, because a sleep and a wake-up take longer than most messages. Ranks that share a
// process or a core give up the core between two polls, and sleep soon.
const (
	pollTime      = 300 * time.Microsecond
	maxLocalPolls = 24
	ctxEvery      = 8
	// clockEvery is the number of polls between two reads of the clock. One read of the clock costs
	// as much as two polls of a link.
	clockEvery     = 32
	maxPolledLinks = 32 // a wait for more links sleeps at once

	policyEvery = 256 // polls between two checks of the context and the WaitPolicy
)

// Wait waits until the Condition ev is met, and then returns nil. If ctx ends or the policy p fails
// first, Wait returns their error. The goroutine that makes ev true must call w.Wake afterwards.
// While Wait waits, it moves the links in ls itself. Wake-ups move all other links. The policy may
// be nil. Wait calls Poll, then Sleep.
func (m *Mesh) Wait(ctx context.Context, w *Waiter, ev Condition, p WaitPolicy, ls ...*Link) error {
	if m.Poll(ctx, ev, p, ls) {
		return nil
	}
	return m.Sleep(ctx, w, ev, p, ls)
}

// Poll moves the links for as long as polling pays, and reports whether ev is met. A wait that ends
// here needs no Waiter and wakes no thread; most waits of a collective end here. A wait for more
// than maxPolledLinks links does not poll, since one turn over all of them would take too long.
func (m *Mesh) Poll(ctx context.Context, ev Condition, p WaitPolicy, ls []*Link) bool {
	return ev.Met() || len(ls) <= maxPolledLinks && m.poll(ctx, ev, p, ls)
}

// The bounds of Spin: some microseconds, within which the answer to a message that was just sent
// arrives.
const (
	spinTurns    = 32
	spinsPerTurn = 16
)

// Spin moves a link for a moment, and reports whether ev is met. A receive calls Spin before it
// prepares a wait. If the message has arrived already, or arrives during Spin, the receive saves
// the cost of the wait. Spin ignores contexts, because it takes only a few microseconds.
func (m *Mesh) Spin(l *Link, ev Condition) bool {
	l.polls.Add(1) // at the start, so that the ticker counts this link as polled while Spin runs
	if !l.armed.Load() {
		m.links.noteUnarmed()
	}
	turns, spins := spinTurns, spinsPerTurn
	if m.Oversubscribed() {
		turns, spins = 1, 1
	}
	for range turns {
		state := l.progress(spins)
		if ev.Met() {
			return true
		}
		if state == transport.Busy {
			return false
		}
	}
	return false
}

// Arm arms the wake-ups of the links, as Sleep does. A caller that polls the links itself calls Arm
// before it sleeps by other means than Sleep.
func (m *Mesh) Arm(ls []*Link) {
	for _, l := range ls {
		l.arm()
	}
}

// Sleep is the second part of Wait. The goroutine that makes ev true must already have a reference
// to w, so that it can call w.Wake. Sleep arms the links first and checks ev afterwards, so that no
// frame arrives unnoticed in between.
func (m *Mesh) Sleep(ctx context.Context, w *Waiter, ev Condition, p WaitPolicy, ls []*Link) error {
	for {
		m.Arm(ls)
		if ev.Met() {
			return nil
		}
		if err := w.sleep(ctx, p); err != nil {
			return err
		}
		if ev.Met() {
			return nil
		}
	}
}

// Oversubscribed reports whether more ranks than cores share this host. Then a rank that polls
// takes the core from the rank for which it waits.
func (m *Mesh) Oversubscribed() bool { return m.oversubscribed || m.inProcess }

// Yield gives the core to another rank: another goroutine, or another process.
func (m *Mesh) Yield() {
	if m.inProcess {
		runtime.Gosched()
		return
	}
	cpu.Yield()
}

// Core returns the core on which the caller runs, or -1 if the core is unknown.
func (m *Mesh) Core() int { return cpu.CurrentCore() }

// AvoidCore moves the caller's thread away from the given core, if the affinity of the thread
// allows that.
func (m *Mesh) AvoidCore(core int) { cpu.AvoidCore(core) }

// poll moves the links until ev is met or the waiter must sleep:
//
//	ranks                      polls without movement     between two polls
//	one per core               for pollTime               nothing
//	more than cores            for pollTime               the core goes to another process
//	goroutines of one process  maxLocalPolls              the core goes to another goroutine
//
// poll also stops when ctx has ended or a check of p is due. Links may move all the time for other
// receivers, and the waiter must notice the end of ctx even then.
func (m *Mesh) poll(ctx context.Context, ev Condition, p WaitPolicy, ls []*Link) bool {
	var end time.Time
	for i, turns := 0, 1; ; i, turns = i+1, turns+1 {
		if turns%policyEvery == 0 && overdue(ctx, p) {
			return false
		}
		moved := false
		for _, l := range ls {
			if l.Progress() == transport.Moved {
				moved = true
			}
		}
		if ev.Met() {
			m.markPolled(ls)
			return true
		}
		if moved {
			end = time.Time{}
			i = 0
		}
		if i%ctxEvery == ctxEvery-1 && ctx.Err() != nil {
			return false
		}
		if m.inProcess {
			if i >= maxLocalPolls {
				return false
			}
			runtime.Gosched()
			continue
		}
		if i%clockEvery == clockEvery-1 {
			now := time.Now()
			if end.IsZero() {
				end = now.Add(pollTime)
			} else if now.After(end) {
				return false
			}
		}
		if m.oversubscribed {
			cpu.Yield()
		}
	}
}

// overdue reports whether ctx or p may have ended the wait.
func overdue(ctx context.Context, p WaitPolicy) bool {
	if ctx.Err() != nil {
		return true
	}
	if p == nil {
		return false
	}
	at := p.NextCheck()
	return !at.IsZero() && !time.Now().Before(at)
}

// markPolled counts a poll of each link, and wakes the ticker if a link is not armed. A waiter
// calls it when it leaves the links.
func (m *Mesh) markPolled(ls []*Link) {
	for _, l := range ls {
		l.polls.Add(1)
		if !l.armed.Load() {
			m.links.noteUnarmed()
		}
	}
}

// sleep parks the goroutine until Wake, the end of ctx, or an error of p. After each check, sleep
// asks the policy for the time of the next check.
func (w *Waiter) sleep(ctx context.Context, p WaitPolicy) error {
	for {
		var expired <-chan time.Time
		if p != nil {
			if at := p.NextCheck(); !at.IsZero() {
				w.timer.Reset(time.Until(at))
				expired = w.timer.C
			}
		}
		select {
		case <-w.wake:
			w.stop(expired)
			return nil
		case <-ctx.Done():
			w.stop(expired)
			return ctx.Err()
		case <-expired:
			if err := p.Check(); err != nil {
				return err
			}
		}
	}
}

// stop stops the timer. If expired is nil, the timer was not started.
func (w *Waiter) stop(expired <-chan time.Time) {
	if expired != nil {
		w.timer.Stop()
	}
}
