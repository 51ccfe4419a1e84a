package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// recursiveDoublingScan reduces the vectors that ranks 0 to r hold in buf, and leaves the result in
// buf on each rank r.
//
// In step s each rank sends its fold to the rank 2^s after it. The number of shares in a rank's
// fold doubles in each step, until the fold begins at rank 0. With five ranks:
//
//	         step 0   step 1   step 2
//	rank 0   0 → 1    0 → 2    0 → 4
//	rank 1   1 → 2    01 → 3
//	rank 2   2 → 3    12 → 4
//	rank 3   3 → 4
//
// Cost: ⌈log₂n⌉(α + mβ + mγ), and m bytes of scratch memory.
//
// Neighbouring blocks of ranks are folded, the lower block as the earlier operand. The order
// depends on the rank alone, so equal runs give equal bits. The order is rank order, so the
// operator need not commute.
//
// Hillis and Steele, "Data parallel algorithms", CACM 29(12), 1986.
func recursiveDoublingScan(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	n, me := r.Size(), r.Rank()
	arrived := r.Scratch(len(buf))
	for distance := 1; distance < n; distance *= 2 {
		sends, receives := me+distance < n, me >= distance
		var err error
		switch {
		case sends && receives:
			err = r.Exchange(ctx, me+distance, buf, me-distance, arrived)
		case sends:
			err = r.Send(ctx, me+distance, buf)
		case receives:
			err = r.Recv(ctx, me-distance, arrived)
		default:
			return nil // this rank neither sends nor receives in later steps
		}
		if err != nil {
			return err
		}
		if receives {
			k.Fold(buf, arrived, buf)
		}
	}
	return nil
}
