package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// pairwiseAllReduce reduces the vectors that the ranks hold in buf, and leaves the result in buf on
// every rank.
//
// The owner of each chunk receives all ranks' shares of the chunk and folds them. The results then
// go around a ring. The two functions are pairwiseReduceScatter and ringAllGather. With three
// ranks:
//
//	          step 0   step 1   step 2   step 3
//	chunk 0   2 → 0    1 → 0    0 → 1    1 → 2
//	chunk 1   0 → 1    2 → 1    1 → 2    2 → 0
//	chunk 2   1 → 2    0 → 2    2 → 0    0 → 1
//
// Cost: 2(n-1)α + 2m(n-1)/n β + m(n-1)/n γ, and one chunk of scratch memory.
//
// Chunk c becomes op(a, b), where a is the fold of ranks 0 to c, and b is the fold of the ranks
// after c. Both folds begin at their last rank. The order depends on n and the chunk alone, and
// every chunk is folded on one rank, so equal runs give equal bits on all ranks. The order is rank
// order, so the operator need not commute. The algorithm replaces the ring for operators that do
// not commute.
//
// Both halves are described in Thakur, Rabenseifner and Gropp, "Optimization of collective
// communication operations in MPICH", IJHPCA 19(1), 2005.
func pairwiseAllReduce(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	all := evenChunks(r, buf, k.DType().Size())
	own := all.of(r.Rank())
	if err := pairwiseReduceScatter(ctx, r, own, all, k); err != nil {
		return err
	}
	k.Finish(own, r.Size())
	return ringAllGather(ctx, r, all)
}
