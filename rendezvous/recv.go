package rendezvous

import (
	"context"

	"github.com/tutti-go/tutti/mesh"
)

// PostRecv begins to receive a message with the given source and tag into buf, and returns at once.
// Source and tag may each be the wildcard Any. buf belongs to the engine until the request is done.
// A message with a different fingerprint ends the receive with fault.Mismatch. A fingerprint of 0
// is not compared.
func (mc *MatchContext) PostRecv(from int, tag int32, fingerprint uint64, buf []byte) *Request {
	e := mc.e
	e.mu.Lock()
	req := e.getRequest()
	req.mc, req.buf, req.fullBuf, req.fingerprint = mc, buf, buf, fingerprint
	req.key = key{source: int32(from), tag: tag}
	e.post(req)
	e.unlock()
	return req
}

// Recv receives a message into buf and returns its source, tag and size. It is PostRecv followed by
// Wait. ctx and p bound the wait; p may be nil.
func (mc *MatchContext) Recv(ctx context.Context, p mesh.WaitPolicy, from int, tag int32, fingerprint uint64, buf []byte) (RecvInfo, error) {
	req := mc.PostRecv(from, tag, fingerprint, buf)
	err := mc.e.wait(ctx, req, p)
	env := req.info()
	req.Free()
	return env, err
}

// A RecvInfo describes a message that was received or probed. Source is a rank of the job.
type RecvInfo struct {
	Source, Tag, Bytes int
}

func (req *Request) info() RecvInfo {
	return RecvInfo{Source: req.match.source, Tag: int(req.match.tag), Bytes: req.match.size}
}

// post matches req with a waiting message, or puts req into the table if there is none. A message
// that has arrived is received even if its sender is gone. e.mu is held.
func (e *Engine) post(req *Request) {
	// Arrived messages are checked before the sender's state, because the sender may have sent a
	// message and then left by Close.
	mc := req.mc
	if m := mc.table.find(req.key); m != nil && e.ended == nil && mc.err == nil {
		mc.table.removeMessage(m)
		e.onMatch(req, m)
		return
	}
	if err := mc.receivable(req.key); err != nil {
		e.finish(req, err)
		return
	}
	mc.table.post(req)
	e.trackPosted(req)
}

// trackPosted counts a receive that has entered the table. It also calls grantExtra for the
// receive's possible senders, so the message can arrive even if its sender has used up its credit.
func (e *Engine) trackPosted(req *Request) {
	req.phase = phasePosted
	switch r := int(req.key.source); r {
	case Any:
		e.postedAny++
		for _, m := range req.mc.members {
			e.peers[m].grantExtra()
		}
	default:
		e.peers[r].postedRecvs++
		e.peers[r].grantExtra()
	}
}

// untrackPosted undoes trackPosted when req leaves the table.
func (e *Engine) untrackPosted(req *Request) {
	if req.key.source == Any {
		e.postedAny--
		return
	}
	e.peers[req.key.source].postedRecvs--
}

// receivable returns the reason why no message that k matches can arrive any more, or nil.
func (mc *MatchContext) receivable(k key) error {
	e := mc.e
	switch {
	case e.ended != nil:
		return e.ended
	case mc.err != nil:
		return mc.err
	case k.source >= 0 && e.peers[k.source].gone != nil:
		return e.peers[k.source].gone
	case k.tag == reservedTag: // post has not found the reserved message
		return e.reservedGone(k)
	case k.source >= 0:
		return nil
	}
	return mc.noSenderLeft()
}

// noSenderLeft returns the reason why a receive from any source must fail, or nil. Such a receive
// fails if a member is lost, because the lost rank could have been the sender; MPI has the same
// rule for wildcard receives after a failure. It also fails if all other members have left by
// Close. e.mu is held.
func (mc *MatchContext) noSenderLeft() error {
	var closed error
	left := false
	for _, r := range mc.members {
		switch p := mc.e.peers[r]; {
		case p.gone != nil && !p.closedInOrder():
			return p.gone // one lost member is enough
		case p.gone != nil:
			closed = p.gone // reported only if no other member is left
		case r != mc.e.cfg.Rank:
			left = true // this rank is not counted: it is the receiver
		}
	}
	if left {
		return nil
	}
	return closed
}
