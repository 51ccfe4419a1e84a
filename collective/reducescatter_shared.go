package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// sharedReduceScatter folds all ranks' shares of this rank's chunk into dst. The fold is
// unfinished.
//
// Fragment by fragment, every rank copies one subrange of each other rank's chunk into its slot,
// side by side. Then it folds the subrange of its own chunk over all slots. With two ranks:
//
//	         step 0        step 1
//	rank 0   B0 → slot 0   op(A0, A1)
//	rank 1   A1 → slot 1   op(B0, B1)
//
// Cost: α + m(n-1)/n (β+γ), in cache, for a vector of one fragment. Each further fragment takes
// another α.
//
// Shares are folded in rank order, so equal runs give equal bits, and the operator need not
// commute.
func sharedReduceScatter(ctx context.Context, r *p2p.Round, dst []byte, src chunks, k reduce.Kernel) error {
	n, me := r.Size(), r.Rank()
	// A slot holds one subrange for each rank, in whole elements.
	subrange := p2p.SlotSize / n / src.elem * src.elem
	longest := src.longest()
	subrange = max(min(subrange, longest), src.elem)
	count := fragmentCount(longest, subrange)
	p := r.Fragments(count, n*subrange)
	for i := range count {
		if err := p.AwaitFree(ctx); err != nil {
			return err
		}
		for rank := range n {
			if rank != me {
				copy(p.Slot(me)[rank*subrange:], blockOf(src.of(rank), i, subrange))
			}
		}
		p.SetDone()
		if err := awaitDone(ctx, r, p); err != nil {
			return err
		}
		own := blockOf(src.of(me), i, subrange)
		foldSlots(r, p, blockOf(dst, i, subrange), own, me*subrange, me*subrange+len(own), k)
		p = p.Next()
	}
	return nil
}
