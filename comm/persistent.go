package comm

import (
	"context"
	"slices"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/p2p"
)

// A Persistent is a collective that was prepared once and can be started many
// times: MPI-4's persistent collective operation. Its buffers, and what else its
// Init function was given, stay the same; what is in the buffers may change between
// starts. A start allocates nothing.
//
// It is inactive at first, active from Start on, and inactive again when Wait has
// returned, or Test has reported true. While it is active its buffers belong to the
// library, and the operation makes progress whatever the caller does. All ranks
// start their Persistents in an order that agrees with that of all their collectives
// on the communicator; a start is compared with what other ranks do as every call
// is, and meets the blocking and the non-blocking form of its collective, too, where
// those go by messages.
//
// One goroutine at a time may use a Persistent. It holds a goroutine of its own
// until Close, or until the job is closed.
type Persistent struct {
	c   *Comm
	pl  plan
	sig signature

	active bool
	closed bool
	// of the start under way; the worker's from begun until ended
	ctx   context.Context
	call  *call
	round *p2p.Round
	err   error

	started  chan struct{} // one slot: there is a start to carry out
	finished chan struct{} // one slot: it is over
	closing  chan struct{} // closed by Close
	exited   chan struct{} // closed when the worker has ended
}

// newPersistent makes a Persistent of a plan. Init functions are local: they check their
// arguments on this rank, and send nothing.
func (c *Comm) newPersistent(pl *plan) (*Persistent, error) {
	pl.noShared = true
	pl.counts, pl.sends = slices.Clone(pl.counts), slices.Clone(pl.sends)
	if err := pl.prepare(c); err != nil {
		return nil, err
	}
	p := &Persistent{
		c: c, pl: *pl,
		started: make(chan struct{}, 1), finished: make(chan struct{}, 1), closing: make(chan struct{}), exited: make(chan struct{}),
	}
	p.pl.describe(&p.sig)
	if !c.rt.spawn(p.serve) {
		return nil, fault.New(fault.Closed, p.sig.String(), c.rt.rank, "this rank has closed")
	}
	return p, nil
}

// serve carries starts out, one after the other.
func (p *Persistent) serve(ctx context.Context) {
	defer close(p.exited)
	for {
		select {
		case <-p.started:
			p.run()
		case <-p.closing:
			return
		case <-ctx.Done(): // the job is closed: a start from now on fails, whoever carries it out
			return
		}
	}
}

func (p *Persistent) run() {
	err := p.pl.run(p.ctx, p.c, p.round)
	p.round.Clear()
	p.err = p.c.finish(p.call, err)
	p.finished <- struct{}{}
}

// Start starts the operation and returns at once. ctx is the operation's, as for
// a blocking call: when it ends, the communicator is revoked on every rank. An error
// says that the operation was not started: fault.Misuse while it is active, after
// Close, and beside another goroutine's collective; else why the communicator takes
// no calls any more.
func (p *Persistent) Start(ctx context.Context) error {
	switch {
	case p.closed:
		return p.c.misuse("start "+p.sig.String(), "it has been closed")
	case p.active:
		return p.c.misuse("start "+p.sig.String(), "it is active; Wait for it, or Test until it is done, first")
	}
	cl := newCall(p.c)
	if err := p.c.begin(ctx, &p.pl, cl); err != nil {
		cl.free()
		return err
	}
	p.c.exit()
	p.round = p.c.group.ReuseRound(p.round, cl.seq, cl.fingerprint, cl)
	p.round.DisableShared()
	p.round.SetHistoryHash(cl.historyHash)
	p.round.SetSegment(cl.segment)
	p.ctx, p.call, p.active = ctx, cl, true
	p.started <- struct{}{}
	return nil
}

// Wait returns when the operation that was started is done, with its error; at once
// and without one when none is active. When ctx ends first, the communicator is
// revoked on every rank, as for a blocking call.
func (p *Persistent) Wait(ctx context.Context) error {
	if !p.active {
		return nil
	}
	select {
	case <-p.finished:
	case <-ctx.Done():
		p.c.group.RevokeCollectives(ctx.Err()) // ends the operation with that, and so the others'
		select {
		case <-p.finished:
		case <-p.exited:
			p.runAbandoned()
		}
	case <-p.exited:
		p.runAbandoned()
	}
	return p.finish()
}

// Test reports whether the operation that was started is done, and its error; true
// when none is active.
func (p *Persistent) Test() (done bool, err error) {
	if !p.active {
		return true, nil
	}
	select {
	case <-p.finished:
		return true, p.finish()
	case <-p.exited:
		p.runAbandoned()
		return true, p.finish()
	default:
		return false, nil
	}
}

// runAbandoned ends a start that was made beside the job's Close, and that the worker
// may have left behind: it fails at once.
func (p *Persistent) runAbandoned() {
	select {
	case <-p.started:
		p.run()
	default:
	}
	<-p.finished
}

// finish makes p inactive and returns the operation's error.
func (p *Persistent) finish() error {
	err := p.err
	p.active, p.err, p.ctx, p.call = false, nil, nil, nil
	return err
}

// Close gives up a Persistent that is inactive; while it is active that is
// fault.Misuse. It is local. Closing twice is no error.
func (p *Persistent) Close() error {
	switch {
	case p.closed:
		return nil
	case p.active:
		return p.c.misuse("close "+p.sig.String(), "it is active; Wait for it first")
	}
	p.closed = true
	close(p.closing)
	return nil
}

// StartAll starts Persistents in their order. An error is the first one's that was
// not started; those before it are active.
func StartAll(ctx context.Context, ps ...*Persistent) error {
	for _, p := range ps {
		if err := p.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// The functions below prepare the collectives of their names: see those for the
// arguments, and Persistent for the rest. Counts are copied.

// AllReduceInit prepares AllReduce.
func AllReduceInit[T Element](c *Comm, buf []T, op Op) (*Persistent, error) {
	return c.newPersistent(allReduce(new(plan), buf, buf, op))
}

// AllReduceToInit prepares AllReduceTo.
func AllReduceToInit[T Element](c *Comm, dst, src []T, op Op) (*Persistent, error) {
	return c.newPersistent(allReduce(new(plan), dst, src, op))
}

// ReduceInit prepares Reduce.
func ReduceInit[T Element](c *Comm, dst, src []T, op Op, root int) (*Persistent, error) {
	return c.newPersistent(reduceTo(new(plan), dst, src, op, root))
}

// BroadcastInit prepares Broadcast.
func BroadcastInit[T Element](c *Comm, buf []T, root int) (*Persistent, error) {
	return c.newPersistent(broadcast(new(plan), buf, root))
}

// AllGatherInit prepares AllGather.
func AllGatherInit[T Element](c *Comm, dst, src []T) (*Persistent, error) {
	return c.newPersistent(allGather(new(plan), dst, src))
}

// AllGatherVInit prepares AllGatherV.
func AllGatherVInit[T Element](c *Comm, dst, src []T, counts []int) (*Persistent, error) {
	return c.newPersistent(allGatherV(new(plan), dst, src, counts))
}

// GatherInit prepares Gather.
func GatherInit[T Element](c *Comm, dst, src []T, root int) (*Persistent, error) {
	return c.newPersistent(gather(new(plan), c, dst, src, root))
}

// GatherVInit prepares GatherV.
func GatherVInit[T Element](c *Comm, dst, src []T, counts []int, root int) (*Persistent, error) {
	return c.newPersistent(gatherV(new(plan), dst, src, counts, root))
}

// ScatterInit prepares Scatter.
func ScatterInit[T Element](c *Comm, dst, src []T, root int) (*Persistent, error) {
	return c.newPersistent(scatter(new(plan), c, dst, src, root))
}

// ScatterVInit prepares ScatterV.
func ScatterVInit[T Element](c *Comm, dst, src []T, counts []int, root int) (*Persistent, error) {
	return c.newPersistent(scatterV(new(plan), dst, src, counts, root))
}

// ReduceScatterInit prepares ReduceScatter.
func ReduceScatterInit[T Element](c *Comm, dst, src []T, op Op) (*Persistent, error) {
	return c.newPersistent(reduceScatter(new(plan), dst, src, op))
}

// ReduceScatterVInit prepares ReduceScatterV.
func ReduceScatterVInit[T Element](c *Comm, dst, src []T, counts []int, op Op) (*Persistent, error) {
	return c.newPersistent(reduceScatterV(new(plan), dst, src, counts, op))
}

// AllToAllInit prepares AllToAll.
func AllToAllInit[T Element](c *Comm, dst, src []T) (*Persistent, error) {
	return c.newPersistent(allToAll(new(plan), dst, src))
}

// AllToAllVInit prepares AllToAllV.
func AllToAllVInit[T Element](c *Comm, dst, src []T, recvs, sends []int) (*Persistent, error) {
	return c.newPersistent(allToAllV(new(plan), dst, src, recvs, sends))
}

// ScanInit prepares Scan.
func ScanInit[T Element](c *Comm, buf []T, op Op) (*Persistent, error) {
	return c.newPersistent(scan(new(plan), collective.VerbScan, buf, buf, op))
}

// ScanToInit prepares ScanTo.
func ScanToInit[T Element](c *Comm, dst, src []T, op Op) (*Persistent, error) {
	return c.newPersistent(scan(new(plan), collective.VerbScan, dst, src, op))
}

// ExScanInit prepares ExScan.
func ExScanInit[T Element](c *Comm, buf []T, op Op) (*Persistent, error) {
	return c.newPersistent(scan(new(plan), collective.VerbExScan, buf, buf, op))
}

// ExScanToInit prepares ExScanTo.
func ExScanToInit[T Element](c *Comm, dst, src []T, op Op) (*Persistent, error) {
	return c.newPersistent(scan(new(plan), collective.VerbExScan, dst, src, op))
}

// BarrierInit prepares Barrier.
func (c *Comm) BarrierInit() (*Persistent, error) { return c.newPersistent(barrier(new(plan))) }
