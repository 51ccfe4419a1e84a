package grpc

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/transport"
)

// A stream is the part of the gRPC API that the dialling and the accepting side share. At most one
// goroutine may be in SendMsg, and at most one in RecvMsg.
type stream interface {
	SendMsg(m any) error // waits for flow control
	RecvMsg(m any) error
}

// A conn is one gRPC stream on its own connection. Five goroutines serve it: gRPC's reader and
// gRPC's writer of the connection; readLoop, which fills the inbox; writeLoop, which sends the
// frames that Send could not send; and awaitEnd, which releases all resources at the end.
//
// The first frame of out may be partly sent:
//
//	begun  writing  meaning
//	no     no       nothing of the frame has been given to gRPC
//	no     yes      a goroutine is in SendMsg with earlier frames
//	yes    no       its preamble is with gRPC; rest is what remains of its body
//	yes    yes      the same, and a goroutine is in SendMsg
//
// The messages in inFlight are held by gRPC. When the last buffer of a message is released, the
// message moves to the list idle, and its frame moves to the list completions.
//
// mu and inbox.mu are leaf locks. gRPC releases buffers while it holds locks of its own, and the
// release locks mu. Therefore SendMsg is never called with mu held, and the goroutine that releases
// a buffer does not run a Done.
type conn struct {
	stream   stream
	link     *link
	tune     tuning
	peerName string // the name that the peer's certificate has proven; "" without a certificate

	reading atomic.Bool // held by Progress; no goroutine waits for it
	decoder decoder     // belongs to the goroutine in Progress
	// used is the number of delivered bytes of the inbox's first buffer. It belongs to the
	// goroutine in Progress.
	used     int
	in       inbox
	hangUp   func()        // ends the stream after its messages; nil: writeLoop ends it
	received atomic.Uint64 // bytes of frames that the decoder has been fed
	acked    atomic.Uint64 // bytes that the peer's last frame acknowledges
	closing  chan struct{} // closed by Close
	readEnd  chan struct{} // closed when readLoop has returned
	writeEnd chan struct{} // closed when writeLoop has returned

	mu          sync.Mutex      // guards the fields below
	cond        sync.Cond       // signals writeLoop and drain
	out         transport.Queue // frames that have not been completely given to gRPC
	begun       bool            // the preamble of the first frame has been given to gRPC
	rest        pieces          // the rest of the first frame's body, not yet given to gRPC
	writing     bool            // a goroutine is in SendMsg, or about to be
	broken      bool            // SendMsg has failed; readLoop will get the reason
	inFlight    []*message      // messages given to gRPC and not released; at most maxInFlight + 1
	idle        []*message      // messages for reuse; at most maxInFlight + 1
	seq         uint32          // number of the next frame whose preamble is to be written
	unsent      int             // bytes of all frames that gRPC has not written
	written     uint64          // total number of bytes of frames that gRPC has written
	lastWrite   time.Time       // when gRPC last wrote bytes, or when unsent last became positive
	completions []completion    // frames whose Done is due
	completing  bool            // a goroutine runs the completions
	closed      bool            // Close was called
	err         *fault.Error    // the first error; it never changes
}

// A completion is a frame whose memory gRPC has released and whose Done must be called.
type completion struct {
	frame *transport.Frame
	err   error
}

// newConn makes the Conn of a connection. The caller sets its stream before any other goroutine can
// access it.
//
// Every failed read or write of the connection ends the Conn through the link's onError. gRPC may
// report the same failure later, or with another text.
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

// awaitEnd waits until the Conn has ended, and then releases its resources. Its argument is the
// function that stops gRPC on this connection. When this function returns, no goroutine of gRPC
// accesses the memory of frames any more.
//
// It runs on a goroutine of its own, in this order:
//
//	wait        until the connection ends, or Close is called
//	hang up     after Close, so that gRPC sends what it holds and the end of the stream
//	stop gRPC   a timer cuts the connection if gRPC's writer is blocked
//	cut         the connection is closed
//	drain       frames that gRPC has not released get their Done
func (c *conn) awaitEnd(stop func()) {
	select {
	case <-c.link.over:
	case <-c.closing:
		c.awaitPeerClose()
	}
	hard := time.AfterFunc(closeTime, c.link.cut) // in case gRPC's writer is blocked
	stop()
	hard.Stop()
	c.link.cut()
	c.fail(linkFailure(errGivenUp))
	c.drain()
}

// awaitPeerClose waits for at most closeTime before the connection is cut. In this time gRPC writes
// the bytes that it holds, and the peer handles the end of the stream and closes the connection. So
// a frame that was Done before Close still reaches the peer, unless the peer does not receive.
//
// The peer's gRPC closes the connection after the end of the stream. The wait then ends early.
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

// Send queues f. If gRPC holds no message of this Conn, Send passes the first message to gRPC on
// the caller's goroutine, which saves a switch of goroutines. This cannot block: gRPC's SendMsg
// waits only while earlier messages of the stream are unwritten (writeQuota.get).
//
// Otherwise another goroutine is in SendMsg, or gRPC holds messages. writeLoop then sends f. Frames
// that are queued in the meantime share the next message.
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

// TrySend implements transport.Conn. It always refuses, because gRPC keeps the memory of a message
// until it has written it.
func (c *conn) TrySend(head, body []byte) bool { return false }

// sendable returns an error for a frame that no Conn of this package can send.
func sendable(f *transport.Frame) error {
	if len(f.Head) > transport.MaxHead {
		return failure(fault.Misuse, "send",
			fmt.Errorf("got a head of %d bytes, want at most %d", len(f.Head), transport.MaxHead))
	}
	if n := f.Size(); uint64(n) > maxBody {
		return failure(fault.Misuse, "send", fmt.Errorf("got a body of %d bytes, want at most %d", n, uint64(maxBody)))
	}
	if f.To != (transport.Token{}) {
		return failure(fault.Misuse, "send", errors.New("got a frame with a Token, want none: grpc exposes no memory"))
	}
	return nil
}

// Progress copies arrived bytes into the Sink's buffers. Sending needs no Progress. An empty inbox
// costs two atomic operations; there is no spinning, because gRPC's goroutines need the core.
//
// Progress delivers everything that arrived before an error, and then returns the error.
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

// Arm arranges that ready runs once the inbox is not empty or the Conn has ended.
func (c *conn) Arm(ready func()) { c.in.arm(ready) }

// Close ends the Conn for its caller at once. gRPC may still write the bytes that it holds during
// closeTime. Then the connection is cut.
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

// PeerName implements tlsopt.Named.
func (c *conn) PeerName() string { return c.peerName }

// Unsent implements transport.Conn. It counts the bytes that this end has accepted and gRPC has not
// written to the connection.
//
// A message counts until gRPC has released all its buffers, which is when the bytes are in the
// connection's write buffer. So up to one write buffer of gRPC's is not counted.
func (c *conn) Unsent() (bytes int, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unsent == 0 || c.err != nil {
		return 0, time.Time{}
	}
	return c.unsent, c.lastWrite
}

// Traffic returns four counts of bytes: bytes of frames that gRPC has written, bytes among them
// that the peer's frames acknowledge, bytes of frames that have arrived here, and all bytes that
// have arrived from the connection. The last count includes the bytes of HTTP/2. gRPC delivers a
// message only when the whole message has arrived. So the last count shows that a long message is
// on its way.
func (c *conn) Traffic() (sent, acked, received, arrived uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.written, c.acked.Load(), c.received.Load(), c.link.arrived.Load()
}

// fail sets the Conn's first error and ends sending. It calls the Done of frames that have not been
// given to gRPC. The other frames get their Done when gRPC releases their memory.
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

// dequeueUnsent removes and returns the frames of which no byte has been given to gRPC. mu is held.
func (c *conn) dequeueUnsent() transport.Queue {
	stale := c.out
	c.out = transport.Queue{}
	if c.begun {
		c.out.Push(stale.Pop())
	}
	return stale
}

// finish calls the Done of every frame in q, oldest first. No lock may be held.
func finish(q *transport.Queue, err error) {
	for f := q.Pop(); f != nil; f = q.Pop() {
		f.Done(err)
	}
}

// first returns the Conn's first error, or nil while the Conn has not failed.
func (c *conn) first() *fault.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// A pendingConn is the accepting end of a Conn. Its peer is not authenticated until Admit.
type pendingConn struct{ *conn }

// Admit lifts the limits on the bytes that the peer may send, and frees the peer's slot at the
// listener.
func (g pendingConn) Admit() { g.link.admit() }

// RemoteAddr returns the peer's address.
func (g pendingConn) RemoteAddr() net.Addr { return g.link.raw.RemoteAddr() }

var (
	_ transport.Conn    = (*conn)(nil)
	_ transport.Pending = pendingConn{}
	_ tlsopt.Named      = (*conn)(nil)
)
