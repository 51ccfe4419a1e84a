package verbs

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A stage is the progress of a Conn from its set-up link to its queue pair. Each end passes
// through all stages in order, unless it fails or stays on the set-up link (Options.OnRequest).
//
//	stage        left when, accepting end                dialling end
//	onSetupLink  Admit (and WANT): sends OFFER           OFFER arrives: sends ANSWER
//	negotiating  ANSWER arrives: queues READY            READY arrives: queues OVER
//	switching    READY is Done                           OVER is Done
//	live         never
//
// Receiving switches independently of the stage: recvSwitched is set when READY or OVER of the
// peer arrives.
type stage uint8

const (
	onSetupLink stage = iota // frames go over the set-up link
	negotiating              // frames go over the set-up link; a queue pair is offered or answered
	switching                // the last frame on the set-up link is not Done yet; later frames wait
	live                     // frames go over the queue pair
)

// A conn is one end of a link (TensorFlow calls a link a channel). It starts as a Conn of the
// set-up transport. It gets a queue pair after Admit. Frames sent before the switch to the queue
// pair arrive before frames sent after the switch. The set-up link stays open afterwards: when
// it breaks, an idle Conn learns that the peer is gone. A queue pair cannot report that.
//
// Failure and Close:
//
//	err   closed  meaning
//	nil   false   in use
//	set   false   failed: frames that have arrived whole are still delivered, then err is returned
//	set   true    closed, or failed by the peer's protocol error: nothing is delivered
//
// Lock order: mu before locks of the device. mu is not held during calls of the set-up link, a
// Sink, a Done or a ready callback. The goroutine that has set progressing is in Progress. No
// goroutine waits for progressing.
type conn struct {
	// Immutable.
	transport *Transport
	setup     transport.Conn
	accepted  bool
	salt      uint64

	// Used without mu, mostly by every call of Progress.
	progressing    atomic.Bool // set during each call of Progress
	setupPending   atomic.Bool // the set-up link may have something to read
	recvSwitched   atomic.Bool // the peer sends its frames over the queue pair
	releasable     atomic.Bool // the message buffers may be released after Progress
	fireFunc       func()      // c.fire, bound once
	setupReadyFunc func()      // c.setupReady, bound once

	// Owned by the goroutine in Progress.
	setupSink setupSink
	head      [transport.MaxHead]byte // of the frame whose requested body is arriving
	header    transport.Header        // of the same frame

	mu    sync.Mutex // guards the rest
	stage stage
	// These fields control the move from the set-up link to the queue pair. Frames that are sent
	// before the flag holding is set go to setupQueue. All later frames go to the queue out. The
	// last frame of setupQueue is marker.
	wanted     bool             // a queue pair is wanted
	admitted   bool             // accepting end: Admit has been called
	holding    bool             // frames are for the queue pair from now on
	setupQueue transport.Queue  // for the set-up link
	flushing   bool             // a goroutine is sending setupQueue
	marker     *transport.Frame // the last frame of setupQueue: this end's READY or OVER
	// These fields are for sending over the queue pair. A frame first waits in the queue out. Then
	// it moves to current: the flow has it, and its parts are being posted. Once all parts are
	// posted, the frame belongs to the endpoint. Once the frame is acknowledged, it moves to
	// finished, and its Done runs after mu is unlocked.
	out        transport.Queue  // for the queue pair
	current    *transport.Frame // frame that is being posted; nil: none
	currentReg *registration    // registration of current's body
	body       []byte           // body of current; a copy from staging if the body is in parts
	staging    [][]byte         // buffers that no frame uses; at most maxStaging
	unposted   int              // bytes of current that are not posted yet
	// These fields hold what both ends have agreed on. The field peer is the hello that the peer
	// has sent.
	flow     *flow
	endpoint *endpoint // nil before stage negotiating
	peer     hello
	// Memory into which the peer may write.
	exposures []exposure      // by slot
	bodyReg   *registration   // registration of the memory for the arriving body
	finished  transport.Queue // frames whose Done is to run without an error
	// The end of the Conn, and the callback that waits for events.
	err    error  // the first error; it never changes
	closed bool   // nothing more is to be delivered
	ready  func() // callback of Arm; nil: not armed
	unsent unsent
}

// newConn returns a Conn over a set-up link. A dialled Conn always wants a queue pair. With
// Options.OnRequest an accepted Conn wants one only after its peer has requested it.
func newConn(t *Transport, setup transport.Conn, accepted bool) *conn {
	c := &conn{transport: t, setup: setup, accepted: accepted, salt: newSalt(), wanted: !accepted || !t.opts.OnRequest}
	c.flow = newFlow(t.opts.Depth, 0, 0, segmentSize)
	c.setupSink.c = c
	c.fireFunc, c.setupReadyFunc = c.fire, c.setupReady
	return c
}

// Send queues f, and posts as many work requests as credits permit.
func (c *conn) Send(f *transport.Frame) {
	if len(f.Head) > transport.MaxHead {
		f.Done(failure(fault.Misuse, "send", fmt.Errorf("got a head of %d bytes, want at most %d", len(f.Head), transport.MaxHead)))
		return
	}
	c.mu.Lock()
	if c.err != nil {
		err := c.err
		c.mu.Unlock()
		f.Done(err)
		return
	}
	// A frame with a Token means that the peer has exposed memory. So the peer has a queue pair,
	// and this end will have one soon. Later frames wait, too, to keep the order.
	if c.stage < switching && !c.holding && f.To == (transport.Token{}) {
		c.setupQueue.Push(f)
		c.flushSetupQueueAndUnlock()
		return
	}
	c.holding = true
	c.out.Push(f)
	c.unsent.add(sizeOf(f))
	c.pumpAndUnlock()
}

// flushSetupQueueAndUnlock sends the frames of setupQueue over the set-up link in order, and
// unlocks mu. Only one goroutine at a time sends. It does not hold mu during a Send, because a
// Done may run inside.
func (c *conn) flushSetupQueueAndUnlock() {
	if c.flushing {
		c.mu.Unlock()
		return
	}
	c.flushing = true
	for f := c.setupQueue.Pop(); f != nil; f = c.setupQueue.Pop() {
		// The head of a frame of the caller may look like the head of a set-up message. A LITERAL
		// before the frame marks it as a frame of the caller.
		literal := looksLikeSetup(f.Head) && f != c.marker
		c.mu.Unlock()
		if literal {
			c.setup.Send(setupFrame(setupLiteral, nil, ignore))
		}
		c.setup.Send(f)
		c.mu.Lock()
	}
	c.flushing = false
	c.mu.Unlock()
}

// ignore is the Done of frames whose result does not matter, because if such a frame fails, the
// Conn fails, too.
func ignore(error) {}

// progress does the work of Progress. Only the goroutine that has set progressing calls it.
func (c *conn) progress(in transport.Sink, spins int) (transport.State, error) {
	pending := c.setupPending.Load() && c.setupPending.Swap(false) // nearly always false
	// Before the switch, frames arrive over the set-up link. After the switch, the set-up link
	// only reports its failure.
	if (pending || !c.recvSwitched.Load()) && !c.hasFailed() {
		if moved := c.progressSetup(in); moved {
			return transport.Moved, nil
		}
	}
	return c.deliver(in, spins)
}

// hasFailed reports whether the Conn has failed or is closed.
func (c *conn) hasFailed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// progressSetup calls Progress of the set-up link. Once the peer has switched, progress calls it
// only when something has arrived on that link.
func (c *conn) progressSetup(in transport.Sink) (moved bool) {
	c.setupSink.caller = in
	state, err := c.setup.Progress(&c.setupSink, 1)
	c.setupSink.caller = nil
	switch {
	// If setupSink has found a protocol violation, that error is more precise than the error that
	// follows from it.
	case c.setupSink.err != nil:
		c.fail(failure(fault.LinkLost, "protocol error of the peer on the set-up link", c.setupSink.err), true)
	case err != nil:
		c.fail(err, false)
	case state == transport.Moved:
		c.setupPending.Store(true)
		return true
	case c.recvSwitched.Load():
		c.setup.Arm(c.setupReadyFunc)
	}
	return false
}

// Arm implements transport.Conn. It polls for completions after arming the device, because a
// completion that is already queued may not trigger a notification.
func (c *conn) Arm(ready func()) {
	c.mu.Lock()
	c.ready = ready
	// isPending is cheap, and returns true in most calls under load. The device is armed only if
	// isPending returns false, because arming costs a write to the device.
	pending := c.isPending()
	if !pending && c.endpoint != nil {
		if err := c.endpoint.qp.Arm(); err != nil {
			c.endpoint.setError(failure(fault.LinkLost, "arm", err))
		}
		pending = c.poll(1) > 0 || c.isPending()
	}
	onSetup := !c.recvSwitched.Load()
	c.mu.Unlock()
	switch {
	case pending || c.setupPending.Load():
		c.transport.caller.Call(c.fireFunc)
	case onSetup:
		c.setup.Arm(c.setupReadyFunc)
	}
}

// isPending reports whether Progress has work to do. mu is held.
func (c *conn) isPending() bool {
	return c.err != nil || c.finished.First != nil || c.endpoint != nil && (c.endpoint.arrivals.n > 0 && c.recvSwitched.Load() || c.endpoint.err != nil)
}

// fire runs the armed callback, once.
func (c *conn) fire() {
	c.mu.Lock()
	ready := c.ready
	c.ready = nil
	c.mu.Unlock()
	if ready != nil {
		ready()
	}
}

// setupReady is the callback of the set-up link's Arm.
func (c *conn) setupReady() {
	c.setupPending.Store(true)
	c.fire()
}

// Close implements transport.Conn. If the Done of a frame has run without an error, the frame is
// already in the peer's memory.
func (c *conn) Close() error {
	c.fail(failure(fault.Closed, "this end has closed", nil), true)
	return nil
}

// fail ends the Conn with err, unless the Conn has failed before. It closes the queue pair
// first, so that the peer can write nothing more. Then it runs the Done of each frame. If abrupt
// is false, frames that have arrived completely are still delivered.
func (c *conn) fail(err error, abrupt bool) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.closed = c.closed || abrupt
	done, unfinished, err := c.tearDown(), c.popUnfinished(), c.err
	c.mu.Unlock()
	finish(&done, nil)
	finish(&unfinished, err)
	c.setup.Close()
	c.transport.caller.Call(c.fireFunc)
	c.releaseIfDrained()
}

// tearDown closes the queue pair and deregisters all memory except for the message buffers. It
// returns the frames that were sent completely. mu is held.
func (c *conn) tearDown() (done transport.Queue) {
	if l := c.endpoint; l != nil && !l.closed {
		// Unless this is a Close, complete arrivals are delivered before the error. They must be
		// polled now, because closing the queue pair drops its completions.
		for !c.closed && c.poll(1) > 0 {
		}
		l.close()
	}
	// The queue pair is closed, so the device refuses all accesses of the peer from now on, and the
	// memory can be deregistered.
	for i := range c.exposures {
		c.exposures[i].reg.invalidate()
		c.exposures[i].reg = nil
	}
	c.deregisterBody()
	done, c.finished = c.finished, transport.Queue{}
	return done
}

// popUnfinished removes and returns the frames that are queued or outstanding. mu is held.
func (c *conn) popUnfinished() (unfinished transport.Queue) {
	if c.endpoint != nil {
		c.endpoint.abandon(&unfinished)
	}
	if c.current != nil {
		unfinished.Push(c.current)
		c.current = nil
	}
	c.currentReg.release()
	c.currentReg, c.body, c.staging = nil, nil, nil
	for f := c.out.Pop(); f != nil; f = c.out.Pop() {
		unfinished.Push(f)
	}
	for f := c.setupQueue.Pop(); f != nil; f = c.setupQueue.Pop() {
		unfinished.Push(f)
	}
	c.unsent = unsent{}
	return unfinished
}

// finish runs Done for all frames of q.
func finish(q *transport.Queue, err error) {
	for f := q.Pop(); f != nil; f = q.Pop() {
		f.Done(err)
	}
}

// deregisterBody deregisters the memory of the arriving body. mu is held.
func (c *conn) deregisterBody() {
	c.bodyReg.invalidate()
	c.bodyReg = nil
}

// releaseIfDrained releases the message buffers once nothing is left to be delivered from them.
func (c *conn) releaseIfDrained() {
	c.mu.Lock()
	drained := c.endpoint == nil || c.endpoint.closed && (c.closed || c.endpoint.arrivals.n == 0)
	c.mu.Unlock()
	if drained {
		c.releasable.Store(true)
		c.releaseBuffers()
		c.transport.removeConn(c)
	}
}

// releaseBuffers releases the message buffers, unless a goroutine is in Progress. In that case
// Progress releases them before it returns.
func (c *conn) releaseBuffers() {
	if !c.progressing.CompareAndSwap(false, true) {
		return
	}
	c.mu.Lock()
	if c.endpoint != nil && c.endpoint.releaseBuffers() {
		c.transport.releaseDevice()
	}
	c.mu.Unlock()
	c.progressing.Store(false)
}

var (
	_ transport.Conn    = (*conn)(nil)
	_ transport.Exposer = (*conn)(nil)
)
