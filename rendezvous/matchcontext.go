package rendezvous

import (
	"context"
	"sync/atomic"

	"github.com/tutti-go/tutti/mesh"
)

// A MatchContext corresponds to MPI's context: a message matches only receives of its own context.
// A communicator has two contexts, one for point-to-point messages and one for collectives.
//
// Messages may arrive before this rank has opened the context. They wait in its table, within the
// credit of their senders. All methods may be called concurrently; the engine's lock guards the
// fields.
//
//	state    err     in Engine.contexts  calls
//	unopened nil     yes                 none yet; messages wait
//	open     nil     yes                 go on
//	revoked  set     yes                 fail with err; arriving messages are dropped
//	closed   set     no, in closedIDs    likewise
type MatchContext struct {
	e  *Engine
	id uint64

	// members are the job ranks of the context's members. It is nil until the context is opened. A
	// receive from any source fails when a member is lost.
	members []int

	// table holds the posted receives and the messages that no receive has matched. matchedRecvs
	// holds the receives that have matched a message and are not done.
	table        table
	matchedRecvs requestList

	// reservations counts the reserved messages; see reserve.go.
	reservations uint64

	// waiters are woken by notify.
	waiters map[*mesh.Waiter]struct{}

	// err is set when the context has been revoked or closed. Calls then fail with err.
	err error

	onUnexpected UnexpectedFunc // nil: none is set
	ordered      bool           // see SetOrdered

	// dead reports whether err is set, for readers without the lock.
	dead atomic.Bool
}

// Dead reports whether the context was revoked or closed. It takes no lock.
func (mc *MatchContext) Dead() bool { return mc.dead.Load() }

// Await waits until ev is met. It checks ev again after every wake frame that another rank sends
// with WakePeer, and after every arrival and failure in the context. ctx and p bound the wait.
func (mc *MatchContext) Await(ctx context.Context, p mesh.WaitPolicy, ev mesh.Condition) error {
	w := mc.e.m.NewWaiter()
	defer w.Free()
	mc.addWaiter(w)
	defer mc.removeWaiter(w)
	return mc.e.m.Wait(ctx, w, ev, p)
}

// WakePeer makes the goroutines of another rank that are in Await check their conditions again.
// Ranks that share memory call it after they have set a flag that the other rank may be waiting
// for.
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

// wakeAll wakes every goroutine that is in Await, Probe or PreparedRecv.Close, in all contexts.
// e.mu is held.
func (e *Engine) wakeAll() {
	for _, mc := range e.contexts {
		mc.notify(nil)
	}
}

// An UnexpectedFunc is called with the envelope of a message for which no receive is posted. It
// runs under the engine's lock, so it must be short and must not call the engine.
type UnexpectedFunc func(source int, tag int32, fingerprint uint64)

// SetOrdered changes what happens to a receive whose message is withdrawn. In an ordered context
// the receive matches no other message, and waits until its context or its peer ends. SetOrdered is
// for contexts whose messages are segments of larger transfers. Their sender withdraws a segment
// only when the context has ended on its rank. Later segments, which are already in flight, must
// not match in place of the withdrawn one. SetOrdered must be called before the context is used.
func (mc *MatchContext) SetOrdered() {
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	mc.ordered, mc.table.publishes = true, true
	mc.table.nonEmpty.Store(mc.table.arrivals.first != nil)
}

// SetUnexpected registers the function j. The engine calls it for each unexpected message from now
// on.
func (mc *MatchContext) SetUnexpected(j UnexpectedFunc) {
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	mc.onUnexpected = j
}

// Unreceived looks for a message with the given tag that no receive has matched, and returns its
// source. In an ordered context it takes no lock while no message waits.
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

// UnreceivedMismatch looks for a message that has the given tag, that no receive has matched, and
// whose fingerprint satisfies the function differs. It returns the message's source.
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

// Open returns the context with the given id. members are the job ranks of its members. An id can
// be used only once: if the context was closed, Open returns a context in which every call fails.
func (e *Engine) Open(id uint64, members []int) *MatchContext {
	e.mu.Lock()
	defer e.unlock()
	mc := e.contextFor(id)
	if mc == nil { // the id was closed before: every call in the new context fails
		mc = &MatchContext{e: e, id: id, err: e.misuse("open", "context %#x has been closed; open a context with another id", id)}
	}
	mc.members = members
	return mc
}

// ID returns the context's id, which is the same on all members.
func (mc *MatchContext) ID() uint64 { return mc.id }

// contextFor returns the context with the given id. If this rank has not opened the context yet,
// contextFor creates it, because messages may arrive before that. It returns nil if the context was
// closed. e.mu is held.
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

// maxClosed is the maximum number of closed contexts that the engine remembers. Messages that
// arrive for a remembered context are dropped.
const maxClosed = 1 << 16

// Close ends the context. Calls in it fail with err, and messages that wait in it or still arrive
// for it are dropped. Messages that Send and SendNamed have accepted are still delivered.
func (mc *MatchContext) Close(err error) {
	e := mc.e
	e.mu.Lock()
	defer e.unlock()
	if mc.err == nil {
		mc.abortAll(err, flagUnreceived)
		// Sends from this rank to itself end, because they have no receiver any more. A send to
		// another rank ends if a caller waits for it. Accepted sends and named sends are still
		// delivered.
		for _, p := range e.peers {
			p.endDropped(mc)
			p.endSendsIf(err, func(req *Request) bool {
				return req.mc == mc && (p.rank == e.cfg.Rank || !req.detached && req.tensor == nil)
			})
		}
	}
	delete(e.contexts, mc.id)
	if len(e.closedIDs) >= maxClosed {
		clear(e.closedIDs) // a later message for a forgotten id waits, and keeps its credit
	}
	e.closedIDs[mc.id] = struct{}{}
}

// Revoke ends every current and later call in the context with err. If the context has been revoked
// or closed before, Revoke does nothing.
func (mc *MatchContext) Revoke(err error) {
	mc.e.mu.Lock()
	defer mc.e.unlock()
	mc.fail(err)
}

// Err returns the error with which the context was revoked or closed, or nil.
func (mc *MatchContext) Err() error {
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	return mc.err
}

// fail ends all requests of the context, including accepted sends. It does nothing if the context
// has ended before. e.mu is held.
func (mc *MatchContext) fail(err error) {
	if mc.err != nil {
		return
	}
	mc.abortAll(err, mc.e.dropFlags())
	for _, p := range mc.e.peers {
		p.endSends(mc, err)
	}
}

// abortAll ends the receives of the context, drops its messages with the given flags, and closes
// its prepared buffers. e.mu is held.
func (mc *MatchContext) abortAll(err error, flags uint8) {
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
		e.dropMessage(m, flags)
	}
	mc.stopPrepared()
	if e.plan != nil {
		e.plan.drop(mc.id)
	}
	mc.notify(nil)
}

// eachPosted calls the function do for every posted receive. The function may remove the receive
// from the table.
func (mc *MatchContext) eachPosted(do func(*Request)) {
	for _, req := range mc.table.posted() {
		do(req)
	}
}

// dropMessage drops a message that is not in a table any more. If the message is an offer,
// dropMessage sends a drop frame with the given flags, which ends the send. A message whose bytes
// are still arriving is only marked dropped; completeMessage discards it.
//
//	flags                       the send                                     dropped because
//	0                           succeeds, or ends with the revoke            revoked
//	flagUnreceived              fails with fault.Closed                      closed, on this rank
//	flagUnreceived | flagNamed  fails: see handleDrop                        the step has ended
func (e *Engine) dropMessage(m *message, flags uint8) {
	switch {
	case m.local != nil: // the caller ends the send
		m.local.local = nil
		e.freeMessage(m)
	case !m.complete: // the message's bytes are still arriving
		m.dropped = true
	default:
		if m.offer != 0 {
			delete(m.peer.queuedOffers, m.offer)
			m.peer.sendDrop(m.offer, flags)
		}
		e.discard(m)
	}
}

// sendDrop tells the peer that its message was dropped.
func (p *peer) sendDrop(offer uint32, flags uint8) {
	if p.gone == nil && p.connErr == nil {
		p.sendControl(frameHeader{kind: kindDrop, id: offer, flags: flags})
	}
}

// dropFlags returns the flags of a message that is dropped because its context has failed: it was
// revoked, or this rank has closed.
func (e *Engine) dropFlags() uint8 {
	if e.draining || e.ended != nil {
		return flagUnreceived
	}
	return 0
}

// endSends ends the sends to p in the context mc, or in all contexts if mc is nil.
func (p *peer) endSends(mc *MatchContext, err error) {
	p.endSendsIf(err, func(req *Request) bool { return mc == nil || req.mc == mc })
}

// endSendsIf ends every send to p that satisfies the function which. It starts with the newest
// send, because the peer handles the withdrawals one by one. If the oldest offer were withdrawn
// first, the peer's receive could match a newer offer that is about to be withdrawn too.
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

// endSend ends one send with err. If the Conn has all bytes of the send and the peer has left by
// Close, endSend does nothing: the send succeeds when the Conn is done with its frames, at the
// latest when the link closes.
func (p *peer) endSend(req *Request, err error) {
	if req.handedOver() && req.inFlight > 0 && p.closedInOrder() {
		return // the Conn still has the send's frames; frameDone lets it succeed
	}
	if req.phase == phaseOffered {
		p.e.withdraw(req)
	}
	p.e.abort(req, err)
}

// notify wakes the goroutines that wait for a condition in the context. If m is not nil, it is an
// unexpected message, and notify also passes it to onUnexpected. e.mu is held.
func (mc *MatchContext) notify(m *message) {
	if mc.onUnexpected != nil && m != nil {
		mc.onUnexpected(m.env.source, m.env.tag, m.env.fingerprint)
	}
	for w := range mc.waiters {
		w.Wake()
	}
}

// Probe waits for a message with the given source and tag, and returns the message's source, tag
// and size. Source and tag may be Any. The message stays in the table.
func (mc *MatchContext) Probe(ctx context.Context, p mesh.WaitPolicy, from int, tag int32) (RecvInfo, error) {
	pr := &probe{mc: mc, key: key{source: int32(from), tag: tag}}
	return pr.wait(ctx, p)
}

// TryProbe is like Probe but does not wait. It makes progress on the links once. ok is false if no
// such message has arrived.
func (mc *MatchContext) TryProbe(from int, tag int32) (env RecvInfo, ok bool, err error) {
	pr := &probe{mc: mc, key: key{source: int32(from), tag: tag}}
	return pr.try()
}

// addWaiter registers w, which notify wakes until removeWaiter is called.
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

// A probe is the condition that a message has arrived, or can never arrive. A probe with reserves
// set also reserves the message.
type probe struct {
	mc       *MatchContext
	key      key
	reserves bool

	met         bool // the result below is final
	found       RecvInfo
	reservation Reservation
	err         error
}

// Met implements mesh.Condition.
func (pr *probe) Met() bool {
	if pr.met {
		return true
	}
	mc := pr.mc
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	if m := mc.table.find(pr.key); m != nil {
		pr.found, pr.met = RecvInfo{Source: m.env.source, Tag: int(m.env.tag), Bytes: m.env.size}, true
		if pr.reserves {
			pr.reservation = mc.reserve(m)
		}
		return true
	}
	pr.err = mc.receivable(pr.key)
	pr.met = pr.err != nil
	return pr.met
}

// wait waits until the probe is met. ctx and p bound the wait.
func (pr *probe) wait(ctx context.Context, p mesh.WaitPolicy) (RecvInfo, error) {
	mc := pr.mc
	if pr.Met() {
		return pr.found, pr.err
	}
	w := mc.e.m.NewWaiter()
	defer w.Free()
	mc.addWaiter(w)
	defer mc.removeWaiter(w)
	err := mc.e.m.Wait(ctx, w, pr, p, mc.e.LinksOf(int(pr.key.source))...)
	if err != nil && !pr.met {
		return RecvInfo{}, err
	}
	return pr.found, pr.err
}

// try makes progress on the links once. The result ok reports whether the probe has found a
// message.
func (pr *probe) try() (found RecvInfo, ok bool, err error) {
	for _, l := range pr.mc.e.LinksOf(int(pr.key.source)) {
		l.Progress()
	}
	ok = pr.Met()
	return pr.found, ok && pr.err == nil, pr.err
}

// LinksOf returns the links on which messages from a source, or from Any, can arrive. It returns
// nil for this rank itself, whose messages do not use a link.
func (e *Engine) LinksOf(from int) []*mesh.Link {
	switch {
	case from == Any:
		return e.m.Links()
	case from == e.cfg.Rank:
		return nil
	}
	return e.m.Links()[from : from+1]
}
