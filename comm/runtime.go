package comm

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tutti-go/tutti/collective/choose"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/callsite"
	"github.com/tutti-go/tutti/topology"
)

// A rankRuntime is what all communicators of one rank share: the mesh, the engine, and what is
// known of the other ranks. It implements mesh.Events: the mesh reports lost ranks and links,
// goodbyes, and the floods and questions of other ranks to it. Its methods may be called
// concurrently, except LastCall, which only the mesh's control goroutine calls.
type rankRuntime struct {
	machinery
	opt           *options
	rank          int
	size          int
	log           *slog.Logger
	initGoroutine uint64 // the goroutine that called Init, to find out where it is now
	calls         calls
	lastRecord    callRecord         // the call in the last heartbeat; only the control goroutine uses it
	siteTexts     callsite.TextCache // texts of call sites; only the control goroutine uses it
	model         choose.Model       // of rank 0's tuning file; set before Init returns
	// places is where each rank runs; all ranks know the same. Set once, before any
	// communicator but the job's exists.
	places []topology.Place
	// byInit says that Init made this runtime, so its end allows the next Init. Set once,
	// before Init returns.
	byInit bool
	// aborted says that this rank has called Abort.
	aborted atomic.Bool

	ctx    context.Context // ends when the runtime is closed
	cancel context.CancelFunc
	work   sync.WaitGroup // goroutines started by spawn

	mu           sync.Mutex // guards the rest
	comms        map[uint64]*Comm
	survivors    map[uint64]*survivors // of communicators with agreements; see survivorsOf
	earlyRevokes earlyRevokes
	closedComms  closedComms
	lostRanks    map[int]*fault.Error // why calls that need these ranks fail: they are lost, or have closed
	dead         map[int]bool         // the ranks that all ranks know to be lost
	lostLinks    []*fault.Error       // each names both ends
	reactions    map[int]reaction     // by rank: the loss that its program knows of
	reported     map[int]bool         // the lost ranks that this rank's program knows of
	ended        error                // why this rank takes no calls: it has closed, or was declared lost
	closing      bool
	verdict      *fault.Error // the first failure that the mesh reported
}

// maxEarly bounds the revokes that are kept for communicators that this rank has not made.
// Another rank sends them, so there must be a bound.
const maxEarly = 256

// earlyRevokes holds the last maxEarly revokes of communicators that this rank does not have. A
// fast rank may make a communicator, use it and revoke it before a slow rank has made it. Revokes
// of communicators that this rank has closed, or is no member of, arrive as well, so old revokes
// are dropped.
type earlyRevokes struct {
	why   map[uint64]*fault.Error
	order []uint64 // the oldest first
}

// add keeps the first revoke of a communicator, and drops the oldest one when there are too
// many.
func (er *earlyRevokes) add(id uint64, e *fault.Error) {
	if er.why[id] != nil {
		return
	}
	if er.why == nil {
		er.why = make(map[uint64]*fault.Error)
	}
	if len(er.order) == maxEarly {
		delete(er.why, er.order[0])
		er.order = slices.Delete(er.order, 0, 1)
	}
	er.why[id] = e
	er.order = append(er.order, id)
}

// remove returns the revoke of a communicator that this rank has just made, or nil.
func (er *earlyRevokes) remove(id uint64) *fault.Error {
	e := er.why[id]
	if e != nil {
		delete(er.why, id)
		er.order = slices.DeleteFunc(er.order, func(x uint64) bool { return x == id })
	}
	return e
}

// maxClosed bounds the communicators whose Close this rank remembers.
const maxClosed = 1024

// closedComms holds, for the last maxClosed communicators that this rank has closed, the number of
// its last collective. A rank that waits in a later collective learns from it that this rank will
// not come.
type closedComms struct {
	last  map[uint64]uint32
	order []uint64 // the oldest first
}

// add records a communicator, and forgets the oldest one when there are too many.
func (cc *closedComms) add(id uint64, seq uint32) {
	if cc.last == nil {
		cc.last = make(map[uint64]uint32)
	}
	if len(cc.order) == maxClosed {
		delete(cc.last, cc.order[0])
		cc.order = slices.Delete(cc.order, 0, 1)
	}
	cc.last[id] = seq
	cc.order = append(cc.order, id)
}

// spawn runs f on a goroutine that Close waits for, with a context that ends when the runtime
// closes. It returns false after Close has begun.
func (rt *rankRuntime) spawn(f func(ctx context.Context)) bool {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.closing {
		return false
	}
	rt.work.Add(1)
	go func() {
		defer rt.work.Done()
		f(rt.ctx)
	}()
	return true
}

// Failed implements mesh.Events: the mesh reports the loss of ranks or of a link, with the same
// error on all ranks. The calls that fail depend on the loss:
//
//	lost                      messages that fail      collectives that fail
//	a link                    between its two ends    of communicators with both ends
//	other ranks               with them               of communicators with one of them
//	this rank, or an Abort    all                     all
//
// Communicators without a lost member go on.
func (rt *rankRuntime) Failed(e *fault.Error) {
	rt.mu.Lock()
	if rt.verdict == nil {
		rt.verdict = e
	}
	rt.mu.Unlock()
	defer rt.lossesChanged()
	if e.Kind == fault.LinkLost {
		rt.linkLost(e)
		return
	}
	if e.Kind == fault.PeerLost {
		rt.mu.Lock()
		for _, p := range e.Peers {
			rt.dead[p.Rank] = true
		}
		rt.mu.Unlock()
	}
	// The other ranks may have declared this rank lost while it was suspended. It must not go on.
	if rt.blamed(e, rt.rank) {
		rt.end(e)
		return
	}
	for _, p := range e.Peers {
		reason := rt.reasonFor(p.Rank, e)
		if e.Op == opAbort {
			rt.end(reason)
			return
		}
		rt.rankLost(p.Rank, reason)
	}
}

// linkLost ends what needs both ranks of a broken link: messages between them, and collectives of
// every communicator that has both as members.
func (rt *rankRuntime) linkLost(e *fault.Error) {
	rt.mu.Lock()
	rt.lostLinks = append(rt.lostLinks, e)
	rt.mu.Unlock()
	rt.lose(e, func(c *Comm) bool { return c.hasAll(e.Peers) })
	for _, p := range e.Peers {
		if p.Rank != rt.rank && rt.blamed(e, rt.rank) {
			rt.eng.FailPeer(p.Rank, e)
		}
	}
}

// lose ends the collectives of the communicators that a loss concerns. It marks all of them before
// it wakes any call: the program may begin its next collective as soon as a call has returned, and
// that collective must not be compared with those of ranks that do not know of the loss yet.
func (rt *rankRuntime) lose(e *fault.Error, concerns func(c *Comm) bool) {
	cs := slices.DeleteFunc(rt.openComms(), func(c *Comm) bool { return !concerns(c) })
	rt.calls.mu.Lock()
	for _, c := range cs {
		c.markLost(e)
	}
	rt.calls.mu.Unlock()
	for _, c := range cs {
		c.group.RevokeCollectives(e)
	}
}

// markLost records why the communicator takes no collectives any more, unless it was revoked
// before. c.mu is held.
func (c *Comm) markLost(e *fault.Error) {
	if c.lost == nil && c.revoked == nil {
		c.lost = e
	}
}

// currentLoss returns the loss that ended the communicator's collectives, or nil.
func (c *Comm) currentLoss() *fault.Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// hasAll reports whether all peers are members of the communicator: a lost link between two
// ranks matters to those that have both.
func (c *Comm) hasAll(peers []fault.Peer) bool {
	for _, p := range peers {
		if _, in := c.group.RankOf(p.Rank); !in {
			return false
		}
	}
	return true
}

// lossWithin returns the error of a lost rank of a new communicator, or of a lost link between two
// of its ranks, or nil. Ranks that exchange nothing over the lost link would not notice the loss
// themselves. rt.mu is held.
func (rt *rankRuntime) lossWithin(c *Comm) *fault.Error {
	for r := range c.Size() {
		if f := rt.lostRanks[c.group.WorldRank(r)]; f != nil && f.Kind != fault.Closed {
			return f
		}
	}
	for _, e := range rt.lostLinks {
		if c.hasAll(e.Peers) {
			return e
		}
	}
	return nil
}

// blamed reports whether an error names a rank.
func (rt *rankRuntime) blamed(e *fault.Error, rank int) bool {
	for _, p := range e.Peers {
		if p.Rank == rank {
			return true
		}
	}
	return false
}

// rankLost ends every call that needs a rank: messages with it, and collectives of every
// communicator that has it as a member.
func (rt *rankRuntime) rankLost(rank int, err *fault.Error) {
	rt.mu.Lock()
	rt.lostRanks[rank] = err
	rt.mu.Unlock()
	rt.lose(err, func(c *Comm) bool {
		_, in := c.group.RankOf(rank)
		return in
	})
	rt.eng.FailPeer(rank, err)
}

// Goodbye implements mesh.Events: a rank has closed. Its peers have received everything that it
// sent, so collectives that need nothing more from it go on. If the rank closes because of a loss
// that it knows of, the loss is the cause of the error; see blame.
func (rt *rankRuntime) Goodbye(rank int) {
	err := &fault.Error{Kind: fault.Closed, Op: "close", Rank: rank, Peers: []fault.Peer{rt.peer(rank)}}
	if loss := rt.reactionOf(rank); loss != nil {
		err.Err = loss
	}
	rt.mu.Lock()
	rt.lostRanks[rank] = err
	rt.mu.Unlock()
	rt.eng.FailPeer(rank, err)
	rt.lossesChanged()
}

// end makes every call of this rank fail with err. If end runs again, as in Close after the rank
// was declared lost, the first error stays.
func (rt *rankRuntime) end(err *fault.Error) {
	rt.mu.Lock()
	if rt.ended == nil {
		rt.ended = err
	}
	rt.mu.Unlock()
	rt.lose(err, func(*Comm) bool { return true })
	rt.eng.End(err)
}

// openComms returns the communicators that are open on this rank. It copies them, so that the
// caller need not hold the lock while it revokes them.
func (rt *rankRuntime) openComms() []*Comm {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	cs := make([]*Comm, 0, len(rt.comms))
	for _, c := range rt.comms {
		cs = append(cs, c)
	}
	return cs
}

// comm returns the communicator with an id, or nil when this rank does not have it open.
func (rt *rankRuntime) comm(id uint64) *Comm {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return rt.comms[id]
}

// LastCall implements mesh.Events: it appends the text of the last call to b, for a heartbeat. It
// allocates nothing for a call that is like an earlier one.
func (rt *rankRuntime) LastCall(b []byte) []byte {
	rt.calls.mu.Lock()
	rt.lastRecord = rt.calls.lastRecord()
	rt.calls.mu.Unlock()
	last := &rt.lastRecord
	if last.callName == "" {
		return b
	}
	b = last.appendTo(b, last.seq)
	if at := rt.siteTexts.Text(&last.site); at != "" {
		b = append(append(b, " at "...), at...)
	}
	return b
}

// Kinds of floods; floodStep is another.
const (
	floodFingerprint = 'f' // a fingerprint of a rank that waits
	floodRevoke      = 'r' // a communicator is revoked
	floodLoss        = 'l' // the sender's program knows of a loss
	floodAgreement   = 'a' // a rank's State in an agreement
)

// Flooded implements mesh.Events: another rank has sent a message to all ranks. It runs on the
// control goroutine and must not wait for the data path.
func (rt *rankRuntime) Flooded(from int, kind byte, body []byte) {
	switch kind {
	case floodStep:
		rt.eng.HandleStepEnd(from, body)
	case floodFingerprint:
		rt.handleFingerprint(from, body)
	case floodRevoke:
		rt.handleRevoke(body)
	case floodLoss:
		rt.handleReaction(from, body)
	case floodAgreement:
		rt.handleAgreement(from, body)
	}
}

// peer describes a rank for an error. Before the mesh exists its host is unknown.
func (rt *rankRuntime) peer(rank int) fault.Peer {
	rt.mu.Lock()
	m := rt.mesh
	rt.mu.Unlock()
	if m == nil {
		return fault.Peer{Rank: rank}
	}
	return fault.Peer{Rank: rank, Host: m.Host(rank)}
}

// close closes the runtime, once. It delivers what Sends have accepted, ends all calls with
// fault.Closed, closes the mesh, which says goodbye to the other ranks, and waits for its
// goroutines. Its error is that of the delivery, else that of the mesh.
func (rt *rankRuntime) close(ctx context.Context) error {
	rt.mu.Lock()
	if rt.closing {
		rt.mu.Unlock()
		return nil
	}
	rt.closing = true // no goroutine is spawned from now on
	failed := rt.ended
	rt.mu.Unlock()
	var err error
	// Deliver the messages that Send has accepted. A rank that was declared lost cannot deliver
	// them, because its peers no longer talk to it.
	if failed == nil {
		err = rt.eng.Drain(ctx)
	}
	closed := fault.New(fault.Closed, "close", rt.rank, "this rank has closed")
	rt.mu.Lock()
	if rt.ended == nil {
		rt.ended = closed
	}
	rt.mu.Unlock()
	// Calls that are under way, on other goroutines, end now, and so leave the shared memory.
	rt.eng.End(closed)
	rt.lossesChanged()
	for _, c := range rt.openComms() {
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		c.releaseShared()
	}
	// The goodbye comes last: it promises the others that nothing more follows.
	if e := rt.mesh.Close(ctx); err == nil {
		err = e
	}
	rt.cancel()
	rt.work.Wait()
	if rt.byInit {
		initOpen.Store(false)
	}
	return err
}

// askLimit bounds how long an error waits for answers of other ranks.
const askLimit = time.Second

// location returns the file and line of a call. If the rank is in no call, it returns the current
// line of the goroutine that called Init, where the program probably computes or hangs.
func (rt *rankRuntime) location(site callsite.Site, underWay bool) string {
	if underWay {
		return site.String()
	}
	if now := callsite.CurrentLine(rt.initGoroutine); now != "" {
		return now
	}
	return site.String()
}
