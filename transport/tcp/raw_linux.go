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
	"github.com/tutti-go/tutti/transport"
)

// ownsDescriptors: here a plain TCP connection becomes a raw Conn.
const ownsDescriptors = true

const (
	pendingBuffer = 1 << 10   // what is read ahead before Admit
	readBuffer    = shortCall // and after
	mostReads     = 4         // in one Progress
	mostWrites    = 16        // in one Progress or Send, each as much as the socket takes

	// readMost bounds one read into a body, so that what lies above works on the
	// first bytes, still in cache, while the next ones arrive.
	readMost = 256 << 10
	// A frame is expected to be like the one before it. After a body of at least
	// longBody bytes, no more than readAhead is read of the next frame before its
	// body's place is known: its prefix surely, and little that must be copied.
	// Below that, a copy costs less than another read.
	longBody  = 24 << 10
	readAhead = 1 << 10
)

// A raw is a Conn that owns its descriptor. Any number of goroutines may be in it
// at once, in three roles:
//
//   - one reads: gate's reader, for one call of Progress;
//   - one writes: out's writer, within Send or Progress;
//   - the rest queue, arm, admit and close, and wait for neither.
//
// out.mu and alarm.mu are held for a few instructions or one epoll_ctl, never
// both, and never while a Sink, a Done or a ready runs. What fails first is kept
// in first; after that, writing stops at once, and reading when what has arrived
// is used up.
type raw struct {
	t       *Transport
	origin  pendingConn
	remote  net.Addr
	fd      int
	gate    poll.Gate // who may use fd
	first   poll.FirstError
	pending atomic.Bool // accepted and not admitted

	// the reader's
	dec   decoder
	buf   []byte
	r, w  int  // buf[r:w] was read and not consumed
	ended bool // nothing more arrives

	out outbox
	iov [2 * batchFrames]syscall.Iovec // the writer's

	buffered atomic.Bool // r < w, as of the last Progress
	wakeup   wakeup
}

// newRaw takes the connection away from Go's poller. It closes e on failure.
func (t *Transport) newRaw(tc *net.TCPConn, e pendingConn) (transport.Conn, error) {
	local, remote := tc.LocalAddr(), tc.RemoteAddr()
	fd, err := ownDescriptor(tc)
	if err != nil {
		e.discard()
		kind := fault.Exhausted
		if errors.Is(err, net.ErrClosed) {
			kind = fault.Closed
		}
		return nil, failure(kind, "open a connection", err)
	}
	avoidBBR(fd, local, remote)
	c := &raw{t: t, origin: e, fd: fd, remote: remote}
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
	c.buffered.Store(c.w > 0)
	c.gate.Enter() // a Close from now on lets go when all is set up
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

// Admit lifts the limits of a peer that has proven nothing. It is called before
// the peer is told, else the peer's first large frame may come too early.
func (c *raw) Admit() {
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

// RemoteAddr is the peer's address.
func (c *raw) RemoteAddr() net.Addr { return c.remote }

// Progress implements transport.Conn. A poll that finds nothing costs one read.
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

// progress is Progress in the reader's role: first out what was refused before,
// then in.
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
		state = transport.Moved
	}
	if more := c.r < c.w; more || c.buffered.Load() {
		c.buffered.Store(more)
		if more {
			c.wakeIfArmed()
		}
	}
	return state, nil
}

// receive moves what has arrived, up to the end of one frame.
func (c *raw) receive(in transport.Sink) (moved bool, err error) {
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
		if c.gate.IsClosed() { // by the Sink, perhaps
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

// read does one read, of a body's rest and of what follows it. full reports that
// it got all it asked for, so that there may be more. The buffer is empty.
func (c *raw) read(in transport.Sink) (n int, full, whole bool, err error) {
	room, ahead := c.dec.bodyBuffer(), c.buf
	switch {
	case len(room) > readMost:
		room, ahead = room[:readMost], nil
	case len(room) > 0 || !c.dec.inBody && c.dec.header.Size >= longBody:
		ahead = ahead[:min(len(ahead), readAhead)]
	}
	n, errno := readVector(c.fd, room, ahead)
	switch {
	case errno == syscall.EAGAIN:
		return 0, false, false, c.first.Get() // not nil when writing has failed: then nothing more comes
	case errno != 0:
		return 0, false, false, failure(fault.LinkLost, "receive", os.NewSyscallError("read", errno))
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

// grow gives the reader what an admitted peer is worth.
func (c *raw) grow() {
	c.dec.limit = admittedBody
	buf := make([]byte, readBuffer)
	c.r, c.w = 0, copy(buf, c.buf[c.r:c.w])
	c.buf = buf
}

// Send implements transport.Conn: it queues f and becomes the writer unless there is
// one, or the socket is full. Then the next Progress writes it, woken by room in the
// socket if need be.
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
	var failed transport.Queue // Close came first
	_, err := c.out.next(true, &failed)
	finish(&failed, err)
}

// TrySend implements transport.Conn: a socket may take a part of a frame, which then
// needs memory that stays, so that nothing is sent inline.
func (c *raw) TrySend(head, body []byte) bool { return false }

// flush writes until nothing waits or the socket takes no more. The caller is
// the writer, and is not when flush returns.
func (c *raw) flush() (moved bool) {
	var done transport.Queue
	for writes := 1; ; writes++ {
		n, errno := writeVector(c.fd, c.out.batch.parts, c.out.batch.bytes, &c.iov)
		refused := n < c.out.batch.bytes // the socket is full: trying again would only say so
		if errno != 0 && errno != syscall.EAGAIN {
			c.fail(failure(fault.LinkLost, "send", os.NewSyscallError("write", errno)))
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

// Unsent is how many bytes were offered that the wire has refused so far, and
// since when it has taken none; 0 and the zero time while none are refused. The
// layer above decides when that is a stall: a Conn has no timers.
func (c *raw) Unsent() (bytes int, since time.Time) { return c.out.unsent() }

// fail ends the Conn but for what has arrived already, and returns the first
// error.
func (c *raw) fail(err error) error {
	var failed transport.Queue
	err = c.out.close(&c.first, err, &failed)
	finish(&failed, err)
	c.wake()
	return err
}

// Close implements transport.Conn. A Progress that runs meanwhile may write into
// the arriving frame's body until it returns. Bytes that the operating system
// has taken still go to the peer.
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

// exit ends a use of the descriptor other than the reader's.
func (c *raw) exit() {
	if c.gate.Exit() {
		c.teardown()
	}
}

// teardown gives back all that the Conn holds; nobody is inside any more. Where
// bytes are still on their way to the peer, a goroutine waits for them.
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

// drained reports whether a socket that was shut can be closed without harm: the
// peer's system has everything, or has ended the connection.
func (c *raw) drained() bool {
	return c.discard() || unacknowledged(c.fd) <= 1 // the end counts as a byte
}

// discard throws away what has arrived: a socket that is closed with unread
// bytes resets the connection. It is true when no more can arrive.
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

// closeDescriptor is the end: the number may be somebody else's afterwards.
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
)
