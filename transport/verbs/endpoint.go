package verbs

import (
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
	"github.com/tutti-go/tutti/transport/verbs/internal/rdma"
)

// An endpoint consists of the device resources of a Conn: a queue pair, its message buffers, and
// the eager ring. The mu of the Conn guards it, with one exception: a receive buffer belongs to the
// goroutine in Progress between its completion and its next post.
//
// Work requests are numbered from 1 in the order posted. Work request n uses send buffer n
// modulo depth, so its completion frees that buffer. Always completed <= lastSignaled <= posted,
// and posted-completed <= depth.
//
//	state     closed  released  the queue pair             buffers
//	open      false   false     sends and receives         registered
//	closed    true    false     gone; arrivals may remain  registered until arrivals are delivered
//	released  true    true      gone                       returned to the device
type endpoint struct {
	qp         rdma.QueuePair
	bufferSize int // bytes of a buffer
	// depth is the number of buffers in each direction, and the maximum number of outstanding work
	// requests.
	depth        int
	recvBuffers  *rdma.Region       // depth buffers
	sendBuffers  *rdma.Region       // depth buffers
	recvRing     *rdma.Region       // eager ring; nil before the first body that can use it
	posted       uint64             // number of the last work request
	lastSignaled uint64             // number of the last signaled work request
	completed    uint64             // number up to which work requests have completed
	outstanding  []outstanding      // by number modulo depth
	batch        []rdma.WorkRequest // to be posted next
	completions  []rdma.Completion  // scratch space of poll
	arrivals     arrivalQueue
	err          error // the first error of the queue pair
	closed       bool
	released     bool
}

// An outstanding records what an outstanding work request uses until it completes.
type outstanding struct {
	frame  *transport.Frame // the frame, if this is its last work request; else nil
	reg    *registration
	bytes  int    // bytes of the frame that unsent subtracts on completion
	staged []byte // copy of a body in parts; nil: no copy was made
}

// An arrivalQueue is a circular queue of completed receives. It never overflows: it has a slot
// for each receive that can be posted.
type arrivalQueue struct {
	slots   []rdma.Completion
	head, n int
}

// push appends a completed receive.
func (a *arrivalQueue) push(c rdma.Completion) {
	a.slots[(a.head+a.n)%len(a.slots)] = c
	a.n++
}

// pop removes and returns the oldest completed receive. The queue must not be empty.
func (a *arrivalQueue) pop() rdma.Completion {
	c := a.slots[a.head]
	a.head = (a.head + 1) % len(a.slots)
	a.n--
	return c
}

// newEndpoint makes a queue pair and posts all its receives. It counts as a use of the device
// until releaseBuffers.
func (c *conn) newEndpoint() (*endpoint, error) {
	o := &c.transport.opts
	l := &endpoint{bufferSize: o.Buffer, depth: o.Depth}
	// All memory is allocated here, so that a frame allocates none.
	l.outstanding, l.batch = make([]outstanding, l.depth), make([]rdma.WorkRequest, 0, l.depth)
	l.completions, l.arrivals.slots = make([]rdma.Completion, 16), make([]rdma.Completion, l.depth)
	// The message buffers use the device until releaseBuffers ends this use.
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

// open makes the queue pair and the buffers. After an error the caller discards the endpoint.
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
	// All receives are posted before the hello tells the peer their number.
	for i := range l.depth {
		if err := l.postReceive(uint64(i)); err != nil {
			return err
		}
	}
	return nil
}

// hasRoom reports whether one more work request may be posted.
func (l *endpoint) hasRoom() bool { return l.posted-l.completed < uint64(l.depth) }

// isSignalDue reports whether the newest work request must be signaled. At least one of every
// depth/signalEvery work requests is signaled, so that buffers are freed even if TrySend sends
// every frame.
func (l *endpoint) isSignalDue() bool { return l.posted%uint64(max(l.depth/signalEvery, 1)) == 0 }

// postReceive posts receive buffer i.
func (l *endpoint) postReceive(i uint64) error {
	return l.qp.Receive(i, l.recvBuffers, l.buffer(l.recvBuffers, i))
}

// buffer returns the i-th buffer of r, modulo depth.
func (l *endpoint) buffer(r *rdma.Region, i uint64) []byte {
	at := int(i) % l.depth * l.bufferSize
	return r.Mem[at : at+l.bufferSize : at+l.bufferSize]
}

// close closes the queue pair. Arrivals that have been polled stay.
func (l *endpoint) close() {
	if l.qp != nil && !l.closed {
		l.qp.Close()
	}
	l.closed = true
}

// releaseBuffers returns the buffers to the device. It reports whether this was the first call.
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

// setError sets the first error of the queue pair. It ignores later errors, because they follow
// from the first.
func (l *endpoint) setError(err error) {
	if l.err == nil {
		l.err = err
	}
}

// abandon is called after close. It moves the frames of outstanding work requests to the queue
// unfinished.
func (l *endpoint) abandon(unfinished *transport.Queue) {
	// Without completions this end cannot know which frames the peer has received. So all
	// outstanding frames count as failed.
	for ; l.completed < l.posted; l.completed++ {
		f := &l.outstanding[(l.completed+1)%uint64(l.depth)]
		if f.frame != nil {
			unfinished.Push(f.frame)
		}
		f.reg.release()
		*f = outstanding{}
	}
}

// poll gets completions from the device and returns their number. The device checks its queue up
// to spins times for the first completion. A failed completion sets the error of the endpoint.
// mu is held.
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
		// After the first failed completion the device flushes all other work requests. Their
		// completions fail, too.
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

// completeThrough completes all work requests up to number n, and queues each frame whose last
// work request is among them. mu is held.
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
	// sub is called once for all bytes, because each call reads the clock.
	if bytes > 0 {
		c.unsent.sub(bytes)
	}
}
