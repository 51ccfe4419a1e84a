package mesh

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// errDuplicate refuses the second of two data Conns between the same ranks.
var errDuplicate = errors.New("a connection between these ranks is already open or being opened")

// dialLimit bounds how long a data Conn may take to come up; longer than a
// stranger may hold a slot. Between attempts a dial sleeps, ever longer.
const (
	dialTimeout      = 10 * time.Second
	minRedialBackoff = 5 * time.Millisecond
	maxRedialBackoff = 250 * time.Millisecond
)

// Data is what carries messages above the data Conns. Its methods may be called
// on any goroutine and never block.
type Data interface {
	// Sink is asked once per peer, before its first frame.
	Sink(l *Link) transport.Sink
	// LinkDown says that the Conn to a peer broke, never came up, or was closed by
	// the Mesh's end; it comes at most once per Link, and nothing arrives on that
	// Link afterwards.
	LinkDown(rank int, err error)
}

type linkState uint8

const (
	linkIdle      linkState = iota // nobody needed it yet
	linkDialing                    // this side dials
	linkAccepting                  // the peer's Conn was admitted, or its dial has won
	linkOpening                    // frames queued meanwhile are being sent, in order
	linkUp
	linkFailed
)

// A Link is the data Conn to one peer. It is opened when it is first needed;
// frames sent before that wait in it, bounded by the credits of the layer above.
//
// Send may be called by anyone. At most one goroutine at a time is in Progress:
// the word role is taken by compare-and-swap for one call, and never waited for.
type Link struct {
	Rank int // the peer's

	m           *Mesh
	inProgress  atomic.Uint32 // 1 while somebody is in the Conn's Progress
	armed       atomic.Bool   // the Conn holds our wake-up
	closed      atomic.Bool   // the Conn is closed; arming it again would fire for ever
	polls       atomic.Uint32 // counts turns of waiters; the ticker looks for links that rest
	conn        atomic.Pointer[upConn]
	onReady     func()                // l.ready, bound once
	deferredErr atomic.Pointer[error] // a Sink's verdict on what arrived; carried out after Progress

	mu      sync.Mutex // guards what follows
	state   linkState
	pending transport.Queue
	sink    transport.Sink
	err     error
}

// upConn is a Conn with the Sink that its frames go to.
type upConn struct {
	transport.Conn
	sink transport.Sink
}

// Conn is the peer's Conn once it is up, else nil; for abilities.
func (l *Link) Conn() transport.Conn {
	if c := l.conn.Load(); c != nil {
		return c.Conn
	}
	return nil
}

// Send queues f on the Conn, and opens the Conn when this is its first use. It
// never blocks; f.Done may run before it returns. Frames of one goroutine keep
// their order.
func (l *Link) Send(f *transport.Frame) {
	if c := l.conn.Load(); c != nil {
		c.Send(f)
		return
	}
	l.mu.Lock()
	switch l.state {
	case linkFailed:
		err := l.err
		l.mu.Unlock()
		f.Done(err)
		return
	case linkUp:
		l.mu.Unlock()
		l.conn.Load().Send(f)
		return
	case linkIdle:
		l.state = linkDialing
		l.m.links.spawn(l.dial)
	}
	l.pending.Push(f)
	l.mu.Unlock()
}

// IsUp reports whether the Conn is up, or was.
func (l *Link) IsUp() bool { return l.conn.Load() != nil }

// TrySend sends a small frame inline if the Conn is up and can, and reports whether it
// did; see transport.Conn. If not, Send takes the frame.
func (l *Link) TrySend(head, body []byte) bool {
	c := l.conn.Load()
	return c != nil && c.TrySend(head, body)
}

// Open starts the dial without sending anything.
func (l *Link) Open() {
	l.mu.Lock()
	if l.state == linkIdle {
		l.state = linkDialing
		l.m.links.spawn(l.dial)
	}
	l.mu.Unlock()
}

// dial opens the Conn. When both sides dial at once, the lower rank's dial wins
// and the other is refused as a duplicate; its Conn comes by acceptData then. A
// dial that fails otherwise is tried again: strangers may hold all the slots of
// the peer's front for a while, and it turns away unheard whoever comes then.
func (l *Link) dial(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	for pause := minRedialBackoff; ; pause = min(2*pause, maxRedialBackoff) {
		c, err := l.m.dialChannel(ctx, l.Rank, channelData)
		switch {
		case err == nil:
			l.install(c, linkDialing)
			return
		case errors.Is(err, errDuplicate):
			l.awaitPeer(ctx)
			return
		}
		final := isFinal(err) || !sleep(ctx, pause)
		switch {
		case !l.isDialing(): // the peer's Conn has come meanwhile, however our dial has ended
			l.awaitPeer(ctx)
			return
		case final:
			l.fail(err)
			return
		}
	}
}

// isFinal reports whether a data Conn's dial has failed for good: the peer, or
// what is known of it, says so.
func isFinal(err error) bool {
	var no *refusal
	return errors.As(err, &no) || errors.Is(err, fault.PeerLost) || errors.Is(err, fault.Closed) || cannotSucceed(err)
}

// sleep reports whether ctx has let it sleep that long.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// isDialing reports whether the Conn is still this side's to open.
func (l *Link) isDialing() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state == linkDialing
}

// awaitPeer waits for the peer's own Conn, which has precedence over ours.
func (l *Link) awaitPeer(ctx context.Context) {
	l.mu.Lock()
	if l.state == linkDialing {
		l.state = linkAccepting
	}
	waits := l.state == linkAccepting
	l.mu.Unlock()
	if !waits {
		return
	}
	<-ctx.Done() // dialLimit, also when the Conn has come meanwhile, or the Mesh's end
	l.mu.Lock()
	late := l.state == linkAccepting
	l.mu.Unlock()
	if late {
		l.fail(errors.New("the peer refused this connection in favour of its own, which never arrived"))
	}
}

// mayAcceptData decides, before the peer is told that it is welcome, whether its
// data Conn is taken: not when one is up, and not when our own dial has precedence.
func (m *Mesh) mayAcceptData(rank int) error {
	l := m.Link(rank)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.state {
	case linkIdle, linkAccepting:
		l.state = linkAccepting
		return nil
	case linkDialing:
		if m.Rank() < rank {
			return errDuplicate
		}
		l.state = linkAccepting
		return nil
	case linkFailed:
		return l.err
	}
	return errDuplicate
}

// acceptData takes over an admitted data Conn of the peer's.
func (m *Mesh) acceptData(rank int, c transport.Conn) {
	m.Link(rank).install(c, linkAccepting)
}

// install makes c the link's Conn, sends what waited, and starts reading. A Conn
// that comes when another is there already is closed.
func (l *Link) install(c transport.Conn, from linkState) {
	l.mu.Lock()
	if l.state != from && !(from == linkDialing && l.state == linkAccepting) {
		l.mu.Unlock()
		c.Close()
		return
	}
	l.state = linkOpening
	if l.sink == nil {
		l.sink = l.m.cfg.Data.Sink(l)
	}
	for f := l.pending.Pop(); f != nil; f = l.pending.Pop() {
		l.mu.Unlock() // Done may run inside Send, and may come back here
		c.Send(f)
		l.mu.Lock()
	}
	if l.state == linkFailed {
		l.mu.Unlock()
		c.Close()
		return
	}
	l.conn.Store(&upConn{Conn: c, sink: l.sink})
	l.state = linkUp
	l.mu.Unlock()
	l.arm()
}

// fail ends the link: what waits in it and in its Conn is done with err, the
// layer above is told, and the control plane is asked for a verdict.
func (l *Link) fail(err error) {
	if l.close(err) {
		l.m.cfg.Data.LinkDown(l.Rank, err)
		l.m.Suspect(l.Rank, err)
	}
}

// close closes the link without telling anyone; false when it had ended before.
// Either way nothing arrives on it once end has returned, so it must not be called
// from within Progress.
func (l *Link) close(err error) bool {
	l.mu.Lock()
	first := l.state != linkFailed
	var waiting transport.Queue
	if first {
		l.state, l.err = linkFailed, err
		waiting, l.pending = l.pending, waiting
	}
	l.mu.Unlock()
	l.closed.Store(true)
	if c := l.conn.Load(); c != nil {
		c.Close()
		l.quiesce()
	}
	for f := waiting.Pop(); f != nil; f = waiting.Pop() {
		f.Done(err)
	}
	return first
}

// quiesce returns once nobody is in the closed Conn's Progress: from then on no
// receive's buffer is written into. Progress never blocks, so this is short.
func (l *Link) quiesce() {
	for !l.inProgress.CompareAndSwap(0, 1) {
		runtime.Gosched()
	}
	l.inProgress.Store(0)
}

// DeferFailure ends the link because of what arrived on it. A Sink calls it from within
// Progress; the link ends when that has returned.
func (l *Link) DeferFailure(err error) { l.deferredErr.CompareAndSwap(nil, &err) }

// Close ends the link without a suspicion: the peer is known to be gone.
func (l *Link) Close(err error) { l.close(err) }

// Progress moves the link once, unless another goroutine is doing so.
func (l *Link) Progress() transport.State { return l.progress(1) }

// progress is Progress that polls up to spins times where the Conn does that.
func (l *Link) progress(spins int) transport.State {
	c := l.conn.Load()
	if c == nil || l.closed.Load() {
		return transport.Idle
	}
	if !l.inProgress.CompareAndSwap(0, 1) {
		return transport.Busy
	}
	if l.closed.Load() { // meanwhile: end has seen the role free, and promised that nothing arrives any more
		l.inProgress.Store(0)
		return transport.Idle
	}
	state, err := l.progressOnce(c, spins)
	l.inProgress.Store(0)
	if err != nil {
		l.fail(err)
		return transport.Idle
	}
	return state
}

// progressOnce is one turn of the Conn's, unless what has arrived so far has doomed it:
// what follows a frame that was refused would be taken for that frame.
func (l *Link) progressOnce(c *upConn, spins int) (state transport.State, err error) {
	if why := l.deferredErr.Load(); why != nil {
		return transport.Idle, *why
	}
	state, err = c.Progress(c.sink, spins)
	if why := l.deferredErr.Load(); why != nil && err == nil {
		err = *why
	}
	return state, err
}

// arm leaves our wake-up with the Conn, unless it lies there already.
func (l *Link) arm() {
	if c := l.conn.Load(); c != nil && !l.closed.Load() && l.armed.CompareAndSwap(false, true) {
		c.Arm(l.onReady)
	}
}

// maxReadyTurns bounds how long one link keeps the transport's goroutine.
const maxReadyTurns = 64

// ready runs on the transport's goroutine when the Conn could move something
// and nobody waits for it. A waiter that holds the role arms again on leaving.
func (l *Link) ready() {
	l.armed.Store(false)
	for range maxReadyTurns {
		switch l.Progress() {
		case transport.Busy:
			l.m.links.noteUnarmed()
			return
		case transport.Idle:
			l.arm()
			return
		}
	}
	l.arm() // what is left to move fires at once
}
