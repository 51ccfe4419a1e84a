package memory

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// maxSlice is the maximum number of bytes of a body that one Progress copies. With this limit, the
// layer above can process the first bytes while the next bytes arrive, and a slice stays in the
// second-level cache.
const maxSlice = 256 << 10

// A link joins the two Conns of a pair. They share one lock, because a Send changes the peer's
// inbox, and a Close changes both ends.
type link struct {
	mu sync.Mutex // guards the marked fields of both ends
}

// A conn is one end of a link. It implements transport.Conn and transport.Exposer. The frames that
// it sends lie in the peer's inbox.
//
//	pinned  inbox      the oldest frame
//	no      empty      there is none
//	no      not empty  waits; the sender's Close fails it
//	yes     not empty  Progress is copying it; the sender's Close leaves it to that Progress
//
// The field reading is the receiver's role. One goroutine holds this role during Progress. The
// field waiting mirrors the state of the inbox, so that Progress can poll an empty inbox without
// the lock.
//
// An end is open until err is set. From then on it has failed. Only the end that has sent a frame
// can fail this frame. It does so in Close, in a later Send, or in the next Progress. So Done runs
// on a goroutine of the sender's rank, unless the peer has received the frame.
type conn struct {
	link    *link
	home    *Transport
	peer    *conn
	reading atomic.Bool  // held for one call of Progress; a second call returns Busy
	waiting atomic.Int32 // frames in the inbox, plus one after a failure; written under link.mu

	// guarded by link.mu
	inbox  items
	pinned bool   // Progress is copying the inbox's first frame
	err    error  // the first error, and final
	ready  func() // the armed callback
	listed bool   // the notifier will run ready

	// guarded by link.mu; the peer's Unsent uses these fields to report that this end receives
	// nothing
	received uint64    // calls of Progress that received something
	seen     uint64    // the value of received at the peer's last Unsent
	since    time.Time // when the peer's Unsent first saw that number

	nextReady *conn // link in the notifier's list; guarded by home.mu

	// The arriving frame; only Progress uses it.
	begun  bool
	header transport.Header
	got    int    // bytes of the body that have arrived
	dst    []byte // the Sink's buffer for the body; nil drops the body
	target handle // the exposed memory for the body, if the frame has a To
	head   [transport.MaxHead]byte

	exposures exposureTable
}

// newPair makes a link between two Transports, which may be the same Transport. It returns both
// Conns, not registered yet.
func newPair(near, far *Transport) (*conn, *conn) {
	l := new(link)
	a := &conn{link: l, home: near}
	b := &conn{link: l, home: far}
	a.peer, b.peer = b, a
	return a, b
}

// Send implements transport.Conn. It queues f at the peer's end, where the peer's Progress receives
// it. The queue is not bounded: the memory of its frames belongs to the senders.
func (c *conn) Send(f *transport.Frame) {
	if len(f.Head) > transport.MaxHead {
		f.Done(failure(fault.Misuse, "send",
			fmt.Errorf("got a head of %d bytes, want at most %d", len(f.Head), transport.MaxHead)))
		return
	}
	c.link.mu.Lock()
	if c.err != nil { // older frames fail first, in the order in which they were sent
		stale, err := c.detachUnreceived(), c.err
		c.link.mu.Unlock()
		failAll(stale, err)
		f.Done(err)
		return
	}
	c.peer.inbox.Push(item{f, f.Size()})
	c.peer.updateWaiting()
	c.link.mu.Unlock()
}

// TrySend implements transport.Conn. It always returns false. A frame belongs to the Conn until the
// peer has copied the frame, so the slices cannot be returned at once.
func (c *conn) TrySend(head, body []byte) bool { return false }

// Unsent implements transport.Conn. It counts all frames in the peer's inbox. Receiving does not
// read the clock, which would cost more than a small frame. So the result since is the time of the
// first Unsent call after the peer last received something. The reported stall is shorter than the
// real stall by at most the time between two calls.
func (c *conn) Unsent() (bytes int, since time.Time) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	p := c.peer
	if c.err != nil || p.inbox.Len() == 0 {
		p.since = time.Time{}
		return 0, time.Time{}
	}
	for i := range p.inbox.Len() {
		it := p.inbox.At(i)
		bytes += max(1, len(it.f.Head)+it.size)
	}
	if p.since.IsZero() || p.seen != p.received {
		p.seen, p.since = p.received, time.Now()
	}
	return bytes, p.since
}

// updateWaiting sets waiting to the number of frames, plus one after a failure, that Progress would
// find. If the number is not 0, it schedules the armed callback. Code that changes the inbox or err
// calls it. The link is locked.
func (c *conn) updateWaiting() {
	n := c.inbox.Len()
	if c.err != nil {
		n++
	}
	c.waiting.Store(int32(n))
	if n > 0 {
		c.wakeUp()
	}
}

// wakeUp makes the notifier run the armed callback soon. It does nothing if no callback is armed,
// or if the notifier is already about to run it. The link is locked.
func (c *conn) wakeUp() {
	if c.ready != nil && !c.listed {
		c.listed = true
		c.home.scheduleReady(c)
	}
}

// detachUnreceived removes the frames that this end sent and the peer has not received. It leaves a
// pinned frame, whose memory is in use until the peer's Progress unpins it. The link is locked. The
// caller fails the frames after it has unlocked the link, because Done may send.
func (c *conn) detachUnreceived() items {
	out := c.peer.inbox
	c.peer.inbox = items{}
	if c.peer.pinned {
		c.peer.inbox.Push(out.Pop())
	}
	c.peer.updateWaiting()
	return out
}

// Arm implements transport.Conn. The notifier also runs the callback if Progress can already move
// something.
func (c *conn) Arm(ready func()) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.ready = ready
	if c.waiting.Load() > 0 {
		c.wakeUp()
	}
}

// fire disarms the callback and runs it. So the callback may arm the Conn again. The notifier calls
// fire.
func (c *conn) fire() {
	c.link.mu.Lock()
	ready := c.ready
	c.ready, c.listed = nil, false
	c.link.mu.Unlock()
	if ready != nil {
		ready()
	}
}

// Close implements transport.Conn. It ends both ends of the link. If the peer is copying a frame,
// the peer ends this frame after the current slice, and runs its Done on the peer's goroutine.
func (c *conn) Close() error {
	c.end(failure(fault.Closed, "this end has closed", nil), errPeerClosed)
	c.home.unregister(c)
	return nil
}

// end fails both ends with their errors, unless they have failed already. end runs Done for this
// end's frames. The peer runs Done for its own frames when it next uses its Conn, so that Done does
// not run on a goroutine of another rank.
func (c *conn) end(own error, theirs func() error) {
	c.link.mu.Lock()
	if c.err == nil {
		c.err = own
	}
	if c.peer.err == nil {
		c.peer.err = theirs()
	}
	stale, err := c.detachUnreceived(), c.err
	c.updateWaiting()
	c.link.mu.Unlock()
	failAll(stale, err)
}

var (
	_ transport.Conn    = (*conn)(nil)
	_ transport.Exposer = (*conn)(nil)
)
