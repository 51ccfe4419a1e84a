package tcp

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/poll"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/transport"
)

const (
	streamRing    = 128 << 10 // bytes that a stream reads ahead
	streamPending = 1 << 10   // before Admit: bytes to read ahead, and to gather for a write
	streamStage   = 16 << 10  // bytes that it gathers for a write: one TLS record
	streamWrite   = 256 << 10 // the maximum of one write, so that a stall is noticed

	// lastReads is how long a stream that cannot write any more still reads what the peer has sent.
	lastReads     = time.Second
	drainReadTime = time.Millisecond
)

// A stream is a Conn over any net.Conn. The methods of a net.Conn block, so one goroutine reads and
// another goroutine writes. Progress delivers what the reader has read, which costs a copy, and
// never writes. The reader waits while the inbox is full; flow control of TCP then slows the peer,
// and nothing is buffered without a bound.
//
// Close sets a deadline in the past, which ends the read and the write that are running; both
// goroutines then return, and the reader closes the connection last. in.mu, out.mu and mu are leaf
// locks, held for a few instructions.
//
//	closed  in.err  meaning
//	no      nil     both goroutines run
//	no      set     the stream has ended, or a read failed: Progress reports it after the inbox
//	yes     any     Close was called: Progress returns the first error at once
type stream struct {
	t       *Transport
	origin  pendingConn
	nc      net.Conn
	wire    net.Conn // the connection at the bottom; nc if nothing is below it
	first   poll.FirstError
	pending atomic.Bool
	closed  atomic.Bool

	busy  atomic.Bool // a goroutine is in Progress; it owns dec and ended
	dec   decoder
	ended bool

	in          inbox
	out         outbox
	writeSignal chan struct{} // one slot: the writer goroutine has become out's writer
	done        chan struct{} // closed by Close

	armed atomic.Bool // ready is set
	mu    sync.Mutex  // guards ready
	ready func()
}

// newStream makes a Conn and starts its goroutines. It closes e on failure.
//
// The Transport's Close waits for the writer goroutine by open, and for the reader by unregister,
// which teardown calls.
func (t *Transport) newStream(e pendingConn) (transport.Conn, error) {
	c := &stream{t: t, origin: e, nc: e.nc, wire: innermost(e.nc), writeSignal: make(chan struct{}, 1), done: make(chan struct{})}
	c.dec.limit = admittedBody
	c.out.frames = batchFrames
	ring := streamRing
	if e.accepted {
		c.pending.Store(true)
		c.dec.magicLeft, c.dec.limit = len(magic), pendingBody
		c.out.frames = pendingFrames
		ring = streamPending
	}
	c.in.open(ring, e.first)
	c.origin.first = nil
	if !t.register(c) {
		e.discard()
		return nil, failure(fault.Closed, "open a connection", nil)
	}
	t.open.Go(c.write)
	go func() { // teardown comes after the last read
		c.read()
		c.teardown()
	}()
	return c, nil
}

// A netConner is a connection on top of another connection, such as a *tls.Conn.
type netConner interface{ NetConn() net.Conn }

// innermost returns the connection at the bottom, below TLS and all other layers.
func innermost(nc net.Conn) net.Conn {
	for {
		outer, ok := nc.(netConner)
		if !ok {
			return nc
		}
		nc = outer.NetConn()
	}
}

// Admit lifts the limits of an unauthenticated peer. See raw.Admit for when to call it.
//
// The reader makes the larger ring itself, before its next read.
func (c *stream) Admit() {
	if c.pending.CompareAndSwap(true, false) {
		c.in.grow(streamRing)
		c.out.admitPeer()
		c.origin.admit()
	}
}

// RemoteAddr returns the peer's address.
func (c *stream) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// PeerName implements tlsopt.Named.
func (c *stream) PeerName() string { return c.t.options.TLS.PeerName(c.nc) }

// Progress implements transport.Conn. A poll that finds nothing costs a lock and no system call. It
// does not spin: the reader goroutine needs the core.
func (c *stream) Progress(in transport.Sink, _ int) (transport.State, error) {
	if !c.busy.CompareAndSwap(false, true) {
		return transport.Busy, nil
	}
	defer c.busy.Store(false)
	if c.closed.Load() || c.ended {
		return transport.Idle, c.first.Get()
	}
	// Admit must not touch the decoder, which belongs to Progress.
	if c.dec.limit == pendingBody && !c.pending.Load() {
		c.dec.limit = admittedBody
	}
	state, err := c.receive(in)
	if err != nil {
		c.ended = true
		return transport.Idle, c.fail(err)
	}
	// The bytes that remain in the inbox belong to the next frame. They must run the callback of
	// Arm here, because the reader does not announce them again.
	if c.in.filled.Load() > 0 && c.armed.Load() {
		c.wake()
	}
	return state, nil
}

// receive delivers what the reader has read, up to the end of one frame.
//
// It copies from the inbox, because the reader goroutine has read the bytes before the Sink has
// chosen a buffer.
func (c *stream) receive(in transport.Sink) (transport.State, error) {
	state := transport.Idle
	for !c.closed.Load() {
		p, err := c.in.readable()
		if len(p) == 0 {
			return state, c.cut(err)
		}
		n, whole, err := c.dec.decode(p, in)
		c.out.noteArrival(&c.dec)
		c.in.consume(n)
		if err != nil {
			return state, err
		}
		state = transport.Moved
		if whole {
			break
		}
	}
	return state, nil
}

// cut returns the Conn's error for a read that ended with err. If err is nil, it returns nil.
func (c *stream) cut(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errEOF(c.dec.midFrame())
	}
	// A read that ended by a deadline was ended by this end, after Close or after a failed write.
	if first := c.first.Get(); first != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return first // the write failed first
	}
	if c.dec.magicLeft > 0 {
		return failure(fault.Refused, "accept", err) // a TLS handshake that failed
	}
	// In TLS 1.3 a refusal comes after the handshake.
	return failure(fault.LinkLost, "receive", c.t.options.TLS.Explain(err))
}

// read is the reader goroutine: it fills the inbox until the connection ends or Close is called.
//
// It calls fire after each read, because nothing else runs the callback of Arm for these bytes.
func (c *stream) read() {
	for {
		p := c.in.writable()
		if p == nil {
			return
		}
		n, err := c.nc.Read(p)
		c.in.commit(n, err)
		c.fire()
		if err != nil {
			return
		}
	}
}

// A halfCloser can shut down its writing side alone, as TCP can.
type halfCloser interface{ CloseWrite() error }

// teardown closes the connection after Close was called and the peer's kernel has acknowledged what
// was written.
//
// The writing side is shut down first, so that the peer gets the end of the stream after all
// bytes; see drainTime. Connections without half-close are closed at once.
func (c *stream) teardown() {
	<-c.done
	if tc, ok := c.wire.(halfCloser); ok {
		tc.CloseWrite()
		awaitDrained(c.pending.Load(), c.drained)
	}
	c.wire.Close()
	if c.origin.outer != nil {
		c.origin.outer.Close()
	}
	c.t.unregister(c)
}

// drained is like the method of raw. If the system does not report unacknowledged bytes, only the
// end of the peer's stream shows that the peer has all bytes.
func (c *stream) drained() bool {
	// Reading also drops what the peer still sends; see raw.discard.
	c.wire.SetReadDeadline(time.Now().Add(drainReadTime))
	if _, err := io.Copy(io.Discard, c.wire); !errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	n, known := unackedBytes(c.wire)
	return known && n <= 1
}

// Send implements transport.Conn. It never writes. The writer goroutine writes, and calls Done.
func (c *stream) Send(f *transport.Frame) {
	if c.out.push(f) {
		c.writeSignal <- struct{}{} // never blocks, because there is only one writer
	}
}

// TrySend implements transport.Conn by refusing: only the writer goroutine writes.
func (c *stream) TrySend(head, body []byte) bool { return false }

// write is the writer goroutine. It is the outbox's writer whenever it is not in the select,
// because push has appointed it, and Send has sent the signal.
func (c *stream) write() {
	stage := make([]byte, 0, streamPending)
	for {
		select {
		case <-c.writeSignal:
		case <-c.done:
			c.out.abandon()
			return
		}
		if !c.pending.Load() && cap(stage) < streamStage {
			stage = make([]byte, 0, streamStage)
		}
		var done transport.Queue
		for more := true; more; {
			c.writeBatch(stage)
			var err error
			more, err = c.out.next(false, &done)
			finish(&done, err)
		}
	}
}

// writeBatch writes the bytes of the batch. It collects short pieces in the slice stage, so that
// TLS makes one record from them. It writes long pieces without a copy.
//
// The slice holds at most one TLS record. Short pieces are joined because each Write of a *tls.Conn
// makes at least one record, with its header and tag.
func (c *stream) writeBatch(stage []byte) {
	for _, p := range c.out.batch.parts {
		if len(p) > cap(stage)-len(stage) {
			if !c.writeOut(stage) {
				return
			}
			stage = stage[:0]
		}
		if len(p) <= cap(stage) {
			stage = append(stage, p...)
			continue
		}
		for len(p) > 0 {
			n := min(len(p), streamWrite)
			if !c.writeOut(p[:n]) {
				return
			}
			p = p[n:]
		}
	}
	c.writeOut(stage)
}

// writeOut writes p and reports whether that succeeded.
//
// After a failed write, the peer's last bytes are still read for lastReads, because they often
// carry the reason, such as a refused handshake.
func (c *stream) writeOut(p []byte) bool {
	if len(p) == 0 {
		return true
	}
	c.out.beginWrite()
	n, err := c.nc.Write(p)
	var done transport.Queue
	c.out.advance(n, true, &done)
	finish(&done, nil)
	if err != nil {
		c.fail(failure(fault.LinkLost, "send", err))
		if !c.closed.Load() {
			c.nc.SetReadDeadline(time.Now().Add(lastReads))
		}
	}
	return err == nil
}

// Unsent implements transport.Conn; see raw.Unsent.
func (c *stream) Unsent() (bytes int, since time.Time) { return c.out.unsent() }

// Traffic returns the counts of bytes; see raw.Traffic.
func (c *stream) Traffic() (sent, acked, received, arrived uint64) {
	sent, acked, received = c.out.traffic()
	return sent, acked, received, received
}

// Arm implements transport.Conn. Queued bytes need no Progress here, so only arriving bytes, a
// failure and Close make the callback run.
//
// If there is something to do at once, the callback runs on the Transport's goroutine for
// callbacks. Otherwise it runs later on the reader goroutine, which has then just read bytes.
func (c *stream) Arm(ready func()) {
	c.mu.Lock()
	c.ready = ready
	c.armed.Store(true)
	c.mu.Unlock()
	if c.in.filled.Load() > 0 || c.first.Get() != nil || c.in.ended() {
		c.wake()
	}
}

// disarm clears the armed callback and returns it. It returns nil if no callback is armed.
func (c *stream) disarm() func() {
	c.mu.Lock()
	defer c.mu.Unlock()
	ready := c.ready
	c.ready = nil
	c.armed.Store(false)
	return ready
}

// fire calls the armed callback on the reader goroutine.
func (c *stream) fire() {
	if ready := c.disarm(); ready != nil {
		ready()
	}
}

// wake calls the armed callback on the Transport's goroutine for callbacks.
func (c *stream) wake() {
	if ready := c.disarm(); ready != nil {
		c.t.calls.Call(ready)
	}
}

// fail ends the Conn, but bytes that were read are still delivered. It returns the first error.
func (c *stream) fail(err error) error {
	var failed transport.Queue
	err = c.out.close(&c.first, err, &failed)
	finish(&failed, err)
	c.wake()
	return err
}

// Close implements transport.Conn; see raw.Close. The goroutines end soon; the Transport's Close
// waits for them.
func (c *stream) Close() error {
	c.first.Set(errClosed())
	if c.closed.Swap(true) {
		return nil
	}
	c.in.close()
	c.fail(errClosed())
	if _, ok := c.wire.(halfCloser); ok {
		c.wire.SetDeadline(time.Unix(1, 0)) // ends the read and the write that are running
	} else {
		c.wire.Close()
	}
	// Both goroutines can end now.
	close(c.done)
	return nil
}

var (
	_ transport.Conn    = (*stream)(nil)
	_ transport.Pending = (*stream)(nil)
	_ tlsopt.Named      = (*stream)(nil)
)
