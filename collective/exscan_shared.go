package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// sharedExScan reduces the vectors that ranks 0 to r-1 hold in buf, and leaves the result in buf on
// each rank r. On rank 0 buf is not changed.
//
// Fragment by fragment, every rank except the last copies its share into its slot. Every rank then
// folds the shares of the ranks before it. With three ranks:
//
//	         step 0        step 1
//	rank 0   A0 → slot 0
//	rank 1   A1 → slot 1   A0 ← slot 0
//	rank 2                 op(A0, A1)
//
// Cost: α + mβ + m(n-2)γ, in cache, for a vector of one fragment. Each further fragment takes
// another α.
//
// Shares are folded in rank order, so equal runs give equal bits, and the operator need not
// commute.
func sharedExScan(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	return scanSlots(ctx, r, buf, k, r.Rank())
}
