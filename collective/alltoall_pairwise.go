package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
)

// pairwiseAllToAll copies chunk i of src to rank i, and receives chunk i of dst from rank i.
//
// In step s, every rank sends to the rank s+1 positions after it and receives from the rank s+1
// positions before it. No two ranks send to the same rank in one step. With four ranks:
//
//	         step 0   step 1   step 2
//	rank 0   → 1      → 2      → 3
//	rank 1   → 2      → 3      → 0
//	rank 2   → 3      → 0      → 1
//	rank 3   → 0      → 1      → 2
//
// Cost: (n-1)α + m(n-1)/n β.
//
// Nothing is folded. Chunks may differ in length.
//
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
// MPICH", IJHPCA 19(1), 2005, section 4.3 (for any number of ranks).
func pairwiseAllToAll(ctx context.Context, r *p2p.Round, dst, src chunks) error {
	n, me := r.Size(), r.Rank()
	copy(dst.of(me), src.of(me))
	for step := range n - 1 {
		to, from := modulo(me+step+1, n), modulo(me-step-1, n)
		if err := r.Exchange(ctx, to, src.of(to), from, dst.of(from)); err != nil {
			return err
		}
	}
	return nil
}
