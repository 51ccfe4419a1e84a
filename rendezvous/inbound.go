package rendezvous

import "github.com/tutti-go/tutti/fault"

// This file handles the frames of messages. A frame with a body is handled in two steps. When the
// header has arrived, Buffer finds the memory for the body: startEager and startData. When the body
// has arrived, Arrived acts on it: finishEager and handleData. Between the two steps the Conn
// writes into the memory, so the memory must not be reused. During this time bufBusy is set in the
// receive. A message that ends is only marked dropped. If the Conn fails between the two steps,
// detachInbound releases the memory.

// deliver matches m with a posted receive. If there is none, deliver puts m into the table. m is
// complete or an offer. e.mu is held.
func (e *Engine) deliver(m *message) {
	mc := m.mc
	if req := mc.table.popRecv(m.key); req != nil {
		e.onMatch(req, m)
		return
	}
	if mc.dropsUnmatched() && m.peer != nil {
		m.peer.dropUnmatched(m)
		return
	}
	mc.table.addMessage(m)
	mc.notify(m)
	if m.peer != nil {
		m.peer.fast.onQueued(m)
		m.peer.grantExtra()
	}
}

// startEager finds the memory for the bytes of an eager message. If a posted receive matches, the
// memory is the receive's buffer. Otherwise the message waits in the table, with memory from the
// pool. A message for a context or step that has ended is dropped, and its credit is returned.
func (p *peer) startEager(h *frameHeader) {
	e := p.e
	mc := e.contextFor(h.context)
	k, ok := p.keyOf(h)
	if mc == nil || mc.err != nil || !ok {
		// Nobody can receive the message, so its bytes are dropped. Its credit is charged all the
		// same, so that a peer that exceeds its credit is detected.
		p.chargeCredit(envelopeCost + int64(h.size))
		p.returnCredit(envelopeCost + int64(h.size))
		return
	}
	cost := envelopeCost + int64(h.size)
	if !p.chargeCredit(cost) {
		return
	}
	if req := mc.table.popRecv(k); req != nil {
		e.setMatch(req, p, p.envelopeOf(h))
		// bufBusy is set even if the bytes are dropped, because p.in refers to req until all bytes
		// have arrived.
		p.in.req, req.bufBusy = req, true
		if e.validate(req) {
			p.in.dst = req.buf
		}
		return
	}
	if mc.dropsUnmatched() {
		p.returnCredit(cost)
		p.reportUnreceived()
		return
	}
	// The message enters the table before its bytes have arrived, so that later messages cannot
	// overtake it.
	m := e.getMessage(mc, k)
	m.peer, m.env, m.cost = p, p.envelopeOf(h), cost
	m.data = e.pool.get(int(h.size))
	p.in.msg, p.in.dst = m, m.data
	mc.table.addMessage(m)
	mc.notify(m)
	p.fast.onQueued(m)
	p.grantExtra()
}

// finishEager is called when the last byte of an eager message has arrived. It finishes the
// receive, or marks the message in the table complete.
func (p *peer) finishEager(in *inboundFrame) {
	e := p.e
	switch {
	case in.req != nil:
		in.req.bufBusy = false
		p.returnCredit(envelopeCost + int64(in.header.size))
		e.finish(in.req, in.req.pendingErr)
	case in.msg != nil:
		e.completeMessage(in.msg)
	}
}

// completeMessage is called when all bytes of a message that is or was in the table are in m.data.
func (e *Engine) completeMessage(m *message) {
	m.complete = true
	switch {
	case m.dropped: // the message's context or step has ended meanwhile
		e.discard(m)
	case m.claimedBy != nil: // a receive was posted meanwhile
		req := m.claimedBy
		m.claimedBy, req.claimed = nil, nil
		if req.pendingErr != nil {
			e.discard(m)
			e.finish(req, req.pendingErr)
			return
		}
		e.deferCopy(req, m)
	}
}

// handleOffer delivers an offer. It answers an offer for a context or step that has ended with a
// drop frame: see dropMessage.
func (p *peer) handleOffer(h *frameHeader) {
	e := p.e
	mc := e.contextFor(h.context)
	k, ok := p.keyOf(h)
	cost, fair := p.chargeOffer(h)
	if !fair {
		return
	}
	if mc == nil || mc.err != nil || !ok {
		p.returnCost(cost)
		flags := uint8(flagUnreceived)
		switch {
		case mc != nil && mc.err != nil:
			flags = e.dropFlags()
		case mc != nil && e.steps.hasEnded(h.context, h.step):
			flags |= flagNamed
		}
		p.sendDrop(h.id, flags)
		return
	}
	if p.queuedOffers[h.id] != nil {
		p.protocolError("offer: got id %d, which is in use, want a free id", h.id)
		return
	}
	m := e.getMessage(mc, k)
	m.peer, m.env, m.cost = p, p.envelopeOf(h), cost
	m.offer, m.complete = h.id, true
	p.queuedOffers[h.id] = m
	e.deliver(m)
}

// chargeOffer charges the peer for an offer. An offer costs credit, or uses one of the envelopes
// that were granted beyond the credit. In the second case the result cost is 0. If the peer had
// neither credit nor an envelope, chargeOffer reports a protocol error, and the result fair is
// false.
func (p *peer) chargeOffer(h *frameHeader) (cost int64, fair bool) {
	if h.flags&flagExtra == 0 {
		return envelopeCost, p.chargeCredit(envelopeCost)
	}
	if p.extraOutstanding == 0 {
		p.protocolError("offer: got an offer beyond the credit, want the sender to wait for a grant")
		return 0, false
	}
	p.extraOutstanding--
	p.extraQueued++
	return 0, true
}

// returnCost undoes chargeOffer or chargeCredit when the message has been consumed.
func (p *peer) returnCost(cost int64) {
	if cost == 0 {
		p.extraQueued--
		return
	}
	p.returnCredit(cost)
}

// handleWithdraw removes a withdrawn offer from the table. If a receive has matched the offer,
// repost returns the receive to its position in the table, as if the message had never been sent.
// If the receive's buffer is exposed or being exposed, handleWithdraw only marks the receive, and a
// deferred action reposts it.
func (p *peer) handleWithdraw(offer uint32) {
	e := p.e
	if m := p.queuedOffers[offer]; m != nil {
		delete(p.queuedOffers, offer)
		if m.mc.ordered {
			m.withdrawn, m.offer = true, 0 // the message keeps its position before later ones
			return
		}
		m.mc.table.removeMessage(m)
		e.discard(m)
		return
	}
	for _, req := range p.activeRecvs {
		if req.offer != offer {
			continue
		}
		switch {
		case req.unexpose != nil: // the request frame and the withdraw frame have crossed
			req.withdrawn = true
			e.unexposeAndFinish(req, req.pendingErr)
		case req.bufBusy: // exposeAndRequest is running; it checks withdrawn
			req.withdrawn = true
		case req.pendingErr != nil:
			e.finish(req, req.pendingErr)
		default:
			e.repost(req)
		}
		return
	}
}

// handleAbandon ends a receive whose send was aborted before it had sent all its bytes.
func (p *peer) handleAbandon(id uint32) {
	req := p.activeRecvs[id]
	if req == nil {
		return
	}
	err := req.pendingErr
	if err == nil {
		err = fault.New(fault.Revoked, "recv", p.e.cfg.Rank, "rank %d aborted the message: got %d of %d bytes", p.rank, req.arrived, len(req.buf))
	}
	if req.unexpose != nil { // the sender has stopped writing
		p.e.unexposeAndFinish(req, err)
		return
	}
	p.e.abort(req, err)
}

// startData sets p.in.dst to the part of the receive's buffer that a data frame's bytes belong to.
// The bytes of a receive that has ended are dropped.
func (p *peer) startData(h *frameHeader) {
	req := p.activeRecvs[h.id]
	if req == nil {
		return // the receive has ended; the bytes are dropped
	}
	if h.offset+h.size > uint64(len(req.buf)) {
		p.protocolError("data: got %d bytes at offset %d, want them within a message of %d", h.size, h.offset, len(req.buf))
		return
	}
	if req.pendingErr != nil {
		return // the receive is aborted: its buffer must not be written any more
	}
	req.bufBusy = true
	p.in.req = req
	p.in.dst = req.buf[h.offset : h.offset+h.size]
}

// handleData counts n more bytes of req's message, and ends req when all bytes have arrived. If the
// buffer is exposed, a deferred action unexposes it before req ends. Until then req is marked
// complete, so it succeeds even if its sender fails meanwhile.
func (p *peer) handleData(req *Request, n int) {
	if req == nil || req.phase != phaseMatched {
		return
	}
	req.arrived += n
	e := p.e
	switch {
	case req.pendingErr != nil && req.unexpose == nil: // aborted while this frame was arriving
		e.abort(req, req.pendingErr)
	case req.arrived > len(req.buf):
		p.protocolError("data: got %d bytes, want a message of %d", req.arrived, len(req.buf))
	case req.arrived == len(req.buf):
		if req.unexpose == nil {
			e.finish(req, req.pendingErr)
			return
		}
		req.complete = req.pendingErr == nil
		e.unexposeAndFinish(req, req.pendingErr)
	}
}

// keyOf returns the key of a message from p. It reports false if the message cannot be matched: its
// step has ended, p has not sent its name, or its tag is reserved for this package.
func (p *peer) keyOf(h *frameHeader) (key, bool) {
	k := key{source: int32(p.rank), tag: h.tag}
	if h.flags&flagNamed == 0 {
		return k, h.tag >= 0
	}
	name, ok := p.namesIn[h.name]
	k.tag, k.step, k.name = namedTag, h.step, name
	return k, ok && !p.e.steps.hasEnded(h.context, h.step)
}

// envelopeOf returns the envelope of the message that a header from p describes.
func (p *peer) envelopeOf(h *frameHeader) envelope {
	return envelope{
		source: p.rank, tag: h.tag, size: int(h.size), fingerprint: h.fingerprint,
		dead: h.flags&flagDead != 0, dtype: h.dtype, ndim: h.ndim, dims: h.dims, name: h.name,
	}
}
