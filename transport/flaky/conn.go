package flaky

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A conn is a wrapped Conn. It has its own queue in front of the queue of the inner Conn. So
// frames leave in the order in which they were counted, even if one of them is delayed.
//
//	pumping  timer  meaning
//	no       nil    nothing is queued, or the goroutine that queued a frame is about to call pump
//	yes      nil    a goroutine passes frames to the inner Conn
//	yes      set    a delay holds the queue; its timer, or endDelay, resumes it
//
// Once err is set or closed is true, queued frames fail and are no longer delayed.
type conn struct {
	node    *node
	inner   transport.Conn
	reading atomic.Bool // set while a goroutine is in Progress
	sink    sink        // Sink that Progress passes to the inner Conn

	mu       sync.Mutex // guards the rest; not held while other code is called
	to       int
	peer     *conn // the other end; nil if unknown
	err      error // the first error, from a rule or from the inner Conn's Progress
	closed   bool
	queue    []*queuedFrame
	pumping  bool        // see the table
	timer    *time.Timer // timer of the delay that holds the queue; nil: no delay
	held     time.Time   // when that delay began
	sent     int         // number of frames given to the inner Conn
	tryRules *[]int      // rules for the frame that TrySend has counted and refused; nil: none
	due      map[int]int // rules for arriving frames, by the frame's number
}

// A queuedFrame is a copy of a frame of the caller. Rules may change the copy.
type queuedFrame struct {
	transport.Frame
	orig  *transport.Frame
	delay time.Duration
	due   []int // rules that cut or kill at this frame
	err   error // error for its Done if a cut comes before the frame
}

// unbound returns a Conn without an inner Conn. A Dial needs the Conn before the inner Dial
// returns, so that the other end can pair with it.
func (n *node) unbound(to int) *conn { return &conn{node: n, to: to} }

// newConn wraps inner. If the node has died, the Conn is cut at once.
func (n *node) newConn(inner transport.Conn, to int) *conn {
	c := n.unbound(to)
	c.bind(inner)
	return c
}

// bind sets the inner Conn. If the node has died meanwhile, it cuts the Conn.
func (c *conn) bind(inner transport.Conn) {
	c.inner = inner
	if !c.node.script.register(c) {
		c.cut(failure(fault.LinkLost, "use of a Conn", errDied))
	}
}

// step returns the Step that this end is about to make.
func (c *conn) step(kind StepKind, head []byte) Step {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Step{Kind: kind, From: c.node.number, To: c.to, Head: head}
}

// Send counts f as a step and sends it, unless a rule applies.
//
// Send copies f, because a rule may change the head or the body. Send applies rules for
// corruption and delay itself. Rules for cuts and deaths are applied when the frame leaves the
// queue.
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

// send counts h, applies the rules for corruption and delay, and queues h.
func (c *conn) send(h *queuedFrame, kind StepKind) {
	// The inner Conn gets the copy with this Done. finished calls the Done of the original frame.
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

// finished calls the caller's Done. After a cut it replaces an error of the inner Conn by the
// rule's error.
//
// The inner Conn only reports that it was closed. The caller gets the fault that the rule
// describes, as if the wire had failed.
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
// goroutine, or a caller of this call, is already in pump.
//
// No lock is held while a frame is passed on, because its Done may run inside Send and may send
// another frame. The running loop passes that frame on, too.
func (c *conn) pump() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pumping {
		return
	}
	c.pumping = true
	for len(c.queue) > 0 {
		h := c.queue[0]
		// The timer's goroutine continues with the queue. Until then pumping stays set.
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

// pass applies the rules for one frame, and sends the frame. The argument number is the frame's
// number on this Conn.
//
// The moment of a cut says how much of the frame arrives: nothing (Before), half of the body
// (Within) or the whole frame (After). The sender does not know when its frame arrives. So pass
// registers the rule with the peer Conn, which applies the rule when the frame with this number
// arrives:
//
//	Before   this end sends an empty frame in place of the frame; the peer cuts when it arrives
//	Within   this end sends the frame; the peer passes half of the body on, and then cuts
//	After    this end sends the frame; the peer passes the frame on, and then cuts
//
// If the peer Conn is unknown, or cannot see the frame, this end applies the rule.
func (c *conn) pass(h *queuedFrame, number int) {
	s := c.node.script
	for _, i := range h.due {
		c.mu.Lock()
		peer, err := c.peer, c.err
		c.mu.Unlock()
		switch {
		case err != nil:
		// The other end may not see the frame. So only the frame's Done shows that the frame has
		// arrived.
		case h.noNotify() && s.rules[i].moment == After:
			h.applyWhenDone(c, i)
		// The other end cuts when this frame arrives there.
		case peer != nil && !h.noNotify():
			peer.expect(number, i)
			if s.rules[i].moment == Before {
				h.clear(failure(fault.LinkLost, s.rules[i].String(), nil))
			}
		// The other end is unknown, or does not see this frame. So this end cuts.
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

// noNotify reports whether the frame goes to memory that was exposed without notification.
// Neither end numbers such frames, because the receiver may not see them. Rules for such frames
// are applied at the sender.
func (h *queuedFrame) noNotify() bool {
	return h.To != (transport.Token{}) && h.ID == transport.NoNotify
}

// applyWhenDone arranges that rule i is applied when the frame is Done.
func (h *queuedFrame) applyWhenDone(c *conn, i int) {
	done := h.Done
	h.Done = func(err error) {
		if err == nil {
			c.node.script.apply(i, c.node.number, c)
		}
		done(err)
	}
}

// clear removes head, body and target of a frame before which a rule cuts. The empty frame is still
// sent. So the other end gets all earlier frames, and nothing of this frame's content.
func (h *queuedFrame) clear(err error) {
	h.err = err
	h.Head, h.Body, h.Parts, h.To = nil, nil, nil, transport.Token{}
}

// expect registers rule i for the frame with the given number among the frames that arrive here.
//
// Both ends number the frames of a Conn from the first frame on, so the number identifies the
// frame.
func (c *conn) expect(number, i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.due == nil {
		c.due = make(map[int]int)
	}
	c.due[number] = i
}

// cut ends this Conn with err, as if the wire had failed. The other end gets the error that the
// inner transport reports when a Conn is closed.
//
// cut sets the error before it closes the inner Conn. So no method returns the error of the inner
// Conn.
func (c *conn) cut(err error) {
	c.mu.Lock()
	if c.err == nil && !c.closed {
		c.err = err
	}
	c.mu.Unlock()
	c.inner.Close()
	c.endDelay()
}

// endDelay ends a running delay. The queued frames then fail.
//
// A cut and Close call it. If the timer has fired already, the goroutine of the timer resumes
// the queue.
func (c *conn) endDelay() {
	c.mu.Lock()
	stopped := c.timer != nil && c.timer.Stop()
	c.mu.Unlock()
	if stopped {
		c.resume()
		c.node.timers.Done()
	}
}

// Arm arms the inner Conn. A cut closes the inner Conn, which calls ready.
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

// flipped returns a copy of b with one bit flipped. The argument k determines which bit is flipped.
// b must not be empty.
//
// CRC-32C detects every single flipped bit. So a test with checksums may expect an error.
func flipped(b []byte, k int) []byte {
	b = slices.Clone(b)
	bit := k * 7919 % (8 * len(b)) // any bit is fine; a prime reaches all of them
	b[bit/8] ^= 1 << (bit % 8)
	return b
}

// corruptBody flips a bit in the first non-empty piece of the body. It returns false if the
// whole body is empty.
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
