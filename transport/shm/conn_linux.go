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
	// maxReceive bounds the bytes that one Progress copies out of the ring. The layer above
	// processes them while they are in cache.
	maxReceive = 128 << 10
	// maxFlush bounds the bytes that one Progress, or one Send, puts into the ring. So both
	// directions move in turns, and Send returns even if the peer empties the ring as fast as this
	// end fills it.
	maxFlush = 128 << 10
)

// A conn implements transport.Conn. Any number of goroutines may use it at once, in three roles:
//
//	role     goroutines  how it is held                       what it owns
//	reader   one         gate.EnterReader, for one call of    consumer, drainBudget, ended
//	                     Progress or Arm
//	writer   one         outbox.writing, within Send or       outbox.producer and the frame that
//	                     Progress                             is being written
//	others   any number  gate.Enter, where they touch memory  nothing; they queue, arm, admit and
//	                     or the socket                        close, and never wait
//
// The gate guards the mapping and the socket: a goroutine that touches them is inside the gate, or
// holds outbox.mu while the outbox accepts frames. The last goroutine to exit a closed gate
// releases the mapping and the socket. outbox.mu and wakeup.mu are held for a few instructions or a
// short copy, never at the same time, and never while a Sink, a Done or a ready runs.
//
// A conn has these states:
//
//	open     firstErr unset
//	failed   firstErr set: nothing is written any more; Progress still delivers what has
//	         arrived, up to drainBudget bytes, and then returns the error
//	closed   gate closed: Progress returns the error; the last goroutine to exit unmaps the memory
type conn struct {
	t              *Transport
	seg            *segment
	fd             int // the socket
	peerCred       unix.Ucred
	watcherID      int32 // the socket's ID in the Transport's watcher; 0: not registered there
	gate           poll.Gate
	firstErr       poll.FirstError
	pending        atomic.Bool // accepted and not admitted
	releaseSlot    func()      // releases the slot of a pending Conn; nil at the dialer
	handshakeTimer *time.Timer // closes a Conn that stays pending

	registered bool // in the Transport's table; written before another goroutine has the conn

	// owned by the reader
	consumer    consumer
	drainBudget int // bytes still delivered after a failure
	ended       bool

	outbox                    outbox // frames to write; it has a lock of its own
	ownDoorbell, peerDoorbell *doorbell
	wakeup                    wakeup

	exposures  exposureTable // the memory that this side exposes
	peerMemory peerMemory    // the memory that the peer exposes
}

// newConn makes a Conn from the result of a handshake, and takes ownership of that result. It stays
// inside the Conn's gate until the Conn is complete. A Close of the Transport may find the Conn in
// the table earlier, and must not release it before it is set up.
func (t *Transport) newConn(w handshakeResult) (*conn, error) {
	c := &conn{t: t, seg: w.seg, fd: w.fd, peerCred: w.peer, releaseSlot: w.releaseSlot, drainBudget: w.seg.ring}
	c.peerMemory.fd = -1
	c.seg.refs.Store(1) // the Conn's own reference; release drops it
	c.outbox.producer, c.consumer, c.ownDoorbell, c.peerDoorbell = w.seg.views(w.releaseSlot == nil)
	c.consumer.pending, c.consumer.exposures = &c.pending, &c.exposures
	c.exposures.slots, c.peerMemory.slots = w.seg.slots(w.releaseSlot == nil)
	if w.releaseSlot != nil {
		c.pending.Store(true)
		c.handshakeTimer = time.AfterFunc(pendingLife, c.expire)
	}
	c.gate.Enter() // from now on a Close releases everything only when the setup is complete
	defer c.exit()
	if !t.register(c) {
		c.Close()
		return nil, failure(fault.Closed, "open a connection", nil)
	}
	var err error
	if c.watcherID, err = t.watcher.Add(c); err == nil {
		// The socket is always registered, and level-triggered. So the watcher notices that the
		// peer has gone even while no callback is armed. Bytes come only when this end has asked
		// for a doorbell.
		err = t.watcher.Control(syscall.EPOLL_CTL_ADD, c.fd, c.watcherID, 0, syscall.EPOLLIN|syscall.EPOLLRDHUP)
	}
	if err != nil {
		c.Close()
		return nil, failure(fault.Exhausted, "open a connection", err)
	}
	return c, nil
}

// Admit implements transport.Pending. The layer above calls it before it informs the peer.
// Otherwise the peer's first large frame could come before Admit.
func (c *conn) Admit() {
	if c.pending.CompareAndSwap(true, false) {
		c.releasePending()
	}
}

// Progress implements transport.Conn. A poll that finds nothing reads only the header of the next
// record.
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

// progress does the work of Progress in the reader's role. It first writes the frames that wait for
// space in the ring, and then receives.
func (c *conn) progress(in transport.Sink) (transport.State, error) {
	state := transport.Idle
	if c.outbox.blocked.Load() && c.outbox.resume() && c.flush() {
		state = transport.Moved
	}
	// The failure is read before the ring. In the other order, a frame could arrive before the
	// failure but between the two reads, and would be lost.
	gone := c.firstErr.Get()
	if c.ended || !c.consumer.hasRecord() {
		if gone != nil {
			c.ended = true
			return transport.Idle, gone
		}
		c.returnSpace()
		return state, nil
	}
	if gone != nil && c.drainBudget <= 0 {
		c.ended = true // a peer that fills the ring without end
		return transport.Idle, gone
	}
	if err := c.receive(in, gone != nil); err != nil {
		c.ended = true
		return transport.Idle, c.fail(err)
	}
	return transport.Moved, nil
}

// returnSpace publishes the consumed bytes to the peer, if they are not published yet.
func (c *conn) returnSpace() {
	if c.consumer.consumed != c.consumer.published {
		c.consumer.returnSpace()
		if c.consumer.mustRing {
			c.consumer.mustRing = false
			c.ringDoorbell()
		}
	}
}

// receive delivers arrived bytes, up to the end of one frame and at most about maxReceive bytes.
//
// The argument last is true if the Conn has failed. Then receive subtracts the delivered bytes from
// drainBudget, so that a peer that fills the ring without end cannot delay the report of the
// failure forever.
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
		if c.gate.IsClosed() { // the Sink may have closed the Conn
			return c.firstErr.Get()
		}
		most -= n
	}
	return nil
}

// TrySend implements transport.Conn. It succeeds when the frame fits into one record, no other
// frame waits and the ring has space. The frame is then in shared memory, so a later Close does not
// cancel it.
func (c *conn) TrySend(head, body []byte) bool {
	did, due := c.outbox.trySend(head, body)
	if due && c.gate.Enter() {
		c.ringDoorbell()
		c.exit()
	}
	return did
}

// Send implements transport.Conn. It puts a small frame into the ring at once, or queues it and
// becomes the writer. When there is a writer already, or the ring is full, the frame stays in the
// queue. Then the writer or a later Progress writes it.
func (c *conn) Send(f *transport.Frame) {
	it := item{f, f.Size()}
	if err := validateFrame(it.f, it.size); err != nil {
		it.f.Done(err)
		return
	}
	// Done runs outside of the lock in every case, because it may send.
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
		_, failed, err := c.outbox.next(true) // the gate was closed meanwhile
		failAll(failed, err)
	case refused:
		if c.firstErr.Get() == nil {
			err = c.fail(err)
		}
		it.f.Done(err)
	}
}

// flush puts queued frames into the ring until none is left, the ring is full, or it has put
// maxFlush bytes. The caller is the writer and inside the gate. When flush returns, the caller is
// no longer the writer.
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
		most -= n + recordAlign
		stop = n == 0 && !whole || most <= 0
		moved = moved || n > 0 || whole
		if done := c.outbox.advance(n, whole); done != nil {
			done.Done(nil)
		}
	}
	// A goroutine may have armed the Conn before these frames were queued. That goroutine has not
	// asked for space, so this goroutine asks in its place.
	if c.outbox.blocked.Load() && c.wakeup.armed.Load() && c.outbox.awaitRoom(c.ownDoorbell) {
		c.scheduleReady()
	}
	return moved
}

// Unsent implements transport.Conn. Bytes wait here only while the ring is full. A Conn has no
// timers, so the layer above decides when this is a stall.
func (c *conn) Unsent() (bytes int, since time.Time) { return c.outbox.unsent() }

// fail marks the Conn as failed. It records err unless there is an earlier error, and returns the
// first error. The memory stays mapped until Close, so Progress can still deliver frames that have
// arrived.
func (c *conn) fail(err error) error {
	failed, err := c.outbox.close(&c.firstErr, err)
	failAll(failed, err)
	c.scheduleReady()
	return err
}

// Close implements transport.Conn. A Progress that runs at the same time may write into the
// arriving frame's buffer until it returns. The peer still receives the frames in the ring.
func (c *conn) Close() error {
	// This comes before the gate, because a goroutine that holds outbox.mu need not be inside the
	// gate.
	failed, err := c.outbox.close(&c.firstErr, errClosed())
	if first, last := c.gate.Close(); first && last {
		c.release()
	}
	failAll(failed, err)
	c.scheduleReady()
	return nil
}

// exit leaves the gate. The reader calls gate.ExitReader instead.
func (c *conn) exit() {
	if c.gate.Exit() {
		c.release()
	}
}

// release frees all resources of the Conn. The goroutine that exits the closed gate last calls it,
// once. release informs the peer first. It informs the Transport last, because the Transport's
// Close waits for this.
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
		c.releasePending()
	}
	c.t.unregister(c)
}

// announceClose sets the mark of a Close in shared memory, and then ends the socket. The mark lets
// the peer distinguish a Close from a death of the process.
func (c *conn) announceClose() {
	c.ownDoorbell.closed.Store(1)
	syscall.Shutdown(c.fd, syscall.SHUT_RDWR)
}

// expire closes a Conn that was not admitted in time. The layer above usually closes such a Conn
// earlier. If it does not, expire bounds how long the slot is held.
func (c *conn) expire() {
	if c.pending.Load() {
		c.Close()
	}
}

// releasePending ends the pending state of an accepted Conn. It stops the timer and releases the
// slot. Admit or the end of the Conn calls it, once.
func (c *conn) releasePending() {
	c.handshakeTimer.Stop()
	c.releaseSlot()
}

// RemoteAddr returns the number of the peer's process.
func (c *conn) RemoteAddr() net.Addr { return processAddr{c.peerCred.Pid} }

// A processAddr is a net.Addr that names a process of this host, for log lines about peers.
type processAddr struct{ pid int32 }

func (processAddr) Network() string  { return Name }
func (r processAddr) String() string { return fmt.Sprintf("process %d", r.pid) }

// errClosed returns the error of a Conn after its own Close.
func errClosed() error { return failure(fault.Closed, "this end has closed", nil) }

// errPeerGone returns the error of a Conn whose peer has closed, or died.
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

// A wakeup is the one callback that a Conn may have armed:
//
//	armed  unannounced  state
//	no     no           nobody sleeps
//	yes    yes          Arm was called; no goroutine has asked the peer for a doorbell yet
//	yes    no           the peer will ring, or the callback is scheduled
//	no     yes          the callback fired before a goroutine asked; a later request does no harm
//
// A callback that has fired clears armed. unannounced is set after armed, and cleared by the
// goroutine that asks the peer.
type wakeup struct {
	armed       atomic.Bool // ready is set
	unannounced atomic.Bool // the peer has not been asked for a doorbell yet

	mu    sync.Mutex // guards ready
	ready func()
}
