package rendezvous

import (
	"context"
	"strconv"

	"github.com/tutti-go/tutti/fault"
)

// What a failure ends. "At once" means as soon as no Conn touches the buffer: see Engine.abort.
//
//	                     LinkDown      FailPeer      revoke, close    End
//	posted receives      stay          at once (1)   at once          at once
//	matched receives     stay (2)      at once       at once          at once
//	sends                stay          at once (3)   at once (4)      at once
//	offers that wait     stay          dropped       dropped          dropped
//	arrived messages     stay          stay          dropped          dropped
//	prepared buffers     closed        closed        being closed     closed
//
// (1) From any source: when a member is lost, or when all others have closed. (2) Those that were
// aborted before end now. (3) If the peer has closed in order, a send whose bytes the Conn has got
// succeeds. (4) A close lets accepted sends go on; a revoke does not.

// FailPeer ends every call that needs a rank, now and later, with err: the verdict about the rank,
// or its goodbye. Messages that have arrived from it completely can still be received. A receive
// from any source ends when a rank of its context is lost, or when all others have said goodbye.
//
// It works in three steps, because a Conn may still write into buffers: the requests are aborted
// under the lock; the link is closed without it; then nothing touches a buffer any more, and what
// has waited for the Conn ends.
func (e *Engine) FailPeer(rank int, err error) {
	p := e.peers[rank]
	e.mu.Lock()
	if p.gone != nil {
		e.unlock()
		return
	}
	p.gone = err
	for _, mc := range e.contexts {
		mc.failSource(p, err)
	}
	p.endSends(nil, err)
	e.wakeDrain()
	link := p.link
	e.unlock()
	if link != nil {
		link.Close(err) // without the lock: the frames' Done functions take it
	}
	e.mu.Lock()
	p.dropInbound() // no Conn writes into a buffer any more
	p.dropPrepared()
	e.unlock()
}

// Gone returns the error that FailPeer gave for a rank, or nil.
func (e *Engine) Gone(rank int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.peers[rank].gone
}

// failSource ends the receives of a context that p was to serve, and drops p's messages that have
// not arrived completely.
func (mc *MatchContext) failSource(p *peer, err error) {
	e := mc.e
	anySource := error(nil)
	if mc.hasMember(p.rank) {
		anySource = mc.noSenderLeft()
	}
	mc.eachPosted(func(req *Request) {
		why := err
		if req.key.source == Any {
			why = anySource
		} else if int(req.key.source) != p.rank {
			return
		}
		if why != nil { // a receive from any source goes on while another member can send
			mc.table.unpost(req)
			e.finish(req, why)
		}
	})
	for req := mc.matchedRecvs.first; req != nil; {
		next := req.next
		if req.peer == p {
			e.abort(req, err)
		}
		req = next
	}
	// Messages that have arrived completely stay: their sender may have closed in order.
	for m := mc.table.arrivals.first; m != nil; {
		next := m.later
		if m.peer == p && (m.offer != 0 || !m.complete) {
			mc.table.removeMessage(m)
			e.dropMessage(m)
		}
		m = next
	}
	mc.notify(nil)
}

// hasMember reports whether a rank of the job is a member of the context.
func (mc *MatchContext) hasMember(rank int) bool {
	for _, r := range mc.members {
		if r == rank {
			return true
		}
	}
	return false
}

// Drain returns when every accepted send has been delivered, and each peer has acknowledged all
// that was sent to it, or is gone. It is the first half of an orderly close. It returns the error
// of an accepted message that could not be delivered.
func (e *Engine) Drain(ctx context.Context) error {
	d := &drain{e: e}
	w := e.m.NewWaiter()
	defer w.Free()
	e.mu.Lock()
	e.drainWaiter = w
	for _, p := range e.peers {
		d.sendBye(p)
	}
	e.unlock()
	err := e.m.Wait(ctx, w, d, nil, e.m.Links()...)
	e.mu.Lock()
	e.drainWaiter = nil
	lost := e.undelivered
	e.unlock()
	if err != nil {
		return fault.New(fault.Timeout, "close", e.cfg.Rank, "%s: %w", d.pendingRanks(), err)
	}
	return lost
}

// wakeDrain lets Drain check again; e.mu is held.
func (e *Engine) wakeDrain() {
	if w := e.drainWaiter; w != nil {
		w.Wake()
	}
}

// A drain is the condition that every peer has acknowledged our bye.
type drain struct{ e *Engine }

// sendBye sends our bye to a peer once no send to it is left. It reports whether the peer needs
// nothing more: it has acknowledged the bye, is gone, or was never sent anything.
func (d *drain) sendBye(p *peer) bool {
	switch {
	case d.e.ended != nil:
		return true // by a verdict: nothing more is sent
	case p.rank == d.e.cfg.Rank:
		return true // no goroutine will receive what this rank sent to itself
	case p.gone != nil:
		return true
	case p.pending.first != nil || p.sends.first != nil:
		return false
	case p.link.Conn() == nil && p.connErr == nil && p.inConn == 0:
		return true // nothing was ever sent
	case !p.byeSent:
		p.byeSent = true
		p.sendControl(frameHeader{kind: kindBye})
	}
	return p.byeAcked
}

// Met implements mesh.Condition.
func (d *drain) Met() bool {
	d.e.mu.Lock()
	defer d.e.unlock()
	all := true
	for _, p := range d.e.peers {
		all = d.sendBye(p) && all
	}
	return all
}

// pendingRanks names the peers that have not acknowledged all.
func (d *drain) pendingRanks() string {
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	s := "messages not taken by rank"
	for _, p := range d.e.peers {
		if !d.sendBye(p) {
			s += " " + strconv.Itoa(p.rank)
		}
	}
	return s
}

// End makes every call fail with err, now and later. It sends nothing to anyone.
func (e *Engine) End(err error) {
	e.mu.Lock()
	if e.ended == nil {
		e.ended = err
	}
	for _, mc := range e.contexts {
		mc.fail(err)
	}
	for _, p := range e.peers {
		p.endSends(nil, err) // also the accepted sends of closed contexts
		p.dropPrepared()
	}
	e.wakeDrain()
	e.unlock()
}
