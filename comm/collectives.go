package comm

import (
	"context"

	"github.com/tutti-go/tutti/collective"
	"github.com/tutti-go/tutti/fault"
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
	var pl plan
	return c.execute(ctx, allReduce(&pl, buf, buf, op))
}

// AllReduceBy is AllReduce by the algorithm of that name, as Algorithm tells it,
// whatever the table would choose: so the order of folds can be kept for vectors
// of all sizes. An algorithm that cannot run here, on this operator, or is none,
// is fault.Misuse; ranks that name different ones get fault.Mismatch.
func AllReduceBy[T Element](ctx context.Context, c *Comm, algorithm string, buf []T, op Op) error {
	var pl plan
	allReduce(&pl, buf, buf, op)
	pl.forced = algorithm
	return c.execute(ctx, &pl)
}

// AllReduceListBy is AllReduceBy of several vectors as one operation, which replaces
// each of them; they may lie anywhere, but must not overlap, which is not checked.
// Every rank gives as many, and equally long ones. They are given as their bytes, whole elements of
// type d and aligned for it, because who has lists of vectors often knows their type
// only then. Nothing is copied beforehand: each vector is gathered from, and its
// result put, where it lies, while other parts of the list travel. Results are to the
// bit those of AllReduceBy of each vector alone. Algorithms "ring" and "shared" can do
// that; naming another is fault.Misuse. list is the caller's again at the return.
func AllReduceListBy(ctx context.Context, c *Comm, algorithm string, d tensor.DType, list [][]byte, op Op) error {
	pl := plan{verb: collective.VerbAllReduce, dtype: d, vectors: list, root: -1, op: op, forced: algorithm}
	if err := pl.measure(c); err != nil {
		return err
	}
	return c.execute(ctx, &pl)
}

// measure counts the elements of a list, and refuses what is not one.
func (pl *plan) measure(c *Comm) error {
	name := pl.verb.String()
	if !pl.dtype.Valid() {
		return c.misuse(name, "elements of type %v", pl.dtype)
	}
	es := pl.dtype.Size()
	for i, v := range pl.vectors {
		if len(v)%es != 0 || !tensor.AlignedFor(pl.dtype, v) {
			return c.misuse(name, "vector %d of the list, of %d bytes, is not whole elements of %v, aligned for it", i, len(v), pl.dtype)
		}
		pl.bytes += len(v)
	}
	pl.count = pl.bytes / es
	a, err := collective.Find(pl.verb, pl.forced)
	if err == nil && !a.SupportsLists() {
		err = fault.New(fault.Misuse, name, c.rt.rank, "algorithm %s does not take a list of vectors; ring and shared do", pl.forced)
	}
	if err != nil {
		return c.withOp(name, err)
	}
	if pl.vectors == nil {
		pl.vectors = [][]byte{}
	}
	return nil
}

// AllReduceTo is AllReduce of src into dst; src stays as it is.
func AllReduceTo[T Element](ctx context.Context, c *Comm, dst, src []T, op Op) error {
	var pl plan
	return c.execute(ctx, allReduce(&pl, dst, src, op))
}

// IAllReduce starts AllReduce and returns at once.
func IAllReduce[T Element](c *Comm, buf []T, op Op) *Request {
	return c.startRequest(allReduce(new(plan), buf, buf, op))
}

// IAllReduceTo starts AllReduceTo and returns at once.
func IAllReduceTo[T Element](c *Comm, dst, src []T, op Op) *Request {
	return c.startRequest(allReduce(new(plan), dst, src, op))
}

func allReduce[T Element](pl *plan, dst, src []T, op Op) *plan {
	s := tensor.Bytes(src)
	pl.verb, pl.dtype, pl.dst, pl.src = collective.VerbAllReduce, tensor.TypeOf[T](), tensor.Bytes(dst), s
	pl.count, pl.root, pl.op, pl.bytes = len(src), -1, op, len(s)
	return pl
}

// Reduce leaves in dst, on the root, the reduction of all ranks' src. dst may be
// src; on other ranks it is not looked at.
func Reduce[T Element](ctx context.Context, c *Comm, dst, src []T, op Op, root int) error {
	var pl plan
	return c.execute(ctx, reduceTo(&pl, dst, src, op, root))
}

// IReduce starts Reduce and returns at once.
func IReduce[T Element](c *Comm, dst, src []T, op Op, root int) *Request {
	return c.startRequest(reduceTo(new(plan), dst, src, op, root))
}

func reduceTo[T Element](pl *plan, dst, src []T, op Op, root int) *plan {
	s := tensor.Bytes(src)
	pl.verb, pl.dtype, pl.dst, pl.src = collective.VerbReduce, tensor.TypeOf[T](), tensor.Bytes(dst), s
	pl.count, pl.root, pl.op, pl.bytes = len(src), atLeast0(root), op, len(s)
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

// Broadcast replaces buf, on every rank, by the root's.
func Broadcast[T Element](ctx context.Context, c *Comm, buf []T, root int) error {
	var pl plan
	return c.execute(ctx, broadcast(&pl, buf, root))
}

// IBroadcast starts Broadcast and returns at once.
func IBroadcast[T Element](c *Comm, buf []T, root int) *Request {
	return c.startRequest(broadcast(new(plan), buf, root))
}

func broadcast[T Element](pl *plan, buf []T, root int) *plan {
	b := tensor.Bytes(buf)
	pl.verb, pl.dtype, pl.dst, pl.src = collective.VerbBroadcast, tensor.TypeOf[T](), b, b
	pl.count, pl.root, pl.bytes = len(buf), atLeast0(root), len(b)
	return pl
}

// AllGather leaves in dst, on every rank, all ranks' src in rank order. src is
// equally long everywhere, and may be this rank's part of dst.
func AllGather[T Element](ctx context.Context, c *Comm, dst, src []T) error {
	var pl plan
	return c.execute(ctx, allGather(&pl, dst, src))
}

// IAllGather starts AllGather and returns at once.
func IAllGather[T Element](c *Comm, dst, src []T) *Request {
	return c.startRequest(allGather(new(plan), dst, src))
}

func allGather[T Element](pl *plan, dst, src []T) *plan {
	d := tensor.Bytes(dst)
	pl.verb, pl.dtype, pl.dst, pl.src = collective.VerbAllGather, tensor.TypeOf[T](), d, tensor.Bytes(src)
	pl.count, pl.root, pl.bytes = len(src), -1, len(d)
	return pl
}

// AllGatherV is AllGather of counts[i] elements from each rank i; the counts are
// equal on all ranks.
func AllGatherV[T Element](ctx context.Context, c *Comm, dst, src []T, counts []int) error {
	var pl plan
	return c.execute(ctx, allGatherV(&pl, dst, src, counts))
}

// IAllGatherV starts AllGatherV and returns at once.
func IAllGatherV[T Element](c *Comm, dst, src []T, counts []int) *Request {
	return c.startRequest(allGatherV(new(plan), dst, src, counts))
}

func allGatherV[T Element](pl *plan, dst, src []T, counts []int) *plan {
	d := tensor.Bytes(dst)
	pl.verb, pl.dtype, pl.dst, pl.src = collective.VerbAllGatherV, tensor.TypeOf[T](), d, tensor.Bytes(src)
	pl.count, pl.root, pl.counts, pl.bytes = len(dst), -1, counts, len(d)
	return pl
}

// Gather leaves in dst, on the root, all ranks' src in rank order. src is equally
// long everywhere; the root's may be its part of dst. On other ranks dst is not
// looked at.
func Gather[T Element](ctx context.Context, c *Comm, dst, src []T, root int) error {
	var pl plan
	return c.execute(ctx, gather(&pl, c, dst, src, root))
}

// IGather starts Gather and returns at once.
func IGather[T Element](c *Comm, dst, src []T, root int) *Request {
	return c.startRequest(gather(new(plan), c, dst, src, root))
}

func gather[T Element](pl *plan, c *Comm, dst, src []T, root int) *plan {
	s := tensor.Bytes(src)
	pl.verb, pl.dtype, pl.dst, pl.src = collective.VerbGather, tensor.TypeOf[T](), tensor.Bytes(dst), s
	pl.count, pl.root, pl.bytes = len(src), atLeast0(root), c.Size()*len(s)
	return pl
}

// GatherV is Gather of counts[i] elements from each rank i. On ranks other than
// the root, dst and counts are not looked at.
func GatherV[T Element](ctx context.Context, c *Comm, dst, src []T, counts []int, root int) error {
	var pl plan
	return c.execute(ctx, gatherV(&pl, dst, src, counts, root))
}

// IGatherV starts GatherV and returns at once.
func IGatherV[T Element](c *Comm, dst, src []T, counts []int, root int) *Request {
	return c.startRequest(gatherV(new(plan), dst, src, counts, root))
}

func gatherV[T Element](pl *plan, dst, src []T, counts []int, root int) *plan {
	pl.verb, pl.dtype, pl.dst, pl.src = collective.VerbGatherV, tensor.TypeOf[T](), tensor.Bytes(dst), tensor.Bytes(src)
	pl.count, pl.root, pl.counts = -1, atLeast0(root), counts
	return pl
}

// Scatter leaves in dst, on rank i, part i of the root's src. dst is equally long
// everywhere; the root's may be its part of src. On other ranks src is not looked at.
func Scatter[T Element](ctx context.Context, c *Comm, dst, src []T, root int) error {
	var pl plan
	return c.execute(ctx, scatter(&pl, c, dst, src, root))
}

// IScatter starts Scatter and returns at once.
func IScatter[T Element](c *Comm, dst, src []T, root int) *Request {
	return c.startRequest(scatter(new(plan), c, dst, src, root))
}

func scatter[T Element](pl *plan, c *Comm, dst, src []T, root int) *plan {
	d := tensor.Bytes(dst)
	pl.verb, pl.dtype, pl.dst, pl.src = collective.VerbScatter, tensor.TypeOf[T](), d, tensor.Bytes(src)
	pl.count, pl.root, pl.bytes = len(dst), atLeast0(root), c.Size()*len(d)
	return pl
}

// ScatterV is Scatter of counts[i] elements to each rank i. On ranks other than
// the root, src and counts are not looked at.
func ScatterV[T Element](ctx context.Context, c *Comm, dst, src []T, counts []int, root int) error {
	var pl plan
	return c.execute(ctx, scatterV(&pl, dst, src, counts, root))
}

// IScatterV starts ScatterV and returns at once.
func IScatterV[T Element](c *Comm, dst, src []T, counts []int, root int) *Request {
	return c.startRequest(scatterV(new(plan), dst, src, counts, root))
}

func scatterV[T Element](pl *plan, dst, src []T, counts []int, root int) *plan {
	pl.verb, pl.dtype, pl.dst, pl.src = collective.VerbScatterV, tensor.TypeOf[T](), tensor.Bytes(dst), tensor.Bytes(src)
	pl.count, pl.root, pl.counts = -1, atLeast0(root), counts
	return pl
}

// ReduceScatter leaves in dst, on rank i, the reduction of all ranks' part i of
// src. Parts are as even as can be, the first ones longer by one element: see
// tensor.Chunk. src stays as it is, unless dst is a part of it.
func ReduceScatter[T Element](ctx context.Context, c *Comm, dst, src []T, op Op) error {
	var pl plan
	return c.execute(ctx, reduceScatter(&pl, dst, src, op))
}

// IReduceScatter starts ReduceScatter and returns at once.
func IReduceScatter[T Element](c *Comm, dst, src []T, op Op) *Request {
	return c.startRequest(reduceScatter(new(plan), dst, src, op))
}

func reduceScatter[T Element](pl *plan, dst, src []T, op Op) *plan {
	s := tensor.Bytes(src)
	pl.verb, pl.dtype, pl.dst, pl.src = collective.VerbReduceScatter, tensor.TypeOf[T](), tensor.Bytes(dst), s
	pl.count, pl.root, pl.op, pl.bytes = len(src), -1, op, len(s)
	return pl
}

// ReduceScatterV is ReduceScatter with parts of counts[i] elements; the counts
// are equal on all ranks.
func ReduceScatterV[T Element](ctx context.Context, c *Comm, dst, src []T, counts []int, op Op) error {
	var pl plan
	return c.execute(ctx, reduceScatterV(&pl, dst, src, counts, op))
}

// ReduceScatterVBy is ReduceScatterV by the algorithm of that name, as AllReduceBy is
// AllReduce: so the order of folds can be kept for parts of all sizes.
func ReduceScatterVBy[T Element](ctx context.Context, c *Comm, algorithm string, dst, src []T, counts []int, op Op) error {
	var pl plan
	reduceScatterV(&pl, dst, src, counts, op)
	pl.forced = algorithm
	return c.execute(ctx, &pl)
}

// IReduceScatterV starts ReduceScatterV and returns at once.
func IReduceScatterV[T Element](c *Comm, dst, src []T, counts []int, op Op) *Request {
	return c.startRequest(reduceScatterV(new(plan), dst, src, counts, op))
}

func reduceScatterV[T Element](pl *plan, dst, src []T, counts []int, op Op) *plan {
	s := tensor.Bytes(src)
	pl.verb, pl.dtype, pl.dst, pl.src = collective.VerbReduceScatterV, tensor.TypeOf[T](), tensor.Bytes(dst), s
	pl.count, pl.root, pl.counts, pl.op, pl.bytes = len(src), -1, counts, op, len(s)
	return pl
}

// AllToAll sends part i of src to rank i, and leaves in part i of dst what rank i
// sent here. All parts everywhere are equally long. dst may be src.
func AllToAll[T Element](ctx context.Context, c *Comm, dst, src []T) error {
	var pl plan
	return c.execute(ctx, allToAll(&pl, dst, src))
}

// IAllToAll starts AllToAll and returns at once.
func IAllToAll[T Element](c *Comm, dst, src []T) *Request {
	return c.startRequest(allToAll(new(plan), dst, src))
}

func allToAll[T Element](pl *plan, dst, src []T) *plan {
	s := tensor.Bytes(src)
	pl.verb, pl.dtype, pl.dst, pl.src = collective.VerbAllToAll, tensor.TypeOf[T](), tensor.Bytes(dst), s
	pl.count, pl.root, pl.bytes = len(src), -1, len(s)
	return pl
}

// AllToAllV is AllToAll of sends[i] elements to each rank i, and recvs[i] from
// it. What a rank sends another must be what that one receives.
func AllToAllV[T Element](ctx context.Context, c *Comm, dst, src []T, recvs, sends []int) error {
	var pl plan
	return c.execute(ctx, allToAllV(&pl, dst, src, recvs, sends))
}

// IAllToAllV starts AllToAllV and returns at once.
func IAllToAllV[T Element](c *Comm, dst, src []T, recvs, sends []int) *Request {
	return c.startRequest(allToAllV(new(plan), dst, src, recvs, sends))
}

func allToAllV[T Element](pl *plan, dst, src []T, recvs, sends []int) *plan {
	pl.verb, pl.dtype, pl.dst, pl.src = collective.VerbAllToAllV, tensor.TypeOf[T](), tensor.Bytes(dst), tensor.Bytes(src)
	pl.count, pl.root, pl.counts, pl.sends = -1, -1, recvs, sends
	return pl
}

// Scan replaces buf, on rank i, by the reduction of the buf of ranks 0 to i (MPI's
// inclusive scan). Mean divides by those i+1.
func Scan[T Element](ctx context.Context, c *Comm, buf []T, op Op) error {
	var pl plan
	return c.execute(ctx, scan(&pl, collective.VerbScan, buf, buf, op))
}

// ScanTo is Scan of src into dst; src stays as it is.
func ScanTo[T Element](ctx context.Context, c *Comm, dst, src []T, op Op) error {
	var pl plan
	return c.execute(ctx, scan(&pl, collective.VerbScan, dst, src, op))
}

// IScan starts Scan and returns at once.
func IScan[T Element](c *Comm, buf []T, op Op) *Request {
	return c.startRequest(scan(new(plan), collective.VerbScan, buf, buf, op))
}

// IScanTo starts ScanTo and returns at once.
func IScanTo[T Element](c *Comm, dst, src []T, op Op) *Request {
	return c.startRequest(scan(new(plan), collective.VerbScan, dst, src, op))
}

// ExScan replaces buf, on rank i, by the reduction of the buf of ranks 0 to i-1
// (MPI's exclusive scan). Before rank 0 there is none: its buf stays as it is. Mean
// divides by those i.
func ExScan[T Element](ctx context.Context, c *Comm, buf []T, op Op) error {
	var pl plan
	return c.execute(ctx, scan(&pl, collective.VerbExScan, buf, buf, op))
}

// ExScanTo is ExScan of src into dst; src stays as it is, and so does rank 0's dst.
func ExScanTo[T Element](ctx context.Context, c *Comm, dst, src []T, op Op) error {
	var pl plan
	return c.execute(ctx, scan(&pl, collective.VerbExScan, dst, src, op))
}

// IExScan starts ExScan and returns at once.
func IExScan[T Element](c *Comm, buf []T, op Op) *Request {
	return c.startRequest(scan(new(plan), collective.VerbExScan, buf, buf, op))
}

// IExScanTo starts ExScanTo and returns at once.
func IExScanTo[T Element](c *Comm, dst, src []T, op Op) *Request {
	return c.startRequest(scan(new(plan), collective.VerbExScan, dst, src, op))
}

func scan[T Element](pl *plan, verb collective.Verb, dst, src []T, op Op) *plan {
	s := tensor.Bytes(src)
	pl.verb, pl.dtype, pl.dst, pl.src = verb, tensor.TypeOf[T](), tensor.Bytes(dst), s
	pl.count, pl.root, pl.op, pl.bytes = len(src), -1, op, len(s)
	return pl
}

// Barrier returns when every rank has called it.
func (c *Comm) Barrier(ctx context.Context) error {
	var pl plan
	return c.execute(ctx, barrier(&pl))
}

// IBarrier starts Barrier and returns at once.
func (c *Comm) IBarrier() *Request { return c.startRequest(barrier(new(plan))) }

func barrier(pl *plan) *plan {
	pl.verb, pl.dtype = collective.VerbBarrier, tensor.Uint8
	pl.root = -1
	return pl
}

// gatherWords is AllGather on behalf of another call: it meets no AllGather, and
// errors bear that call's name.
func (c *Comm) gatherWords(ctx context.Context, name string, dst, src []int64) error {
	var pl plan
	allGather(&pl, dst, src)
	pl.callName = name
	return c.execute(ctx, &pl)
}
