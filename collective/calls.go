package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// AllReduce leaves on every rank, in dst, the reduction of all ranks' src, which
// has whole elements, equally many on all ranks. dst may be src.
func AllReduce(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte, k reduce.Kernel) error {
	if err := checkWhole(VerbAllReduce, src, k); err != nil {
		return err
	}
	if err := checkSize(VerbAllReduce, "dst", dst, len(src)); err != nil {
		return err
	}
	if _, ok := a.entry().run.(allReduce); ok {
		run, err := implementationOf[allReduce](VerbAllReduce, a, k.Op())
		if err != nil {
			return err
		}
		return run(ctx, r, dst, src, k)
	}
	run, err := implementationOf[allReduceInPlace](VerbAllReduce, a, k.Op())
	if err != nil {
		return err
	}
	copyUnlessSame(dst, src)
	return run(ctx, r, dst, k)
}

// Reduce leaves in dst, on the root, the reduction of all ranks' src, which is
// equally long everywhere. dst may be src; on other ranks it is not looked at.
func Reduce(ctx context.Context, r *p2p.Round, a Algorithm, root int, dst, src []byte, k reduce.Kernel) error {
	run, err := implementationOf[reduceToRoot](VerbReduce, a, k.Op())
	if err != nil {
		return err
	}
	if err := checkRoot(r, VerbReduce, root); err != nil {
		return err
	}
	if err := checkWhole(VerbReduce, src, k); err != nil {
		return err
	}
	if r.Rank() != root {
		return run(ctx, r, root, nil, src, k)
	}
	if err := checkSize(VerbReduce, "dst", dst, len(src)); err != nil {
		return err
	}
	if err := run(ctx, r, root, dst, src, k); err != nil {
		return err
	}
	k.Finish(dst, r.Size())
	return nil
}

// Broadcast leaves the root's buf on every rank; it is equally long everywhere.
func Broadcast(ctx context.Context, r *p2p.Round, a Algorithm, root int, buf []byte) error {
	run, err := implementationOf[broadcast](VerbBroadcast, a, reduce.Sum)
	if err != nil {
		return err
	}
	if err := checkRoot(r, VerbBroadcast, root); err != nil {
		return err
	}
	return run(ctx, r, root, buf)
}

// AllGather leaves on every rank the src of all ranks, one after the other in
// rank order. src is equally long everywhere, and may be this rank's chunk of dst.
func AllGather(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte) error {
	if err := checkSize(VerbAllGather, "dst", dst, r.Size()*len(src)); err != nil {
		return err
	}
	return runAllGather(ctx, r, VerbAllGather, a, evenChunks(r, dst, 1), src)
}

// AllGatherV is AllGather of counts[i] elements of elem bytes from each rank i.
// The counts are equal on all ranks.
func AllGatherV(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte, counts []int, elem int) error {
	all, err := cutByCounts(r, VerbAllGatherV, dst, counts, elem)
	if err != nil {
		return err
	}
	if err := checkSize(VerbAllGatherV, "src", src, len(all.of(r.Rank()))); err != nil {
		return err
	}
	return runAllGather(ctx, r, VerbAllGatherV, a, all, src)
}

// runAllGather carries out both.
func runAllGather(ctx context.Context, r *p2p.Round, verb Verb, a Algorithm, all chunks, src []byte) error {
	own := all.of(r.Rank())
	if _, ok := a.entry().run.(allGather); !ok {
		run, err := implementationOf[allGatherInPlace](verb, a, reduce.Sum)
		if err != nil {
			return err
		}
		copyCached(own, src)
		return run(ctx, r, all)
	}
	run, err := implementationOf[allGather](verb, a, reduce.Sum)
	if err != nil {
		return err
	}
	if !same(own, src) && (same(all.buf, src) || tensor.Overlap(all.buf, src)) {
		copyCached(own, src) // before others' chunks come to lie on it
		src = own
	}
	return run(ctx, r, all, src)
}

// Gather leaves in dst, on the root, the src of all ranks, one after the other in
// rank order. src is equally long everywhere; the root's may be its chunk of dst.
// On other ranks dst is not looked at.
func Gather(ctx context.Context, r *p2p.Round, a Algorithm, root int, dst, src []byte) error {
	run, err := implementationOf[gather](VerbGather, a, reduce.Sum)
	if err != nil {
		return err
	}
	if err := checkRoot(r, VerbGather, root); err != nil {
		return err
	}
	if r.Rank() != root {
		return run(ctx, r, root, chunks{}, src)
	}
	if err := checkSize(VerbGather, "dst", dst, r.Size()*len(src)); err != nil {
		return err
	}
	return run(ctx, r, root, evenChunks(r, dst, 1), src)
}

// GatherV is Gather of counts[i] elements of elem bytes from each rank i. On
// ranks other than the root, dst and counts are not looked at.
func GatherV(ctx context.Context, r *p2p.Round, a Algorithm, root int, dst, src []byte, counts []int, elem int) error {
	run, err := implementationOf[gather](VerbGatherV, a, reduce.Sum)
	if err != nil {
		return err
	}
	if err := checkRoot(r, VerbGatherV, root); err != nil {
		return err
	}
	if r.Rank() != root {
		return run(ctx, r, root, chunks{}, src)
	}
	all, err := cutByCounts(r, VerbGatherV, dst, counts, elem)
	if err != nil {
		return err
	}
	if err := checkSize(VerbGatherV, "src", src, len(all.of(root))); err != nil {
		return err
	}
	return run(ctx, r, root, all, src)
}

// Scatter leaves in dst, on rank i, chunk i of the root's src. dst is equally
// long everywhere; the root's may be its chunk of src. On other ranks src is not
// looked at.
func Scatter(ctx context.Context, r *p2p.Round, a Algorithm, root int, dst, src []byte) error {
	run, err := implementationOf[scatter](VerbScatter, a, reduce.Sum)
	if err != nil {
		return err
	}
	if err := checkRoot(r, VerbScatter, root); err != nil {
		return err
	}
	if r.Rank() != root {
		return run(ctx, r, root, dst, chunks{})
	}
	if err := checkSize(VerbScatter, "src", src, r.Size()*len(dst)); err != nil {
		return err
	}
	return run(ctx, r, root, dst, evenChunks(r, src, 1))
}

// ScatterV is Scatter of counts[i] elements of elem bytes to each rank i. On
// ranks other than the root, src and counts are not looked at.
func ScatterV(ctx context.Context, r *p2p.Round, a Algorithm, root int, dst, src []byte, counts []int, elem int) error {
	run, err := implementationOf[scatter](VerbScatterV, a, reduce.Sum)
	if err != nil {
		return err
	}
	if err := checkRoot(r, VerbScatterV, root); err != nil {
		return err
	}
	if r.Rank() != root {
		return run(ctx, r, root, dst, chunks{})
	}
	all, err := cutByCounts(r, VerbScatterV, src, counts, elem)
	if err != nil {
		return err
	}
	if err := checkSize(VerbScatterV, "dst", dst, len(all.of(root))); err != nil {
		return err
	}
	return run(ctx, r, root, dst, all)
}

// ReduceScatter leaves in dst, on rank i, the reduction of all ranks' chunk i of
// src. src has whole elements, equally many on all ranks, is cut by Chunk, and
// stays as it is. dst is as long as its chunk; it may be that chunk of src, or
// src's beginning, which are then overwritten.
func ReduceScatter(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte, k reduce.Kernel) error {
	run, err := implementationOf[reduceScatter](VerbReduceScatter, a, k.Op())
	if err != nil {
		return err
	}
	if err := checkWhole(VerbReduceScatter, src, k); err != nil {
		return err
	}
	return run.execute(ctx, r, VerbReduceScatter, dst, evenChunks(r, src, k.DType().Size()), k)
}

// ReduceScatterV is ReduceScatter with chunks of counts[i] elements. The counts
// are equal on all ranks.
func ReduceScatterV(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte, counts []int, k reduce.Kernel) error {
	run, err := implementationOf[reduceScatter](VerbReduceScatterV, a, k.Op())
	if err != nil {
		return err
	}
	all, err := cutByCounts(r, VerbReduceScatterV, src, counts, k.DType().Size())
	if err != nil {
		return err
	}
	return run.execute(ctx, r, VerbReduceScatterV, dst, all, k)
}

// execute runs the algorithm, also where dst lies at src's beginning.
func (run reduceScatter) execute(ctx context.Context, r *p2p.Round, verb Verb, dst []byte, src chunks, k reduce.Kernel) error {
	own := src.of(r.Rank())
	if err := checkSize(verb, "dst", dst, len(own)); err != nil {
		return err
	}
	to := dst
	if same(dst, src.buf) && !same(dst, own) {
		to = r.Scratch(len(dst)) // other ranks' chunks lie there, and are still to be sent
	}
	if err := run(ctx, r, to, src, k); err != nil {
		return err
	}
	k.Finish(to, r.Size())
	copyUnlessSame(dst, to)
	return nil
}

// AllToAll sends chunk i of src to rank i, and leaves in chunk i of dst what rank
// i sent here. All chunks everywhere are equally long. dst may be src, at the cost
// of a copy.
func AllToAll(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte) error {
	run, err := implementationOf[allToAll](VerbAllToAll, a, reduce.Sum)
	if err != nil {
		return err
	}
	if err := checkSize(VerbAllToAll, "dst", dst, len(src)); err != nil {
		return err
	}
	if len(src)%r.Size() != 0 {
		return misuse(VerbAllToAll.String(), "%d bytes are not %d equal chunks", len(src), r.Size())
	}
	return run(ctx, r, evenChunks(r, dst, 1), evenChunks(r, copyIfSame(r, dst, src), 1))
}

// AllToAllV is AllToAll of sends[i] elements of elem bytes to each rank i, and
// recvs[i] from it. What a rank sends another must be what that one receives.
func AllToAllV(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte, recvs, sends []int, elem int) error {
	run, err := implementationOf[allToAll](VerbAllToAllV, a, reduce.Sum)
	if err != nil {
		return err
	}
	to, err := cutByCounts(r, VerbAllToAllV, dst, recvs, elem)
	if err != nil {
		return err
	}
	from, err := cutByCounts(r, VerbAllToAllV, src, sends, elem)
	if err != nil {
		return err
	}
	own := r.Rank()
	if err := checkSize(VerbAllToAllV, "dst's chunk of this rank itself", to.of(own), len(from.of(own))); err != nil {
		return err
	}
	return run(ctx, r, to, from.withBuffer(copyIfSame(r, dst, src)))
}

// copyIfSame is src, or a copy of it where dst is the same memory.
func copyIfSame(r *p2p.Round, dst, src []byte) []byte {
	if !same(dst, src) {
		return src
	}
	own := r.Scratch(len(src))
	copy(own, src)
	return own
}

// Scan leaves on rank i, in dst, the reduction of the src of ranks 0 to i, which has
// whole elements, equally many on all ranks. dst may be src.
func Scan(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte, k reduce.Kernel) error {
	return runScan(ctx, r, VerbScan, a, dst, src, k, r.Rank()+1)
}

// ExScan leaves on rank i, in dst, the reduction of the src of ranks 0 to i-1, which
// has whole elements, equally many on all ranks. dst may be src. Rank 0's dst stays
// as it is.
func ExScan(ctx context.Context, r *p2p.Round, a Algorithm, dst, src []byte, k reduce.Kernel) error {
	return runScan(ctx, r, VerbExScan, a, dst, src, k, r.Rank())
}

// runScan carries out both; the result is that of so many ranks' shares.
func runScan(ctx context.Context, r *p2p.Round, verb Verb, a Algorithm, dst, src []byte, k reduce.Kernel, shares int) error {
	run, err := implementationOf[inclusiveScan](verb, a, k.Op())
	if err != nil {
		return err
	}
	if err := checkWhole(verb, src, k); err != nil {
		return err
	}
	if err := checkSize(verb, "dst", dst, len(src)); err != nil {
		return err
	}
	if shares == 0 {
		return run(ctx, r, src, k) // which is only read
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
	run, err := implementationOf[barrier](VerbBarrier, a, reduce.Sum)
	if err != nil {
		return err
	}
	return run(ctx, r)
}

func checkRoot(r *p2p.Round, verb Verb, root int) error {
	if root < 0 || root >= r.Size() {
		return misuse(verb.String(), "root %d is out of range; the ranks are 0 to %d", root, r.Size()-1)
	}
	return nil
}

func checkSize(verb Verb, what string, b []byte, want int) error {
	if len(b) != want {
		return misuse(verb.String(), "%s has %d bytes, and must have %d", what, len(b), want)
	}
	return nil
}

func checkWhole(verb Verb, b []byte, k reduce.Kernel) error {
	if len(b)%k.DType().Size() != 0 {
		return misuse(verb.String(), "%d bytes are no whole elements of %v", len(b), k.DType())
	}
	return nil
}
