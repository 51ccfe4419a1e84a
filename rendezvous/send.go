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

// PostSend begins to send body to a rank and returns at once. The body is the op's
// until it is done; the op is the caller's to Wait for and to Free. print is a
// fingerprint that the receive is checked against; 0 is not checked.
func (mc *MatchContext) PostSend(to int, tag int32, fingerprint uint64, body []byte, d Protocol) *Request {
	e := mc.e
	e.mu.Lock()
	req := e.getRequest()
	e.startSend(req, mc, to, key{source: int32(e.cfg.Rank), tag: tag}, fingerprint, body, d)
	e.unlock()
	return req
}

// PostSendParts is PostSend of a message that lies in several pieces, of size bytes in
// all. It returns nil for a message that is longer than one frame, or to this rank
// itself. The pieces, and the list, belong to the request until it is done.
func (mc *MatchContext) PostSendParts(to int, tag int32, fingerprint uint64, parts [][]byte, size int) *Request {
	e := mc.e
	if size > segment || to == e.cfg.Rank {
		return nil
	}
	e.mu.Lock()
	req := e.getRequest()
	req.parts, req.size = parts, size
	e.startSend(req, mc, to, key{source: int32(e.cfg.Rank), tag: tag}, fingerprint, nil, Eager)
	e.unlock()
	return req
}

// Send sends body to a rank and returns when body is the caller's again: at once
// while the peer's credit or this rank's spill buffer can take it, else when its
// receive has met it. ctx and p bound the wait; p may be nil.
func (mc *MatchContext) Send(ctx context.Context, p mesh.WaitPolicy, to int, tag int32, fingerprint uint64, body []byte, d Protocol) error {
	req := mc.PostSend(to, tag, fingerprint, body, d)
	if !req.done.Load() {
		if mc.e.isEager(req) && mc.e.spill(req) {
			return nil
		}
		if mc.e.spillAfterDelay(ctx, req, p) {
			return nil
		}
	}
	err := mc.e.wait(ctx, req, p)
	req.Free()
	return err
}

// isEager reports whether op would have been pushed, had there been credit.
func (e *Engine) isEager(req *Request) bool { return len(req.buf) <= e.cfg.Threshold }

var errSpillTimeout = errors.New("the moment before a spill has passed")

// spillDeadline is a Patience that ends a wait after spillAfter.
type spillDeadline struct{ at time.Time }

func (s *spillDeadline) NextCheck() time.Time { return s.at }
func (s *spillDeadline) Check() error         { return errSpillTimeout }

// spillAfterDelay gives a large send's receive a moment to come, and then copies the
// body into the spill buffer. It reports whether the op left its caller.
func (e *Engine) spillAfterDelay(ctx context.Context, req *Request, p mesh.WaitPolicy) bool {
	e.mu.Lock()
	waits := req.spillable()
	e.mu.Unlock()
	if !waits {
		return false
	}
	w := e.m.NewWaiter()
	req.waiter.Store(w)
	req.spillAt.at = time.Now().Add(spillAfter)
	err := e.waitLinks(ctx, w, req, &req.spillAt)
	req.waiter.Store(nil)
	w.Free()
	return err != nil && errors.Is(err, errSpillTimeout) && e.spill(req)
}

// spill copies the body of a send that nobody has requested yet, so that its
// caller can go on. It reports false when there is no room, or no need any more.
func (e *Engine) spill(req *Request) bool {
	size := int64(len(req.buf) + envelopeCost)
	e.mu.Lock()
	if !req.spillable() || e.spilled+size > e.cfg.SendBuffer {
		e.mu.Unlock()
		return false
	}
	e.spilled += size // reserved; the copy is made without the lock
	body := req.buf
	e.mu.Unlock()
	copied := append([]byte(nil), body...)
	e.mu.Lock()
	defer e.unlock()
	if !req.spillable() {
		e.spilled -= size
		return false
	}
	req.buf, req.spilled, req.detached = copied, size, true
	return true
}

func (req *Request) spillable() bool {
	return req.phase == phasePending || req.phase == phaseOffered
}

// startSend starts a send; e.mu is held.
func (e *Engine) startSend(req *Request, mc *MatchContext, to int, k key, fingerprint uint64, body []byte, d Protocol) {
	req.mc, req.send, req.key, req.buf, req.fingerprint = mc, true, k, body, fingerprint
	p := e.peers[to]
	req.peer = p
	if d == Auto {
		d = e.cfg.Protocol
	}
	if d == Rendezvous || d == Auto && req.length() > e.cfg.Threshold || req.length()+envelopeCost > minCredit/2 {
		req.onRequest = true
	}
	switch err := e.sendable(mc, p); {
	case err != nil:
		e.finish(req, err)
	case to == e.cfg.Rank:
		e.sendLocal(req)
	case p.pending.first == nil && p.hasCredit() && !p.overtakes(req):
		p.launch(req)
	default:
		req.phase = phasePending
		p.pending.pushBack(req)
	}
}

func (e *Engine) sendable(mc *MatchContext, p *peer) error {
	switch {
	case e.ended != nil:
		return e.ended
	case mc.err != nil:
		return mc.err
	case p.gone != nil:
		return p.gone
	}
	return nil
}

// hasCredit reports whether the peer's credit allows op's envelope. When it allows
// the envelope but not the bytes, the message goes as an offer.
func (p *peer) hasCredit() bool { return p.credit >= envelopeCost || p.extraSends > 0 }

// launch puts op's envelope on the peer's stream: with its bytes when they are
// to be pushed and the credit allows it, else as an offer.
func (p *peer) launch(req *Request) {
	p.sends.pushBack(req)
	var h frameHeader
	p.fillHeader(req, &h)
	cost := envelopeCost + int64(req.length())
	if !req.onRequest && p.credit >= cost {
		p.credit -= cost
		req.phase = phaseFlowing
		req.sent = req.length()
		h.kind = kindEager
		p.enqueueBody(req, &req.frames[0], &h, req.buf)
		return
	}
	if rb := p.remoteFor(req); rb != nil {
		p.writeTo(req, rb)
		return
	}
	if p.credit >= envelopeCost {
		p.credit -= envelopeCost
	} else {
		p.extraSends--
		h.flags |= flagExtra
	}
	req.phase = phaseOffered
	req.id = nextID(&p.nextOfferID)
	p.sentOffers[req.id] = req
	h.kind, h.id = kindOffer, req.id
	p.sendControl(h)
}

// fillHeader fills the head of op's first frame, which is zero so far.
func (p *peer) fillHeader(req *Request, h *frameHeader) {
	h.context, h.tag, h.size, h.fingerprint = req.mc.id, req.key.tag, uint64(req.length()), req.fingerprint
	if t := req.tensor; t != nil {
		h.flags = flagNamed
		h.step, h.name = req.key.step, p.nameID(req.key.name)
		t.encodeTo(h)
	}
}

// enqueueBody queues a frame with bytes of op's, or where it lies in pieces with all of
// it.
func (p *peer) enqueueBody(req *Request, f *dataFrame, h *frameHeader, body []byte) {
	if p.e.cfg.Checksum {
		h.flags |= flagBodyCRC
		h.bodyCRC = crc32.Checksum(body, castagnoli)
		for _, part := range req.parts {
			h.bodyCRC = crc32.Update(h.bodyCRC, castagnoli, part)
		}
	}
	f.Body, f.Parts, f.To, f.ID = body, req.parts, transport.Token{}, 0
	if req.token != (transport.Token{}) { // it may arrive without its head, so the head must not matter
		f.To, f.Offset, f.ID = req.token, int(h.offset), req.recvID
		if req.remote != nil {
			f.ID = transport.NoNotify
		}
	} else {
		h.credit = p.popUnreturned()
	}
	f.Head = f.headerBuf[:h.encode(&f.headerBuf)]
	f.busy = true
	req.inFlight++
	p.enqueue(&f.Frame)
}

// handleRequest answers a request: the bytes of the offer flow. A request for an
// offer that was withdrawn meanwhile means nothing.
func (p *peer) handleRequest(h *frameHeader) {
	req := p.sentOffers[h.id]
	if req == nil {
		return
	}
	delete(p.sentOffers, h.id)
	if h.size != uint64(req.length()) {
		p.protocolError("request: got %d bytes, want the message's %d", h.size, req.length())
		return
	}
	req.phase = phaseFlowing
	req.recvID, req.token = h.recvID, h.token
	switch {
	case req.length() == 0:
		p.e.finish(req, nil)
	case req.parts != nil: // they fit into one frame
		req.sent = req.size
		p.enqueueBody(req, &req.frames[0], &frameHeader{kind: kindData, id: req.recvID, size: uint64(req.size)}, nil)
	default:
		p.enqueueData(req)
	}
}

// enqueueData queues the next data frames of op: two at a time, so that the Conn always
// has one to go on with, and others get their turn in between.
func (p *peer) enqueueData(req *Request) {
	for i := range req.frames {
		f := &req.frames[i]
		if f.busy || req.sent == len(req.buf) {
			continue
		}
		part := req.buf[req.sent:min(req.sent+segment, len(req.buf))]
		h := frameHeader{kind: kindData, id: req.recvID, offset: uint64(req.sent), size: uint64(len(part))}
		req.sent += len(part)
		p.enqueueBody(req, f, &h, part)
	}
	if req.remote != nil && req.sent == len(req.buf) {
		p.announce(req)
	}
}

// frameDone hears that the Conn is done with one of op's frames.
func (req *Request) frameDone(f *dataFrame, err error) {
	e := req.e
	e.mu.Lock()
	f.busy = false
	f.Body = nil
	req.inFlight--
	req.peer.inConn--
	switch {
	case err != nil && req.pendingErr == nil && req.handedOver() && req.peer.closedInOrder():
		if req.inFlight == 0 {
			e.finish(req, nil)
		}
	case req.pendingErr != nil || err != nil && req.peer.gone != nil:
		if req.inFlight == 0 {
			if req.recvID != 0 && req.sent < req.length() && req.peer.gone == nil && req.peer.connErr == nil {
				req.peer.sendControl(frameHeader{kind: kindAbandon, id: req.recvID})
			}
			e.finish(req, firstError(req.pendingErr, req.peer.gone))
		}
	case err != nil: // the verdict will end it
	case req.sent < req.length():
		req.peer.enqueueData(req)
		req.peer.addCredit(0, 0) // what op's end would have been overtaken by
	case req.inFlight == 0:
		e.finish(req, nil)
	}
	e.unlock()
}

// handedOver reports whether the Conn has got all bytes of a send.
func (req *Request) handedOver() bool { return req.phase == phaseFlowing && req.sent == req.length() }

// closedInOrder reports whether the peer has said goodbye. It has taken what it
// wanted by then: a send whose bytes were all on their way has done its part,
// even if the Conn has not come round to saying so.
func (p *peer) closedInOrder() bool {
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
func (e *Engine) withdraw(req *Request) {
	if m := req.local; m != nil {
		req.local = nil
		if m.inTable {
			req.mc.table.removeMessage(m)
		}
		e.freeMessage(m)
		return
	}
	if req.peer.rank == e.cfg.Rank {
		return // its message was dropped before
	}
	delete(req.peer.sentOffers, req.id)
	if req.peer.gone == nil && req.peer.connErr == nil {
		req.peer.sendControl(frameHeader{kind: kindWithdraw, id: req.id})
	}
}

// sendLocal sends to this rank itself: the message waits in the table with a
// reference to the sender's bytes, and is copied once.
func (e *Engine) sendLocal(req *Request) {
	req.phase = phaseOffered
	req.peer.sends.pushBack(req)
	m := e.getMessage(req.mc, req.key)
	m.env = req.selfEnvelope()
	m.local, req.local = req, m
	m.complete = true
	e.deliver(m)
}

func (req *Request) selfEnvelope() envelope {
	env := envelope{source: int(req.key.source), tag: req.key.tag, size: len(req.buf), fingerprint: req.fingerprint}
	if req.tensor != nil {
		var h frameHeader
		req.tensor.encodeTo(&h)
		env.dead, env.dtype, env.ndim, env.dims = h.flags&flagDead != 0, h.dtype, h.ndim, h.dims
	}
	return env
}
