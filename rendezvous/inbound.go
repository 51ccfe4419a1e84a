package rendezvous

import "github.com/tutti-go/tutti/fault"

// This file handles the frames of messages. A frame with a body comes in two steps. Buffer, when
// the header is in, finds the memory for the body: startEager and startData. Arrived, when the
// body is in, acts on it: finishEager and handleData. Between the two the Conn writes into that
// memory, so whatever ends meanwhile leaves it alone: a receive has bufBusy set, and a message is
// marked dropped. If the Conn fails between the two, detachInbound takes the memory back.

// deliver matches a message that is complete, or is an offer, with a posted receive, or puts it
// into the table. e.mu is held.
func (e *Engine) deliver(m *message) {
	mc := m.mc
	if req := mc.table.popRecv(m.key); req != nil {
		e.onMatch(req, m)
		return
	}
	mc.table.addMessage(m)
	mc.notify(m)
	if m.peer != nil {
		m.peer.fast.onQueued(m)
		m.peer.grantExtra()
	}
}

// startEager finds the memory for an eager message's bytes: the buffer of the receive that it
// matches, or memory of the pool while it waits in the table. Messages for a context or step that
// has ended are dropped, and their credit is returned.
func (p *peer) startEager(h *frameHeader) {
	e := p.e
	mc := e.contextFor(h.context)
	k, ok := p.keyOf(h)
	if mc == nil || mc.err != nil || !ok {
		// Nobody can receive it. It is charged all the same, so that a peer beyond its credit is
		// found out, and the bytes are dropped.
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
		p.in.req, req.bufBusy = req, true // also when the bytes are dropped: p.in refers to req until they are in
		if e.validate(req) {
			p.in.dst = req.buf
		}
		return
	}
	// It enters the table before its bytes are in, so that messages behind it cannot overtake it.
	m := e.getMessage(mc, k)
	m.peer, m.env, m.cost = p, p.envelopeOf(h), cost
	m.data = e.pool.get(int(h.size))
	p.in.msg, p.in.dst = m, m.data
	mc.table.addMessage(m)
	mc.notify(m)
	p.fast.onQueued(m)
	p.grantExtra()
}

// finishEager ends what startEager began, when the message's last byte is in.
func (p *peer) finishEager(in *inboundFrame) {
	e := p.e
	switch {
	case in.req != nil:
		in.req.bufBusy = false
		p.returnCredit(envelopeCost + int64(in.header.size))
		e.finish(in.req, in.req.pendingErr)
	case in.msg != nil:
		m := in.msg
		m.complete = true
		switch {
		case m.dropped: // its context or step has ended meanwhile
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
}

// handleOffer delivers an offer. An offer for a context or step that has ended is answered by a
// drop.
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
		p.sendControl(frameHeader{kind: kindDrop, id: h.id})
		return
	}
	if p.queuedOffers[h.id] != nil {
		p.protocolError("offer: got id %d, want one that is not in use", h.id)
		return
	}
	m := e.getMessage(mc, k)
	m.peer, m.env, m.cost = p, p.envelopeOf(h), cost
	m.offer, m.complete = h.id, true
	p.queuedOffers[h.id] = m
	e.deliver(m)
}

// chargeOffer counts what an offer takes: credit, or one of the envelopes granted beyond it, whose
// cost is 0. fair is false if the peer had neither, which ends the link.
func (p *peer) chargeOffer(h *frameHeader) (cost int64, fair bool) {
	if h.flags&flagExtra == 0 {
		return envelopeCost, p.chargeCredit(envelopeCost)
	}
	if p.extraOutstanding == 0 {
		p.protocolError("offer: got one beyond the credit, want it to wait for a grant")
		return 0, false
	}
	p.extraOutstanding--
	p.extraQueued++
	return 0, true
}

// returnCost undoes chargeOffer or chargeCredit when the message is consumed.
func (p *peer) returnCost(cost int64) {
	if cost == 0 {
		p.extraQueued--
		return
	}
	p.returnCredit(cost)
}

// handleWithdraw takes an offer out of the table. A receive that has matched it goes back to where
// it stood, as if the message had never been sent: see repost. While the receive's buffer is
// exposed, or about to be, it is only marked; the deferred action reposts it.
func (p *peer) handleWithdraw(offer uint32) {
	e := p.e
	if m := p.queuedOffers[offer]; m != nil {
		delete(p.queuedOffers, offer)
		if m.mc.ordered {
			m.withdrawn, m.offer = true, 0 // it keeps its place before later messages
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
		case req.unexpose != nil: // its request has crossed the withdrawal
			req.withdrawn = true
			e.unexposeAndFinish(req, req.pendingErr)
		case req.bufBusy: // exposeAndRequest is running, and looks at withdrawn
			req.withdrawn = true
		case req.pendingErr != nil:
			e.finish(req, req.pendingErr)
		default:
			e.repost(req)
		}
		return
	}
}

// handleAbandon ends a receive whose sender was aborted after some of its bytes.
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

// startData finds where a data frame's bytes belong in its receive's buffer. Those of a receive
// that has ended are dropped.
func (p *peer) startData(h *frameHeader) {
	req := p.activeRecvs[h.id]
	if req == nil {
		return // the receive has ended; its bytes are dropped
	}
	if h.offset+h.size > uint64(len(req.buf)) {
		p.protocolError("data: got %d bytes at offset %d, want them within a message of %d", h.size, h.offset, len(req.buf))
		return
	}
	if req.pendingErr != nil {
		return // aborted: the buffer is not written any more
	}
	req.bufBusy = true
	p.in.req = req
	p.in.dst = req.buf[h.offset : h.offset+h.size]
}

// handleData counts n more bytes of req's message, and ends req with the last of them. An exposed
// buffer is unexposed first, without the lock; the receive is complete all the same.
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

// keyOf returns the key of a message from p. It reports false for one that cannot be matched: a
// step that has ended, a name that was not sent, or a tag that only this package uses.
func (p *peer) keyOf(h *frameHeader) (key, bool) {
	k := key{source: int32(p.rank), tag: h.tag}
	if h.flags&flagNamed == 0 {
		return k, h.tag >= 0
	}
	name, ok := p.namesIn[h.name]
	k.tag, k.step, k.name = namedTag, h.step, name
	return k, ok && !p.e.steps.hasEnded(h.context, h.step)
}

// envelopeOf returns the envelope that a header describes.
func (p *peer) envelopeOf(h *frameHeader) envelope {
	return envelope{
		source: p.rank, tag: h.tag, size: int(h.size), fingerprint: h.fingerprint,
		dead: h.flags&flagDead != 0, dtype: h.dtype, ndim: h.ndim, dims: h.dims, name: h.name,
	}
}
