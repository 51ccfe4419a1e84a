package mesh

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// errDuplicate is the refusal of the second of two data Conns between the same ranks.
var errDuplicate = errors.New("a connection between these ranks is already open or being opened")

// The limits on opening a data Conn, counted from the first dial. The error of the last attempt
// decides which limit applies; see retryLimit. The pause between two attempts grows from
// minRedialBackoff to maxRedialBackoff.
const (
	dialRefused      = time.Second      // the peer's host refuses the connection
	dialSilent       = handshakeTimeout // nothing answers; also the limit of each attempt
	dialTimeout      = 10 * time.Second // this process lacks descriptors, or the peer's own dial has won
	dialUnanswered   = time.Minute      // the peer closes the connection, because others take its slots
	minRedialBackoff = 5 * time.Millisecond
	maxRedialBackoff = 250 * time.Millisecond
)

// Data is the layer above the data Conns. Its methods may be called on any goroutine, and never
// block.
type Data interface {
	// Sink returns the Sink for a peer. It is called once, before the peer's first frame.
	Sink(l *Link) transport.Sink
	// LinkDown reports that the Conn to a peer broke, never came up, or was closed with the Mesh.
	// It is called at most once per Link, and nothing arrives on that Link afterwards.
	LinkDown(rank int, err error)
}

// A linkState says who is opening the Conn of a Link. When both ranks dial, the lower rank's dial
// wins.
//
//	linkIdle ---Send, Open--> linkDialing ---welcome--> linkOpening --> linkUp
//	   |                        |      ^                     ^
//	   |              the peer's dial wins                   |
//	   |                        v                            |
//	   +--the peer dials--> linkAccepting ---the peer's Conn-+
//
// Every state leads to linkFailed, which is final. With Config.Redial, a Conn that breaks leads
// from linkUp back to linkDialing, or to linkAccepting if the peer has noticed it first; see
// replayConn.
type linkState uint8

const (
	linkIdle      linkState = iota // the Conn has not been needed yet
	linkDialing                    // this rank dials
	linkAccepting                  // the peer dials: its Conn was admitted, or the peer's dial has won
	linkOpening                    // the Conn is open; the frames queued before are being sent, in order
	linkUp                         // frames go straight to the Conn
	linkFailed                     // err says why
)

// A Link is the data Conn to one peer. The Conn is opened when it is first needed. Frames sent
// before the Conn is up wait in the Link. The credits of the layer above limit their number.
//
// Send may be called by any goroutine. At most one goroutine at a time is in Progress. That
// goroutine claims inProgress by compare-and-swap, for one call. Another caller of Progress gets
// Busy at once. Only quiesce waits until inProgress is free.
//
//	flag        set                           cleared                   meaning
//	inProgress  before Conn.Progress          after it                  one goroutine reads
//	armed       before Conn.Arm               when the wake-up fires    the Conn will call ready
//	closed      by detach                     never                     nothing arrives any more
//
// A link that is up is either armed, polled by a waiter, or about to be armed by the ticker. A
// waiter that leaves an unarmed link calls noteUnarmed, which wakes the ticker.
type Link struct {
	Rank int // the peer's

	m          *Mesh
	inProgress atomic.Uint32 // 1 while a goroutine is in Conn.Progress
	armed      atomic.Bool   // the Conn holds this link's wake-up
	closed     atomic.Bool   // the Conn has failed or is closed; it is not armed again, because
	// its wake-up would fire at once, for ever
	polls       atomic.Uint32 // counts the polls of waiters; an unchanged count shows the ticker that nobody polls
	conn        atomic.Pointer[upConn]
	onReady     func()                // l.ready, bound once
	deferredErr atomic.Pointer[error] // why a Sink rejected a frame; the link fails once Progress has returned
	acks        ackState              // owned by the control goroutine
	answering   atomic.Bool           // a goroutine is answering the peer's question about this link

	mu       sync.Mutex // guards the rest
	state    linkState
	pending  transport.Queue
	sink     transport.Sink
	err      error
	epoch    uint32    // the number of the last Conn, if the link can be opened again; else 0
	outage   time.Time // when the link broke; later breaks without a frame in between do not change it
	accepted bool      // the peer has dialled the last Conn, and may never have received the welcome
}

// An upConn is an open Conn with the Sink of its frames. They share one struct, so that a reader
// gets both with one atomic load.
type upConn struct {
	transport.Conn
	sink transport.Sink
}

// Conn returns the peer's Conn once it is up, else nil. Callers use it to find the Conn's
// abilities.
func (l *Link) Conn() transport.Conn {
	if c := l.conn.Load(); c != nil {
		return c.Conn
	}
	return nil
}

// Send queues the frame f on the Conn. The first call of Send also opens the Conn. Send never
// blocks, and f.Done may run before Send returns. Frames sent by one goroutine keep their order,
// including frames that waited for the Conn. While install sends the waiting frames, the state is
// linkOpening, and new frames queue behind them.
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

// IsUp reports whether the Conn has come up. It stays true after the Conn has closed.
func (l *Link) IsUp() bool { return l.conn.Load() != nil }

// TrySend sends a small frame inline if the Conn is up and supports that, and reports whether it
// sent the frame. If not, the caller uses Send. See transport.Conn.
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

// dial opens the Conn. When both ranks dial at once, the lower rank's dial wins. The lower rank
// refuses the other dial as a duplicate, and acceptData installs the Conn. dial retries after a
// failure that is not final, until retryLimit.
func (l *Link) dial(ctx context.Context) {
	for start, pause := time.Now(), minRedialBackoff; ; pause = min(2*pause, maxRedialBackoff) {
		c, peer, err := l.dialOnce(ctx)
		switch {
		case err == nil:
			l.install(c, linkDialing, peer)
			return
		case errors.Is(err, errDuplicate):
			l.awaitPeer(ctx)
			return
		}
		final := isFinal(err)
		if !final {
			limit := l.retryLimit(err)
			left := limit - time.Since(start)
			if final = left <= 0 || !sleep(ctx, min(pause, left)); final {
				err = fmt.Errorf("rank %d could not open its data connection to rank %d at %s for %v: %w; "+
					"let the hosts of both ranks connect to all ports of each other, also in firewalls between them",
					l.m.Rank(), l.Rank, l.m.Addr(l.Rank), limit, err)
			}
		}
		switch {
		case !l.isDialing(0): // the peer's Conn has come meanwhile, so the result of this dial does not matter
			l.awaitPeer(ctx)
			return
		case final:
			l.fail(err)
			return
		}
	}
}

// dialOnce makes one attempt, which ends when ctx ends or after dialSilent.
func (l *Link) dialOnce(ctx context.Context) (transport.Conn, position, error) {
	ctx, cancel := context.WithTimeout(ctx, dialSilent)
	defer cancel()
	return l.m.dialChannel(ctx, l.Rank, channelData)
}

// retryLimit returns how long after its start a dial whose last attempt failed with err goes on:
//
//	error                              limit
//	the connection is refused          dialRefused: a rank listens before its address is known
//	this process lacks descriptors     dialTimeout: the lack may be temporary
//	the peer closed without an answer  dialUnanswered: it lacks slots; if it is dead, redials are refused
//	silence, or anything else          dialSilent, and longer if heartbeats say that the peer runs late
func (l *Link) retryLimit(err error) time.Duration {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return dialRefused
	case lacksDescriptors(err):
		return dialTimeout
	case closedByPeer(err) || errors.Is(err, errUnanswered) && !isTimeout(err):
		return dialUnanswered
	}
	return dialSilent + l.m.control.lateness(l.Rank)
}

// isFinal reports whether a retry of a failed dial is useless: the peer refused the dial, the peer
// is known to be gone, this Mesh is closing, or cannotSucceed holds. A lack of file descriptors is
// not final, because it may be temporary.
func isFinal(err error) bool {
	var no *refusal
	return errors.As(err, &no) || errors.Is(err, fault.PeerLost) || errors.Is(err, fault.Closed) || cannotSucceed(err)
}

// sleep waits for d, and returns false if ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// isDialing reports whether this rank's dial is still the one that opens the Conn after the given
// epoch.
func (l *Link) isDialing(epoch uint32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state == linkDialing && l.epoch == epoch
}

// awaitPeer waits for the Conn that the peer opens, because the peer's dial has won. If that Conn
// has not come after dialTimeout or when ctx ends, awaitPeer fails the link. awaitPeer runs on the
// goroutine of this rank's dial.
func (l *Link) awaitPeer(ctx context.Context) {
	l.mu.Lock()
	if l.state == linkDialing && l.epoch == 0 {
		l.state = linkAccepting
	}
	waits := l.state == linkAccepting && l.epoch == 0
	l.mu.Unlock()
	if !waits {
		return
	}
	sleep(ctx, dialTimeout) // sleeps on even when the Conn has come; only the end of the Mesh ends the sleep earlier
	l.mu.Lock()
	late := l.state == linkAccepting && l.epoch == 0
	l.mu.Unlock()
	if late {
		l.fail(fmt.Errorf("the peer refused this connection because the peer was opening a connection itself, and the peer's connection has not arrived within %v", dialTimeout))
	}
}

// mayAcceptData decides, before the peer is welcomed, whether to accept its data Conn, and reserves
// the link for it:
//
//	state                       answer
//	linkIdle, linkAccepting     accepted
//	linkDialing                 accepted from a lower rank, whose dial wins; else errDuplicate
//	linkOpening, linkUp         errDuplicate; accepted if the peer opens a broken link again
//	linkFailed                  the link's error
//
// The argument epoch is the epoch that the peer proposes. It is higher than this rank's epoch if
// both ranks had the same last Conn, and that Conn broke. It equals this rank's epoch if the peer
// dialled the last Conn but never received the welcome.
func (m *Mesh) mayAcceptData(rank int, epoch uint32) error {
	l := m.Link(rank)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch l.state {
	case linkUp:
		if r := l.replay(); r != nil && (epoch > l.epoch || epoch == l.epoch && l.accepted) {
			l.beginOutage(r)
			l.state = linkAccepting
			return nil
		}
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

// acceptData installs a data Conn that the peer has opened and mayAcceptData has accepted.
func (m *Mesh) acceptData(rank int, c transport.Conn, peer position) {
	m.Link(rank).install(c, linkAccepting, peer)
}

// install makes c the link's Conn, sends the frames that waited, and arms the wake-up. The
// parameter from is linkDialing if this rank dialled c, and linkAccepting if the peer did.
//
// If l no longer waits for c, install closes c: another Conn is up or being opened, the link has
// failed, or the epoch has changed. Link.answer may have closed the old Conn to make room for c, so
// l may have no Conn. In this case install dials again.
//
// The parameter peer is the peer's position. If peer.epoch is not 0, both ends can open the link
// again after a break, and c becomes the Conn below the link's replayConn.
func (l *Link) install(c transport.Conn, from linkState, peer position) {
	l.mu.Lock()
	if l.state != from && !(from == linkDialing && l.state == linkAccepting) || peer.epoch > 0 && peer.after != l.epoch {
		l.mu.Unlock()
		c.Close()
		l.reopen(errDuplicate)
		return
	}
	r := l.replay()
	again, lasted := r != nil, time.Since(l.outage)
	if r == nil && peer.epoch > 0 {
		r = newReplayConn(l)
	}
	if r != nil {
		moved, err := false, errNoReplay
		if peer.epoch > 0 {
			moved, err = r.resume(canReplay(c), peer.received)
		}
		if moved {
			l.outage = time.Now() // if this Conn breaks before it delivers a frame, the time counts from now
		}
		if err == errStale {
			l.state = linkDialing
			l.spawnRedial(err)
		}
		if err != nil {
			l.mu.Unlock()
			c.Close()
			if err != errStale {
				l.fail(err)
			}
			return
		}
		l.epoch, l.accepted, c = peer.epoch, from == linkAccepting, r
		defer r.start()
	}
	l.state = linkOpening
	if l.sink == nil {
		l.sink = l.m.cfg.Data.Sink(l)
	}
	for f := l.pending.Pop(); f != nil; f = l.pending.Pop() {
		l.mu.Unlock() // Done may run within Send, and may call this link again
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
	switch {
	case again:
		l.m.refusals.Line(slog.LevelInfo, "a data connection is open again", "peer", l.Rank, "after", lasted)
	case l.m.cfg.Redial > 0 && r == nil && canReplay(c) != nil:
		l.m.refusals.Line(slog.LevelWarn, "broken connections to this rank are not dialled again, because it has no WithRedial; give all ranks the option", "peer", l.Rank)
	}
}

// fail closes the link because it broke. It calls LinkDown of the layer above, and reports the
// break to the membership machine. The machine decides whether the rank or only the link is lost: a
// data Conn breaks in both cases, and only the control links show the difference.
func (l *Link) fail(err error) {
	if l.close(err) {
		l.m.cfg.Data.LinkDown(l.Rank, err)
		l.reportBreak(err)
	}
}

// reportFirst is how long a Conn stays open after a call of failAfterReport.
const reportFirst = 300 * time.Millisecond

// failAfterReport is like fail, but for a failure that the peer has not noticed: a frame that this
// end has refused, a stall, or silence. It delays the close of the Conn by reportFirst, so that the
// ranks agree on the failure first. Otherwise the peer could report the end of the Conn, and not
// the reason.
func (l *Link) failAfterReport(err error) {
	if !l.detach(err) {
		return
	}
	l.quiesce()
	l.m.cfg.Data.LinkDown(l.Rank, err)
	l.reportBreak(err)
	l.m.links.spawn(func(ctx context.Context) {
		sleep(ctx, reportFirst)
		l.close(err)
	})
}

// reportBreak reports to the membership machine why the link broke. A lack of file descriptors is a
// failure of this rank, and not of the peer or the link.
func (l *Link) reportBreak(err error) {
	if lacksDescriptors(err) {
		l.m.Announce(l.m.shortage(err))
		return
	}
	l.m.Suspect(l.Rank, err)
}

// close closes the link without a report to any other part. It returns false if the link had failed
// or was closed before. It completes waiting frames with err. Nothing arrives after close has
// returned. To ensure that, close waits for Progress, so it must not be called within Progress.
func (l *Link) close(err error) bool {
	first := l.detach(err)
	if c := l.conn.Load(); c != nil {
		c.Close()
		l.quiesce()
	}
	return first
}

// detach ends the use of the Conn, which stays open, and completes waiting frames with err. It
// returns false if it was called before. Once both detach and quiesce have returned, nothing
// arrives.
func (l *Link) detach(err error) bool {
	l.mu.Lock()
	first := l.state != linkFailed
	var waiting transport.Queue
	if first {
		l.state, l.err = linkFailed, err
		waiting, l.pending = l.pending, waiting
	}
	l.mu.Unlock()
	l.closed.Store(true)
	for f := waiting.Pop(); f != nil; f = waiting.Pop() {
		f.Done(err)
	}
	return first
}

// quiesce returns once no goroutine is in the Progress of the Conn. If the link is detached, or a
// broken link has no Conn, nothing writes into the buffer of a receive from then on. Progress never
// blocks, so the wait is short.
func (l *Link) quiesce() {
	for !l.inProgress.CompareAndSwap(0, 1) {
		runtime.Gosched()
	}
	l.inProgress.Store(0)
}

// DeferFailure fails the link because of a frame that arrived on it. A Sink calls it within
// Progress, where the link cannot be closed. So the link fails only when Progress has returned. The
// first error counts.
func (l *Link) DeferFailure(err error) { l.deferredErr.CompareAndSwap(nil, &err) }

// Close closes the link without suspecting the peer, which is known to be gone.
func (l *Link) Close(err error) { l.close(err) }

// Progress moves the link once, unless another goroutine is doing so.
func (l *Link) Progress() transport.State { return l.progress(1) }

// progress is like Progress, but polls the Conn up to spins times if the Conn supports that.
func (l *Link) progress(spins int) transport.State {
	c := l.conn.Load()
	if c == nil || l.closed.Load() {
		return transport.Idle
	}
	if !l.inProgress.CompareAndSwap(0, 1) {
		return transport.Busy
	}
	if l.closed.Load() { // closed meanwhile; close may have returned already, and nothing may
		// arrive after that
		l.inProgress.Store(0)
		return transport.Idle
	}
	state, err := l.progressOnce(c, spins)
	l.inProgress.Store(0)
	switch {
	case err == nil:
		return state
	case errors.Is(err, fault.Refused) || l.deferredErr.Load() != nil:
		l.failAfterReport(err)
	case !l.reopen(err):
		l.fail(err)
	}
	return transport.Idle
}

// progressOnce calls the Conn's Progress. After a Sink has rejected a frame, it returns the Sink's
// error and does not call the Conn, because the layer above would mistake the next frame for the
// rejected frame.
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

// arm registers l.ready as the Conn's wake-up, unless it is registered already.
func (l *Link) arm() {
	if c := l.conn.Load(); c != nil && !l.closed.Load() && l.armed.CompareAndSwap(false, true) {
		c.Arm(l.onReady)
	}
}

// maxReadyTurns bounds how long one link occupies the transport's goroutine.
const maxReadyTurns = 64

// ready runs on the transport's goroutine when the Conn could move something. It moves the link
// until nothing is left to move, at most maxReadyTurns times. Then it arms the wake-up again. If
// another goroutine is in Progress, ready returns, and the ticker arms the link later.
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
	l.arm() // if there is more to move, the wake-up fires at once
}
