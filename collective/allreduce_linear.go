package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// linearAllReduce reduces the vectors that the ranks hold in buf, and leaves the result in buf on
// every rank.
//
// Rank 0 receives all vectors, in rank order, and sends the result to each rank. The algorithm is
// the baseline for measurements of the other algorithms. With four ranks:
//
//	         step 0   step 1   step 2   step 3     step 4     step 5
//	rank 0                              0123 → 1   0123 → 2   0123 → 3
//	rank 1   1 → 0
//	rank 2            2 → 0
//	rank 3                     3 → 0
//
// Cost: 2(n-1)(α + mβ) + (n-1)mγ.
//
// Shares are folded in the order 0, 1, …, n-1, one after the other. The result has the bits of a
// serial loop over the ranks, on all ranks. The operator need not commute.
func linearAllReduce(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	n := r.Size()
	if r.Rank() != 0 {
		return sendAndAwaitResult(ctx, r, 0, buf)
	}
	for from := 1; from < n; from++ {
		if err := r.RecvFold(ctx, from, buf, k, p2p.Later); err != nil {
			return err
		}
	}
	k.Finish(buf, n)
	for to := 1; to < n; to++ {
		if err := r.Send(ctx, to, buf); err != nil {
			return err
		}
	}
	return nil
}
