package tcp

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/poll"
	"github.com/tutti-go/tutti/internal/tlsopt"
	"github.com/tutti-go/tutti/transport"
)

// ownsDescriptors says that a plain TCP connection becomes a raw Conn on this system.
const ownsDescriptors = true

const (
	pendingBuffer = 1 << 10   // bytes read ahead before Admit
	readBuffer    = shortCall // bytes read ahead after Admit
	mostReads     = 4         // in one Progress
	mostWrites    = 16        // in one Progress or Send, each as much as the socket takes

	// readMost bounds one read into a body. The layer above can then work on the first bytes, which
	// are still in cache, while the next bytes arrive.
	readMost = 256 << 10
	// The next frame is expected to be like the last frame. After a body of at least longBody
	// bytes, one read takes at most readAhead bytes of the next frame. This covers the prefix, and
	// only a little of the body, which would have to be copied to its buffer. For shorter bodies
	// the copy costs less than another read.
	longBody  = 24 << 10
	readAhead = 1 << 10
)

// A raw is a Conn that owns its descriptor. Any number of goroutines may use it at once, in three
// roles:
//
//   - one goroutine reads: the gate's reader, for one call of Progress;
//   - one goroutine writes: the outbox's writer, within Send or Progress;
//   - the other goroutines queue, arm, admit and close, and wait for neither the reader nor the
//     writer.
//
// The gate counts the goroutines that use the descriptor. Close shuts the gate. The last goroutine
// to leave the gate releases all resources:
//
//	gate    first     meaning
//	open    nil       the Conn lives
//	open    an error  the wire has failed: no more writes; what has arrived is still delivered
//	shut    an error  Close was called: no method touches the descriptor any more
//
// The locks out.mu and wakeup.mu are held for a few instructions or one epoll_ctl. They are never
// held at the same time, and never while a Sink, a Done or a ready runs.
type raw struct {
	t       *Transport
	origin  pendingConn
	remote  net.Addr
	fd      int
	gate    poll.Gate // who may use fd
	first   poll.FirstError
	pending atomic.Bool // accepted and not admitted

	// the fields of the reader
	dec   decoder
	buf   []byte
	r, w  int  // buf[r:w] has been read and not delivered
	ended bool // nothing more arrives

	tls *tlsConn // TLS on fd; nil: none

	out outbox
	iov [2 * batchFrames]syscall.Iovec // belongs to the writer

	buffered atomic.Bool // r < w, as of the last Progress
	wakeup   wakeup
}

// newRaw makes a Conn of a connection, whose descriptor it removes from Go's poller. It closes e on
// failure.
//
// An accepted Conn begins with small buffers and a small bound on bodies, and Admit raises them. A
// dialled Conn begins with full buffers, because this end chose the peer.
//
// Under TLS, s is the tlsConn of e.nc, and tc is the connection below it.
func (t *Transport) newRaw(tc *net.TCPConn, s *tlsConn, e pendingConn) (transport.Conn, error) {
	local, remote := tc.LocalAddr(), tc.RemoteAddr()
	fd, err := ownDescriptor(tc)
	if err != nil {
		e.discard()
		tc.Close() // below TLS, nothing else closes it
		kind := fault.Exhausted
		if errors.Is(err, net.ErrClosed) {
			kind = fault.Closed
		}
		return nil, failure(kind, "open a connection", err)
	}
	avoidBBR(fd, local, remote)
	c := &raw{t: t, origin: e, fd: fd, remote: remote, tls: s}
	c.dec.limit = admittedBody
	c.out.frames = batchFrames
	size := readBuffer
	if e.accepted {
		c.pending.Store(true)
		c.dec.magicLeft, c.dec.limit = len(magic), pendingBody
		c.out.frames = pendingFrames
		size = max(pendingBuffer, len(e.first))
	} else {
		setReceiveBuffer(fd, t.options.ReceiveBuffer)
	}
	c.buf = make([]byte, size)
	c.w = copy(c.buf, e.first)
	c.origin.first = nil
	if s != nil {
		s.fd, s.buf = fd, make([]byte, size)
	}
	c.buffered.Store(c.more())
	// After register, the Close of the Transport may close the Conn.
	c.gate.Enter() // so a concurrent Close tears down only after the set-up
	if !t.register(c) {
		syscall.Close(fd)
		e.discard()
		return nil, failure(fault.Closed, "open a connection", nil)
	}
	err = c.wakeup.register(t, c)
	c.exit()
	if err != nil {
		c.Close()
		return nil, failure(fault.Exhausted, "open a connection", err)
	}
	return c, nil
}

// Admit lifts the limits of an unauthenticated peer. The caller calls Admit before it sends the
// welcome, because the peer's first large frame may follow the welcome at once.
func (c *raw) Admit() {
	// Admit may be called twice, and on a dialled Conn.
	if !c.pending.CompareAndSwap(true, false) {
		return
	}
	if c.gate.Enter() {
		setReceiveBuffer(c.fd, c.t.options.ReceiveBuffer)
		c.exit()
	}
	c.out.admitPeer()
	c.origin.admit()
}

// RemoteAddr returns the peer's address.
func (c *raw) RemoteAddr() net.Addr { return c.remote }

// Progress implements transport.Conn. A poll that finds nothing costs one read, so it ignores the
// spin bound.
//
// At most mostWrites writes and mostReads reads are done per call, so that both directions move in
// turns and the caller gets back soon.
func (c *raw) Progress(in transport.Sink, _ int) (transport.State, error) {
	switch c.gate.EnterReader() {
	case poll.Occupied:
		return transport.Busy, nil
	case poll.GateClosed:
		return transport.Idle, c.first.Get()
	}
	state, err := c.progress(in)
	if c.gate.ExitReader() {
		c.teardown()
	}
	return state, err
}

// progress does the work of Progress, in the reader's role. It first writes the bytes that the
// socket refused before, and then reads.
//
// Bytes that remain in buf wake an armed Conn at once, because the epoll does not know about them.
// It would report the socket only when more bytes come.
func (c *raw) progress(in transport.Sink) (transport.State, error) {
	if c.ended {
		return transport.Idle, c.first.Get()
	}
	state := transport.Idle
	if c.out.blocked.Load() && c.out.resume() && c.flush() {
		state = transport.Moved
	}
	moved, err := c.receive(in)
	if err != nil {
		c.ended = true
		return transport.Idle, c.fail(err)
	}
	if moved {
		c.out.noteArrival(&c.dec)
		state = transport.Moved
	}
	if more := c.more(); more || c.buffered.Load() {
		c.buffered.Store(more)
		if more {
			c.wakeIfArmed()
		}
	}
	return state, nil
}

// more reports whether there may be bytes that have been read from the socket and not been
// delivered. The reader calls it.
func (c *raw) more() bool { return c.r < c.w || c.tls != nil && c.tls.more }

// receive delivers arrived bytes, up to the end of one frame.
//
// It ends at the first complete frame and leaves the rest of buf for the next call, because the
// caller may change its Sink between two frames.
func (c *raw) receive(in transport.Sink) (moved bool, err error) {
	// Admit runs on another goroutine and must not touch the reader's fields, so the reader raises
	// its limits itself.
	if c.dec.limit == pendingBody && !c.pending.Load() {
		c.grow()
	}
	if c.r < c.w {
		n, whole, err := c.dec.decode(c.buf[c.r:c.w], in)
		c.r += n
		if whole || err != nil {
			return true, err
		}
		moved = true
	}
	for range mostReads {
		if c.gate.IsClosed() { // the Sink may have closed the Conn
			return moved, c.first.Get()
		}
		n, full, whole, err := c.read(in)
		if err != nil {
			return moved, err
		}
		moved = moved || n > 0
		if whole || !full {
			break
		}
	}
	return moved, nil
}

// read does one read call, for the rest of a body and for the bytes that follow it. The result full
// says that the socket filled both buffers, so that there may be more bytes. When read is called,
// buf is empty.
//
// One readv fills the rest of the body, in the Sink's buffer, and then buf. So a small frame after
// a large frame costs no read of its own, and a large body is not copied.
func (c *raw) read(in transport.Sink) (n int, full, whole bool, err error) {
	room, ahead := c.dec.bodyBuffer(), c.buf
	switch {
	// A long body is read without the bytes that follow it, in pieces that stay in cache. Near its
	// end, and before a body that is probably long, only a few bytes are read ahead.
	case len(room) > readMost:
		room, ahead = room[:readMost], nil
	case len(room) > 0 || !c.dec.inBody && c.dec.header.Size >= longBody:
		ahead = ahead[:min(len(ahead), readAhead)]
	}
	n, errno := c.readVector(room, ahead)
	switch {
	case errno == syscall.EAGAIN:
		// The error is not nil after a failed write. Nothing more arrives then.
		return 0, false, false, c.first.Get()
	case errno != 0:
		return 0, false, false, failure(fault.LinkLost, "receive", c.wireError("read", errno))
	case n == 0:
		return 0, false, false, errEOF(c.dec.midFrame())
	}
	full = n == len(room)+len(ahead)
	c.r, c.w = 0, max(0, n-len(room))
	if len(room) > 0 {
		whole = c.dec.advance(min(n, len(room)), in)
	}
	if c.w > 0 && !whole {
		c.r, whole, err = c.dec.decode(c.buf[:c.w], in)
	}
	return n, full, whole, err
}

// readVector reads into a and then into b, through TLS if there is TLS.
func (c *raw) readVector(a, b []byte) (int, syscall.Errno) {
	if c.tls != nil {
		return c.tls.read(a, b)
	}
	return readVector(c.fd, a, b)
}

// writeBatch writes the batch, through TLS if there is TLS.
func (c *raw) writeBatch() (int, syscall.Errno) {
	if c.tls != nil {
		return c.tls.write(c.out.batch.parts)
	}
	return writeVector(c.fd, c.out.batch.parts, c.out.batch.bytes, &c.iov)
}

// wireError returns the error of a call that ended with errno. The error comes from the system or
// from TLS.
func (c *raw) wireError(call string, errno syscall.Errno) error {
	if c.tls != nil && errno == syscall.EPROTO {
		return c.t.options.TLS.Explain(c.tls.failed.Get())
	}
	return os.NewSyscallError(call, errno)
}

// PeerName implements tlsopt.Named.
func (c *raw) PeerName() string {
	if c.tls == nil {
		return ""
	}
	return c.t.options.TLS.PeerName(c.tls.conn)
}

// grow gives an admitted peer the full buffer and raises the limit on bodies. The reader calls it.
func (c *raw) grow() {
	c.dec.limit = admittedBody
	buf := make([]byte, readBuffer)
	c.r, c.w = 0, copy(buf, c.buf[c.r:c.w])
	c.buf = buf
	if c.tls != nil {
		c.tls.grow()
	}
}

// Send implements transport.Conn. It queues f and becomes the writer, unless there is a writer or
// the socket is full. If the socket is full, the next Progress writes f, and an armed Conn is woken
// when the socket has room.
func (c *raw) Send(f *transport.Frame) {
	if !c.out.push(f) {
		if c.out.blocked.Load() {
			c.watchWrites()
		}
		return
	}
	if c.gate.Enter() {
		c.flush()
		c.exit()
		return
	}
	// Close has shut the gate after push, so this writer must fail the frames.
	var failed transport.Queue
	_, err := c.out.next(true, &failed)
	finish(&failed, err)
}

// TrySend implements transport.Conn by refusing. A socket may accept only a part of a frame, and
// the rest would need memory that outlives the call.
func (c *raw) TrySend(head, body []byte) bool { return false }

// flush writes until nothing waits or the socket is full. The caller is the writer until flush
// returns.
//
// Done runs after each write, without a lock. If a Done calls Send, the new frame is only queued.
// This goroutine stays the writer and sends the new frame in the next round, so the stack does not
// grow.
func (c *raw) flush() (moved bool) {
	var done transport.Queue
	for writes := 1; ; writes++ {
		n, errno := c.writeBatch()
		refused := n < c.out.batch.bytes // the socket is full, so another write would return EAGAIN
		if errno != 0 && errno != syscall.EAGAIN {
			c.fail(failure(fault.LinkLost, "send", c.wireError("write", errno)))
		}
		moved = moved || n > 0
		c.out.advance(n, refused, &done)
		finish(&done, nil)
		more, err := c.out.next(refused || writes == mostWrites, &done)
		if !more {
			finish(&done, err)
			break
		}
	}
	if c.out.blocked.Load() {
		c.watchWrites()
	}
	return moved
}

// Unsent implements transport.Conn. It reports bytes once the socket has refused some, and the time
// since which it has accepted none. A Conn has no timers, so the layer above decides when this is a
// stall.
func (c *raw) Unsent() (bytes int, since time.Time) { return c.out.unsent() }

// Traffic returns counts of bytes of frames: the bytes that the socket has accepted, the bytes
// among them that the peer's frames acknowledge, and the bytes that have been delivered here. The
// last count includes the parts of an unfinished frame, so it also serves as the fourth result.
func (c *raw) Traffic() (sent, acked, received, arrived uint64) {
	sent, acked, received = c.out.traffic()
	return sent, acked, received, received
}

// Diagnose returns what the kernel knows about the bytes that it has accepted. The text
// distinguishes a path that loses packets from a proxy that loses bytes that it has acknowledged.
func (c *raw) Diagnose() string {
	if !c.gate.Enter() {
		return ""
	}
	defer c.exit()
	return diagnose(c.fd)
}

// fail ends the Conn, but bytes that have arrived are still delivered. It returns the first error.
//
// Reading goes on until all arrived bytes are used up, because the first error may come from a
// write while complete frames still wait in the socket.
func (c *raw) fail(err error) error {
	var failed transport.Queue
	err = c.out.close(&c.first, err, &failed)
	finish(&failed, err)
	c.wake()
	return err
}

// Close implements transport.Conn. A Progress that is running may write into the arriving frame's
// buffer until it returns. Bytes that the socket has accepted still reach the peer.
//
// Close does not wait for goroutines that use the descriptor. The last goroutine that leaves the
// gate tears the Conn down.
func (c *raw) Close() error {
	c.first.Set(errClosed())
	first, last := c.gate.Close()
	if !first {
		return nil
	}
	c.fail(errClosed())
	if last {
		c.teardown()
	}
	return nil
}

// exit ends a use of the descriptor that gate.Enter began.
func (c *raw) exit() {
	if c.gate.Exit() {
		c.teardown()
	}
}

// teardown releases everything that the Conn holds, once no goroutine uses it. If the peer has not
// acknowledged all bytes, a goroutine waits for that.
//
// The order matters:
//
//	unregister          no event names the descriptor any more
//	shutdown            the peer gets the end of the stream after all bytes
//	drain, if needed    until the peer's kernel has everything; see drainTime
//	close               the number may be reused
//	unregister the Conn the Transport's Close may return
func (c *raw) teardown() {
	c.wakeup.unregister(c.t, c)
	onTheWay := unacknowledged(c.fd) > 0
	syscall.Shutdown(c.fd, syscall.SHUT_WR)
	if onTheWay && !c.drained() {
		go func() {
			awaitDrained(c.pending.Load(), c.drained)
			c.closeDescriptor()
		}()
		return
	}
	c.discard()
	c.closeDescriptor()
}

// drained reports whether a socket whose writing side is shut down can be closed without a reset.
// This is so if the peer's kernel has all bytes, or has ended the connection.
//
// A peer that has closed first cannot accept the bytes any more, so it would be useless to wait for
// that peer.
func (c *raw) drained() bool {
	return c.discard() || unacknowledged(c.fd) <= 1 // the FIN counts as one byte
}

// discard reads and drops arrived bytes, because closing a socket with unread bytes resets the
// connection. It returns true if no more bytes can arrive.
func (c *raw) discard() (ended bool) {
	for range 64 {
		switch n, errno := readVector(c.fd, nil, c.buf); {
		case errno == syscall.EAGAIN:
			return false
		case n == 0 || errno != 0:
			return true
		}
	}
	return false
}

// closeDescriptor closes the descriptor and unregisters the Conn. It must come last, because the
// system may give the number to another file at once.
func (c *raw) closeDescriptor() {
	syscall.Close(c.fd)
	if c.origin.outer != nil {
		c.origin.outer.Close()
	}
	c.t.unregister(c)
}

var (
	_ transport.Conn    = (*raw)(nil)
	_ transport.Pending = (*raw)(nil)
	_ tlsopt.Named      = (*raw)(nil)
)
