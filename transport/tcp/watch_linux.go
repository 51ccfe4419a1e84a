package tcp

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/tutti-go/tutti/fault"
)

// A wakeup is a raw Conn's one armed wake-up and its entry in the Transport's epoll. The entry is
// one-shot: each event disables it, and generation tells an event of an earlier entry from one of
// the present entry.
//
//	ready  events  meaning
//	nil    0       not armed, and the epoll waits for nothing
//	nil    some    disarmed by hand; a late event is ignored
//	set    some    armed
//	set    0       only while mu is held
type wakeup struct {
	id    int32
	armed atomic.Bool // ready is set

	mu         sync.Mutex // guards the rest
	ready      func()
	generation int32  // counts changes of the epoll's entry
	events     uint32 // what the epoll waits for now; 0: nothing
	added      bool   // the epoll has an entry
}

// register adds c to its Transport's watcher.
func (a *wakeup) register(t *Transport, c *raw) (err error) {
	a.id, err = t.watcher.Add(c)
	return err
}

// unregister undoes register. The descriptor is still open.
//
// It must come before the close of the descriptor, whose number the system may reuse at once.
func (a *wakeup) unregister(t *Transport, c *raw) {
	a.mu.Lock()
	if a.added {
		t.watcher.Control(syscall.EPOLL_CTL_DEL, c.fd, a.id, 0, 0)
		a.added = false
	}
	a.mu.Unlock()
	t.watcher.Remove(a.id)
}

// disarm returns the armed callback and clears it; nil when none is armed. mu is held.
func (a *wakeup) disarm() func() {
	ready := a.ready
	a.ready = nil
	a.armed.Store(false)
	return ready
}

// Arm implements transport.Conn. It costs one epoll_ctl, or nothing when the epoll still waits from
// an earlier Arm. Bytes that are buffered already, and a failure, wake at once.
func (c *raw) Arm(ready func()) {
	a := &c.wakeup
	a.mu.Lock()
	a.ready = ready
	a.armed.Store(true)
	var err error
	if c.buffered.Load() || c.first.Get() != nil {
		c.t.calls.Call(a.disarm())
	} else {
		err = c.watch()
	}
	a.mu.Unlock()
	if err != nil {
		c.fail(failure(fault.Exhausted, "arm", os.NewSyscallError("epoll_ctl", err)))
	}
}

// watch makes the epoll wait for what Progress could move now. mu is held.
//
// It does nothing if the epoll waits for these events already. Without the gate's permission the
// descriptor may be closed; Close then wakes the armed callback itself.
func (c *raw) watch() error {
	a := &c.wakeup
	events := uint32(syscall.EPOLLIN | syscall.EPOLLONESHOT)
	if c.out.blocked.Load() {
		events |= syscall.EPOLLOUT
	}
	if a.events&events == events || !c.gate.Enter() {
		return nil // Close has shut the gate, and wakes later
	}
	op := syscall.EPOLL_CTL_MOD
	if !a.added {
		op = syscall.EPOLL_CTL_ADD
	}
	a.generation++
	err := c.t.watcher.Control(op, c.fd, a.id, a.generation, events)
	if err == nil {
		a.added, a.events = true, events
	}
	if c.gate.Exit() {
		go c.teardown() // not on this goroutine: teardown locks mu
	}
	return err
}

// watchWrites makes an armed Conn wait for room in the socket, too.
func (c *raw) watchWrites() {
	if !c.wakeup.armed.Load() {
		return
	}
	c.wakeup.mu.Lock()
	var err error
	if c.wakeup.ready != nil {
		err = c.watch()
	}
	c.wakeup.mu.Unlock()
	if err != nil {
		c.fail(failure(fault.Exhausted, "arm", os.NewSyscallError("epoll_ctl", err)))
	}
}

// Event implements poll.Handler: it calls the armed callback if the event is not stale.
//
// An event for room in the socket is not passed on if another goroutine has written the queue
// meanwhile: the owner could do nothing.
func (c *raw) Event(generation int32, events uint32) {
	a := &c.wakeup
	a.mu.Lock()
	if generation != a.generation {
		a.mu.Unlock()
		return
	}
	a.events = 0
	if a.ready != nil && events == syscall.EPOLLOUT && !c.out.blocked.Load() {
		if c.watch() == nil { // the queue was written meanwhile: wait for reads only
			a.mu.Unlock()
			return
		}
	}
	ready := a.disarm()
	a.mu.Unlock()
	if ready != nil {
		ready()
	}
}

// wake calls the armed callback on the Transport's goroutine for callbacks.
//
// It serves failures and Close, which the epoll does not report.
func (c *raw) wake() {
	c.wakeup.mu.Lock()
	ready := c.wakeup.disarm()
	c.wakeup.mu.Unlock()
	if ready != nil {
		c.t.calls.Call(ready)
	}
}

// wakeIfArmed is wake without the lock where nothing is armed.
func (c *raw) wakeIfArmed() {
	if c.wakeup.armed.Load() {
		c.wake()
	}
}
