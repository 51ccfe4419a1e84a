package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// pairwiseReduce reduces the vectors that the ranks hold in src, and leaves the result in dst on
// the root. dst may be the same memory as src, and is ignored on other ranks.
//
// The owner of each chunk receives all ranks' shares of the chunk and folds them. The root then
// gathers the results. The two functions are pairwiseReduceScatter and linearGather. With three
// ranks, to root 0:
//
//	          step 0   step 1   step 2   step 3
//	chunk 0   2 → 0    1 → 0
//	chunk 1   0 → 1    2 → 1    1 → 0
//	chunk 2   1 → 2    0 → 2             2 → 0
//
// Cost: 2(n-1)α + 2m(n-1)/n β + m(n-1)/n γ, and two chunks of scratch memory.
//
// Chunk c becomes op(a, b), where a is the fold of ranks 0 to c, and b is the fold of the ranks
// after c. Both folds begin at their last rank. The order depends on n and the chunk alone, so
// equal runs give equal bits, whatever the root. The order is rank order, so the operator need not
// commute.
//
// The first half is described in Thakur, Rabenseifner and Gropp, "Optimization of collective
// communication operations in MPICH", IJHPCA 19(1), 2005.
func pairwiseReduce(ctx context.Context, r *p2p.Round, root int, dst, src []byte, k reduce.Kernel) error {
	shares := evenChunks(r, src, k.DType().Size())
	own := r.Scratch(len(shares.of(r.Rank())))
	if err := pairwiseReduceScatter(ctx, r, own, shares, k); err != nil {
		return err
	}
	return linearGather(ctx, r, root, shares.withBuffer(dst), own)
}
