package shm

import (
	"syscall"
	"unsafe"

	"github.com/tutti-go/tutti/internal/poll"
)

// Both the sleeper and the producer first store and then check:
//
//	sleeper                                producer
//	1. doorbell.asleep = 1                 1. publish the record: store its header
//	2. look for a record; found: no sleep  2. asleep was 1: clear it, write to the socket
//
// Both stores are sequentially consistent, so at least one of the two checks sees the store of the
// other side, and no wake-up is lost. The same holds for space in the ring, with doorbell.wakeAt in
// place of asleep and the count of consumed bytes in place of the record.
//
// A byte on the socket makes the Transport's watcher call Event, which runs the armed
// callback.

// Arm implements transport.Conn. It costs a few stores in shared memory and no system call. The
// peer makes one system call, for the first record that it puts after this Arm.
func (c *conn) Arm(ready func()) {
	a := &c.wakeup
	a.mu.Lock()
	a.ready = ready
	a.armed.Store(true)
	a.mu.Unlock()
	a.unannounced.Store(true)
	c.requestWakeup()
}

// requestWakeup asks the peer for a doorbell. If there is something to do already, it schedules the
// callback instead. It needs the reader's role. If another goroutine has that role, requestWakeup
// leaves the request to that goroutine, which checks unannounced after giving up the role. No
// request is lost, because unannounced was set before requestWakeup tried to get the role.
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

// prepareSleep declares in shared memory that this end sleeps, and then checks once more for
// something to do. It returns true if it has found something; then this end does not sleep. First
// it publishes the consumed space. Otherwise the peer could wait for that space, and both ends
// would sleep forever.
func (c *conn) prepareSleep() (now bool) {
	c.returnSpace()
	c.ownDoorbell.asleep.Store(1)
	now = c.consumer.hasRecord() || c.firstErr.Get() != nil || c.outbox.awaitRoom(c.ownDoorbell)
	if now {
		c.ownDoorbell.asleep.Store(0)
	}
	return now
}

// ringDoorbell wakes the peer. The caller is inside the gate. Errors need no handling: if the
// socket is full, the peer has not read earlier doorbells yet, and if it is closed, there is
// nobody to wake.
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

// Event implements poll.Handler. The watcher calls it when the peer has written to the socket or
// closed its end. The kernel closes the socket of every process that dies, so Event notices a death
// at once. The field closed in shared memory distinguishes a Close from a death.
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

// disarm removes and returns the armed callback, or returns nil if there is none. So each callback
// runs at most once.
func (a *wakeup) disarm() func() {
	a.mu.Lock()
	defer a.mu.Unlock()
	ready := a.ready
	a.ready = nil
	a.armed.Store(false)
	return ready
}

// scheduleReady runs the armed callback soon, on a goroutine of the Transport.
func (c *conn) scheduleReady() {
	if ready := c.wakeup.disarm(); ready != nil {
		c.t.calls.Call(ready)
	}
}
