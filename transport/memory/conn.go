package memory

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

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

// A conn is one end of a link; it implements transport.Conn and Exposer. What it sends lies in the peer's inbox.
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

	// guarded by link.mu: for the peer's Unsent
	received uint64    // calls of Progress that received something
	seen     uint64    // received, as of the peer's last Unsent
	since    time.Time // when the peer's Unsent first saw that

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
func (c *conn) Send(f *transport.Frame) {
	if len(f.Head) > transport.MaxHead {
		f.Done(failure(fault.Misuse, "send",
			fmt.Errorf("a head of %d bytes, of at most %d", len(f.Head), transport.MaxHead)))
		return
	}
	c.link.mu.Lock()
	if c.err != nil {
		stale, err := c.takeUnreceived(), c.err
		c.link.mu.Unlock()
		failAll(stale, err)
		f.Done(err)
		return
	}
	c.peer.inbox.Push(item{f, f.Size()})
	c.peer.updateWaiting()
	c.link.mu.Unlock()
}

// TrySend implements transport.Conn: a frame stays with its sender until the peer
// copies it, so that nothing is sent inline.
func (c *conn) TrySend(head, body []byte) bool { return false }

// Unsent implements transport.Conn: all frames in the peer's inbox wait. Receiving
// looks at no clock, so that the time is that of the first Unsent since the peer has
// received something.
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
	_ transport.Conn    = (*conn)(nil)
	_ transport.Exposer = (*conn)(nil)
)
