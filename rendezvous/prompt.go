package rendezvous

import (
	"runtime"
	"sync/atomic"

	"github.com/tutti-go/tutti/transport"
)

// A small message between two ranks that both are at it needs none of what an Op
// is for: nobody cancels it, nothing waits for credit, no receive is in the way.
// What follows is the way of such a message. It is taken only where it makes no
// difference to anyone; everything else goes by Start and Post, which know all
// cases. The frames are the same.

// promptMost is the largest message that is tried so.
const promptMost = 8 << 10

// encoded is the head of the last small message to a peer. Messages like the one
// before have the same, and need not encode it again.
type encoded struct {
	h    head
	room [transport.MaxHead]byte
	n    int // the bytes of it; 0: none
}

// head is the encoded head of a message without a name and a checksum.
func (l *encoded) head(context uint64, tag int32, size int, print uint64, credit uint32) []byte {
	h := &l.h
	if l.n == 0 || h.context != context || h.tag != tag || h.size != uint64(size) || h.print != print || h.credit != credit {
		*h = head{kind: kindEager, context: context, tag: tag, size: uint64(size), print: print, credit: credit}
		l.n = h.encode(&l.room)
	}
	return l.room[:l.n]
}

// creditSoon is the part of the peer's credit that is given back with a small
// message; less waits, because a head that is always another costs both sides.
const creditSoon = 64

// SendNow sends a small message if it can go on its way at once, as Send would send
// it, and reports whether it did. It never waits; body is the caller's again when it
// returns. If not, nothing has happened.
func (s *Space) SendNow(to int, tag int32, print uint64, body []byte) bool {
	e := s.e
	p := e.peers[to]
	cost := envelopeCost + int64(len(body))
	e.mu.Lock()
	if !p.mayPrompt(s, len(body)) || p.credit < cost {
		e.mu.Unlock()
		return false
	}
	var back uint32
	if p.owed >= int64(e.cfg.Credit/creditSoon) {
		back = p.giveBack()
	}
	h := p.last.head(s.id, tag, len(body), print, back)
	p.credit -= cost
	p.flushing = true // what is decided from here on comes behind it
	e.mu.Unlock()
	sent := p.link.SendNow(h, body)
	e.mu.Lock()
	p.flushing = false
	if sent && p.out.Empty() {
		e.mu.Unlock()
		return true
	}
	if !sent { // others have met less credit meanwhile, and may wait for what nobody would give back again
		p.owed += int64(back)
		p.granted(uint32(cost), 0)
		p.relieve()
	}
	p.flush()
	e.release()
	return sent
}

// mayPrompt reports whether a message of that size may go to p past all that an Op
// is for; e.mu is held.
func (p *peer) mayPrompt(s *Space, size int) bool {
	e := p.e
	return size <= min(promptMost, e.cfg.Threshold) && e.cfg.Drive != Pull && !e.cfg.Checksum &&
		e.ended == nil && s.err == nil && p.gone == nil && p.broken == nil &&
		!p.flushing && p.out.Empty() && p.pending.first == nil && p.link != nil && p.link.Prompt()
}

// A catch is a receive that waits for a moment only, for one message that it takes
// as it comes. No more than one goroutine per peer does so at a time. To all others
// it is a receive that has not been posted yet: whatever is not simple ends it, and
// Post follows. The engine's lock guards what is not atomic.
type catch struct {
	busy  atomic.Bool // somebody uses it
	state atomic.Uint32

	open  bool // a message may come
	space *Space
	tag   int32
	print uint64
	buf   []byte
	size  int // of the message; whose goroutine writes it before state
}

// The states of a catch that is not open any more.
const (
	caught = 1 + iota // the message is in buf
	missed            // it must be posted
)

// Happened implements mesh.Event.
func (c *catch) Happened() bool { return c.state.Load() != 0 }

// RecvSoon receives a message that from and tag cover, neither a wildcard, into buf,
// if it is a small one that comes within a moment; n is its size. If not, nothing
// has happened, and Recv is to follow. With more room than a small message needs it is
// at once: a large one that came meanwhile would have to wait in memory of ours.
func (s *Space) RecvSoon(from int, tag int32, print uint64, buf []byte) (n int, ok bool) {
	if len(buf) > promptMost {
		return 0, false
	}
	e := s.e
	p := e.peers[from]
	c := &p.catch
	if !c.begin(p, s, tag, print, buf) {
		return 0, false
	}
	if !e.m.Glance(p.link, c) {
		c.miss(e)
	}
	for c.state.Load() == 0 { // another goroutine is copying it
		runtime.Gosched()
	}
	n, ok = c.size, c.state.Load() == caught
	c.buf = nil
	c.busy.Store(false)
	return n, ok
}

// begin opens the catch, unless it is taken, or a message or another receive is
// there that has precedence.
func (c *catch) begin(p *peer, s *Space, tag int32, print uint64, buf []byte) bool {
	e := p.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.busy.Load() || p.link == nil || !p.link.Prompt() || e.ended != nil || s.err != nil || p.gone != nil ||
		!s.table.idle(key{source: int32(p.rank), tag: tag}) {
		return false
	}
	c.busy.Store(true)
	c.state.Store(0)
	c.open, c.space, c.tag, c.print, c.buf = true, s, tag, print, buf
	return true
}

// miss ends a wait in vain.
func (c *catch) miss(e *Engine) {
	e.mu.Lock()
	c.end()
	e.mu.Unlock()
}

// end has the receive posted instead, unless it has met its message; e.mu is held.
func (c *catch) end() {
	if c.open {
		c.open = false
		c.state.Store(missed)
	}
}

// recall ends the catches of a space, because a receive or a message is about to
// enter its table that has precedence over what may come next. e.mu is held.
func (s *Space) recall() {
	for _, r := range s.members {
		if c := &s.e.peers[r].catch; c.space == s {
			c.end()
		}
	}
}

// waits tells the catch of a message that has entered the table: those that come
// behind it must not overtake it. e.mu is held.
func (c *catch) waits(m *message) {
	if c.open && c.space == m.space && c.tag == m.key.tag {
		c.end()
	}
}

// Copy implements transport.Taker. It runs under the link's role.
func (p *peer) Copy(f transport.Header, body []byte) {
	if !p.read(f) || p.caught(body) {
		return
	}
	if into := p.place(f); into != nil {
		copy(into, body)
	}
	p.Arrived(f, f.Size)
}

// caught gives a small message, whose head is p.in's, to the receive that waits for
// just that; false where there is none, or anything is not as usual.
func (p *peer) caught(body []byte) bool {
	c, h, e := &p.catch, &p.in.h, p.e
	if !c.busy.Load() || h.kind != kindEager || h.flags != 0 {
		return false
	}
	cost := envelopeCost + int64(len(body))
	e.mu.Lock()
	if !c.open || c.space.id != h.context || c.tag != h.tag || len(body) > len(c.buf) || c.print != h.print ||
		c.space.err != nil || p.held+cost > int64(e.cfg.Credit) {
		e.mu.Unlock()
		return false
	}
	c.open = false
	buf := c.buf
	if h.credit > 0 {
		p.granted(h.credit, 0)
	}
	p.held += cost
	p.owe(cost)
	more := len(e.dirty) > 0 || len(e.chores) > 0
	e.mu.Unlock()
	c.size = copy(buf, body)
	c.state.Store(caught)
	if more { // after the message, whose receive waits for nothing else
		e.mu.Lock()
		e.release()
	}
	return true
}
