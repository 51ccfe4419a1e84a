package rendezvous

import (
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// exposeFrom is the size in bytes from which a receive's buffer is exposed to its sender, where the
// Conn can do that and bodies carry no checksum. What is written into exposed memory arrives
// without its header, and so without its checksum. Below it the exposure costs more than the copy
// that it saves.
const exposeFrom = 16 << 10

// onMatch joins a receive with its message, which has been removed from every list. What happens
// next depends on where the bytes are:
//
//	a prepared buffer, req has none   req gets that buffer: loanBuffer
//	a send of this rank               they are copied from the sender's buffer
//	an offer                          they are requested: acceptOffer
//	an offer that was withdrawn       req is reposted (ordered contexts only)
//	still arriving                    finishEager copies them when they are in
//	in the message                    they are copied
//
// e.mu is held.
func (e *Engine) onMatch(req *Request, m *message) {
	e.setMatch(req, e.peers[m.env.source], m.env)
	if m.loan.from != nil && req.alloc {
		e.loanBuffer(req, m)
		return
	}
	fits := e.validate(req)
	switch {
	case m.local != nil: // both ends are here; a receive that does not fit copies nothing
		from := m.local
		from.local = nil
		e.freeMessage(m)
		from.phase = phaseMatched
		from.peer.sends.remove(from)
		if !fits {
			req.buf = nil
		}
		req.bufBusy = true
		e.deferAction(deferredAction{kind: actionCopyLocal, req: req, sendReq: from})
	case m.withdrawn: // it has used up its turn in the order of messages
		e.discard(m)
		e.repost(req)
	case m.offer != 0:
		delete(m.peer.queuedOffers, m.offer)
		e.acceptOffer(req, m, fits)
	case !m.complete: // finishEager goes on
		m.claimedBy, req.claimed = req, m
	case !fits:
		e.discard(m)
		e.finish(req, req.pendingErr)
	default:
		e.deferCopy(req, m)
	}
}

// deferCopy copies a message that has arrived completely to its receive, after the lock is
// released. From now on the receive succeeds, even if its sender fails meanwhile.
func (e *Engine) deferCopy(req *Request, m *message) {
	req.bufBusy, req.complete = true, true
	e.deferAction(deferredAction{kind: actionCopy, req: req, msg: m})
}

// setMatch records which message a receive has matched.
func (e *Engine) setMatch(req *Request, p *peer, env envelope) {
	if req.phase == phasePosted {
		e.untrackPosted(req)
	}
	req.phase = phaseMatched
	req.mc.matchedRecvs.addLast(req)
	req.peer, req.match = p, env
	if req.tensor != nil {
		env.decodeTensor(req.tensor)
	}
}

// A FingerprintError is the cause of a fault.Mismatch: the fingerprint of a message is not that of
// its receive, so the two ranks are in different operations.
type FingerprintError struct {
	Source, Tag  int
	Sent, Wanted uint64
}

func (e *FingerprintError) Error() string {
	return fmt.Sprintf("message from rank %d with tag %d: got fingerprint %x, want %x", e.Source, e.Tag, e.Sent, e.Wanted)
}

// validate checks a message against the receive that it matched, and cuts or allocates the
// receive's buffer. It reports false, with the error in req.pendingErr, when the two do not fit.
// The message is consumed all the same, as in MPI.
func (e *Engine) validate(req *Request) bool {
	env := &req.match
	switch {
	case req.fingerprint != 0 && env.fingerprint != 0 && req.fingerprint != env.fingerprint:
		req.pendingErr = &fault.Error{Kind: fault.Mismatch, Op: "recv", Rank: e.cfg.Rank, Peers: []fault.Peer{{Rank: env.source}},
			Err: &FingerprintError{Source: env.source, Tag: int(env.tag), Sent: env.fingerprint, Wanted: req.fingerprint}}
	case req.alloc && int64(env.size) <= e.cfg.StepBytes:
		req.buf = make([]byte, env.size)
		req.tensor.Data = req.buf
	case req.alloc:
		req.pendingErr = fault.New(fault.Exhausted, "recv", e.cfg.Rank,
			"tensor %q from rank %d: got %d bytes, want at most StepBytes of %d; raise it, or receive into a buffer", req.key.name, env.source, env.size, e.cfg.StepBytes)
	case env.size > len(req.buf):
		req.pendingErr = e.misuse("recv", "the message of %d bytes from rank %d with tag %d does not fit the receive's %d bytes; make the buffer larger or Probe first",
			env.size, env.source, env.tag, len(req.buf))
	}
	if req.pendingErr != nil {
		return false
	}
	req.buf = req.buf[:env.size]
	return true
}

// acceptOffer requests the bytes of an offer, or drops the offer if it does not fit. A large buffer
// is exposed first, without the lock, and the request then carries its token.
func (e *Engine) acceptOffer(req *Request, m *message, fits bool) {
	p, offer := m.peer, m.offer
	e.discard(m)
	if !fits {
		p.sendControl(frameHeader{kind: kindDrop, id: offer})
		e.finish(req, req.pendingErr)
		return
	}
	req.id, req.offer = nextID(&p.nextRecvID), offer
	p.activeRecvs[req.id] = req
	if len(req.buf) >= exposeFrom && !e.cfg.Checksum && p.exposer() != nil {
		req.bufBusy = true
		e.deferAction(deferredAction{kind: actionExpose, req: req})
		return
	}
	p.sendControl(frameHeader{kind: kindRequest, id: offer, recvID: req.id, size: uint64(len(req.buf))})
	if len(req.buf) == 0 {
		p.handleData(req, 0)
	}
}

// exposer returns the Conn's ability to expose memory, or nil.
func (p *peer) exposer() transport.Exposer {
	x, _ := p.link.Conn().(transport.Exposer)
	return x
}

// exposeAndRequest exposes req's buffer to the peer and requests the bytes into it. It runs without
// the lock: Expose may pin memory, which takes a device some 200 µs per MiB. Meanwhile the request
// may have been aborted or its offer withdrawn; then nothing is requested and the exposure ends.
func (e *Engine) exposeAndRequest(req *Request) {
	p := req.peer
	h := frameHeader{kind: kindRequest, id: req.offer, recvID: req.id, size: uint64(len(req.buf))}
	var token transport.Token
	var hide func()
	err := errConnGone
	if x := p.exposer(); x != nil {
		token, hide, err = x.Expose(req.id, req.buf)
	}
	e.mu.Lock()
	defer e.unlock()
	req.bufBusy = false
	if err == nil {
		h.flags, h.token = flagToken, token
		req.unexpose = hide
	}
	switch {
	case req.pendingErr == nil && !req.withdrawn:
		p.sendControl(h)
	case req.unexpose != nil: // it was retired, or taken back, and the sender knows nothing of it
		e.unexposeAndFinish(req, req.pendingErr)
	case req.withdrawn:
		e.repost(req)
	default:
		e.finish(req, req.pendingErr)
	}
}

// errConnGone says that the Conn has failed, and its abilities with it.
var errConnGone = errors.New("the connection has failed")

// repost puts a receive back to where it stood before its match, because the sender took the offer
// back. A receive that was aborted or canceled meanwhile ends instead. In an ordered context it
// matches nothing any more, see SetOrdered.
func (e *Engine) repost(req *Request) {
	if err := firstError(req.pendingErr, req.canceled); err != nil {
		e.finish(req, err)
		return
	}
	// Everything that the match has set goes back to what PostRecv set. order stays.
	e.unmatch(req)
	req.phase, req.peer, req.offer, req.id, req.withdrawn, req.unexposing = phaseIdle, nil, 0, 0, false, false
	req.buf = req.fullBuf
	if req.mc.ordered {
		req.key.tag = unmatchableTag
	}
	if err := req.mc.receivable(req.key); err != nil {
		e.finish(req, err)
		return
	}
	req.mc.fallBackFastRecvs()
	if m := req.mc.table.repost(req); m != nil {
		e.onMatch(req, m)
		return
	}
	e.trackPosted(req)
}
