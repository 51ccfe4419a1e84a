package rendezvous

import (
	"errors"
	"fmt"

	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/transport"
)

// exposeFrom is the smallest size in bytes of a buffer that a receive exposes to its sender. For a
// smaller buffer the exposure costs more than the copy that it saves. A buffer is exposed only if
// the Conn can expose memory and bodies carry no checksum: bytes that are written into exposed
// memory arrive without a header, and so without a checksum.
const exposeFrom = 16 << 10

// onMatch records that req has matched m, and starts the transfer of the bytes. The caller has
// removed m from every list. The transfer depends on where the bytes are:
//
//	a prepared buffer, req has none   req gets that buffer: loanBuffer
//	a send of this rank               they are copied from the sender's buffer
//	an offer                          they are requested: acceptOffer
//	an offer that was withdrawn       req is reposted (ordered contexts only)
//	still arriving, or being moved    completeMessage copies them when they have arrived
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
	case m.local != nil: // both ends are on this rank; if m does not fit, nothing is copied
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
	case m.withdrawn: // m had kept its position among the messages; req waits again
		e.discard(m)
		e.repost(req)
	case m.offer != 0:
		delete(m.peer.queuedOffers, m.offer)
		e.acceptOffer(req, m, fits)
	case !m.complete: // completeMessage will complete the receive
		m.claimedBy, req.claimed = req, m
		req.complete = m.moving && fits // its bytes have arrived, so the receive succeeds
	case !fits:
		e.discard(m)
		e.finish(req, req.pendingErr)
	default:
		e.deferCopy(req, m)
	}
}

// deferCopy defers the copy of a completely arrived message into the buffer of its receive. From
// now on the receive succeeds, even if the sender fails before the copy.
func (e *Engine) deferCopy(req *Request, m *message) {
	req.bufBusy, req.complete = true, true
	e.deferAction(deferredAction{kind: actionCopy, req: req, msg: m})
}

// setMatch moves a receive to phaseMatched and records the envelope of its message and the sender.
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

// A FingerprintError is the cause of a fault.Mismatch. It says that a message and its receive have
// different fingerprints, so the two ranks are in different operations.
type FingerprintError struct {
	Source, Tag  int
	Sent, Wanted uint64
}

func (e *FingerprintError) Error() string {
	return fmt.Sprintf("message from rank %d with tag %d: got fingerprint %x, want %x", e.Source, e.Tag, e.Sent, e.Wanted)
}

// validate checks whether a receive can accept the message that it matched. If so, it cuts the
// receive's buffer to the message's size, or allocates the buffer. If the receive cannot accept the
// message, validate sets req.pendingErr and reports false. The message is consumed in both cases,
// as in MPI.
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
			"tensor %q from rank %d: got %d bytes, want at most StepBytes of %d; raise StepBytes, or receive into a buffer", req.key.name, env.source, env.size, e.cfg.StepBytes)
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

// acceptOffer requests the bytes of an offer. If the message does not fit, acceptOffer drops the
// offer. A large buffer is first exposed by a deferred action, and the request then carries the
// buffer's token.
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

// exposer returns the Conn to p as a transport.Exposer, or nil if the Conn cannot expose memory.
func (p *peer) exposer() transport.Exposer {
	x, _ := p.link.Conn().(transport.Exposer)
	return x
}

// exposeAndRequest exposes req's buffer to the peer and requests the message's bytes. It calls
// Expose without the lock, because Expose may pin memory, which takes some 200 µs per MiB on a
// device. If req is aborted or its offer is withdrawn during this time, exposeAndRequest requests
// nothing and ends the exposure.
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
	// req was aborted, or its offer was withdrawn. The sender does not know the exposure.
	case req.unexpose != nil:
		e.unexposeAndFinish(req, req.pendingErr)
	case req.withdrawn:
		e.repost(req)
	default:
		e.finish(req, req.pendingErr)
	}
}

// errConnGone is the reason not to expose a buffer when the Conn has failed.
var errConnGone = errors.New("the connection has failed")

// repost returns a receive to its position in the table, because the sender has withdrawn the
// matched offer. A receive that was aborted or canceled meanwhile ends instead. In an ordered
// context the receive cannot match any other message: see SetOrdered.
func (e *Engine) repost(req *Request) {
	if err := firstError(req.pendingErr, req.canceled); err != nil {
		e.finish(req, err)
		return
	}
	// Every field that the match has set gets back the value that PostRecv gave it. req.order keeps
	// its value.
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
