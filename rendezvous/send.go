package rendezvous

import (
	"context"
	"errors"
	"hash/crc32"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
)

// Start begins to send body to a rank and returns at once. The body is the op's
// until it is done; the op is the caller's to Wait for and to Free. print is a
// fingerprint that the receive is checked against; 0 is not checked.
func (s *Space) Start(to int, tag int32, print uint64, body []byte, d Drive) *Op {
	e := s.e
	e.mu.Lock()
	op := e.take()
	e.begin(op, s, to, key{source: int32(e.cfg.Rank), tag: tag}, print, body, d)
	e.release()
	return op
}

// StartParts is Start of a message that lies in several pieces, of size bytes in
// all, which the link gathers. It is nil where it cannot be: for a message that is
// longer than one frame, to this rank itself, or over a link that does not gather.
// The pieces, and the list, are the op's until it is done.
func (s *Space) StartParts(to int, tag int32, print uint64, parts [][]byte, size int) *Op {
	e := s.e
	if size > segment || to == e.cfg.Rank || !e.m.Link(to).Gathers() {
		return nil
	}
	e.mu.Lock()
	op := e.take()
	op.parts, op.size = parts, size
	e.begin(op, s, to, key{source: int32(e.cfg.Rank), tag: tag}, print, nil, Push)
	e.release()
	return op
}

// Send sends body to a rank and returns when body is the caller's again: at once
// while the peer's credit or this rank's spill buffer can take it, else when its
// receive has met it. ctx and p bound the wait; p may be nil.
func (s *Space) Send(ctx context.Context, p mesh.Patience, to int, tag int32, print uint64, body []byte, d Drive) error {
	op := s.Start(to, tag, print, body, d)
	if !op.done.Load() {
		if s.e.small(op) && s.e.spill(op) {
			return nil
		}
		if s.e.detachSoon(ctx, op, p) {
			return nil
		}
	}
	err := s.e.wait(ctx, op, p)
	op.Free()
	return err
}

// small reports whether op would have been pushed, had there been credit.
func (e *Engine) small(op *Op) bool { return len(op.buf) <= e.cfg.Threshold }

var errSpillNow = errors.New("spill now")

// soon is a Patience that ends a wait after spillAfter.
type soon struct{ at time.Time }

func (s *soon) Until() time.Time { return s.at }
func (s *soon) Due() error       { return errSpillNow }

// detachSoon gives a large send's receive a moment to come, and then copies the
// body into the spill buffer. It reports whether the op left its caller.
func (e *Engine) detachSoon(ctx context.Context, op *Op, p mesh.Patience) bool {
	e.mu.Lock()
	waits := op.spillable()
	e.mu.Unlock()
	if !waits {
		return false
	}
	w := e.m.NewWaiter()
	op.waiter.Store(w)
	op.soon.at = time.Now().Add(spillAfter)
	err := e.waitLinks(ctx, w, op, &op.soon)
	op.waiter.Store(nil)
	w.Free()
	return err != nil && errors.Is(err, errSpillNow) && e.spill(op)
}

// spill copies the body of a send that nobody has requested yet, so that its
// caller can go on. It reports false when there is no room, or no need any more.
func (e *Engine) spill(op *Op) bool {
	size := int64(len(op.buf) + envelopeCost)
	e.mu.Lock()
	if !op.spillable() || e.spilled+size > e.cfg.SendBuffer {
		e.mu.Unlock()
		return false
	}
	e.spilled += size // reserved; the copy is made without the lock
	body := op.buf
	e.mu.Unlock()
	copied := append([]byte(nil), body...)
	e.mu.Lock()
	defer e.release()
	if !op.spillable() {
		e.spilled -= size
		return false
	}
	op.buf, op.spilled, op.detached = copied, size, true
	return true
}

func (op *Op) spillable() bool {
	return op.phase == phasePending || op.phase == phaseOffered
}

// begin starts a send; e.mu is held.
func (e *Engine) begin(op *Op, s *Space, to int, k key, print uint64, body []byte, d Drive) {
	op.space, op.send, op.key, op.buf, op.print = s, true, k, body, print
	p := e.peers[to]
	op.peer = p
	if d == Auto {
		d = e.cfg.Drive
	}
	if d == Pull || d == Auto && op.length() > e.cfg.Threshold || op.length()+envelopeCost > minCredit/2 {
		op.pull = true
	}
	switch err := e.sendable(s, p); {
	case err != nil:
		e.finish(op, err)
	case to == e.cfg.Rank:
		e.sendLocal(op)
	case p.pending.first == nil && p.affords() && !p.overtakes(op):
		p.launch(op)
	default:
		op.phase = phasePending
		p.pending.push(op)
	}
}

func (e *Engine) sendable(s *Space, p *peer) error {
	switch {
	case e.ended != nil:
		return e.ended
	case s.err != nil:
		return s.err
	case p.gone != nil:
		return p.gone
	}
	return nil
}

// affords reports whether the peer's credit allows op's envelope. When it allows
// the envelope but not the bytes, the message goes as an offer.
func (p *peer) affords() bool { return p.credit >= envelopeCost || p.extra > 0 }

// launch puts op's envelope on the peer's stream: with its bytes when they are
// to be pushed and the credit allows it, else as an offer.
func (p *peer) launch(op *Op) {
	p.sends.push(op)
	var h head
	p.envelope(op, &h)
	cost := envelopeCost + int64(op.length())
	if !op.pull && p.credit >= cost {
		p.credit -= cost
		op.phase = phaseFlowing
		op.sent = op.length()
		h.kind = kindEager
		p.pushBody(op, &op.frames[0], &h, op.buf)
		return
	}
	if i, ok := p.berthFor(op); ok {
		p.placeIn(op, i)
		return
	}
	if p.credit >= envelopeCost {
		p.credit -= envelopeCost
	} else {
		p.extra--
		h.flags |= flagExtra
	}
	op.phase = phaseOffered
	op.id = after(&p.nextOffer)
	p.offers[op.id] = op
	h.kind, h.id = kindOffer, op.id
	p.say(h)
}

// envelope fills the head of op's first frame, which is zero so far.
func (p *peer) envelope(op *Op, h *head) {
	h.context, h.tag, h.size, h.print = op.space.id, op.key.tag, uint64(op.length()), op.print
	if t := op.tensor; t != nil {
		h.flags = flagNamed
		h.step, h.name = op.key.step, p.nameID(op.key.name)
		t.describe(h)
	}
}

// pushBody queues a frame with bytes of op's, or where it lies in pieces with all of
// it.
func (p *peer) pushBody(op *Op, f *dataFrame, h *head, body []byte) {
	if p.e.cfg.Checksum {
		h.flags |= flagSum
		h.sum = crc32.Checksum(body, castagnoli)
		for _, part := range op.parts {
			h.sum = crc32.Update(h.sum, castagnoli, part)
		}
	}
	f.Body, f.To, f.ID = body, transport.Token{}, 0
	if op.token != (transport.Token{}) { // it may arrive without its head, so the head must not matter
		f.To, f.Offset, f.ID = op.token, int(h.offset), op.request
		if op.untold {
			f.ID = transport.NoNotify
		}
	} else {
		h.credit = p.giveBack()
	}
	f.Head = f.room[:h.encode(&f.room)]
	f.busy = true
	op.flying++
	if op.parts != nil {
		p.gathers = append(p.gathers, gather{&f.Frame, op.parts})
	}
	p.push(&f.Frame)
}

// requested answers a request: the bytes of the offer flow. A request for an
// offer that was withdrawn meanwhile means nothing.
func (p *peer) requested(h *head) {
	op := p.offers[h.id]
	if op == nil {
		return
	}
	delete(p.offers, h.id)
	if h.size != uint64(op.length()) {
		p.distrust("requested %d bytes of a message of %d", h.size, op.length())
		return
	}
	op.phase = phaseFlowing
	op.request, op.token = h.receive, h.token
	switch {
	case op.length() == 0:
		p.e.finish(op, nil)
	case op.parts != nil: // they fit into one frame
		op.sent = op.size
		p.pushBody(op, &op.frames[0], &head{kind: kindData, id: op.request, size: uint64(op.size)}, nil)
	default:
		p.flow(op)
	}
}

// flow queues the next data frames of op: two at a time, so that the Conn always
// has one to go on with, and others get their turn in between.
func (p *peer) flow(op *Op) {
	for i := range op.frames {
		f := &op.frames[i]
		if f.busy || op.sent == len(op.buf) {
			continue
		}
		part := op.buf[op.sent:min(op.sent+segment, len(op.buf))]
		h := head{kind: kindData, id: op.request, offset: uint64(op.base + op.sent), size: uint64(len(part))}
		op.sent += len(part)
		p.pushBody(op, f, &h, part)
	}
	if op.untold && op.sent == len(op.buf) {
		p.tell(op)
	}
}

// frameDone hears that the Conn is done with one of op's frames.
func (op *Op) frameDone(f *dataFrame, err error) {
	e := op.e
	e.mu.Lock()
	f.busy = false
	f.Body = nil
	op.flying--
	op.peer.unsent--
	switch {
	case err != nil && op.leaving == nil && op.handedOver() && op.peer.leftInOrder():
		if op.flying == 0 {
			e.finish(op, nil)
		}
	case op.leaving != nil || err != nil && op.peer.gone != nil:
		if op.flying == 0 {
			if op.request != 0 && op.sent < op.length() && op.peer.gone == nil && op.peer.broken == nil {
				op.peer.say(head{kind: kindAbandon, id: op.request})
			}
			e.finish(op, firstError(op.leaving, op.peer.gone))
		}
	case err != nil: // the verdict will end it
	case op.sent < op.length():
		op.peer.flow(op)
		op.peer.granted(0, 0) // what op's end would have been overtaken by
	case op.flying == 0:
		e.finish(op, nil)
	}
	e.release()
}

// handedOver reports whether the Conn has got all bytes of a send.
func (op *Op) handedOver() bool { return op.phase == phaseFlowing && op.sent == op.length() }

// leftInOrder reports whether the peer has said goodbye. It has taken what it
// wanted by then: a send whose bytes were all on their way has done its part,
// even if the Conn has not come round to saying so.
func (p *peer) leftInOrder() bool {
	var f *fault.Error
	return errors.As(p.gone, &f) && f.Kind == fault.Closed
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// withdraw takes an offer back.
func (e *Engine) withdraw(op *Op) {
	if m := op.local; m != nil {
		op.local = nil
		if m.listed {
			op.space.table.remove(m)
		}
		e.freeMessage(m)
		return
	}
	if op.peer.rank == e.cfg.Rank {
		return // its message was dropped before
	}
	delete(op.peer.offers, op.id)
	if op.peer.gone == nil && op.peer.broken == nil {
		op.peer.say(head{kind: kindWithdraw, id: op.id})
	}
}

// sendLocal sends to this rank itself: the message waits in the table with a
// reference to the sender's bytes, and is copied once.
func (e *Engine) sendLocal(op *Op) {
	op.phase = phaseOffered
	op.peer.sends.push(op)
	m := e.takeMessage(op.space, op.key)
	m.env = op.ownEnvelope()
	m.local, op.local = op, m
	m.complete = true
	e.deliver(m)
}

func (op *Op) ownEnvelope() envelope {
	env := envelope{source: int(op.key.source), tag: op.key.tag, size: len(op.buf), print: op.print}
	if op.tensor != nil {
		var h head
		op.tensor.describe(&h)
		env.dead, env.dtype, env.ndim, env.dims = h.flags&flagDead != 0, h.dtype, h.ndim, h.dims
	}
	return env
}
