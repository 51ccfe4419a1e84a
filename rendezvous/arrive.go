package rendezvous

import "github.com/tutti-go/tutti/fault"

// deliver gives a message that is or will be complete to the receive that waits
// for it, or lets it wait.
func (e *Engine) deliver(m *message) {
	s := m.space
	if op := s.table.arrive(m.key); op != nil {
		e.meet(op, m)
		return
	}
	s.table.add(m)
	s.noticed(m)
	if m.peer != nil {
		m.peer.catch.waits(m)
		m.peer.relieve()
	}
}

// placeEager finds the place of a pushed message's bytes: the buffer of the
// receive that waits for it, or storage in the table.
func (p *peer) placeEager(h *head) {
	e := p.e
	s := e.space(h.context)
	k, ok := p.keyOf(h)
	if s == nil || s.err != nil || !ok {
		p.hold(envelopeCost + int64(h.size))
		p.owe(envelopeCost + int64(h.size))
		return
	}
	cost := envelopeCost + int64(h.size)
	if !p.hold(cost) {
		return
	}
	if op := s.table.arrive(k); op != nil {
		e.match(op, p, p.envelopeOf(h))
		p.in.op, op.touching = op, true // also when the bytes are dropped: p.in holds the op until they are in
		if e.admit(op) {
			p.in.into = op.buf
		}
		return
	}
	m := e.takeMessage(s, k)
	m.peer, m.env, m.cost = p, p.envelopeOf(h), cost
	m.data = e.storage.get(int(h.size))
	p.in.msg, p.in.into = m, m.data
	s.table.add(m)
	s.noticed(m)
	p.catch.waits(m)
	p.relieve()
}

// eagerArrived ends what placeEager began.
func (p *peer) eagerArrived(in *inbound) {
	e := p.e
	switch {
	case in.op != nil:
		in.op.touching = false
		p.owe(envelopeCost + int64(in.h.size))
		e.finish(in.op, in.op.leaving)
	case in.msg != nil:
		m := in.msg
		m.complete = true
		switch {
		case m.gone:
			e.discard(m)
		case m.claim != nil:
			op := m.claim
			m.claim, op.claimed = nil, nil
			if op.leaving != nil {
				e.discard(m)
				e.finish(op, op.leaving)
				return
			}
			e.copyLater(op, m)
		}
	}
}

// offerArrived meets an offer with its receive, or lets it wait.
func (p *peer) offerArrived(h *head) {
	e := p.e
	s := e.space(h.context)
	k, ok := p.keyOf(h)
	cost, fair := p.charge(h)
	if !fair {
		return
	}
	if s == nil || s.err != nil || !ok {
		p.pay(cost)
		p.say(head{kind: kindDrop, id: h.id})
		return
	}
	if p.offered[h.id] != nil {
		p.distrust("sent a second offer %d", h.id)
		return
	}
	m := e.takeMessage(s, k)
	m.peer, m.env, m.cost = p, p.envelopeOf(h), cost
	m.offer, m.complete = h.id, true
	p.offered[h.id] = m
	p.wantsBerth(h)
	e.deliver(m)
}

// charge counts what an offer takes: credit, or one of the envelopes granted
// beyond it, which cost nothing.
func (p *peer) charge(h *head) (cost int64, fair bool) {
	if h.flags&flagExtra == 0 {
		return envelopeCost, p.hold(envelopeCost)
	}
	if p.extraOpen == 0 {
		p.distrust("sent an offer that neither its credit nor a grant allows")
		return 0, false
	}
	p.extraOpen--
	p.extras++
	return 0, true
}

// pay undoes charge once the message is used up.
func (p *peer) pay(cost int64) {
	if cost == 0 {
		p.extras--
		return
	}
	p.owe(cost)
}

// withdrawn takes an offer out of the table. A receive that has met it already
// goes back to where it stood: the message was never sent.
func (p *peer) withdrawn(offer uint32) {
	e := p.e
	if m := p.offered[offer]; m != nil {
		delete(p.offered, offer)
		if m.space.ordered {
			m.taken, m.offer = true, 0 // it stands before what came after it
			return
		}
		m.space.table.remove(m)
		e.discard(m)
		return
	}
	for _, op := range p.receives {
		if op.offer != offer {
			continue
		}
		switch {
		case op.unexpose != nil:
			op.withdrew = true
			e.hide(op, op.leaving)
		case op.touching: // being exposed just now
			op.withdrew = true
		case op.leaving != nil:
			e.finish(op, op.leaving)
		default:
			e.repost(op)
		}
		return
	}
}

// abandoned ends a receive whose sender has left after some of its bytes.
func (p *peer) abandoned(id uint32) {
	op := p.receives[id]
	if op == nil {
		return
	}
	err := op.leaving
	if err == nil {
		err = fault.New(fault.Revoked, "recv", p.e.cfg.Rank, "rank %d left the message after %d of %d bytes", p.rank, op.arrived, len(op.buf))
	}
	if op.unexpose != nil {
		p.e.hide(op, err)
		return
	}
	p.e.retire(op, err)
}

// placeData finds the place of a data frame in its receive's buffer.
func (p *peer) placeData(h *head) {
	op := p.receives[h.id]
	if op == nil {
		return // the receive has left; its bytes go into a drain
	}
	if h.offset+h.size > uint64(len(op.buf)) {
		p.distrust("sent data at %d+%d for a message of %d bytes", h.offset, h.size, len(op.buf))
		return
	}
	if op.leaving != nil {
		return
	}
	op.touching = true
	p.in.op = op
	p.in.into = op.buf[h.offset : h.offset+h.size]
}

// dataArrived counts n more bytes of op's message, and ends op with the last.
func (p *peer) dataArrived(op *Op, n int) {
	if op == nil || op.phase != phaseMatched {
		return
	}
	op.arrived += n
	e := p.e
	switch {
	case op.leaving != nil && op.unexpose == nil:
		e.retire(op, op.leaving)
	case op.arrived > len(op.buf):
		p.distrust("sent %d bytes of a message of %d", op.arrived, len(op.buf))
	case op.arrived == len(op.buf):
		p.noteReceived(op)
		if op.unexpose == nil {
			e.finish(op, op.leaving)
			return
		}
		op.whollyIn = op.leaving == nil
		e.hide(op, op.leaving)
	}
}

// keyOf is the key of a message from p.
func (p *peer) keyOf(h *head) (key, bool) {
	k := key{source: int32(p.rank), tag: h.tag}
	if h.flags&flagNamed == 0 {
		return k, h.tag >= 0
	}
	name, ok := p.namesIn[h.name]
	k.tag, k.step, k.name = namedTag, h.step, name
	return k, ok && !p.e.steps.over(h.context, h.step)
}

func (p *peer) envelopeOf(h *head) envelope {
	return envelope{
		source: p.rank, tag: h.tag, size: int(h.size), print: h.print,
		dead: h.flags&flagDead != 0, dtype: h.dtype, ndim: h.ndim, dims: h.dims, name: h.name,
	}
}
