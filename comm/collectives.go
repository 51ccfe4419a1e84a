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
	Sum        = reduce.Sum
	Prod       = reduce.Prod
	Min        = reduce.Min
	Max        = reduce.Max
	Mean       = reduce.Mean
	LogicalAnd = reduce.LogicalAnd
	LogicalOr  = reduce.LogicalOr
	LogicalXor = reduce.LogicalXor
	BitAnd     = reduce.BitAnd
	BitOr      = reduce.BitOr
	BitXor     = reduce.BitXor
	MinLoc     = reduce.MinLoc
	MaxLoc     = reduce.MaxLoc
)

// Loc pairs a value with an index, for MinLoc and MaxLoc.
type Loc[T tensor.LocValue] = tensor.Loc[T]

// The collectives below share these rules. All ranks of the communicator call the
// same one, with equal element type, count, root and operator; ranks that do not
// get fault.Mismatch naming both sides. Lengths are in elements. A call returns
// when this rank's part is done and its buffers are the caller's again, or with a
// *fault.Error. A deadline or cancel of ctx inside a collective revokes the
// communicator on every rank. A reduction leaves equal bits on all ranks, and on
// every run with as many ranks. dst and src must not overlap, unless the function
// says otherwise.

// AllReduce replaces buf, on every rank, by the reduction of all ranks' buf.
func AllReduce[T Element](ctx context.Context, c *Comm, buf []T, op Op) error {
	pl := allReduce(buf, buf, op)
	return c.do(ctx, &pl)
}

// AllReduceBy is AllReduce by the algorithm of that name, as Algorithm tells it,
// whatever the table would choose: so the order of folds can be kept for vectors
// of all sizes. An algorithm that cannot run here, on this operator, or is none,
// is fault.Misuse; ranks that name different ones get fault.Mismatch.
func AllReduceBy[T Element](ctx context.Context, c *Comm, algorithm string, buf []T, op Op) error {
	pl := allReduce(buf, buf, op)
	pl.force = algorithm
	return c.do(ctx, &pl)
}

// AllReduceTo is AllReduce of src into dst; src stays as it is.
func AllReduceTo[T Element](ctx context.Context, c *Comm, dst, src []T, op Op) error {
	pl := allReduce(dst, src, op)
	return c.do(ctx, &pl)
}

// IAllReduce starts AllReduce and returns at once.
func IAllReduce[T Element](c *Comm, buf []T, op Op) *Request { return c.start(allReduce(buf, buf, op)) }

// IAllReduceTo starts AllReduceTo and returns at once.
func IAllReduceTo[T Element](c *Comm, dst, src []T, op Op) *Request {
	return c.start(allReduce(dst, src, op))
}

func allReduce[T Element](dst, src []T, op Op) plan {
	s := tensor.Bytes(src)
	return plan{verb: collective.VerbAllReduce, dtype: tensor.TypeOf[T](), dst: tensor.Bytes(dst), src: s, count: len(src), root: -1, op: op, bytes: len(s)}
}

// Reduce leaves in dst, on the root, the reduction of all ranks' src. dst may be
// src; on other ranks it is not looked at.
func Reduce[T Element](ctx context.Context, c *Comm, dst, src []T, op Op, root int) error {
	pl := reduceTo(dst, src, op, root)
	return c.do(ctx, &pl)
}

// IReduce starts Reduce and returns at once.
func IReduce[T Element](c *Comm, dst, src []T, op Op, root int) *Request {
	return c.start(reduceTo(dst, src, op, root))
}

func reduceTo[T Element](dst, src []T, op Op, root int) plan {
	s := tensor.Bytes(src)
	return plan{verb: collective.VerbReduce, dtype: tensor.TypeOf[T](), dst: tensor.Bytes(dst), src: s, count: len(src), root: atLeast0(root), op: op, bytes: len(s)}
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

// Broadcast replaces buf, on every rank, by the root's.
func Broadcast[T Element](ctx context.Context, c *Comm, buf []T, root int) error {
	pl := broadcast(buf, root)
	return c.do(ctx, &pl)
}

// IBroadcast starts Broadcast and returns at once.
func IBroadcast[T Element](c *Comm, buf []T, root int) *Request { return c.start(broadcast(buf, root)) }

func broadcast[T Element](buf []T, root int) plan {
	b := tensor.Bytes(buf)
	return plan{verb: collective.VerbBroadcast, dtype: tensor.TypeOf[T](), dst: b, src: b, count: len(buf), root: atLeast0(root), bytes: len(b)}
}

// AllGather leaves in dst, on every rank, all ranks' src in rank order. src is
// equally long everywhere, and may be this rank's part of dst.
func AllGather[T Element](ctx context.Context, c *Comm, dst, src []T) error {
	pl := allGather(dst, src)
	return c.do(ctx, &pl)
}

// IAllGather starts AllGather and returns at once.
func IAllGather[T Element](c *Comm, dst, src []T) *Request { return c.start(allGather(dst, src)) }

func allGather[T Element](dst, src []T) plan {
	d := tensor.Bytes(dst)
	return plan{verb: collective.VerbAllGather, dtype: tensor.TypeOf[T](), dst: d, src: tensor.Bytes(src), count: len(src), root: -1, bytes: len(d)}
}

// AllGatherV is AllGather of counts[i] elements from each rank i; the counts are
// equal on all ranks.
func AllGatherV[T Element](ctx context.Context, c *Comm, dst, src []T, counts []int) error {
	pl := allGatherV(dst, src, counts)
	return c.do(ctx, &pl)
}

// IAllGatherV starts AllGatherV and returns at once.
func IAllGatherV[T Element](c *Comm, dst, src []T, counts []int) *Request {
	return c.start(allGatherV(dst, src, counts))
}

func allGatherV[T Element](dst, src []T, counts []int) plan {
	d := tensor.Bytes(dst)
	return plan{verb: collective.VerbAllGatherV, dtype: tensor.TypeOf[T](), dst: d, src: tensor.Bytes(src), count: len(dst), root: -1, counts: counts, bytes: len(d)}
}

// Gather leaves in dst, on the root, all ranks' src in rank order. src is equally
// long everywhere; the root's may be its part of dst. On other ranks dst is not
// looked at.
func Gather[T Element](ctx context.Context, c *Comm, dst, src []T, root int) error {
	pl := gather(c, dst, src, root)
	return c.do(ctx, &pl)
}

// IGather starts Gather and returns at once.
func IGather[T Element](c *Comm, dst, src []T, root int) *Request {
	return c.start(gather(c, dst, src, root))
}

func gather[T Element](c *Comm, dst, src []T, root int) plan {
	s := tensor.Bytes(src)
	return plan{verb: collective.VerbGather, dtype: tensor.TypeOf[T](), dst: tensor.Bytes(dst), src: s, count: len(src), root: atLeast0(root), bytes: c.Size() * len(s)}
}

// GatherV is Gather of counts[i] elements from each rank i. On ranks other than
// the root, dst and counts are not looked at.
func GatherV[T Element](ctx context.Context, c *Comm, dst, src []T, counts []int, root int) error {
	pl := gatherV(dst, src, counts, root)
	return c.do(ctx, &pl)
}

// IGatherV starts GatherV and returns at once.
func IGatherV[T Element](c *Comm, dst, src []T, counts []int, root int) *Request {
	return c.start(gatherV(dst, src, counts, root))
}

func gatherV[T Element](dst, src []T, counts []int, root int) plan {
	return plan{verb: collective.VerbGatherV, dtype: tensor.TypeOf[T](), dst: tensor.Bytes(dst), src: tensor.Bytes(src), count: -1, root: atLeast0(root), counts: counts}
}

// Scatter leaves in dst, on rank i, part i of the root's src. dst is equally long
// everywhere; the root's may be its part of src. On other ranks src is not looked at.
func Scatter[T Element](ctx context.Context, c *Comm, dst, src []T, root int) error {
	pl := scatter(c, dst, src, root)
	return c.do(ctx, &pl)
}

// IScatter starts Scatter and returns at once.
func IScatter[T Element](c *Comm, dst, src []T, root int) *Request {
	return c.start(scatter(c, dst, src, root))
}

func scatter[T Element](c *Comm, dst, src []T, root int) plan {
	d := tensor.Bytes(dst)
	return plan{verb: collective.VerbScatter, dtype: tensor.TypeOf[T](), dst: d, src: tensor.Bytes(src), count: len(dst), root: atLeast0(root), bytes: c.Size() * len(d)}
}

// ScatterV is Scatter of counts[i] elements to each rank i. On ranks other than
// the root, src and counts are not looked at.
func ScatterV[T Element](ctx context.Context, c *Comm, dst, src []T, counts []int, root int) error {
	pl := scatterV(dst, src, counts, root)
	return c.do(ctx, &pl)
}

// IScatterV starts ScatterV and returns at once.
func IScatterV[T Element](c *Comm, dst, src []T, counts []int, root int) *Request {
	return c.start(scatterV(dst, src, counts, root))
}

func scatterV[T Element](dst, src []T, counts []int, root int) plan {
	return plan{verb: collective.VerbScatterV, dtype: tensor.TypeOf[T](), dst: tensor.Bytes(dst), src: tensor.Bytes(src), count: -1, root: atLeast0(root), counts: counts}
}

// ReduceScatter leaves in dst, on rank i, the reduction of all ranks' part i of
// src. Parts are as even as can be, the first ones longer by one element: see
// collective.Chunk. src stays as it is, unless dst is a part of it.
func ReduceScatter[T Element](ctx context.Context, c *Comm, dst, src []T, op Op) error {
	pl := reduceScatter(dst, src, op)
	return c.do(ctx, &pl)
}

// IReduceScatter starts ReduceScatter and returns at once.
func IReduceScatter[T Element](c *Comm, dst, src []T, op Op) *Request {
	return c.start(reduceScatter(dst, src, op))
}

func reduceScatter[T Element](dst, src []T, op Op) plan {
	s := tensor.Bytes(src)
	return plan{verb: collective.VerbReduceScatter, dtype: tensor.TypeOf[T](), dst: tensor.Bytes(dst), src: s, count: len(src), root: -1, op: op, bytes: len(s)}
}

// ReduceScatterV is ReduceScatter with parts of counts[i] elements; the counts
// are equal on all ranks.
func ReduceScatterV[T Element](ctx context.Context, c *Comm, dst, src []T, counts []int, op Op) error {
	pl := reduceScatterV(dst, src, counts, op)
	return c.do(ctx, &pl)
}

// IReduceScatterV starts ReduceScatterV and returns at once.
func IReduceScatterV[T Element](c *Comm, dst, src []T, counts []int, op Op) *Request {
	return c.start(reduceScatterV(dst, src, counts, op))
}

func reduceScatterV[T Element](dst, src []T, counts []int, op Op) plan {
	s := tensor.Bytes(src)
	return plan{verb: collective.VerbReduceScatterV, dtype: tensor.TypeOf[T](), dst: tensor.Bytes(dst), src: s, count: len(src), root: -1, counts: counts, op: op, bytes: len(s)}
}

// AllToAll sends part i of src to rank i, and leaves in part i of dst what rank i
// sent here. All parts everywhere are equally long. dst may be src.
func AllToAll[T Element](ctx context.Context, c *Comm, dst, src []T) error {
	pl := allToAll(dst, src)
	return c.do(ctx, &pl)
}

// IAllToAll starts AllToAll and returns at once.
func IAllToAll[T Element](c *Comm, dst, src []T) *Request { return c.start(allToAll(dst, src)) }

func allToAll[T Element](dst, src []T) plan {
	s := tensor.Bytes(src)
	return plan{verb: collective.VerbAllToAll, dtype: tensor.TypeOf[T](), dst: tensor.Bytes(dst), src: s, count: len(src), root: -1, bytes: len(s)}
}

// AllToAllV is AllToAll of sends[i] elements to each rank i, and recvs[i] from
// it. What a rank sends another must be what that one receives.
func AllToAllV[T Element](ctx context.Context, c *Comm, dst, src []T, recvs, sends []int) error {
	pl := allToAllV(dst, src, recvs, sends)
	return c.do(ctx, &pl)
}

// IAllToAllV starts AllToAllV and returns at once.
func IAllToAllV[T Element](c *Comm, dst, src []T, recvs, sends []int) *Request {
	return c.start(allToAllV(dst, src, recvs, sends))
}

func allToAllV[T Element](dst, src []T, recvs, sends []int) plan {
	return plan{verb: collective.VerbAllToAllV, dtype: tensor.TypeOf[T](), dst: tensor.Bytes(dst), src: tensor.Bytes(src), count: -1, root: -1, counts: recvs, sends: sends}
}

// Scan replaces buf, on rank i, by the reduction of the buf of ranks 0 to i (MPI's
// inclusive scan). Mean divides by those i+1.
func Scan[T Element](ctx context.Context, c *Comm, buf []T, op Op) error {
	pl := scan(collective.VerbScan, buf, buf, op)
	return c.do(ctx, &pl)
}

// ScanTo is Scan of src into dst; src stays as it is.
func ScanTo[T Element](ctx context.Context, c *Comm, dst, src []T, op Op) error {
	pl := scan(collective.VerbScan, dst, src, op)
	return c.do(ctx, &pl)
}

// IScan starts Scan and returns at once.
func IScan[T Element](c *Comm, buf []T, op Op) *Request {
	return c.start(scan(collective.VerbScan, buf, buf, op))
}

// IScanTo starts ScanTo and returns at once.
func IScanTo[T Element](c *Comm, dst, src []T, op Op) *Request {
	return c.start(scan(collective.VerbScan, dst, src, op))
}

// ExScan replaces buf, on rank i, by the reduction of the buf of ranks 0 to i-1
// (MPI's exclusive scan). Before rank 0 there is none: its buf stays as it is. Mean
// divides by those i.
func ExScan[T Element](ctx context.Context, c *Comm, buf []T, op Op) error {
	pl := scan(collective.VerbExScan, buf, buf, op)
	return c.do(ctx, &pl)
}

// ExScanTo is ExScan of src into dst; src stays as it is, and so does rank 0's dst.
func ExScanTo[T Element](ctx context.Context, c *Comm, dst, src []T, op Op) error {
	pl := scan(collective.VerbExScan, dst, src, op)
	return c.do(ctx, &pl)
}

// IExScan starts ExScan and returns at once.
func IExScan[T Element](c *Comm, buf []T, op Op) *Request {
	return c.start(scan(collective.VerbExScan, buf, buf, op))
}

// IExScanTo starts ExScanTo and returns at once.
func IExScanTo[T Element](c *Comm, dst, src []T, op Op) *Request {
	return c.start(scan(collective.VerbExScan, dst, src, op))
}

func scan[T Element](verb collective.Verb, dst, src []T, op Op) plan {
	s := tensor.Bytes(src)
	return plan{verb: verb, dtype: tensor.TypeOf[T](), dst: tensor.Bytes(dst), src: s, count: len(src), root: -1, op: op, bytes: len(s)}
}

// Barrier returns when every rank has called it.
func Barrier(ctx context.Context, c *Comm) error {
	pl := barrier()
	return c.do(ctx, &pl)
}

// IBarrier starts Barrier and returns at once.
func IBarrier(c *Comm) *Request { return c.start(barrier()) }

func barrier() plan {
	return plan{verb: collective.VerbBarrier, dtype: tensor.Uint8, count: 0, root: -1}
}

// gatherWords is AllGather on behalf of another call: it meets no AllGather, and
// errors bear that call's name.
func (c *Comm) gatherWords(ctx context.Context, name string, dst, src []int64) error {
	pl := allGather(dst, src)
	pl.as = name
	return c.do(ctx, &pl)
}
