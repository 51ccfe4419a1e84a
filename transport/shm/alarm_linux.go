package shm

import (
	"syscall"
	"unsafe"

	"github.com/tutti-go/tutti/internal/poll"
)

// Arm implements transport.Conn. It costs a few stores in shared memory and no
// system call; the peer makes one, for the first record that it puts afterwards.
func (c *conn) Arm(ready func()) {
	a := &c.alarm
	a.mu.Lock()
	a.ready = ready
	a.armed.Store(true)
	a.mu.Unlock()
	a.pending.Store(true)
	c.settle()
}

// settle has the peer ring, unless there is something to do already. It takes the
// reader's role for that; where another goroutine has it, that one settles when it
// leaves: it looks at pending after leaving, and we tried to enter after setting it.
func (c *conn) settle() {
	for c.alarm.pending.Load() {
		switch c.gate.EnterReader() {
		case poll.Occupied:
			return
		case poll.ShutDown:
			c.alarm.pending.Store(false)
			c.wake()
			return
		}
		c.alarm.pending.Store(false)
		now := c.listen()
		if c.gate.LeaveReader() {
			c.letGo()
		}
		if now {
			c.wake()
		}
	}
}

// listen says in shared memory that this end sleeps, and looks once more; true
// when there is something to do.
func (c *conn) listen() (now bool) {
	c.tell()
	c.mine.asleep.Store(1)
	now = c.in.waiting() || c.first.Get() != nil || c.out.await(c.mine)
	if now {
		c.mine.asleep.Store(0)
	}
	return now
}

// ring wakes the peer. The caller is inside the gate. Where the socket is full
// the peer has not looked yet at earlier rings; where it is gone there is nobody
// to wake.
func (c *conn) ring() {
	var b [1]byte
	for {
		_, _, errno := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(c.fd), uintptr(unsafe.Pointer(&b)), 1,
			syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL, 0, 0)
		if errno != syscall.EINTR {
			return
		}
	}
}

// Event implements poll.Handler: the peer has rung, or is gone.
func (c *conn) Event(_ int32, events uint32) {
	if !c.gate.Enter() {
		return
	}
	_, open, err := c.hear()
	gone := !open || events&(syscall.EPOLLHUP|syscall.EPOLLRDHUP|syscall.EPOLLERR) != 0
	closed := false
	if gone {
		closed = c.theirs.closed.Load() != 0
		c.t.watcher.Control(syscall.EPOLL_CTL_DEL, c.fd, 0, 0, 0)
	}
	c.leave()
	if gone {
		if err == nil {
			err = errGone(closed)
		}
		c.fail(err)
		return
	}
	if ready := c.alarm.take(); ready != nil {
		ready()
	}
}

// take is the armed callback, which is not armed any more.
func (a *alarm) take() func() {
	a.mu.Lock()
	defer a.mu.Unlock()
	ready := a.ready
	a.ready = nil
	a.armed.Store(false)
	return ready
}

// wake has the armed callback run soon.
func (c *conn) wake() {
	if ready := c.alarm.take(); ready != nil {
		c.t.calls.Call(ready)
	}
}
