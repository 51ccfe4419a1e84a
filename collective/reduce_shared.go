package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// sharedReduce folds the vectors that the ranks hold in src, and leaves the fold in dst on the
// root. The fold is unfinished.
//
// As in sharedAllReduce, every rank folds one part of each fragment over all slots, and leaves
// the result in its own slot. Only the root copies the parts out. With two ranks, to root 0:
//
//	         step 0        step 1                step 2
//	rank 0   B0 → slot 0   op(A0, A1) → slot 0   A ← slot 0, B ← slot 1
//	rank 1   A1 → slot 1   op(B0, B1) → slot 1
//
// Cost: 2α + m(2-1/n)β + m(n-1)/n γ, in cache, for a vector of one fragment. Each further fragment
// takes another 2α.
//
// Shares are folded in rank order, so equal runs give equal bits, and the operator need not
// commute.
func sharedReduce(ctx context.Context, r *p2p.Round, root int, dst, src []byte, k reduce.Kernel) error {
	elem := k.DType().Size()
	size := fragmentSize(elem)
	count := fragmentCount(len(src), size)
	p := r.Fragments(count, len(src))
	copyOut := resultCopy(len(dst))
	for i := range count {
		share := blockOf(src, i, size)
		if err := copyIn(ctx, r, p, share, elem); err != nil {
			return err
		}
		if err := awaitReady(ctx, r, p); err != nil {
			return err
		}
		lo, hi := partOf(r.Rank(), r.Size(), len(share), elem)
		own := share[lo:hi]
		into := p.Slot(r.Rank())[lo:hi]
		foldSlots(r, p, into, own, lo, hi, k)
		p.SetDone()
		if r.Rank() == root {
			out := blockOf(dst, i, size)
			copyOut(out[lo:hi], into)
			if err := copyOutParts(ctx, r, p, evenChunks(r, out, elem), copyOut); err != nil {
				return err
			}
		}
		p = p.Next()
	}
	return nil
}
