package rendezvous

import (
	"context"
	"fmt"
	"strings"

	"github.com/tutti-go/tutti/fault"
)

// What each kind of failure ends. "At once" means as soon as no Conn uses the request's buffer: see
// Engine.abort.
//
//	                     LinkDown      FailPeer      revoke, close    End
//	posted receives      stay          at once (1)   at once          at once
//	matched receives     stay (2)      at once       at once          at once
//	sends                stay          at once (3)   at once (4)      at once
//	offers that wait     stay          dropped       dropped          dropped
//	arrived messages     stay          stay          dropped          dropped
//	prepared buffers     closed        closed        being closed     being closed (5)
//
// (1) A receive from any source ends when a member is lost, or when all other members have closed.
// (2) Receives that were aborted before LinkDown end now. (3) If the peer has left by Close, a
// send whose bytes are all with the Conn succeeds. (4) After a close, accepted sends go on; a
// revoke ends them. (5) LinkDown ends their exposure, because live peers may still write.

// FailPeer ends every current and later call that needs the given rank, with err. err says that the
// rank is lost, or that it has left by Close. Messages from the rank that have arrived completely
// can still be received. A receive from any source ends when a rank of its context is lost, or when
// all other ranks have closed.
//
// FailPeer works in three steps, because a Conn may still write into buffers. First it aborts the
// requests, under the lock. Then it closes the link, without the lock. After that no Conn uses a
// buffer, and FailPeer ends the requests that waited for the Conn.
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
		link.Close(err) // without the lock, because the frames' Done functions lock it
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

// failSource ends the receives of a context that need a message from p, and drops the messages from
// p that have not arrived completely.
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
	// Messages that have arrived completely stay, because their sender may have left by Close.
	for m := mc.table.arrivals.first; m != nil; {
		next := m.later
		if m.peer == p && (m.offer != 0 || !m.complete && !m.moving) {
			mc.table.removeMessage(m)
			e.dropMessage(m, 0) // p is gone: no frame is sent
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

// Drain waits until every accepted send has been delivered, and each peer has acknowledged all
// frames sent to it or is gone. It is the first half of an orderly close. Drain returns the error
// of the first accepted message that could not be delivered.
//
// Drain first drops the messages that no receive has matched, and tells their senders. So two ranks
// that close do not wait for each other's receives. Receives that are posted still get messages.
// Drain also ends the named sends that wait only for the flood of EndStep, which may be lost.
func (e *Engine) Drain(ctx context.Context) error {
	d := &drain{e: e}
	w := e.m.NewWaiter()
	defer w.Free()
	e.mu.Lock()
	e.drainWaiter, e.draining = w, true
	for _, mc := range e.contexts {
		mc.dropUnreceived()
	}
	for _, p := range e.peers {
		p.endDropped(nil)
		d.sendBye(p)
	}
	e.unlock()
	err := e.m.Wait(ctx, w, d, nil, e.m.Links()...)
	e.mu.Lock()
	e.drainWaiter = nil
	lost := e.undelivered
	e.unlock()
	if err != nil {
		peers := d.pendingPeers()
		var ranks []string
		for _, p := range peers {
			ranks = append(ranks, fmt.Sprintf("rank %d", p.Rank))
		}
		return &fault.Error{Kind: fault.Timeout, Op: "close", Rank: e.cfg.Rank, Peers: peers, Err: fmt.Errorf("not all messages have been received by %s: %w; receive them there, or give Close more time", strings.Join(ranks, ", "), err)}
	}
	return lost
}

// dropsUnmatched reports whether messages that no posted receive matches are dropped, because this
// rank closes. Contexts of collectives keep these messages, because collectives compare the
// fingerprints.
func (mc *MatchContext) dropsUnmatched() bool { return mc.e.draining && !mc.ordered }

// dropUnreceived drops the messages that wait in the table of a context. e.mu is held.
func (mc *MatchContext) dropUnreceived() {
	if !mc.dropsUnmatched() {
		return
	}
	for m := mc.table.arrivals.first; m != nil; {
		next := m.later
		if m.peer != nil {
			mc.table.removeMessage(m)
			m.peer.dropUnmatched(m)
		}
		m = next
	}
}

// dropUnmatched drops a message from p that no receive has matched, and tells p.
func (p *peer) dropUnmatched(m *message) {
	if m.offer == 0 {
		p.reportUnreceived()
	}
	p.e.dropMessage(m, flagUnreceived)
}

// reportUnreceived tells p, once, that this rank closes without receiving messages of p whose bytes
// have arrived.
func (p *peer) reportUnreceived() {
	if !p.reportedUnreceived {
		p.reportedUnreceived = true
		p.sendDrop(0, flagUnreceived)
	}
}

// wakeDrain wakes the goroutine in Drain, which checks its condition again. e.mu is held.
func (e *Engine) wakeDrain() {
	if w := e.drainWaiter; w != nil {
		w.Wake()
	}
}

// A drain is the condition that every peer has acknowledged this rank's bye frame.
type drain struct{ e *Engine }

// sendBye queues the bye frame for a peer when no send to the peer is left. It reports whether
// Drain is finished with the peer: the peer has acknowledged the bye, is gone, or was never sent a
// frame.
func (d *drain) sendBye(p *peer) bool {
	switch {
	case d.e.ended != nil:
		return true // the engine has ended: nothing more is sent
	case p.rank == d.e.cfg.Rank:
		return true // no goroutine will receive the messages that this rank sent to itself
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

// pendingPeers returns the peers for which sendBye reports false.
func (d *drain) pendingPeers() (peers []fault.Peer) {
	d.e.mu.Lock()
	defer d.e.unlock()
	for _, p := range d.e.peers {
		if !d.sendBye(p) {
			peers = append(peers, fault.Peer{Rank: p.rank})
		}
	}
	return peers
}

// End ends every current and later call with err. It sends no frames. Peers may write into prepared
// buffers until LinkDown or FailPeer ends their Conn. The end of a context begins to close these
// buffers.
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
		for _, pr := range p.preparedByID {
			pr.mc.notify(nil) // wakes PreparedRecv.Close, also in closed contexts
		}
	}
	e.wakeDrain()
	e.unlock()
}
