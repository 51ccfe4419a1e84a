package memory

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// maxSlice is the most bytes of body that one Progress copies, so that what
// lies above can work on the first bytes while the next ones arrive: a slice
// stays in the second-level cache.
const maxSlice = 256 << 10

// A link is what the two Conns of a pair share.
type link struct {
	mu sync.Mutex // guards the marked fields of both ends
}

// A conn is one end of a link; it implements transport.Conn, Exposer and
// Gatherer. What it sends lies in the peer's inbox.
//
// A frame is pinned while Progress is at it: then a Close of the sender's leaves
// it alone, and that Progress call ends it.
type conn struct {
	link    *link
	home    *Transport
	peer    *conn
	reading atomic.Bool  // the role: held for one call of Progress, never waited for
	waiting atomic.Int32 // frames in the inbox, plus one after a failure; written under link.mu

	// guarded by link.mu
	inbox  items
	pinned bool   // the inbox's first is in the hands of Progress
	err    error  // the first error, and final
	ready  func() // armed
	listed bool   // the notifier has this Conn in its list

	nextReady *conn // the notifier's; guarded by home.mu

	// The frame that is arriving; only Progress looks at it.
	begun  bool
	header transport.Header
	got    int    // bytes of it that are in
	dst    []byte // where its body goes; nil drops it
	target handle // the exposed memory it goes to instead
	head   [transport.MaxHead]byte

	exposures exposureTable
}

// newPair makes a link between two Transports, which may be the same one.
func newPair(near, far *Transport) (*conn, *conn) {
	l := new(link)
	a := &conn{link: l, home: near}
	b := &conn{link: l, home: far}
	a.peer, b.peer = b, a
	return a, b
}

// Send queues f at the peer's end, where the peer's Progress takes it.
func (c *conn) Send(f *transport.Frame) { c.send(item{f: f, size: len(f.Body)}) }

// SendParts queues a frame whose body lies in several pieces; they are copied
// one after the other, straight to where the body goes.
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

func (c *conn) send(it item) {
	if len(it.f.Head) > transport.MaxHead {
		it.f.Done(failure(fault.Misuse, "send",
			fmt.Errorf("a head of %d bytes, of at most %d", len(it.f.Head), transport.MaxHead)))
		return
	}
	c.link.mu.Lock()
	if c.err != nil {
		stale, err := c.takeUnreceived(), c.err
		c.link.mu.Unlock()
		failAll(stale, err)
		it.f.Done(err)
		return
	}
	c.peer.inbox.Push(it)
	c.peer.updateWaiting()
	c.link.mu.Unlock()
}

// updateWaiting recounts what Progress would find, and wakes who waits for it. The
// link is locked.
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

// wakeUp has the armed callback run. The link is locked.
func (c *conn) wakeUp() {
	if c.ready != nil && !c.listed {
		c.listed = true
		c.home.scheduleReady(c)
	}
}

// takeUnreceived takes what this end sent and the peer has not received, except a
// pinned frame. The link is locked; the caller fails the frames after unlocking.
func (c *conn) takeUnreceived() items {
	out := c.peer.inbox
	c.peer.inbox = items{}
	if c.peer.pinned {
		c.peer.inbox.Push(out.Pop())
	}
	c.peer.updateWaiting()
	return out
}

// Arm has ready run on the notifier once Progress could move something. A
// wake-up may be spurious: another goroutine may have moved it meanwhile.
func (c *conn) Arm(ready func()) {
	c.link.mu.Lock()
	defer c.link.mu.Unlock()
	c.ready = ready
	if c.waiting.Load() > 0 {
		c.wakeUp()
	}
}

// fire runs the armed callback; the notifier calls it.
func (c *conn) fire() {
	c.link.mu.Lock()
	ready := c.ready
	c.ready, c.listed = nil, false
	c.link.mu.Unlock()
	if ready != nil {
		ready()
	}
}

// Close ends both ends. A frame that the peer is just copying is finished there,
// up to its next slice; its Done then comes from the peer's goroutine.
func (c *conn) Close() error {
	c.end(failure(fault.Closed, "this end has closed", nil), errPeerClosed)
	c.home.unregister(c)
	return nil
}

// end fails both ends with their errors, unless they have failed already. This
// end's frames get Done here; the peer's when the peer next looks at its Conn,
// for its Done callbacks are not to run on a stranger's goroutine.
func (c *conn) end(own error, theirs func() error) {
	c.link.mu.Lock()
	if c.err == nil {
		c.err = own
	}
	if c.peer.err == nil {
		c.peer.err = theirs()
	}
	stale, err := c.takeUnreceived(), c.err
	c.updateWaiting()
	c.link.mu.Unlock()
	failAll(stale, err)
}

var (
	_ transport.Conn     = (*conn)(nil)
	_ transport.Exposer  = (*conn)(nil)
	_ transport.Gatherer = (*conn)(nil)
)
