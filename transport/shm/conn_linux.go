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
	// takeMost bounds what one Progress copies out of the ring, so that what lies
	// above works on it while it is in cache.
	takeMost = 128 << 10
	// putMost bounds what one Progress, and one Send, puts in, so that both ways
	// move in turns and Send does not feed the ring for as long as it is emptied.
	putMost = 128 << 10
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
	t     *Transport
	seg   *segment
	fd    int // the socket
	peer  unix.Ucred
	id    int32 // in the Transport's watcher; 0: not in it
	gate  poll.Gate
	first poll.FirstError
	guest atomic.Bool // accepted and not admitted
	slot  func()      // gives the guest's slot back; nil for who has dialled
	limit *time.Timer // of a guest's life

	listed bool // the Transport knows this Conn; written before anybody else does

	// the reader's
	in    consumer
	grace int // bytes still taken after a failure
	ended bool

	out          outbox
	mine, theirs *bell
	alarm        alarm

	shown exposures // this side's memory
	far   foreign   // the peer's
}

// newConn makes a Conn of a mapping and the socket it came with, and owns both.
func (t *Transport) newConn(w wire) (*conn, error) {
	c := &conn{t: t, seg: w.seg, fd: w.fd, peer: w.peer, slot: w.slot, grace: w.seg.ring}
	c.far.fd = -1
	c.seg.users.Store(1)
	c.out.out, c.in, c.mine, c.theirs = w.seg.sides(w.slot == nil)
	c.in.guest, c.in.shown = &c.guest, &c.shown
	c.shown.words, c.far.words = w.seg.slots(w.slot == nil)
	if w.slot != nil {
		c.guest.Store(true)
		c.limit = time.AfterFunc(guestLife, c.expire)
	}
	c.gate.Enter() // a Close from now on lets go when all is set up
	defer c.leave()
	if !t.enlist(c) {
		c.Close()
		return nil, failure(fault.Closed, "open a connection", nil)
	}
	var err error
	if c.id, err = t.watcher.Add(c); err == nil {
		// Level-triggered, and always: a peer's end is to be noticed also while
		// nobody is armed. Bytes come only when this end has asked for a ring.
		err = t.watcher.Control(syscall.EPOLL_CTL_ADD, c.fd, c.id, 0, syscall.EPOLLIN|syscall.EPOLLRDHUP)
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
	if c.guest.CompareAndSwap(true, false) {
		c.leaveSlot()
	}
}

// Progress implements transport.Conn. A poll that finds nothing costs a look at
// the place where the next record will begin.
func (c *conn) Progress(in transport.Sink) (transport.State, error) { return c.Linger(in, 1) }

// Linger implements transport.Prompter: it looks so many times at that place, and
// does nothing else meanwhile.
func (c *conn) Linger(in transport.Sink, looks int) (transport.State, error) {
	switch c.gate.EnterReader() {
	case poll.Occupied:
		return transport.Busy, nil
	case poll.ShutDown:
		return transport.Idle, c.first.Get()
	}
	c.in.await(looks)
	state, err := c.progress(in)
	if c.gate.LeaveReader() {
		c.letGo()
	}
	if c.alarm.pending.Load() {
		c.settle()
	}
	return state, err
}

// progress is Progress in the reader's role: first out what found no room before,
// then in.
func (c *conn) progress(in transport.Sink) (transport.State, error) {
	state := transport.Idle
	if c.out.stuck.Load() && c.out.resume() && c.flush() {
		state = transport.Moved
	}
	gone := c.first.Get() // before the look at the ring: what came before it counts
	if c.ended || !c.in.waiting() {
		if gone != nil {
			c.ended = true
			return transport.Idle, gone
		}
		c.tell()
		return state, nil
	}
	if gone != nil && c.grace <= 0 {
		c.ended = true // a peer that fills the ring for ever
		return transport.Idle, gone
	}
	if err := c.receive(in, gone != nil); err != nil {
		c.ended = true
		return transport.Idle, c.fail(err)
	}
	return transport.Moved, nil
}

// tell gives the peer the room of what was taken, if it has not been told.
func (c *conn) tell() {
	if c.in.at != c.in.told {
		c.in.tell()
		if c.in.due {
			c.in.due = false
			c.ring()
		}
	}
}

// receive moves what has arrived, up to the end of one frame.
func (c *conn) receive(in transport.Sink, last bool) error {
	for most := takeMost; most > 0; {
		n, whole, err := c.in.take(in)
		if c.in.due {
			c.in.due = false
			c.ring()
		}
		if last {
			c.grace -= n
		}
		if whole || err != nil || n == 0 {
			return err
		}
		if c.gate.IsShut() { // by the Sink, perhaps
			return c.first.Get()
		}
		most -= n
	}
	return nil
}

// Send implements transport.Conn.
func (c *conn) Send(f *transport.Frame) { c.send(item{f: f, size: len(f.Body)}) }

// TrySend implements transport.Prompter.
func (c *conn) TrySend(head, body []byte) bool {
	did, due := c.out.now(head, body)
	if due && c.gate.Enter() {
		c.ring()
		c.leave()
	}
	return did
}

// SendParts implements transport.Gatherer.
func (c *conn) SendParts(f *transport.Frame, parts [][]byte) {
	it := item{f: f, parts: parts}
	if parts == nil {
		it.parts = [][]byte{}
	}
	for _, p := range parts {
		it.size += len(p)
	}
	c.send(it)
}

// send puts a frame into the ring, or becomes the writer unless there is one or
// the ring is full: then whoever calls Progress goes on, woken by room if need be.
func (c *conn) send(it item) {
	if err := check(it.f, it.size); err != nil {
		it.f.Done(err)
		return
	}
	did, due, err := c.out.push(it)
	switch did {
	case put:
		if due && c.gate.Enter() {
			c.ring()
			c.leave()
		}
		it.f.Done(nil)
	case toWrite:
		if c.gate.Enter() {
			c.flush()
			c.leave()
			return
		}
		_, failed, err := c.out.next(true) // Close came in between
		fail(failed, err)
	case refused:
		if c.first.Get() == nil {
			err = c.fail(err)
		}
		it.f.Done(err)
	}
}

// flush puts frames until nothing waits, the ring takes no more, or it is enough
// for one call. The caller is the writer and inside the gate, and is no longer the
// writer when flush returns.
func (c *conn) flush() (moved bool) {
	for most, stop := putMost, false; ; {
		f, failed, err := c.out.next(stop)
		if f == nil {
			fail(failed, err)
			break
		}
		n, whole, err := c.write(f)
		if err != nil {
			c.fail(err)
		}
		if c.out.out.due {
			c.out.out.due = false
			c.ring()
		}
		most -= n + line
		stop = n == 0 && !whole || most <= 0
		moved = moved || n > 0 || whole
		if done := c.out.wrote(n, whole); done != nil {
			done.Done(nil)
		}
	}
	if c.out.stuck.Load() && c.alarm.armed.Load() && c.out.await(c.mine) {
		c.wake()
	}
	return moved
}

// Unsent is how many bytes wait that the ring has had no room for so far, and
// since when it has taken none; 0 and the zero time while none do. The layer above
// decides when that is a stall: a Conn has no timers.
func (c *conn) Unsent() (bytes int, since time.Time) { return c.out.unsent() }

// fail ends the Conn but for what has arrived already, and returns the first
// error.
func (c *conn) fail(err error) error {
	failed, err := c.out.close(&c.first, err)
	fail(failed, err)
	c.wake()
	return err
}

// Close implements transport.Conn. A Progress that runs meanwhile may write into
// the arriving frame's body until it returns. What is in the ring still reaches
// the peer.
func (c *conn) Close() error {
	failed, err := c.out.close(&c.first, errClosed()) // before the gate: who holds out's lock need not enter
	if first, last := c.gate.Shut(); first && last {
		c.letGo()
	}
	fail(failed, err)
	c.wake()
	return nil
}

// leave ends a use other than the reader's.
func (c *conn) leave() {
	if c.gate.Leave() {
		c.letGo()
	}
}

// letGo gives back all that the Conn holds; nobody is inside any more.
func (c *conn) letGo() {
	c.theirsToKnow()
	if c.id != 0 {
		c.t.watcher.Control(syscall.EPOLL_CTL_DEL, c.fd, 0, 0, 0)
		c.t.watcher.Remove(c.id)
	}
	syscall.Close(c.fd)
	c.far.close()
	c.seg.leave()
	if c.guest.CompareAndSwap(true, false) {
		c.leaveSlot()
	}
	c.t.release(c)
}

// theirsToKnow tells the peer that this end has closed, and has not died.
func (c *conn) theirsToKnow() {
	c.mine.closed.Store(1)
	syscall.Shutdown(c.fd, syscall.SHUT_RDWR)
}

// expire ends a guest whose time is over.
func (c *conn) expire() {
	if c.guest.Load() {
		c.Close()
	}
}

// leaveSlot ends a guest's time.
func (c *conn) leaveSlot() {
	c.limit.Stop()
	c.slot()
}

// RemoteAddr names the peer's process.
func (c *conn) RemoteAddr() net.Addr { return remote{c.peer.Pid} }

// A remote is a process of this host, as net.Addr has it.
type remote struct{ pid int32 }

func (remote) Network() string  { return Name }
func (r remote) String() string { return fmt.Sprintf("process %d", r.pid) }

// errClosed is the end of a Conn by its own Close.
func errClosed() error { return failure(fault.Closed, "this end has closed", nil) }

// errGone is the end of a Conn whose peer has closed, or died.
func errGone(closed bool) error {
	if closed {
		return failure(fault.LinkLost, "the peer closed the connection", io.EOF)
	}
	return failure(fault.LinkLost, "the peer's process has ended", io.EOF)
}

var (
	_ transport.Conn     = (*conn)(nil)
	_ transport.Pending  = (*conn)(nil)
	_ transport.Gatherer = (*conn)(nil)
	_ transport.Prompter = (*conn)(nil)
	_ poll.Handler       = (*conn)(nil)
)

// An alarm is a Conn's one armed wake-up.
type alarm struct {
	armed   atomic.Bool // ready is set
	pending atomic.Bool // the peer has not been told yet to ring

	mu    sync.Mutex // guards ready
	ready func()
}
