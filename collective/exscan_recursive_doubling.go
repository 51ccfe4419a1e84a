package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// recursiveDoublingExScan reduces the vectors that ranks 0 to r-1 hold in buf, and leaves the
// result in buf on each rank r. On rank 0 buf is not changed.
//
// In step s each rank sends a fold to the rank 2^s positions after it. The fold has all shares that
// the rank has received, and its own. With five ranks:
//
//	         step 0   step 1   step 2
//	rank 0   0 → 1    0 → 2    0 → 4
//	rank 1   1 → 2    01 → 3
//	rank 2   2 → 3    12 → 4
//	rank 3   3 → 4
//
// Cost: ⌈log₂n⌉(α + mβ), and at most 2⌈log₂n⌉mγ; 2m bytes of scratch memory.
//
// Neighbouring blocks of ranks are folded, the lower block as the earlier operand. The order
// depends on the rank alone, so equal runs give equal bits. The order is rank order, so the
// operator need not commute.
//
// Hillis and Steele, "Data parallel algorithms", CACM 29(12), 1986.
func recursiveDoublingExScan(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	n, me := r.Size(), r.Rank()
	// inclusive is the fold of buf and this rank's share.
	inclusive, arrived := r.Scratch(len(buf)), r.Scratch(len(buf))
	copy(inclusive, buf)
	for distance := 1; distance < n; distance *= 2 {
		sends, receives := me+distance < n, me >= distance
		into := arrived
		if distance == 1 {
			into = buf
		}
		var err error
		switch {
		case sends && receives:
			err = r.Exchange(ctx, me+distance, inclusive, me-distance, into)
		case sends:
			err = r.Send(ctx, me+distance, inclusive)
		case receives:
			err = r.Recv(ctx, me-distance, into)
		default:
			return nil // this rank neither sends nor receives in later steps
		}
		if err != nil {
			return err
		}
		if receives && me+2*distance < n { // the next step sends inclusive
			k.Fold(inclusive, into, inclusive)
		}
		if receives && distance > 1 {
			k.Fold(buf, arrived, buf)
		}
	}
	return nil
}
