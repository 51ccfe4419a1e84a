package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// AllReduce reduces the vectors that the ranks hold in src, and leaves the result in dst on every
// rank. src and dst hold whole elements, the same number on all ranks. They may be the same memory.
func AllReduce(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte, k reduce.Kernel) error {
	if err := a.check(r, VerbAllReduce, k.Op()); err != nil {
		return err
	}
	if run, ok := a.entry().run.(allReduce); ok {
		return run(ctx, r, dst, src, k)
	}
	copyUnlessSame(dst, src)
	return a.entry().run.(allReduceInPlace)(ctx, r, dst, k)
}

// Reduce reduces the vectors that the ranks hold in src, and leaves the result in dst on the root.
// src has the same length on all ranks. dst may be the same memory as src, and is ignored on the
// other ranks.
func Reduce(ctx context.Context, r *p2p.Round, a Algorithm, root int, dst, src []byte, k reduce.Kernel) error {
	run, err := implementationOf[reduceToRoot](r, VerbReduce, a, k.Op())
	if err != nil {
		return err
	}
	if r.Rank() != root {
		return run(ctx, r, root, nil, src, k)
	}
	if err := run(ctx, r, root, dst, src, k); err != nil {
		return err
	}
	k.Finish(dst, r.Size())
	return nil
}

// Broadcast copies buf from the root to every rank. buf has the same length on all ranks.
func Broadcast(ctx context.Context, r *p2p.Round, a Algorithm, root int, buf []byte) error {
	run, err := implementationOf[broadcast](r, VerbBroadcast, a, reduce.Sum)
	if err != nil {
		return err
	}
	return run(ctx, r, root, buf)
}

// AllGather concatenates the src slices of all ranks in rank order, and leaves the result in dst on
// every rank. src has the same length on all ranks. It may be this rank's chunk of dst.
func AllGather(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte) error {
	return runAllGather(ctx, r, VerbAllGather, a, evenChunks(r, dst, 1), src)
}

// AllGatherV is like AllGather, with counts[i] elements of elem bytes from each rank i. The counts
// are equal on all ranks.
func AllGatherV(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte, counts []int, elem int) error {
	return runAllGather(ctx, r, VerbAllGatherV, a, cutByCounts(r, dst, counts, elem), src)
}

// runAllGather carries out AllGather and AllGatherV. If src overlaps another part of the result,
// runAllGather first copies src to this rank's chunk, because arriving chunks would overwrite src.
func runAllGather(ctx context.Context, r *p2p.Round, verb Verb, a Algorithm, all chunks, src []byte) error {
	if err := a.check(r, verb, reduce.Sum); err != nil {
		return err
	}
	own := all.of(r.Rank())
	run, ok := a.entry().run.(allGather)
	if !ok {
		copyCached(own, src)
		return a.entry().run.(allGatherInPlace)(ctx, r, all)
	}
	if !same(own, src) && tensor.Overlap(all.buf, src) {
		copyCached(own, src)
		src = own
	}
	return run(ctx, r, all, src)
}

// Gather concatenates the src slices of all ranks in rank order, and leaves the result in dst on
// the root. src has the same length on all ranks. On the root, src may be its chunk of dst. dst is
// ignored on the other ranks.
func Gather(ctx context.Context, r *p2p.Round, a Algorithm, root int, dst, src []byte) error {
	run, err := implementationOf[gather](r, VerbGather, a, reduce.Sum)
	if err != nil {
		return err
	}
	if r.Rank() != root {
		return run(ctx, r, root, chunks{}, src)
	}
	return run(ctx, r, root, evenChunks(r, dst, 1), src)
}

// GatherV is like Gather, with counts[i] elements of elem bytes from each rank i. dst and counts
// are ignored on ranks other than the root.
func GatherV(ctx context.Context, r *p2p.Round, a Algorithm, root int, dst, src []byte, counts []int, elem int) error {
	run, err := implementationOf[gather](r, VerbGatherV, a, reduce.Sum)
	if err != nil {
		return err
	}
	if r.Rank() != root {
		return run(ctx, r, root, chunks{}, src)
	}
	return run(ctx, r, root, cutByCounts(r, dst, counts, elem), src)
}

// Scatter copies chunk i of src on the root to dst on each rank i. dst has the same length on all
// ranks. On the root, dst may be its chunk of src. src is ignored on the other ranks.
func Scatter(ctx context.Context, r *p2p.Round, a Algorithm, root int, dst, src []byte) error {
	run, err := implementationOf[scatter](r, VerbScatter, a, reduce.Sum)
	if err != nil {
		return err
	}
	if r.Rank() != root {
		return run(ctx, r, root, dst, chunks{})
	}
	return run(ctx, r, root, dst, evenChunks(r, src, 1))
}

// ScatterV is like Scatter, with counts[i] elements of elem bytes to each rank i. src and counts
// are ignored on ranks other than the root.
func ScatterV(ctx context.Context, r *p2p.Round, a Algorithm, root int, dst, src []byte, counts []int, elem int) error {
	run, err := implementationOf[scatter](r, VerbScatterV, a, reduce.Sum)
	if err != nil {
		return err
	}
	if r.Rank() != root {
		return run(ctx, r, root, dst, chunks{})
	}
	return run(ctx, r, root, dst, cutByCounts(r, src, counts, elem))
}

// ReduceScatter reduces the vectors that the ranks hold in src, and leaves chunk i of the result in
// dst on each rank i. src holds whole elements, the same number on all ranks. tensor.Chunk defines
// the chunks. dst is as long as this rank's chunk. It may be the same memory as that chunk of src,
// or as the beginning of src. Otherwise src is not changed.
func ReduceScatter(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte, k reduce.Kernel) error {
	run, err := implementationOf[reduceScatter](r, VerbReduceScatter, a, k.Op())
	if err != nil {
		return err
	}
	return run.execute(ctx, r, dst, evenChunks(r, src, k.DType().Size()), k)
}

// ReduceScatterV is like ReduceScatter, with chunks of counts[i] elements. The counts are equal on
// all ranks.
func ReduceScatterV(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte, counts []int, k reduce.Kernel) error {
	run, err := implementationOf[reduceScatter](r, VerbReduceScatterV, a, k.Op())
	if err != nil {
		return err
	}
	return run.execute(ctx, r, dst, cutByCounts(r, src, counts, k.DType().Size()), k)
}

// execute runs the algorithm and finishes the fold. If dst is the beginning of src, it overlaps
// chunks that this rank has not sent yet. In this case execute computes the result in scratch
// memory first.
func (run reduceScatter) execute(ctx context.Context, r *p2p.Round, dst []byte, src chunks, k reduce.Kernel) error {
	to := dst
	if same(dst, src.buf) && !same(dst, src.of(r.Rank())) {
		to = r.Scratch(len(dst))
	}
	if err := run(ctx, r, to, src, k); err != nil {
		return err
	}
	k.Finish(to, r.Size())
	copyUnlessSame(dst, to)
	return nil
}

// AllToAll sends chunk i of src to rank i, and receives chunk i of dst from rank i. All chunks have
// the same length on all ranks. dst may be the same memory as src, which costs a copy.
func AllToAll(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte) error {
	run, err := implementationOf[allToAll](r, VerbAllToAll, a, reduce.Sum)
	if err != nil {
		return err
	}
	return run(ctx, r, evenChunks(r, dst, 1), evenChunks(r, copyIfSame(r, dst, src), 1))
}

// AllToAllV is like AllToAll, with sends[i] elements of elem bytes to each rank i, and recvs[i]
// elements from each rank i. If sends[j] is k on rank i, then recvs[i] must be k on rank j.
func AllToAllV(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte, recvs, sends []int, elem int) error {
	run, err := implementationOf[allToAll](r, VerbAllToAllV, a, reduce.Sum)
	if err != nil {
		return err
	}
	src = copyIfSame(r, dst, src)
	return run(ctx, r, cutByCounts(r, dst, recvs, elem), cutByCounts(r, src, sends, elem))
}

// copyIfSame returns src, or a copy of src if dst is the same memory.
func copyIfSame(r *p2p.Round, dst, src []byte) []byte {
	if !same(dst, src) {
		return src
	}
	own := r.Scratch(len(src))
	copy(own, src)
	return own
}

// Scan reduces the vectors that ranks 0 to i hold in src, and leaves the result in dst on each rank
// i. src holds whole elements, the same number on all ranks. dst may be the same memory as src.
func Scan(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte, k reduce.Kernel) error {
	return runScan(ctx, r, VerbScan, a, dst, src, k, r.Rank()+1)
}

// ExScan reduces the vectors that ranks 0 to i-1 hold in src, and leaves the result in dst on each
// rank i. src holds whole elements, the same number on all ranks. dst may be the same memory as
// src. On rank 0 dst is not changed.
func ExScan(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte, k reduce.Kernel) error {
	return runScan(ctx, r, VerbExScan, a, dst, src, k, r.Rank())
}

// runScan carries out Scan and ExScan. The parameter shares is the number of ranks whose vectors
// are folded into this rank's result. If it is 0, dst is not changed.
func runScan(ctx context.Context, r *p2p.Round, verb Verb, a Algorithm, dst, src []byte, k reduce.Kernel, shares int) error {
	run, err := implementationOf[inclusiveScan](r, verb, a, k.Op())
	if err != nil {
		return err
	}
	if shares == 0 {
		return run(ctx, r, src, k)
	}
	copyUnlessSame(dst, src)
	if err := run(ctx, r, dst, k); err != nil {
		return err
	}
	k.Finish(dst, shares)
	return nil
}

// Barrier returns when every rank has called it.
func Barrier(ctx context.Context, r *p2p.Round, a Algorithm) error {
	run, err := implementationOf[barrier](r, VerbBarrier, a, reduce.Sum)
	if err != nil {
		return err
	}
	return run(ctx, r)
}
