package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
	"github.com/tutti-go/tutti/tensor"
)

// directBytes is the size in bytes of the largest vector that every rank folds as a whole. Folding
// the whole vector takes one hand-over between the ranks. Folding one part per rank takes two
// hand-overs.
const directBytes = p2p.SmallSize

// sharedAllReduce reduces the vectors that the ranks hold in src, and leaves the result in dst on
// every rank.
//
// For a small vector, each rank copies its share into its slot and folds all slots. A larger vector
// is reduced fragment by fragment, and each fragment has one part per rank. Each rank copies its
// share of the other ranks' parts into its slot, folds its own part over all slots into its own
// slot, and copies all parts out of the slots. With two ranks:
//
//	         step 0        step 1                step 2
//	rank 0   B0 → slot 0   op(A0, A1) → slot 0   A ← slot 0, B ← slot 1
//	rank 1   A1 → slot 1   op(B0, B1) → slot 1   A ← slot 0, B ← slot 1
//
// A rank copies its share of the next fragment into its slot while other ranks still fold.
//
// Cost: 2α + m(2-1/n)β + m(n-1)/n γ, in cache, for a vector of one fragment. Each further fragment
// takes another 2α. Small vectors take one α, and every rank folds m(n-1) bytes.
//
// Shares are folded in rank order, element by element, so equal runs give equal bits on all ranks,
// whatever the sizes of the fragments. The operator need not commute.
//
// Shared-memory collectives of MPI libraries use the same scheme; see Graham and Shipman, "MPI
// support for multi-core architectures", EuroPVM/MPI 2008.
func sharedAllReduce(ctx context.Context, r *p2p.Round, dst, src []byte, k reduce.Kernel) error {
	if len(src) <= directBytes {
		return allReduceDirect(ctx, r, dst, src, k)
	}
	return allReduceFragments(ctx, r, dst, src, k)
}

// allReduceDirect reduces a vector that fits one small fragment.
func allReduceDirect(ctx context.Context, r *p2p.Round, dst, src []byte, k reduce.Kernel) error {
	p := r.Fragments(1, len(src))
	if err := p.AwaitFree(ctx); err != nil {
		return err
	}
	copy(p.Slot(r.Rank()), src)
	p.SetDone()
	if err := awaitDone(ctx, r, p); err != nil {
		return err
	}
	own := src // src, not the slot, because the slot's cache lines have moved to the readers
	if r.Rank() > 1 && same(dst, src) {
		own = p.Slot(r.Rank())[:len(src)]
	}
	foldSlots(r, p, dst, own, 0, len(src), k)
	k.Finish(dst, r.Size())
	return nil
}

// allReduceFragments reduces a vector that is longer than a small fragment. Every rank folds one
// part of each fragment. Before it folds a fragment, it fills its slot for the next fragment, so
// that this copy overlaps the other ranks' folds.
func allReduceFragments(ctx context.Context, r *p2p.Round, dst, src []byte, k reduce.Kernel) error {
	elem := k.DType().Size()
	size := fragmentSize(elem)
	count := fragmentCount(len(src), size)
	p := r.Fragments(count, len(src))
	copyOut := resultCopy(r.Size() * len(dst))
	if err := copyIn(ctx, r, p, blockOf(src, 0, size), elem); err != nil {
		return err
	}
	for i := range count {
		next := p.Next()
		if i+1 < count {
			if err := copyIn(ctx, r, next, blockOf(src, i+1, size), elem); err != nil {
				return err
			}
		}
		out := evenChunks(r, blockOf(dst, i, size), elem)
		if err := foldPart(ctx, r, p, out, blockOf(src, i, size), k, copyOut); err != nil {
			return err
		}
		if err := copyOutParts(ctx, r, p, out, copyOut); err != nil {
			return err
		}
		p = next
	}
	return nil
}

// copyIn copies this rank's share of a fragment into its slot. It leaves out the part that this
// rank folds itself, because no other rank reads that part.
func copyIn(ctx context.Context, r *p2p.Round, p p2p.Fragment, share []byte, elem int) error {
	if err := p.AwaitFree(ctx); err != nil {
		return err
	}
	lo, hi := partOf(r.Rank(), r.Size(), len(share), elem)
	slot := p.Slot(r.Rank())
	copy(slot, share[:lo])
	copy(slot[hi:], share[hi:])
	p.SetReady()
	return nil
}

// foldPart folds this rank's part of a fragment into its slot, and copies it from there into
// parts.
func foldPart(ctx context.Context, r *p2p.Round, p p2p.Fragment, parts chunks, share []byte, k reduce.Kernel, copyOut copyFunc) error {
	if err := awaitReady(ctx, r, p); err != nil {
		return err
	}
	lo, hi := partOf(r.Rank(), r.Size(), len(parts.buf), parts.elem)
	mine := p.Slot(r.Rank())[lo:hi]
	foldSlots(r, p, mine, share[lo:hi], lo, hi, k)
	k.Finish(mine, r.Size())
	p.SetDone()
	copyOut(parts.buf[lo:hi], mine)
	return nil
}

// copyOutParts copies the other ranks' parts of a fragment from their slots into parts.
func copyOutParts(ctx context.Context, r *p2p.Round, p p2p.Fragment, parts chunks, copyOut copyFunc) error {
	n, me := r.Size(), r.Rank()
	for i := 1; i < n; i++ {
		rank := modulo(me+i, n)
		if err := p.AwaitDone(ctx, rank); err != nil {
			return err
		}
		lo, hi := partOf(rank, n, len(parts.buf), parts.elem)
		copyOut(parts.buf[lo:hi], p.Slot(rank)[lo:hi])
	}
	return nil
}

// partOf returns the byte range of part i of n in a fragment of m bytes.
func partOf(i, n, m, elem int) (lo, hi int) {
	lo, hi = tensor.Chunk(m/elem, n, i)
	return lo * elem, hi * elem
}
