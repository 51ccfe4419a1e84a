package rendezvous

import (
	"context"
	"sync/atomic"

	"github.com/tutti-go/tutti/mesh"
)

// A Space is one context: messages and receives meet within it only. A
// communicator has two, one for point-to-point and one for collectives.
//
// Messages may come before this rank has opened the space; they wait in it,
// within the peer's credit. All methods may be called concurrently.
type Space struct {
	e       *Engine
	id      uint64
	members []int // the job's ranks in it; nil until it is opened
	table   table
	matched opList // receives that have met a message, and are not done
	probers map[*mesh.Waiter]struct{}
	err     error // why calls fail: revoked, or closed
	judge   Judge
	ordered bool        // see SetOrdered; set before the space is used
	dead    atomic.Bool // err is set
}

// Dead reports whether the space was revoked or closed; it is cheap.
func (s *Space) Dead() bool { return s.dead.Load() }

// Await returns when ev has happened. It looks again after every Nudge, arrival
// and failure in the space; ctx and p bound the wait.
func (s *Space) Await(ctx context.Context, p mesh.Patience, ev mesh.Event) error {
	w := s.e.m.NewWaiter()
	defer w.Free()
	s.watch(w)
	defer s.unwatch(w)
	return s.e.m.Wait(ctx, w, ev, p)
}

// Nudge has a rank look again at what its goroutines Await.
func (e *Engine) Nudge(rank int) {
	if rank == e.cfg.Rank {
		return
	}
	e.mu.Lock()
	if p := e.peers[rank]; p.gone == nil && p.broken == nil {
		p.say(head{kind: kindNudge})
	}
	e.release()
}

// nudged wakes everyone who awaits something in any space; e.mu is held.
func (e *Engine) nudged() {
	for _, s := range e.spaces {
		s.noticed(nil)
	}
}

// A Judge hears of a message that no receive awaits. It runs under the engine's
// lock: it is short, and calls nothing of the engine's.
type Judge func(source int, tag int32, print uint64)

// SetOrdered has a receive whose message was taken back meet no later one, and
// wait until its own space, or its peer, ends. So it is where messages are parts of
// a whole that the sender takes back only when the space has ended for it: the rest
// of the whole, already on its way, is not to pass for the part that is missing. It
// comes before the space is used.
func (s *Space) SetOrdered() {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	s.ordered, s.table.tells = true, true
	s.table.some.Store(s.table.arrivals.first != nil)
}

// SetJudge has j hear of messages from now on.
func (s *Space) SetJudge(j Judge) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	s.judge = j
}

// Leftover is a message with that tag that no receive has met. In an ordered space
// it is cheap where no message waits.
func (s *Space) Leftover(tag int32) (source int, ok bool) {
	if s.ordered && !s.table.some.Load() {
		return 0, false
	}
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	for m := s.table.arrivals.first; m != nil; m = m.later {
		if m.key.tag == tag {
			return m.env.source, true
		}
	}
	return 0, false
}

// Contradiction is a message with that tag that no receive has met, and that has a
// fingerprint which is another.
func (s *Space) Contradiction(tag int32, other func(print uint64) bool) (source int, ok bool) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	for m := s.table.arrivals.first; m != nil; m = m.later {
		if m.key.tag == tag && m.env.print != 0 && other(m.env.print) {
			return m.env.source, true
		}
	}
	return 0, false
}

// Open gives the space with this id to its members, which are ranks of the job.
func (e *Engine) Open(id uint64, members []int) *Space {
	e.mu.Lock()
	defer e.release()
	s := e.space(id)
	if s == nil { // an id that was closed is never used again; a fresh space fails at once
		s = &Space{e: e, id: id, err: e.misuse("open", "context %#x was closed before", id)}
	}
	s.members = members
	return s
}

// ID is the context's number.
func (s *Space) ID() uint64 { return s.id }

// space finds or begins a space; nil when it was closed. e.mu is held.
func (e *Engine) space(id uint64) *Space {
	if s := e.spaces[id]; s != nil {
		return s
	}
	if _, closed := e.closedIDs[id]; closed {
		return nil
	}
	s := &Space{e: e, id: id}
	e.spaces[id] = s
	return s
}

// maxClosed bounds how many closed contexts are remembered, so that what still
// arrives for them is dropped.
const maxClosed = 1 << 16

// Close ends the space: calls in it fail with err, and what waits or still comes
// for it is dropped. What Send and SendNamed have accepted is still delivered.
func (s *Space) Close(err error) {
	e := s.e
	e.mu.Lock()
	defer e.release()
	if s.err == nil {
		s.empty(err)
		for _, p := range e.peers {
			p.endSendsIf(err, func(op *Op) bool {
				return op.space == s && (p.rank == e.cfg.Rank || !op.detached && op.tensor == nil)
			})
		}
	}
	delete(e.spaces, s.id)
	if len(e.closedIDs) >= maxClosed {
		clear(e.closedIDs) // a straggler older than that would wait in a space nobody opens, within its credit
	}
	e.closedIDs[s.id] = struct{}{}
}

// Revoke ends every call in the space with err, now and later. The first error stays.
func (s *Space) Revoke(err error) {
	s.e.mu.Lock()
	defer s.e.release()
	s.fail(err)
}

// Err is why the space was revoked or closed, or nil.
func (s *Space) Err() error {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	return s.err
}

// fail ends all that is under way in the space; e.mu is held.
func (s *Space) fail(err error) {
	if s.err != nil {
		return
	}
	s.empty(err)
	for _, p := range s.e.peers {
		p.endSends(s, err)
	}
}

// empty ends the space's receives and empties its table; e.mu is held.
func (s *Space) empty(err error) {
	s.err = err
	s.dead.Store(true)
	e := s.e
	s.eachPosted(func(op *Op) {
		s.table.unpost(op)
		e.finish(op, err)
	})
	for op := s.matched.first; op != nil; {
		next := op.next
		e.retire(op, err)
		op = next
	}
	for m := s.table.arrivals.first; m != nil; m = s.table.arrivals.first {
		s.table.remove(m)
		e.refuse(m)
	}
	s.noticed(nil)
}

// eachPosted calls do for every receive in the table; do may take it out.
func (s *Space) eachPosted(do func(*Op)) {
	for _, op := range s.table.posted() {
		do(op)
	}
}

// refuse drops a message that was taken out of its table, and releases its sender.
func (e *Engine) refuse(m *message) {
	switch {
	case m.local != nil:
		m.local.local = nil
		e.freeMessage(m)
	case !m.complete:
		m.gone = true // its bytes are still arriving
	default:
		if m.offer != 0 {
			delete(m.peer.offered, m.offer)
			if m.peer.gone == nil && m.peer.broken == nil {
				m.peer.say(head{kind: kindDrop, id: m.offer})
			}
		}
		e.discard(m)
	}
}

// endSends ends the sends to p in one space, or in all when s is nil.
func (p *peer) endSends(s *Space, err error) {
	p.endSendsIf(err, func(op *Op) bool { return s == nil || op.space == s })
}

// endSendsIf ends those sends to p that which picks, the youngest first: a peer
// whose receives meet what has not been withdrawn yet must not meet a later
// message with a receive meant for an earlier one.
func (p *peer) endSendsIf(err error, which func(*Op) bool) {
	for _, list := range []*opList{&p.pending, &p.sends} {
		for op := list.last; op != nil; {
			before := op.prev
			if which(op) {
				p.endSend(op, err)
			}
			op = before
		}
	}
}

func (p *peer) endSend(op *Op, err error) {
	if op.handedOver() && op.flying > 0 && p.leftInOrder() {
		return // it ends well with the link, at the latest; the Conn still has it
	}
	if op.phase == phaseOffered {
		p.e.withdraw(op)
	}
	p.e.retire(op, err)
}

// noticed tells who probes the space, and its judge, that m waits in it; e.mu is held.
func (s *Space) noticed(m *message) {
	if s.judge != nil && m != nil {
		s.judge(m.env.source, m.env.tag, m.env.print)
	}
	for w := range s.probers {
		w.Wake()
	}
}

// Probe waits until a message that from and tag cover is there, and returns its
// envelope; the message stays.
func (s *Space) Probe(ctx context.Context, p mesh.Patience, from int, tag int32) (Envelope, error) {
	pr := &probe{s: s, key: key{source: int32(from), tag: tag}}
	if pr.Happened() {
		return pr.found, pr.err
	}
	w := s.e.m.NewWaiter()
	defer w.Free()
	s.watch(w)
	defer s.unwatch(w)
	err := s.e.m.Wait(ctx, w, pr, p, s.e.LinksOf(from)...)
	if err != nil {
		return Envelope{}, err
	}
	return pr.found, pr.err
}

// TryProbe is Probe without waiting; ok is false when no such message is there.
func (s *Space) TryProbe(from int, tag int32) (env Envelope, ok bool, err error) {
	for _, l := range s.e.LinksOf(from) {
		l.Progress()
	}
	pr := &probe{s: s, key: key{source: int32(from), tag: tag}}
	ok = pr.Happened()
	return pr.found, ok && pr.err == nil, pr.err
}

func (s *Space) watch(w *mesh.Waiter) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	if s.probers == nil {
		s.probers = make(map[*mesh.Waiter]struct{})
	}
	s.probers[w] = struct{}{}
}

func (s *Space) unwatch(w *mesh.Waiter) {
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	delete(s.probers, w)
}

// A probe is the event that a message is there, or can never come.
type probe struct {
	s     *Space
	key   key
	found Envelope
	err   error
}

func (pr *probe) Happened() bool {
	s := pr.s
	s.e.mu.Lock()
	defer s.e.mu.Unlock()
	if m := s.table.find(pr.key); m != nil {
		pr.found = Envelope{Source: m.env.source, Tag: int(m.env.tag), Bytes: m.env.size}
		return true
	}
	pr.err = s.receivable(pr.key)
	return pr.err != nil
}

// LinksOf are the links that messages from a source, or from any, can come on.
func (e *Engine) LinksOf(from int) []*mesh.Link {
	switch {
	case from == Any:
		return e.m.Links()
	case from == e.cfg.Rank:
		return nil
	}
	return e.m.Links()[from : from+1]
}
