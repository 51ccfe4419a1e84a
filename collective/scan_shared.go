package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// sharedScan reduces the vectors that ranks 0 to r hold in buf, and leaves the result in buf on
// each rank r.
//
// Fragment by fragment, every rank copies its share into its slot. Then it folds the shares of the
// ranks before it and its own share. With three ranks:
//
//	         step 0        step 1
//	rank 0   A0 → slot 0
//	rank 1   A1 → slot 1   op(A0, A1)
//	rank 2   A2 → slot 2   op(op(A0, A1), A2)
//
// Cost: α + mβ + m(n-1)γ, in cache, for a vector of one fragment. Each further fragment takes
// another α.
//
// Shares are folded in rank order, so equal runs give equal bits, and the operator need not
// commute.
func sharedScan(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	return scanSlots(ctx, r, buf, k, r.Rank()+1)
}

// scanSlots replaces buf by the fold of the shares of ranks 0 to ranks-1. If ranks is 0, it does
// not change buf. No other rank reads the last rank's share, so the last rank copies it into its
// slot only if it folds the share itself.
func scanSlots(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel, ranks int) error {
	size := fragmentSize(k.DType().Size())
	count := fragmentCount(len(buf), size)
	p := r.Fragments(count, len(buf))
	for i := range count {
		part := blockOf(buf, i, size)
		if err := p.AwaitFree(ctx); err != nil {
			return err
		}
		if r.Rank() < max(ranks, r.Size()-1) {
			copy(p.Slot(r.Rank()), part)
		}
		p.SetDone()
		// Wait for one rank after the other, in the order of the fold.
		for rank := range ranks {
			if err := p.AwaitDone(ctx, rank); err != nil {
				return err
			}
			share := p.Slot(rank)[:len(part)]
			if rank == 0 {
				copy(part, share)
			} else {
				k.Fold(part, part, share)
			}
		}
		p = p.Next()
	}
	return nil
}
