package rendezvous

import (
	"runtime"
	"sync/atomic"

	"github.com/tutti-go/tutti/transport"
)

// This file is the fast path of small messages. Between two ranks that both wait for the exchange,
// a message needs none of what a Request is for: nobody cancels it, nothing waits for credit, and
// no other receive has precedence. TrySend and TryRecv handle that case without a Request, and leave
// every other one to PostSend and PostRecv, which know all cases. The frames are the same, so each
// side decides for itself (docs/adr/0016).

// maxInline is the largest message in bytes that the fast path handles.
const maxInline = 8 << 10

// A headerCache is the encoded header of the last small message to a peer. In a steady exchange the
// next message has the same header and need not encode it. The engine's lock guards it.
type headerCache struct {
	header frameHeader
	raw    [transport.MaxHead]byte
	rawLen int // bytes of raw that are the header; 0: none
}

// get returns the encoded header of a message without a name and a checksum. It is valid until the
// next call.
func (l *headerCache) get(context uint64, tag int32, size int, fingerprint uint64, credit uint32) []byte {
	h := &l.header
	if l.rawLen == 0 || h.context != context || h.tag != tag || h.size != uint64(size) || h.fingerprint != fingerprint || h.credit != credit {
		*h = frameHeader{kind: kindEager, context: context, tag: tag, size: uint64(size), fingerprint: fingerprint, credit: credit}
		l.rawLen = h.encode(&l.raw)
	}
	return l.raw[:l.rawLen]
}

// A small message returns credit only when it is this part of the peer's credit or more, because a
// header that changes each time must be encoded here and decoded there.
const inlineCreditPart = 64

// TrySend sends a small message like Send if that is possible at once, and reports whether it did.
// It never waits, and body is the caller's again when it returns. If it reports false, nothing has
// happened, and Send follows.
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
	if !sent { // sends that found too little credit meanwhile may be waiting for what this one reserved
		p.unreturned += int64(back)
		p.addCredit(uint32(cost), 0)
		p.grantExtra()
	}
	p.flush()
	e.unlock()
	return sent
}

// canSendInline reports whether a message of that size may go to p without a Request: it is small
// and eager, and nothing that was decided before it waits to be sent. e.mu is held.
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

// A fastRecv is a receive that spins for a bounded time, for one message that goes straight into
// its buffer. At most one goroutine per peer uses it at a time. For everyone else the receive has
// not been posted yet: whatever is not simple makes it fall back, and PostRecv follows.
//
//	busy   open   state     meaning
//	false  false  any       free
//	true   true   0         waiting for its message
//	true   false  0         deliverFast is copying the message, without the lock
//	true   false  done      the message is in buf
//	true   false  fallback  the receive must be posted
//
// The engine's lock guards open and what is below it, but size, which deliverFast writes before
// state, and TryRecv reads after it.
type fastRecv struct {
	busy  atomic.Bool   // a goroutine uses it
	state atomic.Uint32 // 0, or one of the states below

	// open: the message may arrive. The one that closes it, under the lock, decides what becomes of the
	// receive: deliverFast, or fallBack.
	open bool

	// What the message must be.
	mc          *MatchContext
	tag         int32
	fingerprint uint64

	buf  []byte // the caller's
	size int    // of the message, once state is done
}

// The states of a fastRecv that is not open any more.
const (
	fastRecvDone     = 1 + iota // the message is in buf
	fastRecvFallback            // it must be posted
)

// Met implements mesh.Condition.
func (c *fastRecv) Met() bool { return c.state.Load() != 0 }

// TryRecv receives a small message with this source and tag, neither a wildcard, into buf, if it
// arrives while this rank spins. n is its size. If ok is false, nothing has happened, and Recv
// follows. With a buffer larger than maxInline it returns at once: a large message that came
// meanwhile would find no posted receive and be copied twice.
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

// start opens c. It reports false if another goroutine uses c, if the link delivers no frames by
// Copy, or if a message or receive is there that has precedence.
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

// giveUp ends the spin of a receive whose message has not come.
func (c *fastRecv) giveUp(e *Engine) {
	e.mu.Lock()
	c.fallBack()
	e.mu.Unlock()
}

// fallBack closes c, so that the receive is posted, unless it has got its message. e.mu is held.
func (c *fastRecv) fallBack() {
	if c.open {
		c.open = false
		c.state.Store(fastRecvFallback)
	}
}

// fallBackFastRecvs closes all fast-path receives of a context, because a receive that was posted
// before them returns to the table. e.mu is held.
func (mc *MatchContext) fallBackFastRecvs() {
	for _, r := range mc.members {
		if c := &mc.e.peers[r].fast; c.mc == mc {
			c.fallBack()
		}
	}
}

// onQueued closes c if a message for it has entered the table: messages behind that one must not
// overtake it. e.mu is held.
func (c *fastRecv) onQueued(m *message) {
	if c.open && c.mc == m.mc && c.tag == m.key.tag {
		c.fallBack()
	}
}

// Copy implements transport.CopySink: it consumes a whole small frame, whose body is valid during
// this call only. It runs under the link's progress role.
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

// deliverFast copies a small message, whose header is in p.in, to the fast-path receive that waits
// for exactly that message. It reports false where there is none, or anything is unusual: flags,
// another fingerprint, a body that does not fit. Those take the ordinary path, which knows all
// cases.
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
