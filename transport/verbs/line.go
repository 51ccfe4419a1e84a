package verbs

import (
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A line is what a Conn has of the device: a queue pair, the message buffers that
// are posted for the peer's messages, and those that ours are written in. The
// Conn's mu guards it, except that a buffer whose receive has completed is
// Progress's until it is posted again.
//
// Works are numbered from 1 as they are posted; work n uses out buffer n modulo
// their number, so a work's end frees its buffer.
type line struct {
	pair     pair
	size     int     // bytes of a buffer
	depth    int     // buffers each way, and works that may be posted
	recv     *region // depth buffers
	send     *region // depth buffers
	strip    *region // for bodies that fit no buffer; nil before the first of them
	posted   uint64
	signaled uint64 // the last work posted that a completion was asked for
	ended    uint64
	flights  []flight // by work modulo depth
	works    []work   // being put together
	polled   []completion
	in       arrivals
	err      error // the first completion that failed
	closed   bool
	freed    bool
}

// A flight is what ends with a work.
type flight struct {
	frame *transport.Frame // whose last work it is
	lease *lease
	bytes int // of the frame, for unsent
}

// arrivals is a ring of completed receives, as many as can be posted.
type arrivals struct {
	slots   []completion
	head, n int
}

func (a *arrivals) push(c completion) {
	a.slots[(a.head+a.n)%len(a.slots)] = c
	a.n++
}

func (a *arrivals) pop() completion {
	c := a.slots[a.head]
	a.head = (a.head + 1) % len(a.slots)
	a.n--
	return c
}

// newLine makes a queue pair and posts its receives.
func (c *conn) newLine() (*line, error) {
	o := &c.home.opts
	l := &line{size: o.Buffer, depth: o.Depth}
	l.flights, l.works = make([]flight, l.depth), make([]work, 0, l.depth)
	l.polled, l.in.slots = make([]completion, 16), make([]completion, l.depth)
	if !c.home.enter() {
		return nil, failure(fault.Closed, "make a queue pair", nil)
	}
	err := l.open(c.home.device, func() { c.home.caller.Call(c.fired) })
	if err != nil {
		c.discard(l)
		return nil, failure(fault.Exhausted, "make a queue pair on "+c.home.device.describe(), err)
	}
	return l, nil
}

func (l *line) open(d device, notify func()) (err error) {
	if l.pair, err = d.newPair(l.depth, notify); err != nil {
		return err
	}
	if l.recv, err = d.alloc(l.depth*l.size, false); err != nil {
		return err
	}
	if l.send, err = d.alloc(l.depth*l.size, false); err != nil {
		return err
	}
	for i := range l.depth {
		if err := l.post(uint64(i)); err != nil {
			return err
		}
	}
	return nil
}

// room reports whether one more work may be posted.
func (l *line) room() bool { return l.posted-l.ended < uint64(l.depth) }

// isTurn reports whether the last work posted is one of those that are signalled in turn.
func (l *line) isTurn() bool { return l.posted%uint64(max(l.depth/signalEvery, 1)) == 0 }

// post gives receive buffer i to the device.
func (l *line) post(i uint64) error { return l.pair.receive(i, l.recv, l.buffer(l.recv, i)) }

func (l *line) buffer(r *region, i uint64) []byte {
	at := int(i) % l.depth * l.size
	return r.mem[at : at+l.size : at+l.size]
}

// close ends the queue pair.
func (l *line) close() {
	if l.pair != nil && !l.closed {
		l.pair.close()
	}
	l.closed = true
}

// free gives the buffers back, once.
func (l *line) free() (first bool) {
	if l.freed {
		return false
	}
	l.freed = true
	for _, r := range []*region{l.recv, l.send, l.strip} {
		if r != nil {
			r.drop()
		}
	}
	return true
}

// fail notes the first error of the queue pair.
func (l *line) fail(err error) {
	if l.err == nil {
		l.err = err
	}
}

// abandon takes the frames on their way, after close.
func (l *line) abandon(stale *transport.Queue) {
	for ; l.ended < l.posted; l.ended++ {
		f := &l.flights[(l.ended+1)%uint64(l.depth)]
		if f.frame != nil {
			stale.Push(f.frame)
		}
		f.lease.free()
		*f = flight{}
	}
}

// reap takes what the completion queue holds, after so many looks at most, and returns
// how much that was. mu is held.
func (c *conn) reap(looks int) int {
	l := c.line
	if l.closed {
		return 0
	}
	n, err := l.pair.poll(l.polled, looks)
	if err != nil {
		l.fail(failure(fault.LinkLost, "poll", fmt.Errorf("%s: %w", c.home.device.describe(), err)))
		return 0
	}
	for i := range l.polled[:n] {
		switch e := &l.polled[i]; {
		case e.status != success:
			l.fail(failed(c.home.device.describe(), *e))
		case e.recv:
			l.in.push(*e)
		default:
			c.landed(e.id)
		}
	}
	return n
}

// landed ends all works up to number n. mu is held.
func (c *conn) landed(n uint64) {
	l := c.line
	bytes := 0
	for ; l.ended < n; l.ended++ {
		f := &l.flights[(l.ended+1)%uint64(l.depth)]
		bytes += f.bytes
		if f.frame != nil {
			c.finished.Push(f.frame)
		}
		f.lease.free()
		*f = flight{}
	}
	if bytes > 0 {
		c.unsent.take(bytes)
	}
}
