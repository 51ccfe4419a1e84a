package rendezvous

import (
	"runtime"
	"sync/atomic"

	"github.com/tutti-go/tutti/transport"
)

// This file is the fast path of small messages. A message needs no Request if both ranks wait for
// the exchange, nobody cancels the message, credit is available, and no other receive has
// precedence. TrySend and TryRecv handle this case. In every other case they report false, and the
// caller uses PostSend or PostRecv. Both paths use the same frames, so each rank chooses its path
// independently of the other (docs/adr/0016).

// maxInline is the largest message in bytes that the fast path handles.
const maxInline = 8 << 10

// A headerCache is the encoded header of the last small message to a peer. In a steady exchange the
// next message has the same header, which is then not encoded again. The engine's lock guards it.
type headerCache struct {
	header frameHeader
	raw    [transport.MaxHead]byte
	rawLen int // bytes of raw that are the header; 0: none
}

// get returns the encoded header of an eager message that has neither a name nor a checksum. The
// returned slice is valid until the next call.
func (l *headerCache) get(context uint64, tag int32, size int, fingerprint uint64, credit uint32) []byte {
	h := &l.header
	if l.rawLen == 0 || h.context != context || h.tag != tag || h.size != uint64(size) || h.fingerprint != fingerprint || h.credit != credit {
		*h = frameHeader{kind: kindEager, context: context, tag: tag, size: uint64(size), fingerprint: fingerprint, credit: credit}
		l.rawLen = h.encode(&l.raw)
	}
	return l.raw[:l.rawLen]
}

// A small message returns credit only when the credit to return is at least 1/inlineCreditPart of
// the peer's whole credit. If the credit field changed with each message, every header would have
// to be encoded and decoded again.
const inlineCreditPart = 64

// TrySend sends a small message if that is possible without waiting, and reports whether it has
// sent it. The caller may reuse body when TrySend returns. If TrySend reports false, it has had no
// effect, and the caller uses Send.
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
	p.flushing = true // frames that are queued from here on are sent after this message
	e.mu.Unlock()
	sent := p.link.TrySend(h, body)
	e.mu.Lock()
	p.flushing = false
	p.inline.report(sent)
	if sent && p.out.First == nil {
		e.mu.Unlock()
		return true
	}
	if !sent { // a send may wait for the credit that this TrySend had reserved
		p.unreturned += int64(back)
		p.addCredit(uint32(cost), 0)
		p.grantExtra()
	}
	p.flush()
	e.unlock()
	return sent
}

// canSendInline reports whether a message of the given size may be sent to p without a Request. The
// message must be small and eager, and no earlier send or frame may be waiting. e.mu is held.
func (p *peer) canSendInline(mc *MatchContext, size int) bool {
	e := p.e
	return size <= min(maxInline, e.cfg.Threshold) && e.cfg.Protocol != Rendezvous && !e.cfg.Checksum &&
		e.ended == nil && mc.err == nil && p.gone == nil && p.connErr == nil &&
		!p.flushing && p.out.First == nil && p.pending.first == nil && p.link != nil && p.link.IsUp() && p.inline.worthTrying()
}

// An inlineProbe finds out whether the Conn to a peer supports inline sends. If the Conn has no
// such support, most messages skip TrySend. Until a TrySend has succeeded, each refusal doubles the
// number of messages that skip TrySend, up to maxSkip. One refusal proves nothing, because a Conn
// that is still being set up also refuses. The engine's lock guards all fields except copies.
type inlineProbe struct {
	works  bool // a TrySend has succeeded
	skip   uint8
	left   uint8       // messages that will still skip TrySend
	copies atomic.Bool // the Conn has delivered a frame by Copy
}

const maxSkip = 63

// worthTrying reports whether the next small message should be sent with TrySend.
func (i *inlineProbe) worthTrying() bool {
	if i.works || i.left == 0 {
		return true
	}
	i.left--
	return false
}

// report records the result of a TrySend.
func (i *inlineProbe) report(sent bool) {
	switch {
	case sent:
		i.works = true
	case !i.works:
		i.skip = min(2*i.skip+1, maxSkip)
		i.left = i.skip
	}
}

// A fastRecv is a receive that spins for a bounded time for one message, which is copied straight
// into the receive's buffer. At most one goroutine per peer uses it at a time. The receive is not
// in the table, so other requests do not see it. If the message does not arrive in time or needs
// the ordinary path, the receive falls back: the caller posts it with PostRecv.
//
//	busy   open   state     meaning
//	false  false  any       free
//	true   true   0         waiting for its message
//	true   false  0         deliverFast is copying the message, without the lock
//	true   false  done      the message is in buf
//	true   false  fallback  the receive must be posted
//
// The engine's lock guards open and the fields below it, except size. deliverFast writes size
// before it stores state, and TryRecv reads size after it has loaded state.
type fastRecv struct {
	busy  atomic.Bool   // a goroutine uses it
	state atomic.Uint32 // 0, or one of the states below

	// open says that the message may still arrive. deliverFast or fallBack clears open, under the
	// lock. The function that clears it decides how the receive ends.
	open bool

	// The context, tag and fingerprint that the message must have.
	mc          *MatchContext
	tag         int32
	fingerprint uint64

	buf  []byte // the caller's
	size int    // of the message, once state is done
}

// The states of a fastRecv that is not open any more.
const (
	fastRecvDone     = 1 + iota // the message is in buf
	fastRecvFallback            // the receive must be posted
)

// Met implements mesh.Condition.
func (c *fastRecv) Met() bool { return c.state.Load() != 0 }

// TryRecv receives a small message with the given source and tag into buf, if the message arrives
// while this rank spins. Neither source nor tag may be a wildcard. n is the message's size. If ok
// is false, TryRecv has had no effect, and the caller uses Recv. If buf is larger than maxInline,
// TryRecv returns at once, because a large message that arrived during a spin would find no posted
// receive and be copied twice.
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
	for c.state.Load() == 0 { // another goroutine is copying the message
		runtime.Gosched()
	}
	n, ok = c.size, c.state.Load() == fastRecvDone
	c.buf = nil
	c.busy.Store(false)
	return n, ok
}

// start opens c. start reports false if another goroutine uses c, if the link does not deliver
// frames with Copy, if an earlier message or receive has precedence, or if the engine, the context
// or the peer has ended.
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

// giveUp closes c when its message has not arrived during the spin.
func (c *fastRecv) giveUp(e *Engine) {
	e.mu.Lock()
	c.fallBack()
	e.mu.Unlock()
}

// fallBack closes c, unless its message is in or is being copied. The caller of TryRecv then posts
// the receive. e.mu is held.
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

// onQueued is called when message m has entered the table. It closes c if m could be for c, because
// a later message must not reach the receive before m. e.mu is held.
func (c *fastRecv) onQueued(m *message) {
	if c.open && c.mc == m.mc && c.tag == m.key.tag {
		c.fallBack()
	}
}

// Copy implements transport.CopySink. It consumes a whole small frame. body is valid during this
// call only. Copy runs under the link's progress role.
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

// deliverFast copies a small message into the buffer of the fast-path receive that waits for it.
// The message's header is in p.in. deliverFast reports false if no such receive waits, if the
// context has ended, or if the message has flags, a different fingerprint, a body that does not
// fit, or exceeds the credit. The caller then handles the message on the ordinary path.
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
	if more { // actions run and frames are sent only now, so the receive does not wait for them
		e.mu.Lock()
		e.unlock()
	}
	return true
}
