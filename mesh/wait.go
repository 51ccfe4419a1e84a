package mesh

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/tutti-go/tutti/transport"
)

// A Waiter is how one goroutine sleeps until something it waits for has
// happened. Wake may be called by anyone; the rest belongs to that goroutine.
type Waiter struct {
	home  *waiters
	wake  chan struct{}
	timer *time.Timer
}

// waiters are a Mesh's Waiters that nobody uses. Meshes do not share them: in a
// test a Waiter's timer runs by the clock of its bubble. Nor are they a sync.Pool,
// which would keep a Mesh that has ended alive over two collections.
type waiters struct {
	mu   sync.Mutex
	free []*Waiter // at most keepWaiters
}

const keepWaiters = 64

// NewWaiter takes one of this Mesh's Waiters, or makes one; Free gives it back.
func (m *Mesh) NewWaiter() *Waiter {
	if w := m.waiters.take(); w != nil {
		return w
	}
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &Waiter{home: &m.waiters, wake: make(chan struct{}, 1), timer: t}
}

func (ws *waiters) take() *Waiter {
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

func (ws *waiters) put(w *Waiter) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.free) < keepWaiters {
		ws.free = append(ws.free, w)
	}
}

// Free gives w back. A Wake that comes afterwards ends a sleep in vain.
func (w *Waiter) Free() {
	select {
	case <-w.wake:
	default:
	}
	w.home.put(w)
}

// Wake ends the sleep that is under way, or the next one.
func (w *Waiter) Wake() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// An Event is what a goroutine waits for. Happened is called often and must be
// cheap; once true it stays true until the wait has returned.
type Event interface {
	Happened() bool
}

// A Patience bounds a wait. It is asked when the waiter goes to sleep and each
// time the moment it named has come; it must not block.
type Patience interface {
	// Until is the next moment at which Due wants to be called; zero: never.
	Until() time.Time
	// Due is called then; an error ends the wait.
	Due() error
}

// How a waiter polls before it sleeps. Ranks that are processes of their own
// cores poll for a bounded time; ranks that share a process or a core hand it
// over between polls and sleep soon.
const (
	pollTime   = 300 * time.Microsecond
	pollsLocal = 24
	ctxEvery   = 8
	clockEvery = 32 // looking at the clock takes as long as moving a link twice
	mostPolled = 32 // links; a wait for more sleeps at once

	patienceEvery = 256 // turns, also of links that move all the time
)

// Wait returns nil once ev has happened, and otherwise ctx's or p's error. Who
// makes ev happen calls w.Wake afterwards. While it waits it moves the links in
// ls itself; every other link has its wake-up. p may be nil. It is Poll, and then
// Sleep.
func (m *Mesh) Wait(ctx context.Context, w *Waiter, ev Event, p Patience, ls ...*Link) error {
	if m.Poll(ctx, ev, p, ls) {
		return nil
	}
	return m.Sleep(ctx, w, ev, p, ls)
}

// Poll moves the links for as long as is worth while, and reports whether ev has
// happened. A wait that ends here needs no Waiter.
func (m *Mesh) Poll(ctx context.Context, ev Event, p Patience, ls []*Link) bool {
	return ev.Happened() || len(ls) <= mostPolled && m.poll(ctx, ev, p, ls)
}

// How long Glance looks: some microseconds, in which a message comes that is an
// answer to one just sent.
const (
	glanceTurns = 32
	glanceLooks = 16
)

// Glance moves a link for a moment, and reports whether ev has happened. It comes
// before a wait is prepared, which a message that is here, or as good as here, need
// not pay for. It looks at no context: it is over before one could matter.
func (m *Mesh) Glance(l *Link, ev Event) bool {
	l.polls.Add(1) // at once, and not when it is over: while it runs nobody waits for what follows
	if !l.armed.Load() {
		m.links.unarmed()
	}
	turns, looks := glanceTurns, glanceLooks
	if m.Crowded() {
		turns, looks = 1, 1
	}
	for range turns {
		state := l.move(looks)
		if ev.Happened() {
			return true
		}
		if state == transport.Busy {
			return false
		}
	}
	return false
}

// Watch leaves the links their wake-ups, as Sleep does, for who has polled in vain and
// sleeps elsewhere.
func (m *Mesh) Watch(ls []*Link) {
	for _, l := range ls {
		l.arm()
	}
}

// Sleep is the part of Wait for which ev's maker must know w.
func (m *Mesh) Sleep(ctx context.Context, w *Waiter, ev Event, p Patience, ls []*Link) error {
	for {
		m.Watch(ls)
		if ev.Happened() {
			return nil
		}
		if err := w.sleep(ctx, p); err != nil {
			return err
		}
		if ev.Happened() {
			return nil
		}
	}
}

// Crowded reports whether more ranks than cores share this host, so that polling
// takes the core from whom it waits for.
func (m *Mesh) Crowded() bool { return m.crowded || m.inProcess }

// Yield gives the core to another rank: another goroutine, or another process.
func (m *Mesh) Yield() {
	if m.inProcess {
		runtime.Gosched()
		return
	}
	yieldCore()
}

// Core is the core that the caller runs on, or -1 where that is not known.
func (m *Mesh) Core() int { return currentCore() }

// LeaveCore has the caller run on another core than this one, if it may.
func (m *Mesh) LeaveCore(core int) { leaveCore(core) }

// poll moves the links until ev has happened or it is time to sleep. That is also
// when the wait's own end may have come: links that move without a pause, for
// others, must not keep a waiter from noticing it.
func (m *Mesh) poll(ctx context.Context, ev Event, p Patience, ls []*Link) bool {
	var end time.Time
	for i, turns := 0, 1; ; i, turns = i+1, turns+1 {
		if turns%patienceEvery == 0 && overdue(ctx, p) {
			return false
		}
		moved := false
		for _, l := range ls {
			if l.Progress() == transport.Moved {
				moved = true
			}
		}
		if ev.Happened() {
			m.leave(ls)
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
			if i >= pollsLocal {
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
		if m.crowded {
			yieldCore()
		}
	}
}

// overdue reports whether the wait may be over before its event has happened.
func overdue(ctx context.Context, p Patience) bool {
	if ctx.Err() != nil {
		return true
	}
	if p == nil {
		return false
	}
	at := p.Until()
	return !at.IsZero() && !time.Now().Before(at)
}

// leave notes that a waiter has left links that may have no wake-up.
func (m *Mesh) leave(ls []*Link) {
	for _, l := range ls {
		l.polls.Add(1)
		if !l.armed.Load() {
			m.links.unarmed()
		}
	}
}

// sleep parks until Wake, the end of ctx, or an error of p's.
func (w *Waiter) sleep(ctx context.Context, p Patience) error {
	for {
		var due <-chan time.Time
		if p != nil {
			if at := p.Until(); !at.IsZero() {
				w.timer.Reset(time.Until(at))
				due = w.timer.C
			}
		}
		select {
		case <-w.wake:
			w.stop(due)
			return nil
		case <-ctx.Done():
			w.stop(due)
			return ctx.Err()
		case <-due:
			if err := p.Due(); err != nil {
				return err
			}
		}
	}
}

func (w *Waiter) stop(due <-chan time.Time) {
	if due != nil {
		w.timer.Stop()
	}
}
