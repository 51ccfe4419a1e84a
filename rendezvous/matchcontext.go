package rendezvous

import (
	"context"
	"sync/atomic"

	"github.com/tutti-go/tutti/mesh"
)

// A MatchContext is one context: messages and receives meet within it only. A
// communicator has two, one for point-to-point and one for collectives.
//
// Messages may come before this rank has opened the space; they wait in it,
// within the peer's credit. All methods may be called concurrently.
type MatchContext struct {
	e            *Engine
	id           uint64
	members      []int // the job's ranks in it; nil until it is opened
	table        table
	matchedRecvs requestList // receives that have met a message, and are not done
	waiters      map[*mesh.Waiter]struct{}
	err          error // why calls fail: revoked, or closed
	onUnexpected UnexpectedFunc
	ordered      bool        // see SetOrdered; set before the space is used
	dead         atomic.Bool // err is set
}

// Dead reports whether the space was revoked or closed; it is cheap.
func (mc *MatchContext) Dead() bool { return mc.dead.Load() }

// Await returns when ev has happened. It looks again after every Nudge, arrival
// and failure in the space; ctx and p bound the wait.
func (mc *MatchContext) Await(ctx context.Context, p mesh.WaitPolicy, ev mesh.Condition) error {
	w := mc.e.m.NewWaiter()
	defer w.Free()
	mc.addWaiter(w)
	defer mc.removeWaiter(w)
	return mc.e.m.Wait(ctx, w, ev, p)
}

// WakePeer has a rank look again at what its goroutines Await.
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

// wakeAll wakes everyone who awaits something in any space; e.mu is held.
func (e *Engine) wakeAll() {
	for _, mc := range e.contexts {
		mc.notify(nil)
	}
}

// A UnexpectedFunc hears of a message that no receive awaits. It runs under the engine's
// lock: it is short, and calls nothing of the engine's.
type UnexpectedFunc func(source int, tag int32, fingerprint uint64)

// SetOrdered has a receive whose message was taken back meet no later one, and
// wait until its own space, or its peer, ends. So it is where messages are parts of
// a whole that the sender takes back only when the space has ended for it: the rest
// of the whole, already on its way, is not to pass for the part that is missing. It
// comes before the space is used.
func (mc *MatchContext) SetOrdered() {
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	mc.ordered, mc.table.publishes = true, true
	mc.table.nonEmpty.Store(mc.table.arrivals.first != nil)
}

// SetUnexpected has j hear of messages from now on.
func (mc *MatchContext) SetUnexpected(j UnexpectedFunc) {
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	mc.onUnexpected = j
}

// Unreceived is a message with that tag that no receive has met. In an ordered space
// it is cheap where no message waits.
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

// UnreceivedMismatch is a message with that tag that no receive has met, and that has a
// fingerprint which is another.
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

// Open gives the space with this id to its members, which are ranks of the job.
func (e *Engine) Open(id uint64, members []int) *MatchContext {
	e.mu.Lock()
	defer e.unlock()
	mc := e.contextFor(id)
	if mc == nil { // an id that was closed is never used again; a fresh space fails at once
		mc = &MatchContext{e: e, id: id, err: e.misuse("open", "context %#x has been closed; open one with another id", id)}
	}
	mc.members = members
	return mc
}

// ID is the context's number.
func (mc *MatchContext) ID() uint64 { return mc.id }

// contextFor finds or begins a space; nil when it was closed. e.mu is held.
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

// maxClosed bounds how many closed contexts are remembered, so that what still
// arrives for them is dropped.
const maxClosed = 1 << 16

// Close ends the space: calls in it fail with err, and what waits or still comes
// for it is dropped. What Send and SendNamed have accepted is still delivered.
func (mc *MatchContext) Close(err error) {
	e := mc.e
	e.mu.Lock()
	defer e.unlock()
	if mc.err == nil {
		mc.abortAll(err)
		for _, p := range e.peers {
			p.endSendsIf(err, func(req *Request) bool {
				return req.mc == mc && (p.rank == e.cfg.Rank || !req.detached && req.tensor == nil)
			})
		}
	}
	delete(e.contexts, mc.id)
	if len(e.closedIDs) >= maxClosed {
		clear(e.closedIDs) // a straggler older than that would wait in a space nobody opens, within its credit
	}
	e.closedIDs[mc.id] = struct{}{}
}

// Revoke ends every call in the space with err, now and later. The first error stays.
func (mc *MatchContext) Revoke(err error) {
	mc.e.mu.Lock()
	defer mc.e.unlock()
	mc.fail(err)
}

// Err is why the space was revoked or closed, or nil.
func (mc *MatchContext) Err() error {
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	return mc.err
}

// fail ends all that is under way in the space; e.mu is held.
func (mc *MatchContext) fail(err error) {
	if mc.err != nil {
		return
	}
	mc.abortAll(err)
	for _, p := range mc.e.peers {
		p.endSends(mc, err)
	}
}

// abortAll ends the space's receives and empties its table; e.mu is held.
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

// eachPosted calls do for every receive in the table; do may take it out.
func (mc *MatchContext) eachPosted(do func(*Request)) {
	for _, req := range mc.table.posted() {
		do(req)
	}
}

// dropMessage drops a message that was taken out of its table, and releases its sender.
func (e *Engine) dropMessage(m *message) {
	switch {
	case m.local != nil:
		m.local.local = nil
		e.freeMessage(m)
	case !m.complete:
		m.dropped = true // its bytes are still arriving
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

// endSends ends the sends to p in one space, or in all when s is nil.
func (p *peer) endSends(mc *MatchContext, err error) {
	p.endSendsIf(err, func(req *Request) bool { return mc == nil || req.mc == mc })
}

// endSendsIf ends those sends to p that which picks, the youngest first: a peer
// whose receives meet what has not been withdrawn yet must not meet a later
// message with a receive meant for an earlier one.
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

func (p *peer) endSend(req *Request, err error) {
	if req.handedOver() && req.inFlight > 0 && p.closedInOrder() {
		return // it ends well with the link, at the latest; the Conn still has it
	}
	if req.phase == phaseOffered {
		p.e.withdraw(req)
	}
	p.e.abort(req, err)
}

// notify tells who probes the space, and its judge, that m waits in it; e.mu is held.
func (mc *MatchContext) notify(m *message) {
	if mc.onUnexpected != nil && m != nil {
		mc.onUnexpected(m.env.source, m.env.tag, m.env.fingerprint)
	}
	for w := range mc.waiters {
		w.Wake()
	}
}

// Probe waits until a message that from and tag cover is there, and returns its
// envelope; the message stays.
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

// TryProbe is Probe without waiting; ok is false when no such message is there.
func (mc *MatchContext) TryProbe(from int, tag int32) (env RecvInfo, ok bool, err error) {
	for _, l := range mc.e.LinksOf(from) {
		l.Progress()
	}
	pr := &probe{mc: mc, key: key{source: int32(from), tag: tag}}
	ok = pr.Met()
	return pr.found, ok && pr.err == nil, pr.err
}

func (mc *MatchContext) addWaiter(w *mesh.Waiter) {
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	if mc.waiters == nil {
		mc.waiters = make(map[*mesh.Waiter]struct{})
	}
	mc.waiters[w] = struct{}{}
}

func (mc *MatchContext) removeWaiter(w *mesh.Waiter) {
	mc.e.mu.Lock()
	defer mc.e.mu.Unlock()
	delete(mc.waiters, w)
}

// A probe is the event that a message is there, or can never come.
type probe struct {
	mc    *MatchContext
	key   key
	found RecvInfo
	err   error
}

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
