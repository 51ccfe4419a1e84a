package shm

import (
	"syscall"
	"unsafe"

	"github.com/tutti-go/tutti/internal/poll"
)

// Arm implements transport.Conn. It costs a few stores in shared memory and no
// system call; the peer makes one, for the first record that it puts afterwards.
func (c *conn) Arm(ready func()) {
	a := &c.wakeup
	a.mu.Lock()
	a.ready = ready
	a.armed.Store(true)
	a.mu.Unlock()
	a.unannounced.Store(true)
	c.requestWakeup()
}

// requestWakeup has the peer ring, unless there is something to do already. It takes the
// reader's role for that; where another goroutine has it, that one settles when it
// leaves: it looks at pending after leaving, and we tried to enter after setting it.
func (c *conn) requestWakeup() {
	for c.wakeup.unannounced.Load() {
		switch c.gate.EnterReader() {
		case poll.Occupied:
			return
		case poll.GateClosed:
			c.wakeup.unannounced.Store(false)
			c.scheduleReady()
			return
		}
		c.wakeup.unannounced.Store(false)
		now := c.prepareSleep()
		if c.gate.ExitReader() {
			c.release()
		}
		if now {
			c.scheduleReady()
		}
	}
}

// prepareSleep says in shared memory that this end sleeps, and looks once more; true
// when there is something to do.
func (c *conn) prepareSleep() (now bool) {
	c.returnSpace()
	c.ownDoorbell.asleep.Store(1)
	now = c.consumer.hasRecord() || c.firstErr.Get() != nil || c.outbox.awaitRoom(c.ownDoorbell)
	if now {
		c.ownDoorbell.asleep.Store(0)
	}
	return now
}

// ringDoorbell wakes the peer. The caller is inside the gate. Where the socket is full
// the peer has not looked yet at earlier rings; where it is gone there is nobody
// to wake.
func (c *conn) ringDoorbell() {
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
	_, open, err := c.drainSocket()
	gone := !open || events&(syscall.EPOLLHUP|syscall.EPOLLRDHUP|syscall.EPOLLERR) != 0
	closed := false
	if gone {
		closed = c.peerDoorbell.closed.Load() != 0
		c.t.watcher.Control(syscall.EPOLL_CTL_DEL, c.fd, 0, 0, 0)
	}
	c.exit()
	if gone {
		if err == nil {
			err = errPeerGone(closed)
		}
		c.fail(err)
		return
	}
	if ready := c.wakeup.disarm(); ready != nil {
		ready()
	}
}

// disarm is the armed callback, which is not armed any more.
func (a *wakeup) disarm() func() {
	a.mu.Lock()
	defer a.mu.Unlock()
	ready := a.ready
	a.ready = nil
	a.armed.Store(false)
	return ready
}

// scheduleReady has the armed callback run soon.
func (c *conn) scheduleReady() {
	if ready := c.wakeup.disarm(); ready != nil {
		c.t.calls.Call(ready)
	}
}
