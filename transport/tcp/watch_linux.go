package tcp

import (
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/tutti-go/tutti/fault"
)

// An wakeup is a raw Conn's one armed wake-up, and what the epoll knows of it.
type wakeup struct {
	id    int32
	armed atomic.Bool // ready is set

	mu         sync.Mutex // guards what follows
	ready      func()
	generation int32  // counts changes of the epoll's entry, to tell stale events
	events     uint32 // what the epoll waits for now; 0: nothing
	added      bool   // the epoll has an entry
}

// register enters c in its Transport's watcher.
func (a *wakeup) register(t *Transport, c *raw) (err error) {
	a.id, err = t.watcher.Add(c)
	return err
}

// unregister undoes join. The descriptor is still open.
func (a *wakeup) unregister(t *Transport, c *raw) {
	a.mu.Lock()
	if a.added {
		t.watcher.Control(syscall.EPOLL_CTL_DEL, c.fd, a.id, 0, 0)
		a.added = false
	}
	a.mu.Unlock()
	t.watcher.Remove(a.id)
}

// disarm is the armed callback, which is not armed any more.
func (a *wakeup) disarm() func() {
	ready := a.ready
	a.ready = nil
	a.armed.Store(false)
	return ready
}

// Arm implements transport.Conn; it costs one epoll_ctl, or nothing when the
// epoll still waits for an earlier one. A wake-up may be spurious: somebody else
// may have moved meanwhile what there was to move.
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

// watch has the epoll wait for what Progress could move now. The alarm is locked.
func (c *raw) watch() error {
	a := &c.wakeup
	events := uint32(syscall.EPOLLIN | syscall.EPOLLONESHOT)
	if c.out.blocked.Load() {
		events |= syscall.EPOLLOUT
	}
	if a.events&events == events || !c.gate.Enter() {
		return nil // a Close that shut the gate wakes after it
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
		go c.teardown() // not here: it wants the alarm
	}
	return err
}

// watchWrites adds queued bytes to what an armed Conn waits for.
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

// Event implements poll.Handler: it takes the watcher's word that something could move.
func (c *raw) Event(generation int32, events uint32) {
	a := &c.wakeup
	a.mu.Lock()
	if generation != a.generation {
		a.mu.Unlock()
		return
	}
	a.events = 0
	if a.ready != nil && events == syscall.EPOLLOUT && !c.out.blocked.Load() {
		if c.watch() == nil { // what could be written has been written
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

// wake has the armed callback run on the caller's goroutine.
func (c *raw) wake() {
	c.wakeup.mu.Lock()
	ready := c.wakeup.disarm()
	c.wakeup.mu.Unlock()
	if ready != nil {
		c.t.calls.Call(ready)
	}
}

// wakeIfArmed is wake where that is seldom needed.
func (c *raw) wakeIfArmed() {
	if c.wakeup.armed.Load() {
		c.wake()
	}
}
