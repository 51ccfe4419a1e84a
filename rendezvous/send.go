package rendezvous

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/mesh"
	"github.com/tutti-go/tutti/transport"
)

// startSend and Send check the following cases in order. The first that applies decides how the
// bytes leave the caller's buffer:
//
//	1. Nothing is pending for that peer, and its credit allows the message: it is launched.
//	2. Its credit allows the envelope only: it is launched as an offer.
//	3. There is no credit: the request waits in peer.pending, in order. A Send, which must not
//	   make its caller wait for long, copies the body into the spill buffer and returns;
//	   a small body at once, a large one after spillAfter.
//	4. The spill buffer is full: Send waits for its receive.
//
// Envelopes leave in the order of the calls, whatever their size and tag, because the receiver
// matches in the order of arrival. So a send without credit also delays the later sends to the same
// peer.

// PostSend begins to send body to a rank and returns at once. body belongs to the engine until the
// request is done. The caller must call Wait and then Free. The receive must have the same
// fingerprint; 0 is not checked.
func (mc *MatchContext) PostSend(to int, tag int32, fingerprint uint64, body []byte, d Protocol) *Request {
	e := mc.e
	e.mu.Lock()
	req := e.getRequest()
	e.startSend(req, mc, to, key{source: int32(e.cfg.Rank), tag: tag}, fingerprint, body, d)
	e.unlock()
	return req
}

// PostSendParts is like PostSend for a message in several pieces, which the link gathers. The
// pieces have size bytes in total. It returns nil for a message longer than one frame and for a
// message to this rank itself. The pieces and their list belong to the engine until the request is
// done.
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

// Send sends body to a rank and returns when the caller may reuse body. If the peer's credit or
// this rank's spill buffer has room, Send does not wait for the receive. Otherwise it waits until a
// receive has taken the message. ctx and p bound the wait; p may be nil.
func (mc *MatchContext) Send(ctx context.Context, p mesh.WaitPolicy, to int, tag int32, fingerprint uint64, body []byte, d Protocol) error {
	req := mc.PostSend(to, tag, fingerprint, body, d)
	if !req.done.Load() {
		// A small message waits for credit only: a copy is cheaper than to block the caller. A
		// large one waits for its receive, which is probably about to be posted.
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

// isEager reports whether req is small enough to be sent eagerly when there is credit. Send copies
// such a message at once, because its caller does not expect to wait.
func (e *Engine) isEager(req *Request) bool { return len(req.buf) <= e.cfg.Threshold }

var errSpillTimeout = errors.New("the wait before a spill is over")

// A spillDeadline is a wait policy that ends a wait after spillAfter.
type spillDeadline struct{ at time.Time }

func (s *spillDeadline) NextCheck() time.Time { return s.at }
func (s *spillDeadline) Check() error         { return errSpillTimeout }

// spillAfterDelay waits up to spillAfter for the receive of a large send, because the send is
// faster without a copy. Then it copies the body into the spill buffer. It reports whether it has
// detached the request from its caller.
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

// spill copies the body of a send that the receiver has not requested yet, and detaches the request
// from its caller. It reports false if the spill buffer is full or the send is not waiting any
// more. The copy is made without the lock, so the receiver's request for the bytes may arrive
// during the copy.
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
	copied := append([]byte(nil), body...) // the caller is in Send, so the body does not change
	e.mu.Lock()
	defer e.unlock()
	if !req.spillable() {
		e.spilled -= size
		return false
	}
	req.buf, req.spilled, req.detached = copied, size, true
	return true
}

// spillable reports whether the body is in no frame yet, so that a copy can replace it.
func (req *Request) spillable() bool {
	return req.phase == phasePending || req.phase == phaseOffered
}

// startSend begins a send. It launches the send, or adds it to the peer's pending sends, which wait
// for credit. e.mu is held.
func (e *Engine) startSend(req *Request, mc *MatchContext, to int, k key, fingerprint uint64, body []byte, d Protocol) {
	req.mc, req.send, req.key, req.buf, req.fingerprint = mc, true, k, body, fingerprint
	p := e.peers[to]
	req.peer = p
	if d == Auto {
		d = e.cfg.Protocol
	}
	// A message of more than half of minCredit is not sent eagerly, because it would take most of a
	// small credit.
	if d == Rendezvous || d == Auto && req.length() > e.cfg.Threshold || req.length()+envelopeCost > minCredit/2 {
		req.onRequest = true
	}
	switch err := e.sendable(mc, p); {
	case err != nil: // the request is done before its caller sees it
		e.finish(req, err)
	case to == e.cfg.Rank:
		e.sendLocal(req)
	case p.pending.first == nil && p.hasCredit() && !p.overtakes(req):
		p.launch(req)
	default:
		req.phase = phasePending
		p.pending.addLast(req)
	}
}

// sendable returns the reason why nothing can be sent to p in this context, or nil.
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

// hasCredit reports whether the peer's credit allows one envelope. When it allows the envelope but
// not the bytes, the message goes as an offer.
func (p *peer) hasCredit() bool { return p.credit >= envelopeCost || p.extraSends > 0 }

// launch puts req's envelope on the peer's stream. launch sends the message eagerly if the protocol
// and the credit allow it. Otherwise it writes the message into a prepared buffer if there is one,
// and else sends an offer.
func (p *peer) launch(req *Request) {
	p.sends.addLast(req)
	var h frameHeader
	p.fillHeader(req, &h)
	cost := envelopeCost + int64(req.length())
	if !req.onRequest && p.credit >= cost { // eager: the bytes follow the header
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
	} else { // there is no credit, but an envelope was granted: see hasCredit
		p.extraSends--
		h.flags |= flagExtra
	}
	req.phase = phaseOffered
	req.id = nextID(&p.nextOfferID)
	p.sentOffers[req.id] = req
	h.kind, h.id = kindOffer, req.id
	p.sendControl(h)
}

// fillHeader fills the header of req's first frame with its envelope. h is zero so far.
func (p *peer) fillHeader(req *Request, h *frameHeader) {
	h.context, h.tag, h.size, h.fingerprint = req.mc.id, req.key.tag, uint64(req.length()), req.fingerprint
	if t := req.tensor; t != nil {
		h.flags = flagNamed
		h.step, h.name = req.key.step, p.nameID(req.key.name)
		t.encodeTo(h)
	}
}

// enqueueBody queues a frame with the given body, or with all pieces of a send from PostSendParts.
// A frame that is written into the peer's memory may arrive without its header, so its header
// carries no credit.
func (p *peer) enqueueBody(req *Request, f *dataFrame, h *frameHeader, body []byte) {
	if p.e.cfg.Checksum {
		h.flags |= flagBodyCRC
		h.bodyCRC = crc32.Checksum(body, castagnoli)
		for _, part := range req.parts {
			h.bodyCRC = crc32.Update(h.bodyCRC, castagnoli, part)
		}
	}
	f.Body, f.Parts, f.To, f.ID = body, req.parts, transport.Token{}, 0
	// The frame may arrive without its header, so the header must carry no credit.
	if req.token != (transport.Token{}) {
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

// handleRequest sends the bytes of an offer. A request for an offer that was withdrawn meanwhile is
// ignored: the two frames have crossed.
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
	case req.length() == 0: // the request frame alone has completed the message
		p.e.finish(req, nil)
	case req.parts != nil: // they fit into one frame
		req.sent = req.size
		p.enqueueBody(req, &req.frames[0], &frameHeader{kind: kindData, id: req.recvID, size: uint64(req.size)}, nil)
	default:
		p.enqueueData(req)
	}
}

// handleDrop ends the send of an offer that the peer has dropped. If a receive has matched the
// message and the message did not fit, the message is consumed and its send succeeds. In a
// collective the send also succeeds, because the collective's context ends with an error that names
// the failed call. If the tensor's step has ended at the peer, the send waits for the flood of
// EndStep, which carries the cause. The flood may be lost, so the send does not wait once this rank
// has closed the context or has begun to close.
func (p *peer) handleDrop(h *frameHeader) {
	req := p.sentOffers[h.id]
	delete(p.sentOffers, h.id)
	switch {
	case req == nil && h.id == 0 && h.flags&flagUnreceived != 0:
		err := p.notReceived("messages that had arrived")
		p.e.setUndelivered(p, err, "%w", err.Err)
	case req == nil: // the send has ended, and the frames have crossed
	case h.flags&flagUnreceived == 0 || req.mc.ordered:
		p.e.finish(req, nil)
	case h.flags&flagNamed != 0 && req.tensor != nil:
		if p.e.draining || p.e.contexts[req.mc.id] == nil {
			p.e.finish(req, p.stepEnded(req))
			return
		}
		req.dropped = true // endStep or Drain ends it
	default:
		p.e.finish(req, p.notReceived("the message"))
	}
}

// notReceived returns the error of messages that p has dropped, because it closes the job or their
// communicator.
func (p *peer) notReceived(what string) *fault.Error {
	return &fault.Error{Kind: fault.Closed, Op: "send", Rank: p.e.cfg.Rank, Peers: []fault.Peer{{Rank: p.rank}},
		Err: fmt.Errorf("rank %d has closed without receiving %s; receive all messages before Close", p.rank, what)}
}

// stepEnded returns the error of a named send that p has dropped because its step has ended on the
// peer. The cause is not known, because the flood of EndStep has not arrived.
func (p *peer) stepEnded(req *Request) *fault.Error {
	return &fault.Error{Kind: fault.Closed, Op: "send", Rank: p.e.cfg.Rank, Peers: []fault.Peer{{Rank: p.rank}},
		Err: fmt.Errorf("rank %d has not received tensor %q, because step %d has ended on that rank", p.rank, req.key.name, req.key.step)}
}

// endDropped ends the named sends in the context mc, or in all contexts if mc is nil, that p has
// dropped and that still wait for the flood of EndStep. e.mu is held.
func (p *peer) endDropped(mc *MatchContext) {
	for req := p.sends.first; req != nil; {
		next := req.next
		if req.dropped && (mc == nil || req.mc == mc) {
			p.e.finish(req, p.stepEnded(req))
		}
		req = next
	}
}

// enqueueData queues the next data frames of req, at most two at a time. With two frames the Conn
// is never idle, and frames of other requests can be sent in between. It announces a direct write
// after the last frame.
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

// frameDone is called when the Conn is done with one of req's frames. It queues the next frames, or
// finishes the request when the Conn has none of its frames left. After an error of the Conn the
// request waits for FailPeer.
func (req *Request) frameDone(f *dataFrame, err error) {
	e := req.e
	e.mu.Lock()
	f.busy = false
	f.Body = nil
	req.inFlight--
	req.peer.inConn--
	switch {
	case err != nil && req.pendingErr == nil && req.handedOver() && req.peer.closedInOrder():
		// The peer has closed after it has received all messages that it wanted.
		if req.inFlight == 0 {
			e.finish(req, nil)
		}
	case req.pendingErr != nil || err != nil && req.peer.gone != nil:
		// The send was aborted. The peer's receive must not wait for bytes that will not come.
		if req.inFlight == 0 {
			if req.recvID != 0 && req.sent < req.length() && req.peer.gone == nil && req.peer.connErr == nil {
				req.peer.sendControl(frameHeader{kind: kindAbandon, id: req.recvID})
			}
			e.finish(req, firstError(req.pendingErr, req.peer.gone))
		}
	case err != nil: // FailPeer will end it
	case req.sent < req.length():
		req.peer.enqueueData(req)
		req.peer.addCredit(0, 0) // starts the sends with req's key, which had to wait for req
	case req.inFlight == 0:
		e.finish(req, nil)
	}
	e.unlock()
}

// handedOver reports whether all bytes of a send were passed to the Conn.
func (req *Request) handedOver() bool { return req.phase == phaseFlowing && req.sent == req.length() }

// closedInOrder reports whether the peer has left by Close. Such a peer has received all messages
// that it wanted. A send whose bytes were all handed to the Conn has then succeeded, even if the
// Conn reports an error.
func (p *peer) closedInOrder() bool {
	var f *fault.Error
	return errors.As(p.gone, &f) && f.Kind == fault.Closed
}

// firstError returns the first error that is not nil, or nil.
func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// withdraw takes an offer back, on this rank and at the peer. The caller finishes the request.
func (e *Engine) withdraw(req *Request) {
	// req is a send to this rank itself, and its message waits in the table.
	if m := req.local; m != nil {
		req.local = nil
		if m.inTable {
			req.mc.table.removeMessage(m)
		}
		e.freeMessage(m)
		return
	}
	if req.peer.rank == e.cfg.Rank {
		return // the send's message was dropped before
	}
	delete(req.peer.sentOffers, req.id)
	if req.peer.gone == nil && req.peer.connErr == nil {
		req.peer.sendControl(frameHeader{kind: kindWithdraw, id: req.id})
	}
}

// sendLocal sends to this rank itself. The message waits in the table with a reference to the send,
// and its bytes are copied once, from the sender's buffer to the receiver's.
func (e *Engine) sendLocal(req *Request) {
	req.phase = phaseOffered
	req.peer.sends.addLast(req)
	m := e.getMessage(req.mc, req.key)
	m.env = req.selfEnvelope()
	m.local, req.local = req, m
	m.complete = true
	e.deliver(m)
}

// selfEnvelope returns the envelope that a receive on this rank sees.
func (req *Request) selfEnvelope() envelope {
	env := envelope{source: int(req.key.source), tag: req.key.tag, size: len(req.buf), fingerprint: req.fingerprint}
	if req.tensor != nil {
		var h frameHeader
		req.tensor.encodeTo(&h)
		env.dead, env.dtype, env.ndim, env.dims = h.flags&flagDead != 0, h.dtype, h.ndim, h.dims
	}
	return env
}
