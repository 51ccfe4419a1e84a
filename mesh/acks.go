package mesh

import (
	"context"
	"encoding/binary"
	"runtime"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/wire"
	"github.com/tutti-go/tutti/mesh/membership"
	"github.com/tutti-go/tutti/transport"
)

// A meter is a Conn that counts the bytes of its frames. Traffic returns the bytes that the wire
// has accepted, the bytes among them that the peer has acknowledged, and the bytes that were
// delivered here. The fourth result, arrived, changes whenever bytes arrive, even if they are only
// the beginning of a message.
//
// The Mesh never asks the peer about a Conn without this method. A wrapper that hides the method
// disables only the detection of silent connections.
type meter interface {
	Traffic() (sent, acked, received, arrived uint64)
}

// An ackState holds what the control goroutine knows about the bytes on their way to a peer.
//
//	since  answered  meaning
//	zero   no        nothing was unacknowledged at the last check, or there was progress
//	set    no        a standstill; the peer has not been asked yet, or has not answered yet
//	set    yes       a standstill, as the peer has confirmed at least once
type ackState struct {
	conn     transport.Conn // the Conn that the counts are about
	asked    bool           // the peer was asked about this Conn, and its answer has not come yet
	sent     uint64         // bytes sent at the last check
	checked  time.Time      // when the last check was
	acked    uint64         // bytes that the peer has received
	arrived  uint64         // arrived of the peer's last trafficAnswer
	since    time.Time      // when the standstill began
	answered bool
}

// of returns a with the counts of the Conn c. If a holds the counts of another Conn, of resets a
// first.
func (a *ackState) of(c transport.Conn) *ackState {
	if a.conn != c {
		*a = ackState{conn: c}
	}
	return a
}

// check reports whether the peer must be asked, because bytes that were sent before the last check
// are not acknowledged. The argument resumed is the time at which this process last resumed after a
// suspension. A standstill never begins before that time, because a suspended process reads no
// acknowledgements.
func (a *ackState) check(c meter, now, resumed time.Time) (ask bool) {
	sent, acked, _, _ := c.Traffic()
	if acked > a.acked {
		a.progress(acked)
	}
	ask = a.sent > a.acked
	switch {
	case !ask:
		a.progress(a.acked)
	case a.since.IsZero():
		a.since = a.checked
	}
	if ask {
		a.since = later(a.since, resumed)
	}
	a.sent, a.checked = sent, now
	return ask
}

// progress records how many bytes the peer has acknowledged, and ends the standstill.
func (a *ackState) progress(acked uint64) { a.acked, a.since, a.answered = acked, time.Time{}, false }

// answer records the answer of the peer. It reports whether nothing has moved since the last
// answer, and the standstill has lasted for the given limit.
func (a *ackState) answer(t trafficAnswer, now time.Time, limit time.Duration) (stalled bool) {
	moved := t.received > a.acked || !t.idle || a.answered && t.arrived != a.arrived
	a.arrived = t.arrived
	switch {
	case moved:
		a.progress(max(a.acked, t.received))
	case a.since.IsZero(): // meanwhile, a frame of the peer has acknowledged all bytes
	case !a.answered:
		a.answered = true
	default:
		return now.Sub(a.since) >= limit
	}
	return false
}

// A trafficAnswer is the answer to a question with askTraffic; doc.go has its layout.
type trafficAnswer struct {
	received, arrived uint64
	idle              bool
}

// append appends the body of the answer to b.
func (t trafficAnswer) append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, t.received)
	b = binary.LittleEndian.AppendUint64(b, t.arrived)
	if t.idle {
		return append(b, 1)
	}
	return append(b, 0)
}

// parseTrafficAnswer reads the body of an answer. ok is false if the body is malformed.
func parseTrafficAnswer(b []byte) (t trafficAnswer, ok bool) {
	r := wire.NewReader(b)
	t.received, t.arrived = r.Uint64(), r.Uint64()
	idle := r.Uint8()
	t.idle = idle == 1
	return t, r.Done() && idle <= 1
}

// askTraffic asks the given ranks how many bytes have arrived on this rank's links to them. One
// question names all these ranks, and only one question is open at a time. The answers come within
// about a second.
func (ls *links) askTraffic(c *control, ranks []int) {
	if ls.asking || len(ranks) == 0 {
		return
	}
	ls.asking = true
	for _, r := range ranks {
		ls.peer[r].acks.asked = true
	}
	ls.spawn(func(ctx context.Context) {
		answers := c.ask(ctx, ranks, askTraffic, nil)
		c.post(func(c *control) {
			ls.asking = false
			for _, x := range answers {
				ls.peer[x.Rank].handleTraffic(c, x)
			}
		})
	})
}

// handleTraffic handles the answer of a peer. If the standstill has lasted for Config.Stall, it
// fails the link or opens it again; see failStalled.
func (l *Link) handleTraffic(c *control, x membership.RankAnswer) {
	t, ok := parseTrafficAnswer(x.Body)
	asked := l.acks.asked
	l.acks.asked = false
	if !asked { // the question was about a Conn that has broken meanwhile
		return
	}
	if !ok {
		l.acks.progress(l.acks.acked)
		return
	}
	limit := c.m.cfg.Stall
	if !l.acks.answer(t, time.Now(), limit) {
		return
	}
	l.failStalled(l.acks.conn, fault.New(fault.LinkLost, "send", c.m.Rank(),
		"rank %d has received %d of %d bytes, and nothing more for %v, although it answers over its control links: "+
			"the data connection to it is silent; look for a firewall that forgets connections, and for a path whose MTU is smaller than its ends assume%s",
		l.Rank, l.acks.acked, l.acks.sent, limit, diagnosis(l.wire())))
}

// A diagnoser is a Conn that describes what its kernel knows about the bytes on their way. Diagnose
// returns "" if the kernel knows nothing.
type diagnoser interface{ Diagnose() string }

// diagnosis returns the text of a Conn's Diagnose method, as the end of an error's text.
func diagnosis(c transport.Conn) string {
	if d, ok := c.(diagnoser); ok {
		if text := d.Diagnose(); text != "" {
			return "; " + text
		}
	}
	return ""
}

// reportTraffic answers a peer's question about its link to this rank. It calls the function reply
// once, on any goroutine. The body is nil if there is nothing to report, or while an earlier
// question of this peer is being answered. So a peer that asks too often costs only one goroutine.
func (ls *links) reportTraffic(from int, reply func(body []byte)) {
	l := ls.peer[from]
	t, ok := l.wire().(meter)
	if !ok || l.closed.Load() || !l.answering.CompareAndSwap(false, true) {
		reply(nil)
		return
	}
	ls.spawn(func(context.Context) {
		defer l.answering.Store(false)
		idle := l.readAll()
		_, _, received, arrived := t.Traffic()
		reply(trafficAnswer{received, arrived, idle}.append(nil))
	})
}

// readAll moves the link until nothing is left to read, for at most maxReadyTurns turns. It reports
// whether nothing is left to read.
func (l *Link) readAll() bool {
	for range maxReadyTurns {
		switch l.Progress() {
		case transport.Idle:
			return true
		case transport.Busy:
			runtime.Gosched()
		}
	}
	return false
}
