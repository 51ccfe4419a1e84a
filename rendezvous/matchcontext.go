package rendezvous

import (
	"context"
	"sync/atomic"

	"github.com/tutti-go/tutti/mesh"
)

// A MatchContext is MPI's context: messages match receives of the same context only. A communicator
// has two, one for point-to-point messages and one for collectives.
//
// Messages may arrive before this rank has opened the context. They wait in it, within the peer's
// credit. All methods may be called concurrently; the engine's lock guards the fields.
//
//	state    err     in Engine.contexts  calls
//	unopened nil     yes                 none yet; messages wait
//	open     nil     yes                 go on
//	revoked  set     yes                 fail with err; arriving messages are dropped
//	closed   set     no, in closedIDs    likewise
type MatchContext struct {
	e  *Engine
	id uint64

	// members are the ranks of the job that are in it; nil until it is opened. A receive from any
	// source depends on them.
	members []int

	// table has the posted receives and the messages that match none. matchedRecvs are the receives
	// that have matched a message and are not done.
	table        table
	matchedRecvs requestList

	// waiters are woken by notify.
	waiters map[*mesh.Waiter]struct{}

	// err is why calls fail: the context was revoked or closed.
	err error

	onUnexpected UnexpectedFunc // nil: nobody is interested
	ordered      bool           // see SetOrdered

	// dead says that err is set, for readers without the lock.
	dead atomic.Bool
}

// Dead reports whether the context was revoked or closed. It takes no lock.
func (mc *MatchContext) Dead() bool { return mc.dead.Load() }

// Await waits until ev is met. It checks again after every WakePeer of another rank, and after
// every arrival and failure in the context. ctx and p bound the wait.
func (mc *MatchContext) Await(ctx context.Context, p mesh.WaitPolicy, ev mesh.Condition) error {
	w := mc.e.m.NewWaiter()
	defer w.Free()
	mc.addWaiter(w)
	defer mc.removeWaiter(w)
	return mc.e.m.Wait(ctx, w, ev, p)
}

// WakePeer lets a rank check again what its goroutines Await. Ranks that share memory use it after
// they have set a flag that the other one sleeps for.
func (e *Engine) WakePeer(rank int) {
	if rank == e.cfg.Rank {
		return
	}
	e.mu.Lock()
	if p := e.peers[rank]; p.gone == nil && p.connErr == nil {
		p.sendControl(frameHeader{kind: kindWake})
	}
	e.unlock()
}

// wakeAll wakes every goroutine that awaits something, in any context. e.mu is held.
func (e *Engine) wakeAll() {
	for _, mc := range e.contexts {
		mc.notify(nil)
	}
}

// An UnexpectedFunc is called with a message that no receive is posted for. It runs under the
// engine's lock, so it must be short and must not call the engine.
type UnexpectedFunc func(source int, tag int32, fingerprint uint64)

// SetOrdered makes a receive whose message was taken back match nothing any more. It then waits
// until its context or its peer ends. This is for contexts in which messages are the segments of a
// whole, and are taken back only when the context has ended for their sender: the later segments,
// already in flight, must not match in place of the missing one. It must be called before the
// context is used.
func (mc *MatchContext) SetOrdered() {
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	mc.ordered, mc.table.publishes = true, true
	mc.table.nonEmpty.Store(mc.table.arrivals.first != nil)
}

// SetUnexpected lets j be called with unexpected messages from now on.
func (mc *MatchContext) SetUnexpected(j UnexpectedFunc) {
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	mc.onUnexpected = j
}

// Unreceived returns the source of a message with that tag that no receive has matched. In an
// ordered context it takes no lock while no message waits.
func (mc *MatchContext) Unreceived(tag int32) (source int, ok bool) {
	if mc.ordered && !mc.table.nonEmpty.Load() {
		return 0, false
	}
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	for m := mc.table.arrivals.first; m != nil; m = m.later {
		if m.key.tag == tag {
			return m.env.source, true
		}
	}
	return 0, false
}

// UnreceivedMismatch returns the source of a message with that tag that no receive has matched and
// whose fingerprint differs, as the argument decides.
func (mc *MatchContext) UnreceivedMismatch(tag int32, differs func(fingerprint uint64) bool) (source int, ok bool) {
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	for m := mc.table.arrivals.first; m != nil; m = m.later {
		if m.key.tag == tag && m.env.fingerprint != 0 && differs(m.env.fingerprint) {
			return m.env.source, true
		}
	}
	return 0, false
}

// Open returns the context with this id, for its members, which are ranks of the job. An id that
// was closed is never used again: a fresh context for it fails every call.
func (e *Engine) Open(id uint64, members []int) *MatchContext {
	e.mu.Lock()
	defer e.unlock()
	mc := e.contextFor(id)
	if mc == nil { // an id that was closed is never used again: the new context fails every call
		mc = &MatchContext{e: e, id: id, err: e.misuse("open", "context %#x has been closed; open one with another id", id)}
	}
	mc.members = members
	return mc
}

// ID returns the context's number, which is the same on all members.
func (mc *MatchContext) ID() uint64 { return mc.id }

// contextFor returns the context of an arriving message, and makes one if this rank has not opened
// it yet. It returns nil if the context was closed. e.mu is held.
func (e *Engine) contextFor(id uint64) *MatchContext {
	if mc := e.contexts[id]; mc != nil {
		return mc
	}
	if _, closed := e.closedIDs[id]; closed {
		return nil
	}
	mc := &MatchContext{e: e, id: id}
	e.contexts[id] = mc
	return mc
}

// maxClosed bounds the closed contexts that are remembered, so that messages which still arrive for
// them are dropped.
const maxClosed = 1 << 16

// Close ends the context: calls in it fail with err, and messages that wait or still arrive are
// dropped. What Send and SendNamed have accepted is still delivered.
func (mc *MatchContext) Close(err error) {
	e := mc.e
	e.mu.Lock()
	defer e.unlock()
	if mc.err == nil {
		mc.abortAll(err)
		// Sends that this rank has sent to itself have no receiver any more. Of the others those
		// end that a caller waits for; the accepted ones and the named ones are still delivered.
		for _, p := range e.peers {
			p.endSendsIf(err, func(req *Request) bool {
				return req.mc == mc && (p.rank == e.cfg.Rank || !req.detached && req.tensor == nil)
			})
		}
	}
	delete(e.contexts, mc.id)
	if len(e.closedIDs) >= maxClosed {
		clear(e.closedIDs) // a message for an older one would wait in a context that nobody opens, within its credit
	}
	e.closedIDs[mc.id] = struct{}{}
}

// Revoke ends every call in the context with err, now and later. The first error stays.
func (mc *MatchContext) Revoke(err error) {
	mc.e.mu.Lock()
	defer mc.e.unlock()
	mc.fail(err)
}

// Err returns why the context was revoked or closed, or nil.
func (mc *MatchContext) Err() error {
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	return mc.err
}

// fail ends all requests of the context, also the accepted sends, unless it has ended before. e.mu
// is held.
func (mc *MatchContext) fail(err error) {
	if mc.err != nil {
		return
	}
	mc.abortAll(err)
	for _, p := range mc.e.peers {
		p.endSends(mc, err)
	}
}

// abortAll ends the receives of the context, drops its messages and closes its prepared buffers.
// e.mu is held.
func (mc *MatchContext) abortAll(err error) {
	mc.err = err
	mc.dead.Store(true)
	e := mc.e
	mc.eachPosted(func(req *Request) {
		mc.table.unpost(req)
		e.finish(req, err)
	})
	for req := mc.matchedRecvs.first; req != nil; {
		next := req.next
		e.abort(req, err)
		req = next
	}
	for m := mc.table.arrivals.first; m != nil; m = mc.table.arrivals.first {
		mc.table.removeMessage(m)
		e.dropMessage(m)
	}
	mc.stopPrepared()
	if e.plan != nil {
		e.plan.drop(mc.id)
	}
	mc.notify(nil)
}

// eachPosted calls do for every posted receive. do may remove it from the table.
func (mc *MatchContext) eachPosted(do func(*Request)) {
	for _, req := range mc.table.posted() {
		do(req)
	}
}

// dropMessage drops a message that was removed from its table, and releases its sender: an offer is
// answered by a drop. A message whose bytes are still arriving is only marked; finishEager discards
// it.
func (e *Engine) dropMessage(m *message) {
	switch {
	case m.local != nil: // its send is ended by the caller
		m.local.local = nil
		e.freeMessage(m)
	case !m.complete: // its bytes are still arriving
		m.dropped = true
	default:
		if m.offer != 0 {
			delete(m.peer.queuedOffers, m.offer)
			if m.peer.gone == nil && m.peer.connErr == nil {
				m.peer.sendControl(frameHeader{kind: kindDrop, id: m.offer})
			}
		}
		e.discard(m)
	}
}

// endSends ends the sends to p of one context, or of all when mc is nil.
func (p *peer) endSends(mc *MatchContext, err error) {
	p.endSendsIf(err, func(req *Request) bool { return mc == nil || req.mc == mc })
}

// endSendsIf ends those sends to p that which selects, the youngest first. The peer handles the
// withdrawals one by one: if the oldest went first, the peer's receive could match a younger offer
// that is about to be withdrawn, too.
func (p *peer) endSendsIf(err error, which func(*Request) bool) {
	for _, list := range []*requestList{&p.pending, &p.sends} {
		for req := list.last; req != nil; {
			before := req.prev
			if which(req) {
				p.endSend(req, err)
			}
			req = before
		}
	}
}

// endSend ends one send. If the Conn has all its bytes and the peer has said goodbye, the send is
// left to succeed: it ends with the link at the latest.
func (p *peer) endSend(req *Request, err error) {
	if req.handedOver() && req.inFlight > 0 && p.closedInOrder() {
		return // it ends well with the link, at the latest; the Conn still has it
	}
	if req.phase == phaseOffered {
		p.e.withdraw(req)
	}
	p.e.abort(req, err)
}

// notify wakes the goroutines that probe or await something in the context. A message m that is
// unexpected is also shown to onUnexpected; nil is none. e.mu is held.
func (mc *MatchContext) notify(m *message) {
	if mc.onUnexpected != nil && m != nil {
		mc.onUnexpected(m.env.source, m.env.tag, m.env.fingerprint)
	}
	for w := range mc.waiters {
		w.Wake()
	}
}

// Probe waits for a message that from and tag match, and returns its envelope. The message stays.
func (mc *MatchContext) Probe(ctx context.Context, p mesh.WaitPolicy, from int, tag int32) (RecvInfo, error) {
	pr := &probe{mc: mc, key: key{source: int32(from), tag: tag}}
	if pr.Met() {
		return pr.found, pr.err
	}
	w := mc.e.m.NewWaiter()
	defer w.Free()
	mc.addWaiter(w)
	defer mc.removeWaiter(w)
	err := mc.e.m.Wait(ctx, w, pr, p, mc.e.LinksOf(from)...)
	if err != nil {
		return RecvInfo{}, err
	}
	return pr.found, pr.err
}

// TryProbe is Probe without waiting. ok is false when no such message is there. It moves the links
// once.
func (mc *MatchContext) TryProbe(from int, tag int32) (env RecvInfo, ok bool, err error) {
	for _, l := range mc.e.LinksOf(from) {
		l.Progress()
	}
	pr := &probe{mc: mc, key: key{source: int32(from), tag: tag}}
	ok = pr.Met()
	return pr.found, ok && pr.err == nil, pr.err
}

// addWaiter lets notify wake w, until removeWaiter.
func (mc *MatchContext) addWaiter(w *mesh.Waiter) {
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	if mc.waiters == nil {
		mc.waiters = make(map[*mesh.Waiter]struct{})
	}
	mc.waiters[w] = struct{}{}
}

// removeWaiter undoes addWaiter.
func (mc *MatchContext) removeWaiter(w *mesh.Waiter) {
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	delete(mc.waiters, w)
}

// A probe is the condition that a message is there, or can never come.
type probe struct {
	mc    *MatchContext
	key   key
	found RecvInfo
	err   error
}

// Met implements mesh.Condition.
func (pr *probe) Met() bool {
	mc := pr.mc
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	if m := mc.table.find(pr.key); m != nil {
		pr.found = RecvInfo{Source: m.env.source, Tag: int(m.env.tag), Bytes: m.env.size}
		return true
	}
	pr.err = mc.receivable(pr.key)
	return pr.err != nil
}

// LinksOf returns the links on which messages from a source, or from Any, can arrive. Messages from
// this rank itself arrive on none.
func (e *Engine) LinksOf(from int) []*mesh.Link {
	switch {
	case from == Any:
		return e.m.Links()
	case from == e.cfg.Rank:
		return nil
	}
	return e.m.Links()[from : from+1]
}
