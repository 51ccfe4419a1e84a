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

// A rankRuntime holds what all communicators of one rank share: the mesh, the engine, and the known
// state of the other ranks. It implements mesh.Events: the mesh reports lost ranks and links,
// goodbyes, and other ranks' floods and questions to it. Several goroutines may call its methods,
// except LastCall, which only the mesh's control goroutine calls.
type rankRuntime struct {
	machinery
	opt           *options
	rank          int
	size          int
	log           *slog.Logger
	initGoroutine uint64 // the goroutine that called Init; its stack shows where the program is now
	calls         calls
	lastRecord    callRecord         // the call in the last heartbeat; for the control goroutine
	siteTexts     callsite.TextCache // texts of call sites; only the control goroutine uses it
	model         choose.Model       // the model of rank 0's tuning file; set before Init returns
	// places says where each rank runs; it is equal on all ranks. It is set once, before any
	// communicator but the job's exists.
	places []topology.Place
	// byInit says that Init made this runtime, so that the next Init must wait for its end. It is
	// set once, before Init returns.
	byInit bool
	// rejoin takes part in the launcher's next epoch. changed is closed when the next epoch would
	// have other members. Both are set before Init or Rejoin returns, and are nil if the job has no
	// record of its ranks.
	rejoin  func(ctx context.Context) (*Comm, error)
	changed <-chan struct{}
	// aborted says that this rank has called Abort.
	aborted atomic.Bool

	ctx    context.Context // ends when the runtime is closed
	cancel context.CancelFunc
	work   sync.WaitGroup // goroutines started by spawn

	mu           sync.Mutex // guards the fields below
	comms        map[uint64]*Comm
	survivors    map[uint64]*survivors // the communicators that have agreements; see survivorsOf
	earlyRevokes earlyRevokes
	closedComms  closedComms
	// lostRanks holds the error of calls that need a rank, for ranks that are lost or have closed.
	lostRanks map[int]*fault.Error
	dead      map[int]bool     // the ranks that the mesh has reported as lost, on all ranks
	lostLinks []*fault.Error   // each error names both ends of the link
	reactions map[int]reaction // for each rank, the loss that its program knows of
	// reported holds the losses that this rank's program knows, by lossKey; see reportLoss.
	reported map[string]chan struct{}
	// ended is the reason why this rank takes no calls: it has closed, or was declared lost.
	ended   error
	closing bool
	verdict *fault.Error // the first failure that the mesh reported
}

// maxEarly bounds the number of early revokes that are kept. Other ranks send these, so there must
// be a bound.
const maxEarly = 256

// earlyRevokes holds the last maxEarly revokes of communicators that this rank does not have. Such
// a revoke may matter later: a fast rank may make a communicator, use it and revoke it before a
// slow rank has made it. It may also be meaningless, because this rank has closed the communicator
// or is not a member of it. Old revokes are therefore dropped.
type earlyRevokes struct {
	why   map[uint64]*fault.Error
	order []uint64 // oldest first
}

// add keeps the first revoke of a communicator. If there are more than maxEarly, it drops the
// oldest.
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

// remove removes and returns the revoke of a communicator that this rank has just made. It returns
// nil if there is none.
func (er *earlyRevokes) remove(id uint64) *fault.Error {
	e := er.why[id]
	if e != nil {
		delete(er.why, id)
		er.order = slices.DeleteFunc(er.order, func(x uint64) bool { return x == id })
	}
	return e
}

// maxClosed bounds the number of closed communicators that a rank remembers.
const maxClosed = 1024

// closedComms holds the last maxClosed communicators that this rank has closed.
type closedComms struct {
	comms map[uint64]closedComm
	order []uint64 // oldest first
}

// A closedComm records the Close of a communicator. Another rank may wait in a later collective, or
// in an agreement, for this rank. This rank answers it from the record.
type closedComm struct {
	last       uint32 // the number of the last collective that had ended; see Comm.lastEnded
	size, rank int    // for answers about agreements; size is 0 if the communicator has survivors, which then answer
}

// add records a communicator. If there are more than maxClosed, it drops the oldest.
func (cc *closedComms) add(id uint64, c closedComm) {
	if cc.comms == nil {
		cc.comms = make(map[uint64]closedComm)
	}
	if len(cc.order) == maxClosed {
		delete(cc.comms, cc.order[0])
		cc.order = slices.Delete(cc.order, 0, 1)
	}
	cc.comms[id] = c
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
	// The other ranks may have declared this rank lost while it was suspended. This rank must then
	// end.
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

// linkLost ends the calls that need both ranks of a broken link: messages between the two, and
// collectives of every communicator that has both as members.
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
// it wakes any call. The program may begin its next collective as soon as a call has returned, and
// that collective must not be compared with collectives of ranks that do not know of the loss yet.
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

// markLost records the reason why the communicator takes no collectives any more. If the
// communicator was revoked before, markLost changes nothing. c.mu is held.
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

// hasAll reports whether all peers are members of the communicator. A lost link between two ranks
// matters only to a communicator that has both.
func (c *Comm) hasAll(peers []fault.Peer) bool {
	for _, p := range peers {
		if _, in := c.group.RankOf(p.Rank); !in {
			return false
		}
	}
	return true
}

// lossWithin returns the error of a lost rank of a new communicator, or of a lost link between two
// of its ranks. It returns nil if there is no such loss. The communicator must learn of the loss
// here: members that exchange nothing with the lost rank, or over the lost link, would not notice
// it. rt.mu is held.
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

// blamed reports whether an error names the given rank.
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
// that it knows of, that loss becomes the cause of the error; see blame.
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

// end makes every call of this rank fail with err. end may run twice, for example if this rank
// closes after it was declared lost. The first error then stays.
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

// comm returns the communicator with the given id, or nil if this rank does not have it open.
func (rt *rankRuntime) comm(id uint64) *Comm {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return rt.comms[id]
}

// LastCall implements mesh.Events: it appends the text of the last call to b, for a heartbeat. It
// allocates nothing for a call site whose text is cached.
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

// Kinds of floods. Another kind is floodStep.
const (
	floodFingerprint = 'f' // the fingerprint of a rank that waits
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

// close closes the runtime, once. It delivers the messages that Sends have accepted, and ends all
// calls with fault.Closed. It then closes the mesh, which says goodbye to the other ranks, and
// waits for the goroutines of spawn. The result is the error of the delivery, or else the error of
// the mesh.
func (rt *rankRuntime) close(ctx context.Context) error {
	rt.mu.Lock()
	if rt.closing {
		rt.mu.Unlock()
		return nil
	}
	rt.closing = true // from now on spawn starts no goroutine
	failed := rt.ended
	rt.mu.Unlock()
	var err error
	// Deliver the messages that Send has accepted. A rank that was declared lost cannot deliver
	// them, because its peers no longer talk to it.
	if failed == nil {
		err = rt.blame(rt.eng.Drain(ctx))
	}
	closed := fault.New(fault.Closed, "close", rt.rank, "this rank has called Close")
	rt.mu.Lock()
	if rt.ended == nil {
		rt.ended = closed
	}
	rt.mu.Unlock()
	// Calls that are under way on other goroutines end now, and so leave the shared memory.
	rt.eng.End(closed)
	rt.lossesChanged()
	for _, c := range rt.openComms() {
		c.mu.Lock()
		c.closed = true
		c.mu.Unlock()
		c.releaseShared()
	}
	// The goodbye comes last, because it tells the other ranks that this rank sends nothing more.
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

// location returns the file and line of a call. If the rank is in no call, location returns the
// current line of the goroutine that called Init, because the program probably computes or hangs
// there.
func (rt *rankRuntime) location(site callsite.Site, underWay bool) string {
	if underWay {
		return site.String()
	}
	if now := callsite.CurrentLine(rt.initGoroutine); now != "" {
		return now
	}
	return site.String()
}
