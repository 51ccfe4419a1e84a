package verbs

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A stage is how far a Conn has come from its set-up link to its queue pair.
type stage uint8

const (
	onSetupLink stage = iota // frames go over the set-up link
	negotiating              // the same; a queue pair is offered or answered
	switching                // the last frame for the set-up link is not Done: frames wait
	live                     // frames go over the queue pair
)

// A conn is one end of a link: TensorFlow's channel. It is a Conn of the set-up
// transport first, and has a queue pair from Admit on; what was sent before still
// arrives before what is sent after. The set-up link stays: that it breaks is how
// an idle end learns that its peer is gone, for which a queue pair has no means.
//
// Locks: mu, then the device's. The set-up link is never called with mu held, nor
// are a Sink, Done or ready.
type conn struct {
	transport *Transport
	setup     transport.Conn
	accepted  bool
	salt      uint64

	progressing    atomic.Bool // the role: held for one call of Progress, never waited for
	setupPending   atomic.Bool // the set-up link has something
	recvSwitched   atomic.Bool // nothing of the peer's owner comes over the set-up link any more
	releasable     atomic.Bool // the buffers may be given back once nobody is in Progress
	fireFunc       func()      // c.fire, bound once
	setupReadyFunc func()      // c.setupRang, bound once

	// of the role
	setupSink setupSink
	head      [transport.MaxHead]byte // of the frame whose body is placed
	header    transport.Header        // of the same

	mu         sync.Mutex // guards the rest
	stage      stage
	wanted     bool             // there is to be a queue pair
	admitted   bool             // accepted: Admit has been called
	holding    bool             // frames wait for the queue pair from now on
	setupQueue transport.Queue  // for the set-up link
	flushing   bool             // a goroutine hands early over
	marker     *transport.Frame // the last of early: this end's READY or OVER
	out        transport.Queue  // for the queue pair
	current    *transport.Frame
	currentReg *registration // current's body, registered
	body       []byte        // current's; of one in parts a copy, from staging
	staging    [][]byte      // buffers that no frame uses; at most maxStaging
	unposted   int           // bytes of current that are in no flight yet
	flow       *flow
	endpoint   *endpoint // nil before the stage agreeing
	peer       hello
	exposures  []exposure      // by slot
	bodyReg    *registration   // what the arriving body is written to
	finished   transport.Queue // Done is to run, without an error
	err        error           // the first error, and final
	closed     bool            // nothing is to be delivered any more
	ready      func()          // armed
	unsent     unsent
}

func newConn(t *Transport, setup transport.Conn, accepted bool) *conn {
	c := &conn{transport: t, setup: setup, accepted: accepted, salt: newSalt(), wanted: !accepted || !t.opts.OnRequest}
	c.flow = newFlow(t.opts.Depth, 0, 0, segmentSize)
	c.setupSink.c = c
	c.fireFunc, c.setupReadyFunc = c.fire, c.setupReady
	return c
}

// Send queues f, and posts what the peer has room for.
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

// flushSetupQueueAndUnlock hands what is for the set-up link over, in order: by one goroutine at a
// time, and without mu, for a Done may run in there. It unlocks mu.
func (c *conn) flushSetupQueueAndUnlock() {
	if c.flushing {
		c.mu.Unlock()
		return
	}
	c.flushing = true
	for f := c.setupQueue.Pop(); f != nil; f = c.setupQueue.Pop() {
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

func ignore(error) {}

// progress is Progress by whoever has the role.
func (c *conn) progress(in transport.Sink, spins int) (transport.State, error) {
	pending := c.setupPending.Load() && c.setupPending.Swap(false) // nearly always not
	if (pending || !c.recvSwitched.Load()) && !c.hasFailed() {
		if moved := c.progressSetup(in); moved {
			return transport.Moved, nil
		}
	}
	return c.deliver(in, spins)
}

func (c *conn) hasFailed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// progressSetup moves the set-up link, until the peer's queue pair takes over:
// then it only looks there when something has come.
func (c *conn) progressSetup(in transport.Sink) (moved bool) {
	c.setupSink.owner = in
	state, err := c.setup.Progress(&c.setupSink, 1)
	c.setupSink.owner = nil
	switch {
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

// Arm has ready run once Progress could move something.
func (c *conn) Arm(ready func()) {
	c.mu.Lock()
	c.ready = ready
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

// isPending reports whether Progress would find something; mu is held.
func (c *conn) isPending() bool {
	return c.err != nil || c.finished.First != nil || c.endpoint != nil && (c.endpoint.arrivals.n > 0 && c.recvSwitched.Load() || c.endpoint.err != nil)
}

// fire runs the armed callback.
func (c *conn) fire() {
	c.mu.Lock()
	ready := c.ready
	c.ready = nil
	c.mu.Unlock()
	if ready != nil {
		ready()
	}
}

// setupReady is the set-up link's wake-up.
func (c *conn) setupReady() {
	c.setupPending.Store(true)
	c.fire()
}

// Close ends the Conn at once. What is Done is in the peer's memory already.
func (c *conn) Close() error {
	c.fail(failure(fault.Closed, "this end has closed", nil), true)
	return nil
}

// fail fails the Conn, unless it has failed already: the queue pair is closed, so
// that nothing writes any more, and every frame gets its Done. Unless it is
// abrupt, what had come whole is still delivered.
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

// tearDown closes the queue pair and takes all memory but the message buffers
// from the device. It returns the frames that were sent before. mu is held.
func (c *conn) tearDown() (done transport.Queue) {
	if l := c.endpoint; l != nil && !l.closed {
		for !c.closed && c.poll(1) > 0 {
		}
		l.close()
	}
	for i := range c.exposures {
		c.exposures[i].reg.invalidate()
		c.exposures[i].reg = nil
	}
	c.deregisterBody()
	done, c.finished = c.finished, transport.Queue{}
	return done
}

// popUnfinished takes the frames that are queued or on their way. mu is held.
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

// finish runs Done for all of q.
func finish(q *transport.Queue, err error) {
	for f := q.Pop(); f != nil; f = q.Pop() {
		f.Done(err)
	}
}

// deregisterBody takes the arriving body's memory from the device; mu is held.
func (c *conn) deregisterBody() {
	c.bodyReg.invalidate()
	c.bodyReg = nil
}

// releaseIfDrained gives the message buffers back as soon as nothing is to be delivered.
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

// releaseBuffers frees the message buffers unless somebody is in Progress, who then
// does.
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
