package rendezvous

import (
	"context"
	"strconv"

	"github.com/tutti-go/tutti/fault"
)

// FailPeer ends every call that needs a rank, now and later, with err: the
// verdict about it, or its goodbye. What has arrived from it whole can still be
// received. A receive from any source ends when a rank of its space is lost, or
// when all others have said goodbye.
func (e *Engine) FailPeer(rank int, err error) {
	p := e.peers[rank]
	e.mu.Lock()
	if p.gone != nil {
		e.release()
		return
	}
	p.gone = err
	for _, s := range e.spaces {
		s.failSource(p, err)
	}
	p.endSends(nil, err)
	e.wakeClosers()
	link := p.link
	e.release()
	if link != nil {
		link.End(err) // outside the lock: the frames' Done come back here
	}
	e.mu.Lock()
	p.dropInbound() // now nothing writes into a buffer any more
	p.clearShelf()
	e.release()
}

// Gone is what FailPeer said of a rank, or nil.
func (e *Engine) Gone(rank int) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.peers[rank].gone
}

// failSource ends the receives of a space that p was to serve.
func (s *Space) failSource(p *peer, err error) {
	e := s.e
	anySource := error(nil)
	if s.has(p.rank) {
		anySource = s.nobodyLeft()
	}
	s.eachPosted(func(op *Op) {
		why := err
		if op.key.source == Any {
			why = anySource
		} else if int(op.key.source) != p.rank {
			return
		}
		if why != nil {
			s.table.unpost(op)
			e.finish(op, why)
		}
	})
	for op := s.matched.first; op != nil; {
		next := op.next
		if op.peer == p {
			e.retire(op, err)
		}
		op = next
	}
	for m := s.table.arrivals.first; m != nil; {
		next := m.later
		if m.peer == p && (m.offer != 0 || !m.complete) {
			s.table.remove(m)
			e.refuse(m)
		}
		m = next
	}
	s.noticed(nil)
}

func (s *Space) has(rank int) bool {
	for _, r := range s.members {
		if r == rank {
			return true
		}
	}
	return false
}

// Drain returns when every accepted send has been delivered, and each peer has
// taken all that was sent to it, or is gone. It is the first half of closing in
// order. An accepted message that could not be delivered is its error.
func (e *Engine) Drain(ctx context.Context) error {
	d := &drain{e: e}
	w := e.m.NewWaiter()
	defer w.Free()
	e.mu.Lock()
	e.closer = w
	for _, p := range e.peers {
		d.farewell(p)
	}
	e.release()
	err := e.m.Wait(ctx, w, d, nil, e.m.Links()...)
	e.mu.Lock()
	e.closer = nil
	lost := e.undelivered
	e.release()
	if err != nil {
		return fault.New(fault.Timeout, "close", e.cfg.Rank, "%s: %w", d.waiting(), err)
	}
	return lost
}

// wakeClosers wakes Drain to look again; e.mu is held.
func (e *Engine) wakeClosers() {
	if w := e.closer; w != nil {
		w.Wake()
	}
}

// drain is the event that all promised bytes are taken.
type drain struct{ e *Engine }

// farewell says bye to a peer once nothing is owed to it any more.
func (d *drain) farewell(p *peer) bool {
	switch {
	case d.e.ended != nil:
		return true // by a verdict: there is no more to come
	case p.rank == d.e.cfg.Rank:
		return true // nobody is left to receive what this rank sent to itself
	case p.gone != nil:
		return true
	case p.pending.first != nil || p.sends.first != nil:
		return false
	case p.link.Conn() == nil && p.broken == nil && p.unsent == 0:
		return true // nothing was ever sent
	case !p.said:
		p.said = true
		p.say(head{kind: kindBye})
	}
	return p.took
}

// Happened implements mesh.Event.
func (d *drain) Happened() bool {
	d.e.mu.Lock()
	defer d.e.release()
	all := true
	for _, p := range d.e.peers {
		all = d.farewell(p) && all
	}
	return all
}

// waiting names the peers that have not taken all.
func (d *drain) waiting() string {
	d.e.mu.Lock()
	defer d.e.mu.Unlock()
	s := "messages not taken by rank"
	for _, p := range d.e.peers {
		if !d.farewell(p) {
			s += " " + strconv.Itoa(p.rank)
		}
	}
	return s
}

// End makes every call fail with err, now and later. Nothing is said to anyone.
func (e *Engine) End(err error) {
	e.mu.Lock()
	if e.ended == nil {
		e.ended = err
	}
	for _, s := range e.spaces {
		s.fail(err)
	}
	for _, p := range e.peers {
		p.endSends(nil, err) // also those that a closed space had left to go on
		p.clearShelf()
	}
	e.wakeClosers()
	e.release()
}

// Rest returns when no goroutine of e's is left, which after End is soon.
func (e *Engine) Rest() { e.laying.Wait() }
