package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// linearExScan reduces the vectors that ranks 0 to r-1 hold in buf, and leaves the result in buf on
// each rank r. On rank 0 buf is not changed.
//
// Every rank receives the fold of the ranks before it, adds its own share, and sends the new fold
// on. The algorithm is the baseline for measurements of the other algorithms. With four ranks:
//
//	         step 0   step 1   step 2
//	rank 0   0 → 1
//	rank 1            01 → 2
//	rank 2                     012 → 3
//
// Cost: (n-1)(α + mβ) + (n-2)mγ, and m bytes of scratch memory.
//
// Shares are folded in the order 0, 1, …, r-1, one after the other. The result has the bits of a
// serial loop over the ranks. The operator need not commute.
func linearExScan(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	n, me := r.Size(), r.Rank()
	if me == n-1 {
		if me == 0 {
			return nil
		}
		return r.Recv(ctx, me-1, buf)
	}
	partial := buf
	if me > 0 {
		partial = r.Scratch(len(buf))
		copy(partial, buf)
		if err := r.Recv(ctx, me-1, buf); err != nil {
			return err
		}
		k.Fold(partial, buf, partial)
	}
	return r.Send(ctx, me+1, partial)
}
