package mesh

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/tutti-go/tutti/internal/cpu"
	"github.com/tutti-go/tutti/transport"
)

// A Waiter is how one goroutine sleeps until something it waits for has
// happened. Wake may be called by anyone; the rest belongs to that goroutine.
type Waiter struct {
	pool  *waiterPool
	wake  wakeup
	timer *time.Timer
}

// waiterPool are a Mesh's Waiters that nobody uses. Meshes do not share them: in a
// test a Waiter's timer runs by the clock of its bubble. Nor are they a sync.Pool,
// which would keep a Mesh that has ended alive over two collections.
type waiterPool struct {
	mu   sync.Mutex
	free []*Waiter // at most keepWaiters
}

const maxFreeWaiters = 64

// NewWaiter takes one of this Mesh's Waiters, or makes one; Free gives it back.
func (m *Mesh) NewWaiter() *Waiter {
	if w := m.waiters.get(); w != nil {
		return w
	}
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &Waiter{pool: &m.waiters, wake: newWakeup(), timer: t}
}

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

func (ws *waiterPool) put(w *Waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.free) < maxFreeWaiters {
		ws.free = append(ws.free, w)
	}
}

// Free gives w back. A Wake that comes afterwards ends a sleep in vain.
func (w *Waiter) Free() {
	select {
	case <-w.wake:
	default:
	}
	w.pool.put(w)
}

// Wake ends the sleep that is under way, or the next one.
func (w *Waiter) Wake() {
	w.wake.raise()
}

// An Condition is what a goroutine waits for. Happened is called often and must be
// cheap; once true it stays true until the wait has returned.
type Condition interface {
	Met() bool
}

// A WaitPolicy bounds a wait. It is asked when the waiter goes to sleep and each
// time the moment it named has come; it must not block.
type WaitPolicy interface {
	// Until is the next moment at which Due wants to be called; zero: never.
	NextCheck() time.Time
	// Due is called then; an error ends the wait.
	Check() error
}

// How a waiter polls before it sleeps. Ranks that are processes of their own
// cores poll for a bounded time; ranks that share a process or a core hand it
// over between polls and sleep soon.
const (
	pollTime       = 300 * time.Microsecond
	maxLocalPolls  = 24
	ctxEvery       = 8
	clockEvery     = 32 // looking at the clock takes as long as moving a link twice
	maxPolledLinks = 32 // links; a wait for more sleeps at once

	policyEvery = 256 // turns, also of links that move all the time
)

// Wait returns nil once ev has happened, and otherwise ctx's or p's error. Who
// makes ev happen calls w.Wake afterwards. While it waits it moves the links in
// ls itself; every other link has its wake-up. p may be nil. It is Poll, and then
// Sleep.
func (m *Mesh) Wait(ctx context.Context, w *Waiter, ev Condition, p WaitPolicy, ls ...*Link) error {
	if m.Poll(ctx, ev, p, ls) {
		return nil
	}
	return m.Sleep(ctx, w, ev, p, ls)
}

// Poll moves the links for as long as is worth while, and reports whether ev has
// happened. A wait that ends here needs no Waiter.
func (m *Mesh) Poll(ctx context.Context, ev Condition, p WaitPolicy, ls []*Link) bool {
	return ev.Met() || len(ls) <= maxPolledLinks && m.poll(ctx, ev, p, ls)
}

// How long Glance looks: some microseconds, in which a message comes that is an
// answer to one just sent.
const (
	spinTurns    = 32
	spinsPerTurn = 16
)

// Spin moves a link for a moment, and reports whether ev has happened. It comes
// before a wait is prepared, which a message that is here, or as good as here, need
// not pay for. It looks at no context: it is over before one could matter.
func (m *Mesh) Spin(l *Link, ev Condition) bool {
	l.polls.Add(1) // at once, and not when it is over: while it runs nobody waits for what follows
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

// Arm leaves the links their wake-ups, as Sleep does, for who has polled in vain and
// sleeps elsewhere.
func (m *Mesh) Arm(ls []*Link) {
	for _, l := range ls {
		l.arm()
	}
}

// Sleep is the part of Wait for which ev's maker must know w.
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

// Oversubscribed reports whether more ranks than cores share this host, so that polling
// takes the core from whom it waits for.
func (m *Mesh) Oversubscribed() bool { return m.oversubscribed || m.inProcess }

// Yield gives the core to another rank: another goroutine, or another process.
func (m *Mesh) Yield() {
	if m.inProcess {
		runtime.Gosched()
		return
	}
	cpu.Yield()
}

// Core is the core that the caller runs on, or -1 where that is not known.
func (m *Mesh) Core() int { return cpu.CurrentCore() }

// AvoidCore has the caller run on another core than this one, if it may.
func (m *Mesh) AvoidCore(core int) { cpu.AvoidCore(core) }

// poll moves the links until ev has happened or it is time to sleep. That is also
// when the wait's own end may have come: links that move without a pause, for
// others, must not keep a waiter from noticing it.
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

// overdue reports whether the wait may be over before its event has happened.
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

// markPolled notes that a waiter has left links that may have no wake-up.
func (m *Mesh) markPolled(ls []*Link) {
	for _, l := range ls {
		l.polls.Add(1)
		if !l.armed.Load() {
			m.links.noteUnarmed()
		}
	}
}

// sleep parks until Wake, the end of ctx, or an error of p's.
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

func (w *Waiter) stop(expired <-chan time.Time) {
	if expired != nil {
		w.timer.Stop()
	}
}
