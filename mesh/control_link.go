package mesh

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/mesh/membership"
	"github.com/tutti-go/tutti/transport"
)

// A controlLink is one control link. The control goroutine owns it, except for ready, queued and
// spare, which the Conn's callbacks change.
//
// Most messages are heartbeats. Heartbeats allocate nothing: the link reuses a spare frame, a
// buffer for the bodies of heartbeats and the Received Input. So an idle job makes no work for the
// garbage collector.
type controlLink struct {
	c      *control
	rank   int
	conn   transport.Conn
	ready  atomic.Bool  // Progress may find a message, or a failure
	queued atomic.Int64 // bytes of messages that the Conn has not finished; less
	// than maxQueuedBytes plus one message
	spare   atomic.Pointer[controlFrame] // a frame that the Conn has finished with, or nil
	onReady func()                       // l.wakeUp, bound once, so that Arm allocates nothing

	brokenBecause string // why the Conn broke, while another Conn is being opened; "": not broken

	fullSince time.Time // when queued reached its bound; zero: queued is below its bound
	dropped   bool      // messages were dropped since fullSince
	deadline  time.Time // when a retired link is closed at the latest

	// The frame that is arriving.
	head         controlHead
	body         []byte
	heartbeatBuf []byte              // memory for the bodies of heartbeats
	input        membership.Received // the Input of the last message, reused
	complete     bool                // the whole frame has arrived
	protocolErr  error               // why the frame is not a valid message
}

// A controlFrame is an outgoing message.
type controlFrame struct {
	transport.Frame
	link *controlLink
	head [controlSize]byte
	call []byte // buffer for the body of a heartbeat
	size int64
}

// newControlLink returns a link that is read in the next turn.
func newControlLink(c *control, rank int, conn transport.Conn) *controlLink {
	l := &controlLink{c: c, rank: rank, conn: conn}
	l.onReady = l.wakeUp
	l.ready.Store(true)
	return l
}

// wakeUp is the Conn's wake-up callback.
func (l *controlLink) wakeUp() {
	l.ready.Store(true)
	l.c.wake.raise()
}

// send queues a message. It never waits for the peer:
//
//	queue      heartbeat    any other message
//	has room   sent         sent
//	full       dropped      dropped; once there is room, a Resync repeats the important messages
//
// Dropping is safe, because the machine remembers the important messages and can send them again. A
// peer that gets such a message twice ignores the second one. A peer that reads nothing for
// Config.Stall loses its link.
func (l *controlLink) send(m membership.Message) {
	if l.queued.Load() >= maxQueuedBytes {
		l.dropped = l.dropped || m.Kind != membership.Heartbeat
		return
	}
	f := l.spare.Swap(nil)
	if f == nil {
		f = &controlFrame{link: l}
		f.Done = f.done
	}
	if m.Kind == membership.Heartbeat {
		f.call = l.c.m.cfg.Events.LastCall(f.call[:0])
		m.Body = truncate(f.call, MaxCall)
	}
	f.Head = appendControl(f.head[:0], m)
	f.Body = m.Body
	f.size = int64(len(f.Head) + len(f.Body))
	l.queued.Add(f.size)
	l.conn.Send(&f.Frame)
}

// done subtracts the frame's size from queued, and keeps the frame for the next message. The Conn
// may call it on any goroutine, also within Conn.Send.
func (f *controlFrame) done(error) {
	f.link.queued.Add(-f.size)
	f.Body = nil
	f.link.spare.Store(f) // an earlier spare is left to the garbage collector
}

// receive handles the messages that have arrived, up to maxFramesPerTurn, and arms the Conn's
// wake-up when there are no more. A message may close or replace this link, so receive checks for
// that after each message. A malformed message closes the link, because the peer runs other code or
// the wire damages frames.
func (l *controlLink) receive() {
	if !l.ready.Load() || l.brokenBecause != "" {
		return
	}
	for range maxFramesPerTurn {
		l.complete = false
		state, err := l.conn.Progress(l, 1)
		if l.complete && l.protocolErr == nil {
			l.deliver()
		}
		switch {
		case l.protocolErr != nil:
			l.c.m.log.Warn("control link closed: protocol error", "rank", l.rank, "because", l.protocolErr)
			l.c.linkDown(l, l.protocolErr.Error())
			return
		case l.c.links[l.rank] != l || l.brokenBecause != "":
			return // a message has closed or replaced this link
		case err != nil:
			l.c.linkDown(l, err.Error())
			return
		case state != transport.Moved:
			l.ready.Store(false)
			l.conn.Arm(l.onReady)
			return
		}
	}
	l.c.wake.raise() // there may be more
}

// deliver passes a complete message to the machine. The Input is a field, because a local variable
// would be allocated for each message.
func (l *controlLink) deliver() {
	m, err := l.head.withBody(l.body)
	l.body = nil
	if err != nil {
		l.protocolErr = err
		return
	}
	l.input = membership.Received{From: l.rank, Msg: m}
	l.c.step(&l.input)
	l.input = membership.Received{}
}

// Buffer implements transport.Sink. The machine keeps the bodies of floods, so each body gets its
// own memory. Only the bodies of heartbeats share a buffer.
func (l *controlLink) Buffer(h transport.Header) []byte {
	head, err := parseControl(h.Head, l.c.m.cfg.Size)
	if err == nil && h.Size != head.size {
		err = errMalformed
	}
	if err != nil {
		l.protocolErr = err
		return nil
	}
	l.head = head
	l.body = l.bodyBuffer(h.Size)
	return l.body
}

// bodyBuffer returns n bytes for the body of the message in l.head. The machine copies a
// heartbeat's body within Step, so one buffer serves all of them.
func (l *controlLink) bodyBuffer(n int) []byte {
	if l.head.msg.Kind != membership.Heartbeat || n > MaxCall {
		return make([]byte, n)
	}
	if l.heartbeatBuf == nil {
		l.heartbeatBuf = make([]byte, MaxCall)
	}
	return l.heartbeatBuf[:n]
}

// Arrived implements transport.Sink.
func (l *controlLink) Arrived(h transport.Header, n int) { l.complete = n == h.Size }

// checkQueue closes a link whose peer has read nothing for Config.Stall, not counting time in which
// this process was suspended. When the queue has room again, checkQueue asks the machine to repeat
// the dropped messages.
func (l *controlLink) checkQueue() {
	stall := l.c.m.cfg.Stall
	switch full := l.queued.Load() >= maxQueuedBytes; {
	case full && l.fullSince.IsZero():
		l.fullSince = time.Now()
	case full && time.Since(later(l.fullSince, l.c.resumed)) > stall:
		l.c.closeLink(l, membership.LinkDown{Rank: l.rank, Stalled: true, Cause: fmt.Sprintf("the peer read nothing for %v", stall)})
	case !full:
		l.fullSince = time.Time{}
		if l.dropped {
			l.dropped = false
			l.c.step(membership.Resync{Rank: l.rank})
		}
	}
}

// closeIfDrained closes a retired link when its queue is empty or its deadline has passed, and
// reports whether it did.
func (l *controlLink) closeIfDrained() bool {
	_, err := l.conn.Progress(discardSink{}, 1)
	if err == nil && l.queued.Load() > 0 && time.Now().Before(l.deadline) {
		l.conn.Arm(l.onReady)
		return false
	}
	l.conn.Close()
	return true
}

// A discardSink drops the bodies of all frames.
type discardSink struct{}

func (discardSink) Buffer(transport.Header) []byte { return nil }
func (discardSink) Arrived(transport.Header, int)  {}

// cores returns the number of processors that this process may use.
func cores() int { return runtime.GOMAXPROCS(0) }
