package comm

import (
	"context"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/fault"
	"github.com/tutti-go/tutti/internal/bridge"
	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/tensor"
)

// Bridge gives the other packages of this module access to c. Its result type is internal to the
// module.
func (c *Comm) Bridge() bridge.Communicator { return (*bridged)(c) }

// bridged is a Comm with the methods of bridge.Communicator. Converting a *Comm to *bridged costs
// nothing and allocates nothing.
type bridged Comm

// AllReduceList implements bridge.Communicator.
func (b *bridged) AllReduceList(ctx context.Context, algorithm string, d tensor.DType, vectors [][]byte, op Op) error {
	c := (*Comm)(b)
	pl := plan{verb: collective.VerbAllReduce, dtype: d, vectors: vectors, root: -1, op: op, forced: algorithm}
	if err := pl.bindVectors(c); err != nil {
		return err
	}
	return c.execute(ctx, &pl, nil)
}

// Algorithm implements bridge.Communicator.
func (b *bridged) Algorithm(verb string, bytes int, op Op) string {
	return (*Comm)(b).algorithm(verb, bytes, op.Commutative())
}

// Wire implements bridge.Communicator.
func (b *bridged) Wire() string { return b.wire }

// Transport implements bridge.Communicator.
func (b *bridged) Transport(rank int) string { return (*Comm)(b).transport(rank) }

// ReportLoss implements bridge.Communicator.
func (b *bridged) ReportLoss(err error) { b.rt.reportLoss(err) }

// NewPoller implements bridge.Communicator.
func (b *bridged) NewPoller(from ...int) bridge.Poller { return poller{b.group.NewPoller(from...)} }

// A poller is a p2p.LinkPoller that implements bridge.Poller. The wrapper is needed because each of
// the two packages has its own interface type for the condition of Poll.
type poller struct{ *p2p.LinkPoller }

// Poll implements bridge.Poller.
func (p poller) Poll(ctx context.Context, cond bridge.PollCondition) bool {
	return p.LinkPoller.Poll(ctx, cond)
}

// bindVectors refuses an invalid element type, vectors that are misaligned or hold a fraction of an
// element, and algorithms that cannot reduce a list of vectors.
func (pl *plan) bindVectors(c *Comm) error {
	name := pl.verb.String()
	if !pl.dtype.Valid() {
		return c.misuse(name, "element type: got %v, want a valid one", pl.dtype)
	}
	es := pl.dtype.Size()
	for i, v := range pl.vectors {
		if len(v)%es != 0 || !tensor.AlignedFor(pl.dtype, v) {
			return c.misuse(name, "vector %d: got %d bytes at %p, want whole elements of %v, aligned for it", i, len(v), v, pl.dtype)
		}
	}
	a, err := collective.Find(pl.verb, pl.forced)
	if err == nil && !a.SupportsLists() {
		err = fault.New(fault.Misuse, name, c.rt.rank, "algorithm for a list of vectors: got %s, want ring or shared", pl.forced)
	}
	if err != nil {
		return c.withOp(name, err)
	}
	if pl.vectors == nil {
		pl.vectors = [][]byte{}
	}
	return nil
}
