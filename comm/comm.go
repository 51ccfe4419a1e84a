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

// A Comm is a communicator: an ordered group of ranks whose messages and
// collectives meet no others. Init and Local make the one of all ranks; Split,
// Dup and Sub make more.
//
// Messages may be sent and received by any number of goroutines. Collectives of
// one communicator are ordered by the calls that start them: a collective that
// is started while another goroutine starts one, or is inside a blocking one, on
// the same communicator is fault.Misuse. Goroutines that want collectives of
// their own take a Dup each.
type Comm struct {
	rt    *rankRuntime
	group *p2p.Group
	id    uint64

	table   *collective.Table
	wire    string              // the names of all wires between its ranks; equal on all of them
	chooser *collective.Chooser // the table, for so many ranks and that wire

	blocking call       // the blocking collective's, while one is inside
	round    *p2p.Round // and its round; nil before the first
	// left is what entered was for the last call that has left: equal when none is
	// inside. A call leaves without the lock.
	exited  atomic.Uint64
	closing atomic.Bool // who leaves has something to do for Close

	conflict      atomic.Pointer[conflict] // not yet known to the others
	releaseMemory func() error             // gives the shared memory back, at Close; nil when there is none

	mu          *sync.Mutex   // the world's calls.mu; guards the rest
	admitted    uint64        // how often a blocking collective, or a start, has been let in
	inUse       bool          // the one inside may be looking at the shared memory
	drained     chan struct{} // closed when it is not any more; nil: nobody waits for that
	seq         uint32        // of the last collective that began
	historyHash uint64        // the fingerprints of all that began, in order
	history     [historySize]callRecord
	planCache   [planCacheSize]cachedPlan
	plansCached uint64 // how often something was put there
	expected    expectation
	children    uint64
	subs        map[uint64]uint64
	revoked     *fault.Error
	closed      bool
}

// historySize is how many collectives back a rank can still tell what it did.
const historySize = 64

// An expectation is a fingerprint of another rank that is ahead of this one.
type expectation struct {
	seq         uint32
	fingerprint uint64
	from        fault.Peer
	details     string
}

func newComm(rt *rankRuntime, id uint64, ranks []int, rank int, table *collective.Table) *Comm {
	c := &Comm{rt: rt, id: id, mu: &rt.calls.mu}
	c.blocking.c, c.blocking.collective = c, true
	g := p2p.NewGroup(rt.eng, p2p.Options{ID: id, Ranks: ranks, Rank: rank, Segment: rt.opt.params.Segment, OnUnexpected: c.unexpected})
	c.group = g
	c.setLayout()
	c.setTable(table)
	rt.mu.Lock()
	rt.comms[id] = c
	early := rt.earlyRevokes.remove(id)
	lost := rt.lossWithin(c)
	rt.mu.Unlock()
	if early != nil {
		c.revoke(early, nil)
	}
	if lost != nil {
		g.RevokeCollectives(lost)
	}
	return c
}

// setTable has the communicator choose its algorithms by table. No call is under way.
func (c *Comm) setTable(table *collective.Table) {
	c.table, c.chooser = table, table.ChooserOn(c.group.Layout(), c.wire)
	c.clearPlans()
}

// Rank is this process's rank in the communicator.
func (c *Comm) Rank() int { return c.group.Rank() }

// Size is the number of ranks in the communicator.
func (c *Comm) Size() int { return c.group.Size() }

// WorldRank is the job's rank of a rank of the communicator: what errors name.
func (c *Comm) WorldRank(rank int) int { return c.group.WorldRank(rank) }

// begin admits a blocking collective, or the start of a non-blocking one: it is
// alone on this communicator, which is in order, and it gets its number.
//
// cl becomes the call, when this is no error, and is listed. It is the
// communicator's own or one that nobody knows. Of plans for the own one those that are
// plain need not have been prepared: one like them may be known. To prepare them takes
// no lock, since all communicators of this rank have one in common.
func (c *Comm) begin(ctx context.Context, pl *plan, cl *call) error {
	_, limited := ctx.Deadline()
	prepared := false // it was prepared because nothing like it was known
	for cached := cl != &c.blocking || !pl.cacheable(); ; cached = true {
		c.mu.Lock()
		if c.admitted != c.exited.Load() {
			other := c.history[c.seq%historySize].site
			c.mu.Unlock()
			return c.concurrentCall(pl.verb.String(), other)
		}
		if cached || c.lookupPlan(pl) {
			break
		}
		c.mu.Unlock()
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

// concurrentCall is the error of a call that has found another one inside.
func (c *Comm) concurrentCall(name string, other callsite.Site) error {
	at := other.String()
	if at == "" {
		at = "an unknown place"
	}
	return c.misuse(name, "%s at %s, which another goroutine called, has not returned on this communicator; this call is at %s: give each goroutine a Dup of its own",
		name, at, callsite.Here())
}

// rejected leaves, and is the error of a call that was not admitted; seq is 0 when it
// has got no number.
func (c *Comm) rejected(pl *plan, seq uint32, err error) error {
	if f, ok := err.(*fault.Error); ok && f.Kind == fault.Mismatch {
		c.revokeAll(f)
		c.rt.fence()
	}
	c.exit()
	var sig signature
	pl.describe(&sig)
	return c.withOp(describeCall(sig, true, seq), err)
}

// exit lets the next call in.
func (c *Comm) exit() { c.exited.Store(c.admitted) }

// admit numbers cl, remembers it, compares it with what others have told, and lists
// it. c.mu is held.
func (c *Comm) admit(pl *plan, cl *call) error {
	c.seq++
	p := &c.history[c.seq%historySize]
	pl.record(p)
	p.site.Capture()
	p.seq = c.seq
	c.historyHash = (c.historyHash ^ p.fingerprint) * 0x9e3779b97f4a7c15
	cl.historyHash, cl.collective = c.historyHash, true
	if c.expected.seq == c.seq && c.expected.fingerprint != p.fingerprint {
		return c.mismatch(p, c.expected.from, c.expected.details)
	}
	if cl == &c.blocking { // alone until it leaves, so its entry stays
		cl.reset()
		cl.callRecord, cl.admission, c.inUse = p, c.admitted, pl.usesShared
	} else {
		cl.ownRecord = *p
	}
	c.rt.calls.add(cl)
	return nil
}

// unusable is why no call can be made; c.mu is held.
func (c *Comm) unusable() error {
	switch {
	case c.closed:
		return fault.New(fault.Closed, "", c.rt.rank, "this communicator has been closed on this rank")
	case c.revoked != nil:
		return &fault.Error{Kind: fault.Revoked, Rank: c.rt.rank, Peers: c.revoked.Peers, Err: c.revoked}
	}
	return nil
}

// finish ends a collective and turns its error into the caller's.
func (c *Comm) finish(cl *call, err error) error {
	blocking := cl == &c.blocking
	if err == nil && blocking && c.conflict.Load() == nil {
		c.exit()
		if c.closing.Load() { // looked at after leaving, as Close looks whether it has left after saying so
			c.unlist(cl)
		}
		return nil
	}
	c.unlist(cl)
	if c.conflict.Load() != nil && (err == nil || errors.Is(err, fault.Closed)) {
		err = c.resolve() // whose revoke is still on its way; the rank that disagreed may have closed in good faith
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

// unlist takes a call off the list. The shared memory is Close's to take then.
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

// withOp gives an error of a lower layer the name of the exported call. The
// error is wrapped once; its kind and blame stay.
func (c *Comm) withOp(op string, err error) error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return &fault.Error{Kind: fault.Canceled, Op: op, Rank: c.rt.rank, Err: err}
	}
	out := *f
	out.Op, out.Rank = op, c.rt.rank
	return &out
}

func (c *Comm) misuse(op, format string, args ...any) error {
	return fault.New(fault.Misuse, op, c.rt.rank, format, args...)
}

// Close gives the communicator up. On one that Split, Dup or Sub made it is
// local and immediate; what its Sends had accepted is still delivered. On the
// job's it returns when all that this rank has sent is taken, then says goodbye;
// afterwards calls of other ranks that need this rank get fault.Closed, naming
// it. Its error is a message that Send had accepted and that could not be
// delivered, or fault.Timeout when ctx ended first, or the communicator's Timeout
// where ctx has no deadline. Closing twice is no error.
func (c *Comm) Close(ctx context.Context) error {
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
	c.rt.mu.Lock()
	delete(c.rt.comms, c.id)
	c.rt.mu.Unlock()
	c.group.Close(fault.New(fault.Closed, "close", c.rt.rank, "this communicator has been closed on this rank"))
	c.releaseShared()
	return nil
}

// Abort ends the job: every call of every rank, under way or later, fails with
// fault.PeerLost naming this rank and the cause. It returns once others have heard,
// after a tenth of a second at the latest, so that the process may end then.
func (c *Comm) Abort(cause error) {
	p := c.rt.peer(c.rt.rank)
	p.At = callsite.Here().String()
	p.Call = "abort"
	c.rt.mesh.Announce(&fault.Error{Kind: fault.PeerLost, Op: "abort", Rank: c.rt.rank, Peers: []fault.Peer{p}, Err: cause})
	c.rt.fence()
}

// jobCommID is the id of the job's communicator.
const jobCommID = 1
