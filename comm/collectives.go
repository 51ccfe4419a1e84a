package comm

import (
	"context"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// An Op is a reduction operator; package reduce says what each means for which
// element type, to the bit.
type Op = reduce.Op

// The operators.
var (
	// Sum adds. Integers wrap around, as in Go; floats are added in the order of the algorithm.
	Sum = reduce.Sum
	// Prod multiplies.
	Prod = reduce.Prod
	// Min is the smallest value. For floats, a NaN on any rank gives a NaN.
	Min = reduce.Min
	// Max is the largest value, with the same rule for NaN.
	Max = reduce.Max
	// Mean is Sum divided by the number of inputs, once and at the end. It needs floats or
	// complex numbers.
	Mean = reduce.Mean
	// LogicalAnd and its siblings need integers or bool; every value but 0 is true.
	LogicalAnd = reduce.LogicalAnd
	LogicalOr  = reduce.LogicalOr
	LogicalXor = reduce.LogicalXor
	// BitAnd and its siblings need integers or bool.
	BitAnd = reduce.BitAnd
	BitOr  = reduce.BitOr
	BitXor = reduce.BitXor
	// MinLoc and MaxLoc need Loc elements: the extreme value with its index. Of equal values
	// the one with the lowest index counts.
	MinLoc = reduce.MinLoc
	MaxLoc = reduce.MaxLoc
)

// Loc pairs a value with an index, for MinLoc and MaxLoc.
type Loc[T tensor.LocValue] = tensor.Loc[T]

// The collectives below share these rules.
//
// All ranks of the communicator make the same call, with equal element type, count, root
// and operator. Ranks that do not get fault.Mismatch, which names both calls. Lengths are
// in elements. A call returns when this rank's part is done and its buffers are the
// caller's again, or with a *fault.Error. A deadline or cancellation of ctx inside a
// collective revokes the communicator on every rank. A reduction leaves equal bits on all
// ranks, and on every run with as many ranks.
//
// Every collective works in place on buf. From gives it a separate input, and buf receives
// the result:
//
//	              in place, buf holds the input        with From(src)
//	AllReduce     all of it                            src is as long as buf
//	Reduce        all of it                            buf is used on the root only
//	Scan, ExScan  all of it                            src is as long as buf
//	AllGather     in this rank's part                  src is this rank's part
//	Gather        root: in its part; others: all       src is this rank's part; buf is used on the root only
//	Scatter       root: a part for each rank           root: src has a part for each rank; buf gets one
//	ReduceScatter a part for each rank                 src has a part for each rank; buf gets one
//	AllToAll      a part for each rank                 src has a part for each rank
//
// The result is left where the input of the next collective of its kind is expected: in
// place, ReduceScatter fills this rank's part of buf, which AllGather then sends. Parts are
// equal, or as Counts says.
//
// The forms that begin with I start the collective and return at once; Request.Wait returns
// when it is done. With the option Persistent they return a request that can be started
// many times.

// AllReduce replaces buf, on every rank, by the reduction of all ranks' input (MPI_Allreduce).
// Every rank gets the same bits. Which algorithm runs, and therefore in which order it
// reduces, depends on the length and on the operator; the option Algorithm fixes it.
func AllReduce[T Element](ctx context.Context, c *Comm, buf []T, op Op, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, allReduce(&pl, buf, op), opts)
}

// IAllReduce is the non-blocking AllReduce (MPI_Iallreduce, and MPI_Allreduce_init with
// Persistent).
func IAllReduce[T Element](c *Comm, buf []T, op Op, opts ...CallOption) *Request {
	return c.request(allReduce(new(plan), buf, op), opts)
}

// allReduce fills pl. BenchmarkChecks uses it without a call.
func allReduce[T Element](pl *plan, buf []T, op Op) *plan {
	return reduction(pl, collective.VerbAllReduce, buf, op)
}

// reduction sets pl up for a collective that reduces.
func reduction[T Element](pl *plan, verb collective.Verb, buf []T, op Op) *plan {
	pl.verb, pl.dtype, pl.dst, pl.inPlace = verb, tensor.TypeOf[T](), tensor.Bytes(buf), true
	pl.count, pl.root, pl.op = len(buf), -1, op
	return pl
}

// exchange sets pl up for a collective that does not reduce.
func exchange[T Element](pl *plan, verb collective.Verb, buf []T, root int) *plan {
	pl.verb, pl.dtype, pl.dst, pl.inPlace = verb, tensor.TypeOf[T](), tensor.Bytes(buf), true
	pl.root = root
	return pl
}

// Reduce replaces the root's buf by the reduction of all ranks' input (MPI_Reduce). On other
// ranks buf stays as it is, and with From it is not used and may be nil of the right type.
func Reduce[T Element](ctx context.Context, c *Comm, buf []T, op Op, root int, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, reduceTo(&pl, buf, op, root), opts)
}

// IReduce is the non-blocking Reduce (MPI_Ireduce).
func IReduce[T Element](c *Comm, buf []T, op Op, root int, opts ...CallOption) *Request {
	return c.request(reduceTo(new(plan), buf, op, root), opts)
}

// reduceTo fills pl for Reduce.
func reduceTo[T Element](pl *plan, buf []T, op Op, root int) *plan {
	reduction(pl, collective.VerbReduce, buf, op)
	pl.root = atLeast0(root)
	return pl
}

// atLeast0 keeps a negative root out of range: -1 stands for "none" in a plan.
func atLeast0(root int) int {
	if root < 0 {
		return root - 1
	}
	return root
}

// rootGiven undoes atLeast0.
func rootGiven(root int) int {
	if root < 0 {
		return root + 1
	}
	return root
}

// Broadcast replaces buf, on every rank, by the root's (MPI_Bcast). From and Counts are
// refused: there is one buffer, equally long on all ranks.
func Broadcast[T Element](ctx context.Context, c *Comm, buf []T, root int, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, exchange(&pl, collective.VerbBroadcast, buf, atLeast0(root)), opts)
}

// IBroadcast is the non-blocking Broadcast (MPI_Ibcast).
func IBroadcast[T Element](c *Comm, buf []T, root int, opts ...CallOption) *Request {
	return c.request(exchange(new(plan), collective.VerbBroadcast, buf, atLeast0(root)), opts)
}

// AllGather leaves in buf, on every rank, the parts of all ranks in rank order
// (MPI_Allgather). Parts are equally long, or as Counts says, the same on all ranks
// (MPI_Allgatherv). There are no displacements: parts follow each other.
func AllGather[T Element](ctx context.Context, c *Comm, buf []T, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, exchange(&pl, collective.VerbAllGather, buf, -1), opts)
}

// IAllGather is the non-blocking AllGather (MPI_Iallgather, MPI_Iallgatherv).
func IAllGather[T Element](c *Comm, buf []T, opts ...CallOption) *Request {
	return c.request(exchange(new(plan), collective.VerbAllGather, buf, -1), opts)
}

// Gather leaves in buf, on the root, the parts of all ranks in rank order (MPI_Gather). Parts
// are equally long, or as the root's Counts says (MPI_Gatherv). Without From, buf is a rank's
// own part on ranks other than the root; on the root it holds the root's part in its position
// already.
func Gather[T Element](ctx context.Context, c *Comm, buf []T, root int, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, exchange(&pl, collective.VerbGather, buf, atLeast0(root)), opts)
}

// IGather is the non-blocking Gather (MPI_Igather, MPI_Igatherv).
func IGather[T Element](c *Comm, buf []T, root int, opts ...CallOption) *Request {
	return c.request(exchange(new(plan), collective.VerbGather, buf, atLeast0(root)), opts)
}

// Scatter sends part i of the root's input to rank i, which gets it in buf (MPI_Scatter).
// Parts are equally long, or as the root's Counts says (MPI_Scatterv). Without From the root's
// buf holds the parts of all ranks, and keeps its own.
func Scatter[T Element](ctx context.Context, c *Comm, buf []T, root int, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, exchange(&pl, collective.VerbScatter, buf, atLeast0(root)), opts)
}

// IScatter is the non-blocking Scatter (MPI_Iscatter, MPI_Iscatterv).
func IScatter[T Element](c *Comm, buf []T, root int, opts ...CallOption) *Request {
	return c.request(exchange(new(plan), collective.VerbScatter, buf, atLeast0(root)), opts)
}

// ReduceScatter leaves on rank i the reduction of all ranks' part i. Parts are as even as can
// be, the first ones longer by one element (see tensor.Chunk; MPI_Reduce_scatter_block wants
// them equal), or as Counts says, the same on all ranks (MPI_Reduce_scatter). In place the
// result replaces part i of buf, and the other parts stay as they are; MPI leaves it at the
// start of the buffer.
func ReduceScatter[T Element](ctx context.Context, c *Comm, buf []T, op Op, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, reduction(&pl, collective.VerbReduceScatter, buf, op), opts)
}

// IReduceScatter is the non-blocking ReduceScatter (MPI_Ireduce_scatter).
func IReduceScatter[T Element](c *Comm, buf []T, op Op, opts ...CallOption) *Request {
	return c.request(reduction(new(plan), collective.VerbReduceScatter, buf, op), opts)
}

// AllToAll sends part i of the input to rank i, and leaves in part i of buf what rank i sent
// here (MPI_Alltoall). All parts everywhere are equally long, or as Counts and SendCounts say
// (MPI_Alltoallv). In place the input is copied once, so that it can be overwritten.
func AllToAll[T Element](ctx context.Context, c *Comm, buf []T, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, exchange(&pl, collective.VerbAllToAll, buf, -1), opts)
}

// IAllToAll is the non-blocking AllToAll (MPI_Ialltoall, MPI_Ialltoallv).
func IAllToAll[T Element](c *Comm, buf []T, opts ...CallOption) *Request {
	return c.request(exchange(new(plan), collective.VerbAllToAll, buf, -1), opts)
}

// Scan replaces buf, on rank i, by the reduction of the input of ranks 0 to i (MPI_Scan, the
// inclusive scan). Mean divides by those i+1. Ranks get different results, so equal bits are
// promised from run to run only.
func Scan[T Element](ctx context.Context, c *Comm, buf []T, op Op, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, reduction(&pl, collective.VerbScan, buf, op), opts)
}

// IScan is the non-blocking Scan (MPI_Iscan).
func IScan[T Element](c *Comm, buf []T, op Op, opts ...CallOption) *Request {
	return c.request(reduction(new(plan), collective.VerbScan, buf, op), opts)
}

// ExScan replaces buf, on rank i, by the reduction of the input of ranks 0 to i-1 (MPI_Exscan,
// the exclusive scan). Rank 0 has none before it: its buf stays as it is. Mean divides by
// those i.
func ExScan[T Element](ctx context.Context, c *Comm, buf []T, op Op, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, reduction(&pl, collective.VerbExScan, buf, op), opts)
}

// IExScan is the non-blocking ExScan (MPI_Iexscan).
func IExScan[T Element](c *Comm, buf []T, op Op, opts ...CallOption) *Request {
	return c.request(reduction(new(plan), collective.VerbExScan, buf, op), opts)
}

// Barrier returns when every rank has called it (MPI_Barrier).
func (c *Comm) Barrier(ctx context.Context) error {
	var pl plan
	return c.execute(ctx, barrier(&pl), nil)
}

// IBarrier is the non-blocking Barrier (MPI_Ibarrier): its request is done when every rank has
// called it.
func (c *Comm) IBarrier(opts ...CallOption) *Request { return c.request(barrier(new(plan)), opts) }

// barrier fills pl. The element type is a formality: describe leaves it out.
func barrier(pl *plan) *plan {
	pl.verb, pl.dtype, pl.root, pl.inPlace = collective.VerbBarrier, tensor.Uint8, -1, true
	return pl
}

// gatherWords is AllGather on behalf of another call: it matches no AllGather, and its
// errors carry that call's name.
func (c *Comm) gatherWords(ctx context.Context, name string, dst, src []int64) error {
	var pl plan
	exchange(&pl, collective.VerbAllGather, dst, -1)
	pl.callName = name
	return c.execute(ctx, &pl, []CallOption{From(src)})
}
