package rendezvous

import (
	"context"

	"github.com/tutti-go/tutti/mesh"
)

// PostRecv begins to receive a message that from and tag match, into buf, and returns at once. Any
// is a wildcard for either. The buffer is the engine's until the request is done. A message whose
// fingerprint differs ends the receive with fault.Mismatch; 0 is not checked.
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

// Recv is PostRecv and Wait: it receives a message into buf and returns what it was. ctx and p
// bound the wait; p may be nil.
func (mc *MatchContext) Recv(ctx context.Context, p mesh.WaitPolicy, from int, tag int32, fingerprint uint64, buf []byte) (RecvInfo, error) {
	req := mc.PostRecv(from, tag, fingerprint, buf)
	err := mc.e.wait(ctx, req, p)
	env := req.info()
	req.Free()
	return env, err
}

// A RecvInfo is what a receive or probe learns of its message. Source is a rank of the job.
type RecvInfo struct {
	Source, Tag, Bytes int
}

func (req *Request) info() RecvInfo {
	return RecvInfo{Source: req.match.source, Tag: int(req.match.tag), Bytes: req.match.size}
}

// post matches req with a message that waits, or puts it into the table. A message that has arrived
// is received even if its sender is gone. e.mu is held.
func (e *Engine) post(req *Request) {
	// A message that has arrived comes before the verdict about its sender: the sender may have sent
	// it and then closed in order.
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

// trackPosted counts a receive that now waits in a table, and grants envelopes to the peers that it
// may be for, so that its message can come even if their credit is used up.
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

// receivable returns why a message that k matches can never arrive, or nil.
func (mc *MatchContext) receivable(k key) error {
	e := mc.e
	switch {
	case e.ended != nil:
		return e.ended
	case mc.err != nil:
		return mc.err
	case k.source >= 0:
		return e.peers[k.source].gone
	}
	return mc.noSenderLeft()
}

// noSenderLeft returns why a receive from any source must fail, or nil: a member is lost, or all
// others have closed in order. MPI's rule for wildcards after a failure is the same: the lost rank
// could have been the sender. e.mu is held.
func (mc *MatchContext) noSenderLeft() error {
	var closed error
	left := false
	for _, r := range mc.members {
		switch p := mc.e.peers[r]; {
		case p.gone != nil && !p.closedInOrder():
			return p.gone // a loss counts at once
		case p.gone != nil:
			closed = p.gone // a goodbye counts when all others have said theirs
		case r != mc.e.cfg.Rank:
			left = true // this rank itself does not count: it is waiting here
		}
	}
	if left {
		return nil
	}
	return closed
}
