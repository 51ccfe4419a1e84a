package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// sharedExScan reduces the buf of ranks 0 to r-1 and leaves the result on rank r. Rank 0's buf
// is not changed.
//
// Fragment by fragment, every rank but the last copies its share into its slot, and folds the
// shares of the ranks before it. With three ranks:
//
//	         step 0        step 1
//	rank 0   A0 → slot 0
//	rank 1   A1 → slot 1   A0 ← slot 0
//	rank 2                 op(A0, A1)
//
// Cost: α + mβ + m(n-2)γ, in cache; α per fragment.
//
// Shares are folded in rank order, so equal runs give equal bits, and op need not commute.
func sharedExScan(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	return scanSlots(ctx, r, buf, k, r.Rank())
}
