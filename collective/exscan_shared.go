package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// sharedExScan leaves on rank r the reduction of the buf of ranks 0 to r-1. Rank
// 0's stays as it is.
//
// Piece by piece, every rank but the last puts its share into its slot, and folds
// those of the ranks before it. With three ranks:
//
//	         step 0        step 1
//	rank 0   A0 → slot 0
//	rank 1   A1 → slot 1   A0 ← slot 0
//	rank 2                 op(A0, A1)
//
// Cost: α + mβ + m(n-2)γ, in cache; α for each piece.
//
// Shares are folded in rank order, so bits repeat and op need not commute.
func sharedExScan(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	return scanSlots(ctx, r, buf, k, r.Rank())
}
