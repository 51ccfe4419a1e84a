package grpc

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// A stream is what a gRPC stream is to either side of it. One goroutine at a time
// may be in SendMsg, and one in RecvMsg.
type stream interface {
	SendMsg(m any) error // waits for flow control
	RecvMsg(m any) error
}

// A conn is one stream on a connection of its own. Four goroutines serve it:
// gRPC's reader and writer of the connection, and on top of them readLoop, which
// fills the inbox, and writeLoop, which sends what Send could not. A fifth, wind,
// waits for the end.
//
// Locks: mu and inbox.mu are leaves. gRPC releases memory, and so takes mu, while
// it holds locks of its own; hence SendMsg is never called with mu held, and no
// Done runs where memory is released.
type conn struct {
	stream stream
	link   *link
	tune   tuning

	reading  atomic.Bool // the role: held for one call of Progress, never waited for
	decoder  decoder     // Progress's
	used     int         // bytes taken of the first buffer in the inbox; Progress's
	in       inbox
	hangUp   func()        // ends the stream on this side, in order; nil: writeLoop does
	closing  chan struct{} // closed by Close
	readEnd  chan struct{} // closed when readLoop has returned
	writeEnd chan struct{} // closed when writeLoop has returned

	mu          sync.Mutex      // guards the rest
	cond        sync.Cond       // rung for writeLoop and settle
	out         transport.Queue // frames of which gRPC has not been given all
	begun       bool            // the preamble of the first of them has been given to gRPC
	rest        pieces          // what of its body gRPC has not been given
	writing     bool            // a goroutine is in SendMsg, or about to be
	broken      bool            // SendMsg has failed; readLoop learns why
	inFlight    []*message      // given to gRPC and not released; at most flights and one
	idle        []*message      // to be used again; as many
	unsent      int             // bytes of all frames that gRPC has not written
	lastWrite   time.Time       // when it last wrote some, or when there began to be any
	completions []completion    // frames whose Done is to run
	completing  bool            // a goroutine runs them
	closed      bool            // by Close
	err         *fault.Error    // the first error, and final
}

// An completion is a frame whose memory is free again.
type completion struct {
	frame *transport.Frame
	err   error
}

// newConn makes the Conn of a connection. Whoever opens the stream sets it before
// the Conn is seen by anyone else.
func newConn(raw, above net.Conn, tune tuning) *conn {
	c := &conn{tune: tune, closing: make(chan struct{}),
		readEnd: make(chan struct{}), writeEnd: make(chan struct{})}
	c.cond.L = &c.mu
	c.in.cond.L = &c.in.mu
	c.in.room = tune.inbox
	c.link = newLink(raw, above, func(err error) { c.fail(linkFailure(err)) })
	c.decoder.admitted = c.link.admitted.Load
	return c
}

// awaitEnd waits until the Conn has ended, and clears away. stop ends gRPC on this
// connection, and returns when none of its goroutines touches memory of frames.
func (c *conn) awaitEnd(stop func()) {
	select {
	case <-c.link.over:
	case <-c.closing:
		c.awaitPeerClose()
	}
	hard := time.AfterFunc(closeTime, c.link.cut) // for a writer that is stuck
	stop()
	hard.Stop()
	c.link.cut()
	c.fail(linkFailure(errGivenUp))
	c.drain()
}

// awaitPeerClose gives gRPC some time to write what it has been given, and the peer to
// take notice and to close the connection, before it is cut. A frame that was Done
// before Close gets out in that time, or its peer takes nothing any more.
func (c *conn) awaitPeerClose() {
	if c.hangUp != nil {
		c.hangUp()
	}
	timer := time.NewTimer(closeTime)
	defer timer.Stop()
	select {
	case <-c.link.over:
	case <-timer.C:
	}
}

// Send queues f. When nothing is on its way it hands the first message to gRPC
// itself, which saves a switch of goroutines and cannot block: gRPC's SendMsg
// waits only while earlier messages of the stream are unwritten (writeQuota.get).
func (c *conn) Send(f *transport.Frame) {
	if err := sendable(f); err != nil {
		f.Done(err)
		return
	}
	c.mu.Lock()
	if c.err != nil {
		err := c.err
		c.mu.Unlock()
		f.Done(err)
		return
	}
	if c.unsent == 0 {
		c.lastWrite = time.Now()
	}
	c.unsent += preambleSize + len(f.Head) + f.Size()
	c.out.Push(f)
	if c.writing || c.broken || len(c.inFlight) > 0 {
		c.cond.Broadcast()
		c.mu.Unlock()
		return
	}
	m, copied := c.next()
	c.mu.Unlock()
	c.sendMessage(m, copied)
}

// TrySend implements transport.Conn: gRPC keeps what it is given until it has
// written it, so that nothing is sent inline.
func (c *conn) TrySend(head, body []byte) bool { return false }

// sendable refuses what no Conn of this kind can send.
func sendable(f *transport.Frame) error {
	if len(f.Head) > transport.MaxHead {
		return failure(fault.Misuse, "send",
			fmt.Errorf("got a head of %d bytes, want at most %d", len(f.Head), transport.MaxHead))
	}
	if f.To != (transport.Token{}) {
		return failure(fault.Misuse, "send", errors.New("got a frame with a Token, want none: grpc exposes no memory"))
	}
	return nil
}

// Progress copies what has arrived to where it goes. Sending needs no calls of
// it. An empty inbox costs two atomic operations.
func (c *conn) Progress(in transport.Sink, _ int) (transport.State, error) {
	if !c.reading.CompareAndSwap(false, true) {
		return transport.Busy, nil
	}
	defer c.reading.Store(false)
	if c.in.empty() {
		return transport.Idle, nil
	}
	moved, err := c.deliver(in)
	if err != nil {
		return transport.Idle, err
	}
	if !moved {
		return transport.Idle, nil
	}
	return transport.Moved, nil
}

// Arm has ready run once the inbox is not empty, or the Conn has ended.
func (c *conn) Arm(ready func()) { c.in.arm(ready) }

// Close ends the Conn for its owner at once. What gRPC has been given already may
// still go out, for as long as lingerTime, before the connection is cut.
func (c *conn) Close() error {
	c.fail(failure(fault.Closed, "this end has closed", nil))
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.closing)
	}
	c.cond.Broadcast()
	c.mu.Unlock()
	c.in.shut()
	return nil
}

// Unsent is how many bytes of frames this end has taken and gRPC has not written,
// and since when it has written none of them. Zero bytes: nothing waits, or the
// Conn has ended.
func (c *conn) Unsent() (bytes int, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unsent == 0 || c.err != nil {
		return 0, time.Time{}
	}
	return c.unsent, c.lastWrite
}

// fail ends sending with the Conn's first error. Frames of which gRPC knows
// nothing get Done here; the others when gRPC is done with their memory.
func (c *conn) fail(err *fault.Error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	stale, err := c.dequeueUnsent(), c.err
	c.cond.Broadcast()
	c.mu.Unlock()
	finish(&stale, err)
}

// dequeueUnsent takes the frames that gRPC has not been given any of. mu is held.
func (c *conn) dequeueUnsent() transport.Queue {
	stale := c.out
	c.out = transport.Queue{}
	if c.begun {
		c.out.Push(stale.Pop())
	}
	return stale
}

// finish runs Done for all of q.
func finish(q *transport.Queue, err error) {
	for f := q.Pop(); f != nil; f = q.Pop() {
		f.Done(err)
	}
}

// first is the Conn's first error; nil while it lives.
func (c *conn) first() *fault.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// A pendingConn is the accepting end. Its peer has proven nothing until Admit.
type pendingConn struct{ *conn }

// Admit lifts the bounds on what the peer may send, and frees its slot.
func (g pendingConn) Admit() { g.link.admit() }

// RemoteAddr is the peer's address.
func (g pendingConn) RemoteAddr() net.Addr { return g.link.raw.RemoteAddr() }

var (
	_ transport.Conn    = (*conn)(nil)
	_ transport.Pending = pendingConn{}
)
