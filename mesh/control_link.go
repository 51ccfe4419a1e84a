package mesh

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/mesh/membership"
	"github.com/tutti-go/tutti/transport"
)

// A controlLink is one control link. All of it belongs to the control goroutine,
// but for ready, queued and spare. Heartbeats are most of what it carries, and make
// no garbage: a program that pauses for none hears of none.
type controlLink struct {
	c       *control
	rank    int
	conn    transport.Conn
	ready   atomic.Bool                  // Progress may find something
	queued  atomic.Int64                 // bytes that the Conn holds
	spare   atomic.Pointer[controlFrame] // one that the Conn has done with, or nil
	onReady func()                       // l.fire, bound once

	fullSince time.Time // since when queued is at its bound; zero: it is not
	dropped   bool      // messages were dropped meanwhile
	deadline  time.Time // a dying link's end

	// What is arriving.
	head         controlHead
	body         []byte
	heartbeatBuf []byte              // room for a heartbeat's body
	input        membership.Received // the message, while it is stepped
	complete     bool                // a frame has arrived
	protocolErr  error               // what arrives is not a message
}

// A controlFrame is a message on its way out.
type controlFrame struct {
	transport.Frame
	link *controlLink
	head [controlSize]byte
	call []byte // room for a heartbeat's body
	size int64
}

func newControlLink(c *control, rank int, conn transport.Conn) *controlLink {
	l := &controlLink{c: c, rank: rank, conn: conn}
	l.onReady = l.wakeUp
	l.ready.Store(true)
	return l
}

// wakeUp is the Conn's wake-up.
func (l *controlLink) wakeUp() {
	l.ready.Store(true)
	l.c.wake.raise()
}

// send queues a message. One to a peer that takes too little is dropped; what
// matters of it is sent again when the peer takes more.
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

func (f *controlFrame) done(error) {
	f.link.queued.Add(-f.size)
	f.Body = nil
	f.link.spare.Store(f) // where there is another one, either will do
}

// receive takes what has arrived, and leaves a wake-up with the Conn.
func (l *controlLink) receive() {
	if !l.ready.Load() {
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
		case l.c.links[l.rank] != l:
			return // what arrived has ended it
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

// deliver hands on a message that has arrived.
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

// Buffer implements transport.Sink. Bodies are kept by floods, so each has memory
// of its own, but those of heartbeats.
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

// bodyBuffer is memory for the body of the message of l.head.
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

// checkQueue ends a link whose peer has taken nothing for too long, and sends again what
// was dropped once it takes more.
func (l *controlLink) checkQueue() {
	stall := l.c.m.cfg.Stall
	switch full := l.queued.Load() >= maxQueuedBytes; {
	case full && l.fullSince.IsZero():
		l.fullSince = time.Now()
	case full && time.Since(later(l.fullSince, l.c.resumed)) > stall:
		l.c.linkDown(l, fmt.Sprintf("the peer read nothing for %v", stall))
	case !full:
		l.fullSince = time.Time{}
		if l.dropped {
			l.dropped = false
			l.c.step(membership.Resync{Rank: l.rank})
		}
	}
}

// closeIfDrained closes a dying link when it is empty, or late, and reports whether it did.
func (l *controlLink) closeIfDrained() bool {
	_, err := l.conn.Progress(discardSink{}, 1)
	if err == nil && l.queued.Load() > 0 && time.Now().Before(l.deadline) {
		l.conn.Arm(l.onReady)
		return false
	}
	l.conn.Close()
	return true
}

// discardSink is a Sink that drops everything.
type discardSink struct{}

func (discardSink) Buffer(transport.Header) []byte { return nil }
func (discardSink) Arrived(transport.Header, int)  {}

// cores is the number of processors that this process may use.
func cores() int { return runtime.GOMAXPROCS(0) }
