package shm

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/poll"
	"github.com/tutti-go/tutti/transport"
)

const (
	// maxReceive bounds what one Progress copies out of the ring, so that what lies
	// above works on it while it is in cache.
	maxReceive = 128 << 10
	// maxFlush bounds what one Progress, and one Send, puts in, so that both ways
	// move in turns and Send does not feed the ring for as long as it is emptied.
	maxFlush = 128 << 10
)

// A conn is one end of a Conn's memory. Any number of goroutines may be in it at
// once, in three roles:
//
//   - one reads: gate's reader, for one call of Progress, or of Arm;
//   - one writes: out's writer, within Send or Progress;
//   - the rest queue, arm, admit and close, and wait for neither.
//
// The gate guards the mapping and the socket: whoever touches them is inside, or
// holds out.mu while out takes frames. out.mu and alarm.mu are held for a few
// instructions or a short copy, never both, and never while a Sink, a Done or a
// ready runs. What fails first is kept in first; after that, writing stops at
// once, and reading when what has arrived is used up.
type conn struct {
	t              *Transport
	seg            *segment
	fd             int // the socket
	peerCred       unix.Ucred
	watcherID      int32 // in the Transport's watcher; 0: not in it
	gate           poll.Gate
	firstErr       poll.FirstError
	pending        atomic.Bool // accepted and not admitted
	releaseSlot    func()      // gives the guest's slot back; nil for who has dialled
	handshakeTimer *time.Timer // of a guest's life

	registered bool // the Transport knows this Conn; written before anybody else does

	// the reader's
	consumer    consumer
	drainBudget int // bytes still taken after a failure
	ended       bool

	outbox                    outbox
	ownDoorbell, peerDoorbell *doorbell
	wakeup                    wakeup

	exposures  exposureTable // this side's memory
	peerMemory peerMemory    // the peer's
}

// newConn makes a Conn of a mapping and the socket it came with, and owns both.
func (t *Transport) newConn(w handshakeResult) (*conn, error) {
	c := &conn{t: t, seg: w.seg, fd: w.fd, peerCred: w.peer, releaseSlot: w.releaseSlot, drainBudget: w.seg.ring}
	c.peerMemory.fd = -1
	c.seg.refs.Store(1)
	c.outbox.producer, c.consumer, c.ownDoorbell, c.peerDoorbell = w.seg.views(w.releaseSlot == nil)
	c.consumer.pending, c.consumer.exposures = &c.pending, &c.exposures
	c.exposures.slots, c.peerMemory.slots = w.seg.slots(w.releaseSlot == nil)
	if w.releaseSlot != nil {
		c.pending.Store(true)
		c.handshakeTimer = time.AfterFunc(pendingLife, c.expire)
	}
	c.gate.Enter() // a Close from now on lets go when all is set up
	defer c.exit()
	if !t.register(c) {
		c.Close()
		return nil, failure(fault.Closed, "open a connection", nil)
	}
	var err error
	if c.watcherID, err = t.watcher.Add(c); err == nil {
		// Level-triggered, and always: a peer's end is to be noticed also while
		// nobody is armed. Bytes come only when this end has asked for a ring.
		err = t.watcher.Control(syscall.EPOLL_CTL_ADD, c.fd, c.watcherID, 0, syscall.EPOLLIN|syscall.EPOLLRDHUP)
	}
	if err != nil {
		c.Close()
		return nil, failure(fault.Exhausted, "open a connection", err)
	}
	return c, nil
}

// Admit lifts the limits of a peer that has proven nothing. It is called before
// the peer is told, else the peer's first large frame may come too early.
func (c *conn) Admit() {
	if c.pending.CompareAndSwap(true, false) {
		c.leavePending()
	}
}

// Progress implements transport.Conn. A poll that finds nothing costs a look at
// the place where the next record will begin; while it spins it does nothing else.
func (c *conn) Progress(in transport.Sink, spins int) (transport.State, error) {
	switch c.gate.EnterReader() {
	case poll.Occupied:
		return transport.Busy, nil
	case poll.GateClosed:
		return transport.Idle, c.firstErr.Get()
	}
	c.consumer.spin(spins)
	state, err := c.progress(in)
	if c.gate.ExitReader() {
		c.release()
	}
	if c.wakeup.unannounced.Load() {
		c.requestWakeup()
	}
	return state, err
}

// progress is Progress in the reader's role: first out what found no room before,
// then in.
func (c *conn) progress(in transport.Sink) (transport.State, error) {
	state := transport.Idle
	if c.outbox.blocked.Load() && c.outbox.resume() && c.flush() {
		state = transport.Moved
	}
	gone := c.firstErr.Get() // before the look at the ring: what came before it counts
	if c.ended || !c.consumer.hasRecord() {
		if gone != nil {
			c.ended = true
			return transport.Idle, gone
		}
		c.returnSpace()
		return state, nil
	}
	if gone != nil && c.drainBudget <= 0 {
		c.ended = true // a peer that fills the ring for ever
		return transport.Idle, gone
	}
	if err := c.receive(in, gone != nil); err != nil {
		c.ended = true
		return transport.Idle, c.fail(err)
	}
	return transport.Moved, nil
}

// returnSpace gives the peer the room of what was taken, if it has not been told.
func (c *conn) returnSpace() {
	if c.consumer.consumed != c.consumer.published {
		c.consumer.returnSpace()
		if c.consumer.mustRing {
			c.consumer.mustRing = false
			c.ringDoorbell()
		}
	}
}

// receive moves what has arrived, up to the end of one frame.
func (c *conn) receive(in transport.Sink, last bool) error {
	for most := maxReceive; most > 0; {
		n, whole, err := c.consumer.next(in)
		if c.consumer.mustRing {
			c.consumer.mustRing = false
			c.ringDoorbell()
		}
		if last {
			c.drainBudget -= n
		}
		if whole || err != nil || n == 0 {
			return err
		}
		if c.gate.IsClosed() { // by the Sink, perhaps
			return c.firstErr.Get()
		}
		most -= n
	}
	return nil
}

// TrySend implements transport.Conn.
func (c *conn) TrySend(head, body []byte) bool {
	did, due := c.outbox.trySend(head, body)
	if due && c.gate.Enter() {
		c.ringDoorbell()
		c.exit()
	}
	return did
}

// Send implements transport.Conn: it puts a frame into the ring, or becomes the writer unless there is one or
// the ring is full: then whoever calls Progress goes on, woken by room if need be.
func (c *conn) Send(f *transport.Frame) {
	it := item{f, f.Size()}
	if err := validateFrame(it.f, it.size); err != nil {
		it.f.Done(err)
		return
	}
	did, due, err := c.outbox.enqueue(it)
	switch did {
	case written:
		if due && c.gate.Enter() {
			c.ringDoorbell()
			c.exit()
		}
		it.f.Done(nil)
	case becameWriter:
		if c.gate.Enter() {
			c.flush()
			c.exit()
			return
		}
		_, failed, err := c.outbox.next(true) // Close came in between
		failAll(failed, err)
	case refused:
		if c.firstErr.Get() == nil {
			err = c.fail(err)
		}
		it.f.Done(err)
	}
}

// flush puts frames until nothing waits, the ring takes no more, or it is enough
// for one call. The caller is the writer and inside the gate, and is no longer the
// writer when flush returns.
func (c *conn) flush() (moved bool) {
	for most, stop := maxFlush, false; ; {
		f, failed, err := c.outbox.next(stop)
		if f == nil {
			failAll(failed, err)
			break
		}
		n, whole, err := c.writeNext(f)
		if err != nil {
			c.fail(err)
		}
		if c.outbox.producer.mustRing {
			c.outbox.producer.mustRing = false
			c.ringDoorbell()
		}
		most -= n + cacheLine
		stop = n == 0 && !whole || most <= 0
		moved = moved || n > 0 || whole
		if done := c.outbox.advance(n, whole); done != nil {
			done.Done(nil)
		}
	}
	if c.outbox.blocked.Load() && c.wakeup.armed.Load() && c.outbox.awaitRoom(c.ownDoorbell) {
		c.scheduleReady()
	}
	return moved
}

// Unsent is how many bytes wait that the ring has had no room for so far, and
// since when it has taken none; 0 and the zero time while none do. The layer above
// decides when that is a stall: a Conn has no timers.
func (c *conn) Unsent() (bytes int, since time.Time) { return c.outbox.unsent() }

// fail ends the Conn but for what has arrived already, and returns the first
// error.
func (c *conn) fail(err error) error {
	failed, err := c.outbox.close(&c.firstErr, err)
	failAll(failed, err)
	c.scheduleReady()
	return err
}

// Close implements transport.Conn. A Progress that runs meanwhile may write into
// the arriving frame's body until it returns. What is in the ring still reaches
// the peer.
func (c *conn) Close() error {
	failed, err := c.outbox.close(&c.firstErr, errClosed()) // before the gate: who holds out's lock need not enter
	if first, last := c.gate.Close(); first && last {
		c.release()
	}
	failAll(failed, err)
	c.scheduleReady()
	return nil
}

// exit ends a use other than the reader's.
func (c *conn) exit() {
	if c.gate.Exit() {
		c.release()
	}
}

// release gives back all that the Conn holds; nobody is inside any more.
func (c *conn) release() {
	c.announceClose()
	if c.watcherID != 0 {
		c.t.watcher.Control(syscall.EPOLL_CTL_DEL, c.fd, 0, 0, 0)
		c.t.watcher.Remove(c.watcherID)
	}
	syscall.Close(c.fd)
	c.peerMemory.close()
	c.seg.unref()
	if c.pending.CompareAndSwap(true, false) {
		c.leavePending()
	}
	c.t.unregister(c)
}

// announceClose tells the peer that this end has closed, and has not died.
func (c *conn) announceClose() {
	c.ownDoorbell.closed.Store(1)
	syscall.Shutdown(c.fd, syscall.SHUT_RDWR)
}

// expire ends a guest whose time is over.
func (c *conn) expire() {
	if c.pending.Load() {
		c.Close()
	}
}

// leavePending ends a guest's time.
func (c *conn) leavePending() {
	c.handshakeTimer.Stop()
	c.releaseSlot()
}

// RemoteAddr names the peer's process.
func (c *conn) RemoteAddr() net.Addr { return processAddr{c.peerCred.Pid} }

// A processAddr is a process of this host, as net.Addr has it.
type processAddr struct{ pid int32 }

func (processAddr) Network() string  { return Name }
func (r processAddr) String() string { return fmt.Sprintf("process %d", r.pid) }

// errClosed is the end of a Conn by its own Close.
func errClosed() error { return failure(fault.Closed, "this end has closed", nil) }

// errPeerGone is the end of a Conn whose peer has closed, or died.
func errPeerGone(closed bool) error {
	if closed {
		return failure(fault.LinkLost, "the peer closed the connection", io.EOF)
	}
	return failure(fault.LinkLost, "the peer's process has ended", io.EOF)
}

var (
	_ transport.Conn    = (*conn)(nil)
	_ transport.Pending = (*conn)(nil)
	_ poll.Handler      = (*conn)(nil)
)

// An wakeup is a Conn's one armed wake-up.
type wakeup struct {
	armed       atomic.Bool // ready is set
	unannounced atomic.Bool // the peer has not been told yet to ring

	mu    sync.Mutex // guards ready
	ready func()
}
