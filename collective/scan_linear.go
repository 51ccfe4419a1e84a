package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// linearScan reduces the vectors that ranks 0 to r hold in buf, and leaves the result in buf on
// each rank r.
//
// Every rank receives the fold of the ranks before it, adds its own share, and sends the new fold
// on. The algorithm is the baseline for measurements of the other algorithms. With four ranks:
//
//	         step 0   step 1   step 2
//	rank 0   0 → 1
//	rank 1            01 → 2
//	rank 2                     012 → 3
//
// Cost: (n-1)(α + mβ + mγ).
//
// Shares are folded in the order 0, 1, …, r, one after the other. The result has the bits of a
// serial loop over the ranks. The operator need not commute.
func linearScan(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	n, me := r.Size(), r.Rank()
	if me > 0 {
		if err := r.RecvFold(ctx, me-1, buf, k, p2p.Earlier); err != nil {
			return err
		}
	}
	if me == n-1 {
		return nil
	}
	return r.Send(ctx, me+1, buf)
}
