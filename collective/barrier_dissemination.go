package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// disseminationBarrier returns when every rank has called it.
//
// In step s every rank notifies the rank 2^s after it. The message says that 2^s ranks have
// called the barrier. With five ranks:
//
//	         step 0   step 1   step 2
//	rank 0   → 1      → 2      → 4
//	rank 1   → 2      → 3      → 0
//	rank 2   → 3      → 4      → 1
//	rank 3   → 4      → 0      → 2
//	rank 4   → 0      → 1      → 3
//
// Cost: ⌈log₂n⌉α.
//
// Nothing is folded.
//
// Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", International
// Journal of Parallel Programming 17(1), 1988.
func disseminationBarrier(ctx context.Context, r *p2p.Round) error {
	n, me := r.Size(), r.Rank()
	for distance := 1; distance < n; distance *= 2 {
		if err := r.Exchange(ctx, modulo(me+distance, n), nil, modulo(me-distance, n), nil); err != nil {
			return err
		}
	}
	return nil
}
