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

// maxInline is the largest message that is tried so.
const maxInline = 8 << 10

// headerCache is the head of the last small message to a peer. Messages like the one
// before have the same, and need not encode it again.
type headerCache struct {
	header frameHeader
	raw    [transport.MaxHead]byte
	rawLen int // the bytes of it; 0: none
}

// get is the encoded head of a message without a name and a checksum.
func (l *headerCache) get(context uint64, tag int32, size int, fingerprint uint64, credit uint32) []byte {
	h := &l.header
	if l.rawLen == 0 || h.context != context || h.tag != tag || h.size != uint64(size) || h.fingerprint != fingerprint || h.credit != credit {
		*h = frameHeader{kind: kindEager, context: context, tag: tag, size: uint64(size), fingerprint: fingerprint, credit: credit}
		l.rawLen = h.encode(&l.raw)
	}
	return l.raw[:l.rawLen]
}

// inlineCreditPart is the part of the peer's credit that is given back with a small
// message; less waits, because a head that is always another costs both sides.
const inlineCreditPart = 64

// TrySend sends a small message if it can go on its way at once, as Send would send
// it, and reports whether it did. It never waits; body is the caller's again when it
// returns. If not, nothing has happened.
func (mc *MatchContext) TrySend(to int, tag int32, fingerprint uint64, body []byte) bool {
	e := mc.e
	p := e.peers[to]
	cost := envelopeCost + int64(len(body))
	e.mu.Lock()
	if !p.canSendInline(mc, len(body)) || p.credit < cost {
		e.mu.Unlock()
		return false
	}
	var back uint32
	if p.unreturned >= int64(e.cfg.Credit/inlineCreditPart) {
		back = p.popUnreturned()
	}
	h := p.headers.get(mc.id, tag, len(body), fingerprint, back)
	p.credit -= cost
	p.flushing = true // what is decided from here on comes behind it
	e.mu.Unlock()
	sent := p.link.TrySend(h, body)
	e.mu.Lock()
	p.flushing = false
	p.inline.report(sent)
	if sent && p.out.First == nil {
		e.mu.Unlock()
		return true
	}
	if !sent { // others have met less credit meanwhile, and may wait for what nobody would give back again
		p.unreturned += int64(back)
		p.addCredit(uint32(cost), 0)
		p.grantExtra()
	}
	p.flush()
	e.unlock()
	return sent
}

// canSendInline reports whether a message of that size may go to p past all that an Op
// is for; e.mu is held.
func (p *peer) canSendInline(mc *MatchContext, size int) bool {
	e := p.e
	return size <= min(maxInline, e.cfg.Threshold) && e.cfg.Protocol != Rendezvous && !e.cfg.Checksum &&
		e.ended == nil && mc.err == nil && p.gone == nil && p.connErr == nil &&
		!p.flushing && p.out.First == nil && p.pending.first == nil && p.link != nil && p.link.IsUp() && p.inline.worthTrying()
}

// An inlineProbe finds out whether a peer's wire sends inline, so that messages to
// others do not pay for a TrySend each. Until one has succeeded, each refusal doubles
// the number of messages that go without one, up to maxSkip; a Conn that is still
// being set up refuses at first, too. The engine's lock guards it, but for copies.
type inlineProbe struct {
	works  bool // a TrySend has succeeded
	skip   uint8
	left   uint8       // of skip
	copies atomic.Bool // the Conn has delivered a frame by Copy
}

const maxSkip = 63

// worthTrying reports whether the next small message goes by TrySend.
func (i *inlineProbe) worthTrying() bool {
	if i.works || i.left == 0 {
		return true
	}
	i.left--
	return false
}

// report notes what TrySend has returned.
func (i *inlineProbe) report(sent bool) {
	switch {
	case sent:
		i.works = true
	case !i.works:
		i.skip = min(2*i.skip+1, maxSkip)
		i.left = i.skip
	}
}

// A fastRecv is a receive that waits for a moment only, for one message that it takes
// as it comes. No more than one goroutine per peer does so at a time. To all others
// it is a receive that has not been posted yet: whatever is not simple ends it, and
// Post follows. The engine's lock guards what is not atomic.
type fastRecv struct {
	busy  atomic.Bool // somebody uses it
	state atomic.Uint32

	open        bool // a message may come
	mc          *MatchContext
	tag         int32
	fingerprint uint64
	buf         []byte
	size        int // of the message; whose goroutine writes it before state
}

// The states of a catch that is not open any more.
const (
	fastRecvDone     = 1 + iota // the message is in buf
	fastRecvFallback            // it must be posted
)

// Met implements mesh.Event.
func (c *fastRecv) Met() bool { return c.state.Load() != 0 }

// TryRecv receives a message that from and tag cover, neither a wildcard, into buf,
// if it is a small one that comes within a moment; n is its size. If not, nothing
// has happened, and Recv is to follow. With more room than a small message needs it is
// at once: a large one that came meanwhile would have to wait in memory of ours.
func (mc *MatchContext) TryRecv(from int, tag int32, fingerprint uint64, buf []byte) (n int, ok bool) {
	if len(buf) > maxInline {
		return 0, false
	}
	e := mc.e
	p := e.peers[from]
	c := &p.fast
	if !c.start(p, mc, tag, fingerprint, buf) {
		return 0, false
	}
	if !e.m.Spin(p.link, c) {
		c.giveUp(e)
	}
	for c.state.Load() == 0 { // another goroutine is copying it
		runtime.Gosched()
	}
	n, ok = c.size, c.state.Load() == fastRecvDone
	c.buf = nil
	c.busy.Store(false)
	return n, ok
}

// start opens the catch, unless it is taken, or a message or another receive is
// there that has precedence.
func (c *fastRecv) start(p *peer, mc *MatchContext, tag int32, fingerprint uint64, buf []byte) bool {
	e := p.e
	e.mu.Lock()
	defer e.mu.Unlock()
	if c.busy.Load() || p.link == nil || !p.inline.works && !p.inline.copies.Load() || e.ended != nil || mc.err != nil || p.gone != nil ||
		!mc.table.isIdle(key{source: int32(p.rank), tag: tag}) {
		return false
	}
	c.busy.Store(true)
	c.state.Store(0)
	c.open, c.mc, c.tag, c.fingerprint, c.buf = true, mc, tag, fingerprint, buf
	return true
}

// giveUp ends a wait in vain.
func (c *fastRecv) giveUp(e *Engine) {
	e.mu.Lock()
	c.fallBack()
	e.mu.Unlock()
}

// fallBack has the receive posted instead, unless it has met its message; e.mu is held.
func (c *fastRecv) fallBack() {
	if c.open {
		c.open = false
		c.state.Store(fastRecvFallback)
	}
}

// fallBackFastRecvs ends the catches of a space, because a receive or a message is about to
// enter its table that has precedence over what may come next. e.mu is held.
func (mc *MatchContext) fallBackFastRecvs() {
	for _, r := range mc.members {
		if c := &mc.e.peers[r].fast; c.mc == mc {
			c.fallBack()
		}
	}
}

// onQueued tells the catch of a message that has entered the table: those that come
// behind it must not overtake it. e.mu is held.
func (c *fastRecv) onQueued(m *message) {
	if c.open && c.mc == m.mc && c.tag == m.key.tag {
		c.fallBack()
	}
}

// Copy implements transport.CopySink. It runs under the link's role.
func (p *peer) Copy(f transport.Header, body []byte) {
	if !p.inline.copies.Load() {
		p.inline.copies.Store(true)
	}
	if !p.decodeHeader(f) || p.deliverFast(body) {
		return
	}
	if into := p.startFrame(f); into != nil {
		copy(into, body)
	}
	p.Arrived(f, f.Size)
}

// deliverFast gives a small message, whose head is p.in's, to the receive that waits for
// just that; false where there is none, or anything is not as usual.
func (p *peer) deliverFast(body []byte) bool {
	c, h, e := &p.fast, &p.in.header, p.e
	if !c.busy.Load() || h.kind != kindEager || h.flags != 0 {
		return false
	}
	cost := envelopeCost + int64(len(body))
	e.mu.Lock()
	if !c.open || c.mc.id != h.context || c.tag != h.tag || len(body) > len(c.buf) || c.fingerprint != h.fingerprint ||
		c.mc.err != nil || p.heldCredit+cost > int64(e.cfg.Credit) {
		e.mu.Unlock()
		return false
	}
	c.open = false
	buf := c.buf
	if h.credit > 0 {
		p.addCredit(h.credit, 0)
	}
	p.heldCredit += cost
	p.returnCredit(cost)
	more := len(e.dirtyPeers) > 0 || len(e.deferred) > 0
	e.mu.Unlock()
	c.size = copy(buf, body)
	c.state.Store(fastRecvDone)
	if more { // after the message, whose receive waits for nothing else
		e.mu.Lock()
		e.unlock()
	}
	return true
}
