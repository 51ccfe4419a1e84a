package comm

import (
	"context"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// An Op is a reduction operator. Package reduce defines the result of each operator for each
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
	// Mean is Sum divided by the number of inputs. It divides once, after the last addition. It
	// needs floats or complex numbers.
	Mean = reduce.Mean
	// LogicalAnd, LogicalOr and LogicalXor need integers or bool. Every value except 0 is true.
	LogicalAnd = reduce.LogicalAnd
	LogicalOr  = reduce.LogicalOr
	LogicalXor = reduce.LogicalXor
	// BitAnd, BitOr and BitXor need integers or bool.
	BitAnd = reduce.BitAnd
	BitOr  = reduce.BitOr
	BitXor = reduce.BitXor
	// MinLoc and MaxLoc need tensor.Loc elements. The result is the smallest or largest value, with
	// its index. If several inputs have that value, the lowest index wins.
	MinLoc = reduce.MinLoc
	MaxLoc = reduce.MaxLoc
)

// The collectives below share these rules.
//
// All ranks of the communicator make the same call, with equal element type, count, root and
// operator. If two ranks make different calls, all ranks get fault.Mismatch, which names both
// calls. Lengths are in elements. A call returns when this rank's part is done and the caller may
// use the buffers again, or it returns a *fault.Error. A deadline or cancellation of ctx inside a
// collective revokes the communicator on every rank. AllReduce gives equal bits on all ranks. Every
// reduction gives the same bits in every run with the same number of ranks.
//
// Every collective works in place on buf. With From it reads a separate input, and buf receives the
// result:
//
//	              in place, buf holds the input   with From(src)
//	AllReduce     all of it                       src is as long as buf
//	Reduce        all of it                       buf is used on the root only
//	Scan, ExScan  all of it                       src is as long as buf
//	AllGather     in this rank's part             src is this rank's part
//	Gather        root: in its part; others: all  src is this rank's part; only the root uses buf
//	Scatter       root: a part for each rank      root: src has a part for each rank; buf gets one
//	ReduceScatter a part for each rank            src has a part for each rank; buf gets one
//	AllToAll      a part for each rank            src has a part for each rank
//
// In place, each collective leaves its result where a following collective expects its input. For
// example, ReduceScatter fills this rank's part of buf, and AllGather then sends that part. Parts
// are equal, or have the lengths in Counts.
//
// The functions whose names begin with I start the collective and return at once; Request.Wait
// returns when it is done. With the option Persistent they return a request that can be started
// many times.

// AllReduce replaces buf, on every rank, by the reduction of the inputs of all ranks
// (MPI_Allreduce). Every rank gets the same bits. The algorithm, and therefore the order of the
// reduction, depends on the length and on the operator. The option Algorithm fixes the algorithm.
func AllReduce[T Element](ctx context.Context, c *Comm, buf []T, op Op, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, allReduce(&pl, buf, op), opts)
}

// IAllReduce is the non-blocking AllReduce (MPI_Iallreduce, and MPI_Allreduce_init with
// Persistent).
func IAllReduce[T Element](c *Comm, buf []T, op Op, opts ...CallOption) *Request {
	return c.request(allReduce(new(plan), buf, op), opts)
}

// allReduce fills pl for AllReduce. BenchmarkChecks calls it directly.
func allReduce[T Element](pl *plan, buf []T, op Op) *plan {
	return reduction(pl, collective.VerbAllReduce, buf, op)
}

// reduction fills pl for a collective that reduces.
func reduction[T Element](pl *plan, verb collective.Verb, buf []T, op Op) *plan {
	pl.verb, pl.dtype, pl.dst, pl.root, pl.inPlace = verb, tensor.TypeOf[T](), tensor.Bytes(buf), -1, true
	pl.src, pl.op = pl.dst, op
	return pl
}

// exchange fills pl for a collective that does not reduce.
func exchange[T Element](pl *plan, verb collective.Verb, buf []T, root int) *plan {
	pl.verb, pl.dtype, pl.dst, pl.root, pl.inPlace = verb, tensor.TypeOf[T](), tensor.Bytes(buf), root, true
	pl.src = pl.dst
	return pl
}

// Reduce replaces the root's buf by the reduction of the inputs of all ranks (MPI_Reduce). On other
// ranks buf stays unchanged. With From, only the root uses buf; other ranks may pass a nil slice of
// the right type.
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

// atLeast0 shifts a negative root down by one. In a plan -1 means "no root", and prepare refuses
// only roots below that as out of range.
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

// Broadcast replaces the contents of buf, on every rank, by the contents of the root's buf
// (MPI_Bcast). buf must have the same length on all ranks. Broadcast refuses From and Counts.
func Broadcast[T Element](ctx context.Context, c *Comm, buf []T, root int, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, exchange(&pl, collective.VerbBroadcast, buf, atLeast0(root)), opts)
}

// IBroadcast is the non-blocking Broadcast (MPI_Ibcast).
func IBroadcast[T Element](c *Comm, buf []T, root int, opts ...CallOption) *Request {
	return c.request(exchange(new(plan), collective.VerbBroadcast, buf, atLeast0(root)), opts)
}

// AllGather leaves in buf, on every rank, the parts of all ranks in rank order (MPI_Allgather).
// Parts have equal lengths, or the lengths in Counts, which must be the same on all ranks
// (MPI_Allgatherv). There are no displacements: each part begins where the part before it ends.
func AllGather[T Element](ctx context.Context, c *Comm, buf []T, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, exchange(&pl, collective.VerbAllGather, buf, -1), opts)
}

// IAllGather is the non-blocking AllGather (MPI_Iallgather, MPI_Iallgatherv).
func IAllGather[T Element](c *Comm, buf []T, opts ...CallOption) *Request {
	return c.request(exchange(new(plan), collective.VerbAllGather, buf, -1), opts)
}

// Gather leaves in buf, on the root, the parts of all ranks in rank order (MPI_Gather). Parts have
// equal lengths, or the lengths in the root's Counts (MPI_Gatherv). Without From, the root's part
// must already be at its position in the root's buf. The buf of another rank is that rank's part.
func Gather[T Element](ctx context.Context, c *Comm, buf []T, root int, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, exchange(&pl, collective.VerbGather, buf, atLeast0(root)), opts)
}

// IGather is the non-blocking Gather (MPI_Igather, MPI_Igatherv).
func IGather[T Element](c *Comm, buf []T, root int, opts ...CallOption) *Request {
	return c.request(exchange(new(plan), collective.VerbGather, buf, atLeast0(root)), opts)
}

// Scatter sends part i of the root's input to rank i, which gets it in buf (MPI_Scatter).
// Parts have equal lengths, or the lengths in the root's Counts (MPI_Scatterv). Without From, the
// root's buf holds the parts of all ranks, and stays unchanged.
func Scatter[T Element](ctx context.Context, c *Comm, buf []T, root int, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, exchange(&pl, collective.VerbScatter, buf, atLeast0(root)), opts)
}

// IScatter is the non-blocking Scatter (MPI_Iscatter, MPI_Iscatterv).
func IScatter[T Element](c *Comm, buf []T, root int, opts ...CallOption) *Request {
	return c.request(exchange(new(plan), collective.VerbScatter, buf, atLeast0(root)), opts)
}

// ReduceScatter leaves on rank i the reduction of all ranks' part i. Without Counts, the lengths of
// the parts differ by at most one element, and the longer parts come first; see tensor.Chunk.
// (MPI_Reduce_scatter_block requires equal parts.) With Counts, which must be the same on all
// ranks, the parts have those lengths (MPI_Reduce_scatter). In place, the result replaces part i of
// buf, and the other parts stay unchanged; MPI puts the result at the start of the buffer.
func ReduceScatter[T Element](ctx context.Context, c *Comm, buf []T, op Op, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, reduction(&pl, collective.VerbReduceScatter, buf, op), opts)
}

// IReduceScatter is the non-blocking ReduceScatter (MPI_Ireduce_scatter).
func IReduceScatter[T Element](c *Comm, buf []T, op Op, opts ...CallOption) *Request {
	return c.request(reduction(new(plan), collective.VerbReduceScatter, buf, op), opts)
}

// AllToAll sends part i of the input to rank i, and leaves in part i of buf what rank i sent to
// this rank (MPI_Alltoall). All parts on all ranks have the same length, or the lengths in Counts
// and SendCounts (MPI_Alltoallv). In place, AllToAll copies the input once before it overwrites
// buf.
func AllToAll[T Element](ctx context.Context, c *Comm, buf []T, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, exchange(&pl, collective.VerbAllToAll, buf, -1), opts)
}

// IAllToAll is the non-blocking AllToAll (MPI_Ialltoall, MPI_Ialltoallv).
func IAllToAll[T Element](c *Comm, buf []T, opts ...CallOption) *Request {
	return c.request(exchange(new(plan), collective.VerbAllToAll, buf, -1), opts)
}

// Scan replaces buf, on rank i, by the reduction of the input of ranks 0 to i (MPI_Scan, the
// inclusive scan). Mean divides by i+1. Ranks get different results. Each rank gets the same bits
// in every run.
func Scan[T Element](ctx context.Context, c *Comm, buf []T, op Op, opts ...CallOption) error {
	var pl plan
	return c.execute(ctx, reduction(&pl, collective.VerbScan, buf, op), opts)
}

// IScan is the non-blocking Scan (MPI_Iscan).
func IScan[T Element](c *Comm, buf []T, op Op, opts ...CallOption) *Request {
	return c.request(reduction(new(plan), collective.VerbScan, buf, op), opts)
}

// ExScan replaces buf, on rank i, by the reduction of the input of ranks 0 to i-1 (MPI_Exscan,
// the exclusive scan). Mean divides by i. On rank 0, buf stays unchanged.
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

// IBarrier is the non-blocking Barrier (MPI_Ibarrier). The request is done when every rank has
// called Barrier or IBarrier.
func (c *Comm) IBarrier(opts ...CallOption) *Request { return c.request(barrier(new(plan)), opts) }

// barrier fills pl for Barrier. A plan needs an element type, but describe omits it for a barrier.
func barrier(pl *plan) *plan {
	pl.verb, pl.dtype, pl.root, pl.inPlace = collective.VerbBarrier, tensor.Uint8, -1, true
	return pl
}

// gatherWords runs an AllGather on behalf of another call. The parameter name is the name of that
// call, for errors.
func (c *Comm) gatherWords(ctx context.Context, name string, dst, src []int64) error {
	return c.executeAs(ctx, name, exchange(new(plan), collective.VerbAllGather, dst, -1), From(src))
}

// executeAs carries out a collective on behalf of another call with the given name. The collective
// does not match a collective of the program. Its errors report the given name.
func (c *Comm) executeAs(ctx context.Context, name string, pl *plan, opts ...CallOption) error {
	pl.callName = name
	return c.execute(ctx, pl, opts)
}
