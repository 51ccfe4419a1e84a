package verbs

import (
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// A endpoint is what a Conn has of the device: a queue pair, the message buffers that
// are posted for the peer's messages, and those that ours are written in. The
// Conn's mu guards it, except that a buffer whose receive has completed is
// Progress's until it is posted again.
//
// Works are numbered from 1 as they are posted; work n uses out buffer n modulo
// their number, so a work's end frees its buffer.
type endpoint struct {
	qp           rdma.QueuePair
	bufferSize   int          // bytes of a buffer
	depth        int          // buffers each way, and works that may be posted
	recvBuffers  *rdma.Region // depth buffers
	sendBuffers  *rdma.Region // depth buffers
	recvRing     *rdma.Region // for bodies that fit no buffer; nil before the first of them
	posted       uint64
	lastSignaled uint64 // the last work posted that a completion was asked for
	completed    uint64
	outstanding  []outstanding      // by work modulo depth
	batch        []rdma.WorkRequest // being put together
	completions  []rdma.Completion
	arrivals     arrivalQueue
	err          error // the first completion that failed
	closed       bool
	released     bool
}

// A outstanding is what ends with a work.
type outstanding struct {
	frame  *transport.Frame // whose last work it is
	reg    *registration
	bytes  int    // of the frame, for unsent
	staged []byte // the copy of a body in parts; nil: there is none
}

// arrivalQueue is a ring of completed receives, as many as can be posted.
type arrivalQueue struct {
	slots   []rdma.Completion
	head, n int
}

func (a *arrivalQueue) push(c rdma.Completion) {
	a.slots[(a.head+a.n)%len(a.slots)] = c
	a.n++
}

func (a *arrivalQueue) pop() rdma.Completion {
	c := a.slots[a.head]
	a.head = (a.head + 1) % len(a.slots)
	a.n--
	return c
}

// newEndpoint makes a queue pair and posts its receives.
func (c *conn) newEndpoint() (*endpoint, error) {
	o := &c.transport.opts
	l := &endpoint{bufferSize: o.Buffer, depth: o.Depth}
	l.outstanding, l.batch = make([]outstanding, l.depth), make([]rdma.WorkRequest, 0, l.depth)
	l.completions, l.arrivals.slots = make([]rdma.Completion, 16), make([]rdma.Completion, l.depth)
	if !c.transport.acquireDevice() {
		return nil, failure(fault.Closed, "make a queue pair", nil)
	}
	err := l.open(c.transport.device, func() { c.transport.caller.Call(c.fireFunc) })
	if err != nil {
		c.discard(l)
		return nil, failure(fault.Exhausted, "make a queue pair on "+c.transport.device.Describe(), err)
	}
	return l, nil
}

func (l *endpoint) open(d rdma.Device, notify func()) (err error) {
	if l.qp, err = d.NewQueuePair(l.depth, notify); err != nil {
		return err
	}
	if l.recvBuffers, err = d.Alloc(l.depth*l.bufferSize, false); err != nil {
		return err
	}
	if l.sendBuffers, err = d.Alloc(l.depth*l.bufferSize, false); err != nil {
		return err
	}
	for i := range l.depth {
		if err := l.postReceive(uint64(i)); err != nil {
			return err
		}
	}
	return nil
}

// hasRoom reports whether one more work may be posted.
func (l *endpoint) hasRoom() bool { return l.posted-l.completed < uint64(l.depth) }

// isSignalDue reports whether the last work posted is one of those that are signalled in turn.
func (l *endpoint) isSignalDue() bool { return l.posted%uint64(max(l.depth/signalEvery, 1)) == 0 }

// postReceive gives receive buffer i to the device.
func (l *endpoint) postReceive(i uint64) error {
	return l.qp.Receive(i, l.recvBuffers, l.buffer(l.recvBuffers, i))
}

func (l *endpoint) buffer(r *rdma.Region, i uint64) []byte {
	at := int(i) % l.depth * l.bufferSize
	return r.Mem[at : at+l.bufferSize : at+l.bufferSize]
}

// close ends the queue pair.
func (l *endpoint) close() {
	if l.qp != nil && !l.closed {
		l.qp.Close()
	}
	l.closed = true
}

// releaseBuffers gives the buffers back, once.
func (l *endpoint) releaseBuffers() (first bool) {
	if l.released {
		return false
	}
	l.released = true
	for _, r := range []*rdma.Region{l.recvBuffers, l.sendBuffers, l.recvRing} {
		if r != nil {
			r.Deregister()
		}
	}
	return true
}

// setError notes the first error of the queue pair.
func (l *endpoint) setError(err error) {
	if l.err == nil {
		l.err = err
	}
}

// abandon takes the frames on their way, after close.
func (l *endpoint) abandon(unfinished *transport.Queue) {
	for ; l.completed < l.posted; l.completed++ {
		f := &l.outstanding[(l.completed+1)%uint64(l.depth)]
		if f.frame != nil {
			unfinished.Push(f.frame)
		}
		f.reg.release()
		*f = outstanding{}
	}
}

// poll takes what the completion queue holds, after so many looks at most, and returns
// how much that was. mu is held.
func (c *conn) poll(spins int) int {
	l := c.endpoint
	if l.closed {
		return 0
	}
	n, err := l.qp.Poll(l.completions, spins)
	if err != nil {
		l.setError(failure(fault.LinkLost, "poll", fmt.Errorf("%s: %w", c.transport.device.Describe(), err)))
		return 0
	}
	for i := range l.completions[:n] {
		switch e := &l.completions[i]; {
		case e.Status != rdma.Success:
			l.setError(completionError(c.transport.device.Describe(), *e))
		case e.Recv:
			l.arrivals.push(*e)
		default:
			c.completeThrough(e.ID)
		}
	}
	return n
}

// completeThrough ends all works up to number n. mu is held.
func (c *conn) completeThrough(n uint64) {
	l := c.endpoint
	bytes := 0
	for ; l.completed < n; l.completed++ {
		f := &l.outstanding[(l.completed+1)%uint64(l.depth)]
		bytes += f.bytes
		if f.frame != nil {
			c.finished.Push(f.frame)
		}
		c.reuse(f.staged)
		f.reg.release()
		*f = outstanding{}
	}
	if bytes > 0 {
		c.unsent.sub(bytes)
	}
}
