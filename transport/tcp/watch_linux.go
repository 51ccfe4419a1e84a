package tcp

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/tutti-go/tutti/fault"
)

// A wakeup is a raw Conn's one armed wake-up and its entry in the Transport's epoll. The entry is
// one-shot: each event disables it. The field generation distinguishes events of an earlier entry
// from events of the present entry.
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

// unregister removes c from the watcher, while the descriptor is still open.
//
// It must be called before the descriptor is closed, because the system may then reuse the number
// at once.
func (a *wakeup) unregister(t *Transport, c *raw) {
	a.mu.Lock()
	if a.added {
		t.watcher.Control(syscall.EPOLL_CTL_DEL, c.fd, a.id, 0, 0)
		a.added = false
	}
	a.mu.Unlock()
	t.watcher.Remove(a.id)
}

// disarm clears the armed callback and returns it, or returns nil if no callback is armed. mu is
// held.
func (a *wakeup) disarm() func() {
	ready := a.ready
	a.ready = nil
	a.armed.Store(false)
	return ready
}

// Arm implements transport.Conn. It costs one epoll_ctl, or nothing when the epoll still waits from
// an earlier Arm. If bytes are already buffered, or the Conn has failed, the wake-up comes at once.
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

// watch makes the epoll wait for the events after which Progress could move something. mu is held.
//
// It does nothing if the epoll waits for these events already. If the gate is shut, the descriptor
// may be closed, and watch does nothing: Close then calls the armed callback.
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
		go c.teardown() // not on this goroutine, because teardown locks mu
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
// If another goroutine has written the queue meanwhile, an event for room in the socket is dropped,
// because there is nothing left to write.
func (c *raw) Event(generation int32, events uint32) {
	a := &c.wakeup
	a.mu.Lock()
	if generation != a.generation {
		a.mu.Unlock()
		return
	}
	a.events = 0
	if a.ready != nil && events == syscall.EPOLLOUT && !c.out.blocked.Load() {
		if c.watch() == nil { // the queue was written meanwhile, so wait only for reads
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
// It serves failures, Close, and bytes left in a buffer, which the epoll does not report.
func (c *raw) wake() {
	c.wakeup.mu.Lock()
	ready := c.wakeup.disarm()
	c.wakeup.mu.Unlock()
	if ready != nil {
		c.t.calls.Call(ready)
	}
}

// wakeIfArmed is like wake, but does not take the lock if nothing is armed.
func (c *raw) wakeIfArmed() {
	if c.wakeup.armed.Load() {
		c.wake()
	}
}
