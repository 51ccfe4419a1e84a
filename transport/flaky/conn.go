package flaky

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A conn is a wrapped Conn. It keeps a queue of its own before the inner one's, so that frames
// leave in the order in which they were counted, also when one of them is delayed.
//
//	pumping  timer  meaning
//	no       nil    nothing is queued, or the goroutine that queued it is about to pump
//	yes      nil    a goroutine passes frames to the inner Conn
//	yes      set    a delay holds the queue; its timer, or endDelay, resumes it
//
// Once err is set or closed is true, queued frames are failed instead of delayed.
type conn struct {
	node    *node
	inner   transport.Conn
	reading atomic.Bool // held by Progress
	sink    sink        // of the running Progress

	mu       sync.Mutex // guards the rest; not held while other code is called
	to       int
	peer     *conn // the other end; nil if unknown
	err      error // the first error, of a rule or of inner's Progress
	closed   bool
	queue    []*queuedFrame
	pumping  bool        // see the table
	timer    *time.Timer // of the delay that holds the queue; nil: none does
	held     time.Time   // when that delay began
	sent     int         // frames given to inner
	tryRules *[]int      // the rules due at a frame that TrySend has counted and refused; nil: none is
	due      map[int]int // rules for arriving frames, by the frame's number
}

// A queuedFrame is a caller's frame as this package sends it: a copy, which rules may change.
type queuedFrame struct {
	transport.Frame
	orig  *transport.Frame
	delay time.Duration
	due   []int // rules that cut at it
	err   error // for its Done, if a cut comes before it
}

// unbound returns a Conn that has no inner Conn yet: a Dial needs it before the inner Dial returns,
// for the other end to pair with.
func (n *node) unbound(to int) *conn { return &conn{node: n, to: to} }

// newConn wraps inner. If the node has died the Conn is cut from the start.
func (n *node) newConn(inner transport.Conn, to int) *conn {
	c := n.unbound(to)
	c.bind(inner)
	return c
}

// bind sets the inner Conn. If the node has died meanwhile the Conn is cut.
func (c *conn) bind(inner transport.Conn) {
	c.inner = inner
	if !c.node.script.register(c) {
		c.cut(failure(fault.LinkLost, "use of a Conn", errDied))
	}
}

// step describes what this end is about to do.
func (c *conn) step(kind StepKind, head []byte) Step {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Step{Kind: kind, From: c.node.number, To: c.to, Head: head}
}

// Send counts f as a step and sends it, unless a rule applies.
//
// f is copied: a rule may change the head or the body of the copy, and the caller's memory stays
// untouched. Rules for corruption and delay are applied here; cuts and deaths when the frame leaves
// the queue.
func (c *conn) Send(f *transport.Frame) {
	kind := Frame
	if f.To != (transport.Token{}) {
		kind = Write
	}
	h := &queuedFrame{Frame: *f, orig: f}
	if f.Parts != nil && c.node.script.hides(Parts) {
		join(&h.Frame)
	} else if f.Parts != nil {
		kind = Parts
	}
	c.send(h, kind)
}

// send counts h, applies what applies to its bytes and time, and queues it.
func (c *conn) send(h *queuedFrame, kind StepKind) {
	// The inner Conn gets the copy and this Done, and the caller its own frame back.
	h.Done = func(err error) { c.finished(h, err) }
	s := c.node.script
	for _, i := range c.count(h.Head, kind) {
		switch r := s.rules[i]; r.action {
		case delay:
			h.delay += r.by
			s.fire(i)
		case corruptHead:
			if len(h.Head) > 0 {
				h.Head = flipped(h.Head, r.step)
				s.fire(i)
			}
		case corruptBody:
			if h.corruptBody(r.step) {
				s.fire(i)
			}
		default:
			h.due = append(h.due, i)
		}
	}
	c.mu.Lock()
	c.queue = append(c.queue, h)
	c.mu.Unlock()
	c.pump()
}

// finished calls the caller's Done. After a cut, an error of the inner Conn's end is replaced by
// the rule's error.
//
// The inner Conn reports that it was closed. The caller sees the fault that the rule describes
// instead, as it would on a wire that had failed.
func (c *conn) finished(h *queuedFrame, err error) {
	if err == nil {
		err = h.err
	} else {
		if first := c.failed(nil); first != nil {
			err = first
		}
	}
	h.orig.Done(err)
}

// pump passes the queued frames to the inner Conn, one by one. It returns at once if another
// goroutine, or a caller further up this one, is doing so.
//
// No lock is held while a frame is passed on, since its Done may run inside Send, and may send
// again. Such a frame is queued and passed on by the loop that is running.
func (c *conn) pump() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pumping {
		return
	}
	c.pumping = true
	for len(c.queue) > 0 {
		h := c.queue[0]
		// The timer's goroutine goes on with the queue, so that pumping stays set meanwhile.
		if h.delay > 0 && c.err == nil && !c.closed {
			c.wait(h)
			return // pumping stays set
		}
		c.queue[0] = nil
		c.queue = c.queue[1:]
		if !h.noNotify() {
			c.sent++
		}
		number := c.sent
		c.mu.Unlock()
		c.pass(h, number)
		c.mu.Lock()
	}
	c.pumping = false
}

// wait holds the queue for the first frame's delay. c.mu is held.
func (c *conn) wait(h *queuedFrame) {
	c.node.timers.Add(1)
	d := h.delay
	h.delay = 0
	c.held = time.Now()
	c.timer = time.AfterFunc(d, func() {
		defer c.node.timers.Done()
		c.resume()
	})
}

// resume continues with the queue after a delay.
func (c *conn) resume() {
	c.mu.Lock()
	c.timer = nil
	c.pumping = false
	c.mu.Unlock()
	c.pump()
}

// pass sends the number-th frame of this Conn, and applies its rules.
//
// A cut at a frame needs the other end: the frame has to arrive up to the chosen moment. So a rule
// is handed to the peer's Conn where that is known, and applied there when the frame with this
// number arrives:
//
//	Before   an empty frame is sent in its place; the peer cuts when it comes
//	Within   the frame is sent; the peer passes half of it on and cuts
//	After    the frame is sent; the peer passes it on and cuts
//
// Where the peer is unknown, or cannot see the frame, the rule is applied at this end.
func (c *conn) pass(h *queuedFrame, number int) {
	s := c.node.script
	for _, i := range h.due {
		c.mu.Lock()
		peer, err := c.peer, c.err
		c.mu.Unlock()
		switch {
		case err != nil:
		// The other end may not see the frame, so that it is known to have arrived only by its
		// Done.
		case h.noNotify() && s.rules[i].moment == After:
			h.applyWhenDone(c, i)
		// The other end cuts when this frame arrives there.
		case peer != nil && !h.noNotify():
			peer.expect(number, i)
			if s.rules[i].moment == Before {
				h.clear(failure(fault.LinkLost, s.rules[i].String(), nil))
			}
		// The other end is unknown, or does not see this frame: cut here.
		case s.rules[i].moment == Before:
			s.apply(i, c.node.number, c)
		default:
			defer s.apply(i, c.node.number, c)
		}
	}
	err := c.failed(nil)
	if err != nil {
		h.Done(err)
		return
	}
	c.inner.Send(&h.Frame)
}

// noNotify reports whether the frame goes to memory whose owner needs no notification. Both ends
// leave such frames out when they number frames, so that rules apply to them at the sender.
func (h *queuedFrame) noNotify() bool {
	return h.To != (transport.Token{}) && h.ID == transport.NoNotify
}

// applyWhenDone applies rule i when the frame is Done.
func (h *queuedFrame) applyWhenDone(c *conn, i int) {
	done := h.Done
	h.Done = func(err error) {
		if err == nil {
			c.node.script.apply(i, c.node.number, c)
		}
		done(err)
	}
}

// clear empties a frame that is to be cut before it. The other end still learns that it has come:
// what was sent before it arrives, and nothing of its body.
func (h *queuedFrame) clear(err error) {
	h.err = err
	h.Head, h.Body, h.Parts, h.To = nil, nil, nil, transport.Token{}
}

// expect registers rule i for the number-th frame that arrives here.
//
// Both ends count the frames of a Conn from its first one, so that the number identifies the frame.
func (c *conn) expect(number, i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.due == nil {
		c.due = make(map[int]int)
	}
	c.due[number] = i
}

// cut ends this Conn with err, as if the wire had failed. The other end sees what the inner
// transport shows of a closed Conn.
//
// The error is set before the inner Conn is closed, so that no method returns the inner Conn's own
// error for it.
func (c *conn) cut(err error) {
	c.mu.Lock()
	if c.err == nil && !c.closed {
		c.err = err
	}
	c.mu.Unlock()
	c.inner.Close()
	c.endDelay()
}

// endDelay ends a delay, because the queue is to be failed.
//
// It is called after a cut or a Close. If the timer has fired already, the timer's goroutine
// resumes the queue.
func (c *conn) endDelay() {
	c.mu.Lock()
	stopped := c.timer != nil && c.timer.Stop()
	c.mu.Unlock()
	if stopped {
		c.resume()
		c.node.timers.Done()
	}
}

// Arm arms the inner Conn. A cut closes that, and so wakes it.
func (c *conn) Arm(ready func()) { c.inner.Arm(ready) }

// Unsent implements transport.Conn: it returns what the inner Conn reports, and adds the frames
// that a delay holds here.
func (c *conn) Unsent() (bytes int, since time.Time) {
	bytes, since = c.inner.Unsent()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer == nil || c.err != nil || c.closed {
		return bytes, since
	}
	if bytes == 0 {
		since = c.held
	}
	for _, h := range c.queue {
		bytes += max(1, len(h.Head)+h.Size())
	}
	return bytes, since
}

// Close closes the wrapped Conn.
func (c *conn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.node.script.unregister(c)
	err := c.inner.Close()
	c.endDelay()
	return err
}

// flipped returns a copy of b, which is not empty, with one bit flipped. k determines which bit.
//
// CRC-32C detects every single flipped bit, so that a test with checksums may expect an error.
func flipped(b []byte, k int) []byte {
	b = slices.Clone(b)
	bit := k * 7919 % (8 * len(b)) // any bit is fine; a prime reaches all of them
	b[bit/8] ^= 1 << (bit % 8)
	return b
}

// corruptBody flips a bit in the first piece of the body that is not empty. It returns false if the
// body is empty.
func (h *queuedFrame) corruptBody(k int) bool {
	if len(h.Body) > 0 {
		h.Body = flipped(h.Body, k)
		return true
	}
	for i, p := range h.Parts {
		if len(p) > 0 {
			h.Parts = slices.Clone(h.Parts)
			h.Parts[i] = flipped(p, k)
			return true
		}
	}
	return false
}
