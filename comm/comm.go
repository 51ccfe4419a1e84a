package comm

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/callsite"
	"github.com/tutti-go/tutti/p2p"
)

// A Comm is a communicator: an ordered group of ranks. Its messages and collectives never match
// those of another communicator. Init and Local make the communicator of all ranks; Split, Dup and
// Sub make further communicators.
//
// Any number of goroutines may send and receive messages. Collectives of one communicator are
// ordered by the calls that start them. Two goroutines must not start collectives on the same
// communicator at the same time. A goroutine must not start a collective while another goroutine is
// inside a blocking one. In both cases the second call gets fault.Misuse. Goroutines that need
// concurrent collectives each use a separate Dup.
//
// A communicator has at most one blocking collective at a time. Its states:
//
//	admitted, exited    inUse  drained   meaning
//	equal               false  nil       no collective is in progress
//	admitted one ahead  false  nil       a collective by messages is in progress
//	admitted one ahead  true   nil       a collective in shared memory is in progress
//	admitted one ahead  true   not nil   Close waits for the call to leave shared memory
//
// A successful call ends by changing only exited, without a lock. So inUse may stay true after the
// call. Only admitted and exited say whether a call is in progress.
type Comm struct {
	rt    *rankRuntime
	group *p2p.Group
	id    uint64

	table   *collective.Table
	wire    string              // the names of all transports between its ranks; equal on all ranks
	chooser *collective.Chooser // the table of algorithms for these ranks and this transport

	blocking call       // the blocking collective, while it is in progress
	round    *p2p.Round // reused by the blocking collectives; nil before the first of them
	// A call that returns sets exited to the value that admitted had when the call began. It does
	// so without the lock.
	exited  atomic.Uint64
	closing atomic.Bool // Close has begun: a call that returns now removes itself from the list

	conflict      atomic.Pointer[conflict] // set by unexpected: a mismatch that other ranks may not know of
	releaseMemory func() error             // unmaps the shared memory at Close; nil: there is none

	mu *sync.Mutex // the runtime's calls.mu; guards the fields below
	// admitted counts the blocking collectives that were admitted, and the admitted starts of other
	// collectives.
	admitted    uint64
	inUse       bool          // the blocking collective may access the shared memory
	drained     chan struct{} // closed when inUse ends; nil if no goroutine waits for that
	seq         uint32        // number of the last collective that began
	historyHash uint64        // hash of the fingerprints of all collectives so far, in order
	history     [historySize]callRecord
	planCache   [planCacheSize]cachedPlan
	plansCached uint64 // how many plans were ever put into planCache; numbers the plans
	expected    expectation
	children    uint64
	subs        map[uint64]uint64
	lost        *fault.Error // set if a member, or a link between members, was lost before any revoke
	revoked     *fault.Error
	closed      bool
}

// historySize is the number of recent collectives that a rank remembers. Ranks that disagree detect
// that within a few collectives: a rank can run ahead of another only as long as its collectives
// need no data from that rank.
const historySize = 64

// An expectation is the fingerprint of a collective that another rank has begun and this rank has
// not. This rank compares the fingerprint when it begins the collective of that number.
type expectation struct {
	seq         uint32
	fingerprint uint64
	from        fault.Peer
	details     string
}

// newComm makes a communicator of the given ranks of the job. The parameter rank is this process's
// rank in the communicator. Another rank may have made the communicator earlier and revoked it
// already, and ranks and links may be lost. newComm applies what the runtime knows of that.
func newComm(rt *rankRuntime, id uint64, ranks []int, rank int, table *collective.Table) *Comm {
	c := &Comm{rt: rt, id: id, mu: &rt.calls.mu}
	c.blocking.c, c.blocking.collective = c, true
	g := p2p.NewGroup(rt.eng, p2p.Options{ID: id, Ranks: ranks, Rank: rank, Segment: rt.opt.params.Segment, OnUnexpected: c.unexpected})
	c.group = g
	c.setLayout()
	c.setTable(table)
	rt.mu.Lock()
	rt.comms[id] = c
	// rt.mu guards the list of communicators and the early revokes. Both change in one critical
	// section, so that no revoke is missed.
	early := rt.earlyRevokes.remove(id)
	lost := rt.lossWithin(c)
	rt.mu.Unlock()
	if early != nil {
		c.revoke(early, nil)
	}
	if lost != nil {
		c.mu.Lock()
		c.markLost(lost)
		c.mu.Unlock()
		g.RevokeCollectives(lost)
	}
	return c
}

// setTable makes the communicator choose its algorithms by table. It must run while no call is
// under way. It derives a chooser from the table for this communicator's layout and transports, so
// that a call only looks up its algorithm.
func (c *Comm) setTable(table *collective.Table) {
	c.table, c.chooser = table, table.ChooserOn(c.group.Layout(), c.wire)
	c.clearPlans()
}

// Rank returns this process's rank in the communicator.
func (c *Comm) Rank() int { return c.group.Rank() }

// Size returns the number of ranks in the communicator.
func (c *Comm) Size() int { return c.group.Size() }

// WorldRank converts a rank of the communicator to the rank in the job. Errors name ranks by their
// number in the job.
func (c *Comm) WorldRank(rank int) int { return c.group.WorldRank(rank) }

// begin admits a blocking collective, or the start of a non-blocking one. It numbers the collective
// and lists it as cl. It returns an error if another call is in progress, or if the communicator is
// closed or revoked.
//
// The parameter cl is c.blocking, or a call that no other goroutine refers to. For c.blocking a
// cacheable plan need not be prepared: begin looks up the plan in the cache, and prepares it if the
// cache lacks it. begin prepares the plan without the lock, because all communicators of this rank
// share the lock. It therefore checks a second time whether another call is in progress.
func (c *Comm) begin(ctx context.Context, pl *plan, cl *call) error {
	_, limited := ctx.Deadline()
	prepared := false // whether this call prepared the plan, because the cache lacked it
	for cached := cl != &c.blocking || !pl.cacheable(); ; cached = true {
		c.mu.Lock()
		if c.admitted != c.exited.Load() {
			other := c.history[c.seq%historySize]
			c.mu.Unlock()
			return c.concurrentCall(pl.verb.String(), &other)
		}
		if cached || c.lookupPlan(pl) {
			break
		}
		c.mu.Unlock()
		// Two goroutines may prepare the same plan. The second check refuses the goroutine that
		// comes second.
		if err := pl.prepare(c); err != nil {
			return err
		}
		prepared = true
	}
	if prepared {
		c.cachePlan(pl)
	}
	c.admitted++
	err := c.unusable()
	if err == nil && c.lost != nil {
		// A refused collective gets no number. With a number, it would be compared with collectives
		// of ranks that do not know of the loss yet, and be reported as a mismatch.
		err = c.lost
	}
	seq := uint32(0)
	if err == nil {
		cl.hasLimit = limited
		err = c.admit(pl, cl)
		seq = c.seq
	}
	c.mu.Unlock()
	if err != nil {
		return c.rejected(pl, seq, err)
	}
	return nil
}

// concurrentCall returns the error of the call with the given name, which began before an earlier
// call had returned. The parameter other is the record of the earlier call.
func (c *Comm) concurrentCall(name string, other *callRecord) error {
	text := "another call"
	if at := other.site.String(); at != "" {
		text = other.String() + " at " + at
	}
	return c.misuse(name, "got this call at %s while %s has not returned; calls of one communicator must not overlap: give each goroutine a Dup of its own",
		callsite.Here(), text)
}

// rejected ends a call that was not admitted, and returns its error. The parameter seq is 0 if the
// call has no number. After a mismatch, rejected first revokes the communicator and notifies the
// other ranks.
func (c *Comm) rejected(pl *plan, seq uint32, err error) error {
	if f, ok := err.(*fault.Error); ok && f.Kind == fault.Mismatch {
		c.revokeAll(f)
		c.rt.fence()
	}
	c.exit()
	c.rt.reportLoss(err)
	var sig signature
	pl.describe(c, &sig)
	return c.withOp(describeCall(sig, true, seq), err)
}

// jobRank converts a rank of c to the rank in the job, for texts and errors. It returns every other
// number unchanged.
func (c *Comm) jobRank(rank int) int {
	if uint(rank) >= uint(c.Size()) {
		return rank
	}
	return c.group.WorldRank(rank)
}

// exit ends the call, so that the next one may begin. No goroutine waits for that, so an atomic
// store is enough, and the call ends without the lock.
func (c *Comm) exit() { c.exited.Store(c.admitted) }

// admit numbers cl, records it in the history and lists it. If another rank has already sent its
// fingerprint for that number, admit compares the two. c.mu is held.
func (c *Comm) admit(pl *plan, cl *call) error {
	// The history hash covers the order of all collectives so far. Once two ranks have made two
	// collectives in different orders, their hashes differ in all later collectives.
	c.seq++
	p := &c.history[c.seq%historySize]
	pl.record(c, p)
	p.site.Capture()
	p.seq = c.seq
	c.historyHash = (c.historyHash ^ p.fingerprint) * 0x9e3779b97f4a7c15
	cl.historyHash, cl.collective = c.historyHash, true
	if c.expected.seq == c.seq && c.expected.fingerprint != p.fingerprint {
		return c.mismatch(p, c.expected.from, c.expected.details)
	}
	// No other call begins before this call returns, so the entry of this call in the history is
	// not overwritten.
	if cl == &c.blocking {
		cl.reset()
		cl.callRecord, cl.admission, c.inUse = p, c.admitted, pl.usesShared
	} else {
		cl.ownRecord = *p
	}
	c.rt.calls.add(cl)
	return nil
}

// unusable returns the error that the communicator gives to new calls, or nil if it accepts calls.
// c.mu is held.
func (c *Comm) unusable() error {
	switch {
	case c.closed:
		return fault.New(fault.Closed, "", c.rt.rank, "this communicator has been closed on this rank")
	case c.revoked != nil:
		return &fault.Error{Kind: fault.Revoked, Rank: c.rt.rank, Peers: c.revoked.Peers, Err: c.revoked}
	}
	return nil
}

// finish ends a collective and converts its error to the error that the caller gets. The successful
// end of a blocking collective is the fast path: it takes no lock, and the call stays listed until
// the next blocking collective replaces it.
func (c *Comm) finish(cl *call, err error) error {
	blocking := cl == &c.blocking
	if err == nil && blocking && c.conflict.Load() == nil {
		c.exit()
		// closing is loaded after exit, because Close stores closing before it checks whether a
		// call is in progress.
		if c.closing.Load() {
			c.unlist(cl)
		}
		return nil
	}
	c.unlist(cl)
	if c.conflict.Load() != nil && (err == nil || errors.Is(err, fault.Closed)) {
		// The revoke has not arrived yet. The rank that disagreed may have closed without noticing
		// the mismatch.
		err = c.resolve()
	}
	if err != nil {
		err = c.collectiveFailed(cl, err)
	}
	if blocking {
		c.exit()
	} else {
		cl.free()
	}
	return err
}

// unlist removes a call from the list. After unlist of the blocking call, Close may release the
// shared memory.
func (c *Comm) unlist(cl *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cl.listed {
		c.rt.calls.remove(cl)
	}
	if cl != &c.blocking {
		return
	}
	if c.inUse = false; c.drained != nil {
		close(c.drained)
		c.drained = nil
	}
}

// withOp puts the name of the exported call into an error of a lower layer. It keeps the error's
// kind and the peers that it names. An error that is not a *fault.Error becomes fault.Canceled.
func (c *Comm) withOp(op string, err error) error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return &fault.Error{Kind: fault.Canceled, Op: op, Rank: c.rt.rank, Err: err}
	}
	out := *f
	out.Op, out.Rank = op, c.rt.rank
	return &out
}

// misuse returns the error of a call with wrong arguments. The communicator stays usable, and other
// ranks are not notified.
func (c *Comm) misuse(op, format string, args ...any) error {
	return fault.New(fault.Misuse, op, c.rt.rank, format, args...)
}

// Close closes the communicator. For a communicator made by Split, Dup or Sub, Close is local and
// immediate, and messages that Send has accepted are still delivered. If another rank's collective
// needs this rank afterwards, that collective fails with fault.Closed within a second.
//
// For the job's communicator, Close waits until the peers have received everything that this rank
// has sent, and then tells them that this rank closes. After that, calls of other ranks that need
// this rank get fault.Closed, which names this rank. Close does not wait for messages for which
// this rank has posted no receive; it drops them. If a message that Send accepted cannot be
// delivered, or if its receiver closes first without receiving it, the error of Close names the
// rank. If ctx ends first, the error is fault.Timeout. If ctx has no deadline, the communicator's
// Timeout applies. Closing twice is no error.
func (c *Comm) Close(ctx context.Context) error {
	if err := checkContext("close", ctx); err != nil {
		return err
	}
	c.mu.Lock()
	again := c.closed
	c.closed = true
	c.mu.Unlock()
	if again {
		return nil
	}
	if c.id == jobCommID {
		if _, limited := ctx.Deadline(); !limited && c.rt.opt.timeout > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, c.rt.opt.timeout, errTimeout)
			defer cancel()
		}
		return c.rt.close(ctx)
	}
	c.mu.Lock()
	record := closedComm{last: c.lastEnded()}
	c.mu.Unlock()
	c.rt.mu.Lock()
	delete(c.rt.comms, c.id)
	agreements := c.rt.survivors[c.id]
	if agreements == nil {
		record.size, record.rank = c.Size(), c.Rank()
	}
	c.rt.closedComms.add(c.id, record)
	c.rt.mu.Unlock()
	if agreements != nil {
		agreements.close()
	}
	c.group.Close(fault.New(fault.Closed, "close", c.rt.rank, "this communicator has been closed on this rank"))
	c.releaseShared()
	return nil
}

// lastEnded returns the number of the last collective before those under way. c.mu is held.
func (c *Comm) lastEnded() uint32 {
	for cl := c.rt.calls.oldestListed; cl != nil; cl = cl.next { // in the order in which they began
		if cl.c == c && cl.collective && cl.active() {
			return cl.seq - 1
		}
	}
	return c.seq
}

// Abort ends the job. Every call of every rank, under way or later, fails with fault.PeerLost,
// which names this rank and the cause. Abort returns when the other ranks have been notified, or
// after 100 ms. The process may then exit.
func (c *Comm) Abort(cause error) {
	p := c.rt.peer(c.rt.rank)
	p.At = callsite.Here().String()
	p.Call = "abort"
	c.rt.aborted.Store(true)
	c.rt.mesh.Announce(&fault.Error{Kind: fault.PeerLost, Op: opAbort, Rank: c.rt.rank, Peers: []fault.Peer{p}, Err: cause})
	c.rt.fence()
}

// opAbort is the Op of an error that Abort announces. Such an error ends the calls of all ranks,
// while the loss of a rank ends only the calls that need that rank.
const opAbort = "abort"

// jobCommID is the id of the job's communicator. The id of any other communicator is a hash.
const jobCommID = 1
