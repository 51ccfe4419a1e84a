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
	relaying stage = iota // frames go over the set-up link
	agreeing              // the same; a queue pair is offered or answered
	leaving               // the last frame for the set-up link is not Done: frames wait
	live                  // frames go over the queue pair
)

// A conn is one end of a link: TensorFlow's channel. It is a Conn of the set-up
// transport first, and has a queue pair from Admit on; what was sent before still
// arrives before what is sent after. The set-up link stays: that it breaks is how
// an idle end learns that its peer is gone, for which a queue pair has no means.
//
// Locks: mu, then the device's. The set-up link is never called with mu held, nor
// are a Sink, Done or ready.
type conn struct {
	home     *Transport
	setup    transport.Conn
	accepted bool
	salt     uint64

	reading  atomic.Bool // the role: held for one call of Progress, never waited for
	setupDue atomic.Bool // the set-up link has something
	switched atomic.Bool // nothing of the peer's owner comes over the set-up link any more
	spent    atomic.Bool // the buffers may be given back once nobody is in Progress
	fired    func()      // c.fire, bound once
	rung     func()      // c.setupRang, bound once

	// of the role
	relay  relay
	head   [transport.MaxHead]byte // of the frame whose body is placed
	header transport.Header        // of the same

	mu        sync.Mutex // guards the rest
	stage     stage
	wanted    bool             // there is to be a queue pair
	admitted  bool             // accepted: Admit has been called
	holding   bool             // frames wait for the queue pair from now on
	early     transport.Queue  // for the set-up link
	passing   bool             // a goroutine hands early over
	marker    *transport.Frame // the last of early: this end's READY or OVER
	out       transport.Queue  // for the queue pair
	current   *transport.Frame
	lease     *lease // current's body, registered
	left      int    // bytes of current that are in no flight yet
	flow      *flow
	line      *line // nil before the stage agreeing
	theirs    hello
	exposures []exposure      // by slot
	placing   *lease          // what the arriving body is written to
	finished  transport.Queue // Done is to run, without an error
	err       error           // the first error, and final
	shut      bool            // nothing is to be delivered any more
	ready     func()          // armed
	unsent    unsent
}

func newConn(home *Transport, setup transport.Conn, accepted bool) *conn {
	c := &conn{home: home, setup: setup, accepted: accepted, salt: newSalt(), wanted: !accepted || !home.opts.OnRequest}
	c.flow = newFlow(home.opts.Depth, 0, 0, segmentSize)
	c.relay.c = c
	c.fired, c.rung = c.fire, c.setupRang
	return c
}

// Send queues f, and posts what the peer has room for.
func (c *conn) Send(f *transport.Frame) {
	if len(f.Head) > transport.MaxHead {
		f.Done(failure(fault.Misuse, "send", fmt.Errorf("a head of %d bytes, of at most %d", len(f.Head), transport.MaxHead)))
		return
	}
	c.mu.Lock()
	if c.err != nil {
		err := c.err
		c.mu.Unlock()
		f.Done(err)
		return
	}
	if c.stage < leaving && !c.holding && f.To == (transport.Token{}) {
		c.early.Push(f)
		c.passOn()
		return
	}
	c.holding = true
	c.out.Push(f)
	c.unsent.add(sizeOf(f))
	c.pumpAndUnlock()
}

// passOn hands what is for the set-up link over, in order: by one goroutine at a
// time, and without mu, for a Done may run in there. It unlocks mu.
func (c *conn) passOn() {
	if c.passing {
		c.mu.Unlock()
		return
	}
	c.passing = true
	for f := c.early.Pop(); f != nil; f = c.early.Pop() {
		literal := looksLikeSetup(f.Head) && f != c.marker
		c.mu.Unlock()
		if literal {
			c.setup.Send(setupFrame(sayLiteral, nil, ignore))
		}
		c.setup.Send(f)
		c.mu.Lock()
	}
	c.passing = false
	c.mu.Unlock()
}

func ignore(error) {}

// Progress delivers at most one frame, and posts what can be posted now.
func (c *conn) Progress(in transport.Sink) (transport.State, error) { return c.Linger(in, 1) }

// progress is Progress by whoever has the role.
func (c *conn) progress(in transport.Sink, looks int) (transport.State, error) {
	due := c.setupDue.Load() && c.setupDue.Swap(false) // nearly always not
	if (due || !c.switched.Load()) && !c.failed() {
		if moved := c.progressSetup(in); moved {
			return transport.Moved, nil
		}
	}
	return c.deliver(in, looks)
}

func (c *conn) failed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil
}

// progressSetup moves the set-up link, until the peer's queue pair takes over:
// then it only looks there when something has come.
func (c *conn) progressSetup(in transport.Sink) (moved bool) {
	c.relay.owner = in
	state, err := c.setup.Progress(&c.relay)
	c.relay.owner = nil
	switch {
	case c.relay.err != nil:
		c.end(failure(fault.LinkLost, "the peer sent nonsense on the set-up link", c.relay.err), true)
	case err != nil:
		c.end(err, false)
	case state == transport.Moved:
		c.setupDue.Store(true)
		return true
	case c.switched.Load():
		c.setup.Arm(c.rung)
	}
	return false
}

// Arm has ready run once Progress could move something.
func (c *conn) Arm(ready func()) {
	c.mu.Lock()
	c.ready = ready
	due := c.due()
	if !due && c.line != nil {
		if err := c.line.pair.arm(); err != nil {
			c.line.fail(failure(fault.LinkLost, "arm", err))
		}
		due = c.reap(1) > 0 || c.due()
	}
	relayed := !c.switched.Load()
	c.mu.Unlock()
	switch {
	case due || c.setupDue.Load():
		c.home.caller.Call(c.fired)
	case relayed:
		c.setup.Arm(c.rung)
	}
}

// due reports whether Progress would find something; mu is held.
func (c *conn) due() bool {
	return c.err != nil || !c.finished.Empty() || c.line != nil && (c.line.in.n > 0 && c.switched.Load() || c.line.err != nil)
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

// setupRang is the set-up link's wake-up.
func (c *conn) setupRang() {
	c.setupDue.Store(true)
	c.fire()
}

// Close ends the Conn at once. What is Done is in the peer's memory already.
func (c *conn) Close() error {
	c.end(failure(fault.Closed, "this end has closed", nil), true)
	return nil
}

// end fails the Conn, unless it has failed already: the queue pair is closed, so
// that nothing writes any more, and every frame gets its Done. Unless it is
// abrupt, what had come whole is still delivered.
func (c *conn) end(err error, abrupt bool) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.shut = c.shut || abrupt
	done, stale, err := c.dismantle(), c.unsentFrames(), c.err
	c.mu.Unlock()
	finish(&done, nil)
	finish(&stale, err)
	c.setup.Close()
	c.home.caller.Call(c.fired)
	c.spend()
}

// dismantle closes the queue pair and takes all memory but the message buffers
// from the device. It returns the frames that were sent before. mu is held.
func (c *conn) dismantle() (done transport.Queue) {
	if l := c.line; l != nil && !l.closed {
		for !c.shut && c.reap(1) > 0 {
		}
		l.close()
	}
	for i := range c.exposures {
		c.exposures[i].lease.drop()
		c.exposures[i].lease = nil
	}
	c.dropPlacing()
	done, c.finished = c.finished, transport.Queue{}
	return done
}

// unsentFrames takes the frames that are queued or on their way. mu is held.
func (c *conn) unsentFrames() (stale transport.Queue) {
	if c.line != nil {
		c.line.abandon(&stale)
	}
	if c.current != nil {
		stale.Push(c.current)
		c.current = nil
	}
	c.lease.free()
	c.lease = nil
	for f := c.out.Pop(); f != nil; f = c.out.Pop() {
		stale.Push(f)
	}
	for f := c.early.Pop(); f != nil; f = c.early.Pop() {
		stale.Push(f)
	}
	c.unsent = unsent{}
	return stale
}

// finish runs Done for all of q.
func finish(q *transport.Queue, err error) {
	for f := q.Pop(); f != nil; f = q.Pop() {
		f.Done(err)
	}
}

// dropPlacing takes the arriving body's memory from the device; mu is held.
func (c *conn) dropPlacing() {
	c.placing.drop()
	c.placing = nil
}

// spend gives the message buffers back as soon as nothing is to be delivered.
func (c *conn) spend() {
	c.mu.Lock()
	spent := c.line == nil || c.line.closed && (c.shut || c.line.in.n == 0)
	c.mu.Unlock()
	if spent {
		c.spent.Store(true)
		c.giveBack()
		c.home.forget(c)
	}
}

// giveBack frees the message buffers unless somebody is in Progress, who then
// does.
func (c *conn) giveBack() {
	if !c.reading.CompareAndSwap(false, true) {
		return
	}
	c.mu.Lock()
	if c.line != nil && c.line.free() {
		c.home.leave()
	}
	c.mu.Unlock()
	c.reading.Store(false)
}

var (
	_ transport.Conn    = (*conn)(nil)
	_ transport.Exposer = (*conn)(nil)
)
