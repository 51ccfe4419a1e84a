package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// linearScan leaves on rank r the reduction of the buf of ranks 0 to r.
//
// Every rank takes what the ones before it make, and passes on what they and it
// make. It is the baseline that others are measured against. With four ranks:
//
//	         step 0   step 1   step 2
//	rank 0   0 → 1
//	rank 1            01 → 2
//	rank 2                     012 → 3
//
// Cost: (n-1)(α + mβ + mγ).
//
// Shares are folded in the order 0, 1, …, r, each into what has gathered so far:
// the bits are those of a serial loop over the ranks. Op need not commute.
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
