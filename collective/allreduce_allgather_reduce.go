package collective

import (
	"context"

	"github.com/tutti-go/tutti/p2p"
	"github.com/tutti-go/tutti/reduce"
)

// allGatherReduceAllReduce reduces the vectors that the ranks hold in buf, and leaves the result in
// buf on every rank.
//
// Every rank gathers all vectors with bruckAllGather, and folds them in a loop. The algorithm suits
// very short vectors, because only the number of steps counts for them. With three ranks:
//
//	         step 0   step 1
//	rank 0   0 → 2    0 → 1
//	rank 1   1 → 0    1 → 2
//	rank 2   2 → 1    2 → 0
//
// Cost: ⌈log₂n⌉α + (n-1)mβ + (n-1)mγ, and 2nm bytes of scratch memory.
//
// Every rank folds the shares in the order 0, 1, …, n-1, one after the other. The result has the
// bits of a serial loop over the ranks, on all ranks. The operator need not commute.
func allGatherReduceAllReduce(ctx context.Context, r *p2p.Round, buf []byte, k reduce.Kernel) error {
	n := r.Size()
	all := evenChunks(r, r.Scratch(n*len(buf)), 1)
	copy(all.of(r.Rank()), buf)
	if err := bruckAllGather(ctx, r, all); err != nil {
		return err
	}
	copy(buf, all.of(0))
	for rank := 1; rank < n; rank++ {
		k.Fold(buf, buf, all.of(rank))
	}
	k.Finish(buf, n)
	return nil
}
